"""Calls of a kernel, and what makes the next one cheaper.

- `forms`: what calls have in common that need one check
- `direct`: a call like the last one, as a function written for it
- `host_steps`: functions from outside, between kernels
- `recording`, `graphed`: calls recorded into a CUDA graph, and replayed
"""
