"""Is a candidate right, and how fast is it: what a worker does on the device.

- `pruning`: what the cost model refuses before anything is compiled or run
- `guarded_buffers`: inputs and outputs between guarded margins
- `reference_cache`: inputs and expected outputs, made once for all processes
- `bench`: checked and timed
- `timer`: how long calls take, on the host and on a GPU
- `paired_ratios`: is one of two kernels faster, and when to stop asking
- `final_comparison`: the fastest few against one another
"""
