"""Several problems or several sizes in one search.

- `size_case`: one of several sizes: its problem and what was found there
- `size_transfer`: what is expected of a candidate at each size
- `size_racing`: at which sizes the candidates of a batch are tried
- `multi_size`: the search for many sizes
- `kernel_set_cover`: a few kernels, so that no size loses much
- `dispatcher`: the kernels behind one call
- `task_scheduler`: many problems under one budget
"""
