"""Reductions on GPUs across what is contiguous, and to a scalar.

- `columns_and_full`: the rule: lanes are results; few results split the reduced axis
"""
