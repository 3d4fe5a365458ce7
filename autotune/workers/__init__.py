"""Processes that compile and measure, and may crash or hang.

- `protocol`: jobs, orders, limits, and answers to them
- `local_executor`: batches in, outcomes out, on this machine
- `worker_questions`: what else workers are asked: estimates, decisions, comparisons
- `worker_main`: the process: `python -m tedsl.autotune.workers.worker_main`
- `session_server`: several problems in one process
- `session`: one problem in a process: built, checked, timed
- `time_limits`: how long the next compilation or measurement may take
- `device_lock`: one holder of a device at a time
- `scratch_dir`: the files of one search
- `interrupt`: Ctrl-C
- `utilization`: when the measuring worker had something to do
"""
