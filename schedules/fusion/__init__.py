"""Which stages share a kernel, decided for both targets before any kernel is scheduled.

- `vertical`: producer and consumer: inlined, as prologue, as epilogue, as reduction
- `stacked`: results along a short axis that share what they are computed from
- `horizontal`: pointwise kernels side by side: in one loop, or in one launch
"""
