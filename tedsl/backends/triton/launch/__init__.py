"""A program on a GPU.

- `launch_plan`: what a call launches, for its sizes
- `launcher`: programs with PyTorch's tensors as memory
- `c_launcher`: the quickest way into a compiled kernel
- `semaphores`: counters of last-block reductions and grid barriers
"""
