"""Pairwise reductions on GPUs: the loops of a GEMM without multiply-add.

- `pairwise`: the rule: register tiles, one outer product for each step
"""
