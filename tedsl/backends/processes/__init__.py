"""Processes that may crash or hang.

- `serving`: the process: requests in, replies out
- `pool`: processes started, asked, timed, killed and replaced
- `beside`: those that compile for this process, where threads would take turns
- `beside_main`: such a process: `python -m tedsl.backends.processes.beside_main`
"""
