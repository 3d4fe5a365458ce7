"""Reductions on GPUs across what is contiguous, and to a scalar.

- `columns`: the rule: lanes are results; few results split the reduced axis
- `full_reductions`: to a scalar
- `sibling_sums`: several of either that read the same, in one kernel
"""
