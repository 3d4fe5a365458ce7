"""Rules for GPUs: a folder for each shape of loop nest, and here what several of them use.

- `select`: which rule a kernel gets, and the rule for pointwise kernels
- `candidates`: of several rules for a kernel the quickest by the cost model
- `launch`: the grid, persistent programs, `num_warps`, register limits
- `split_reduction`: split-K, and long rows with few results, over several programs
- `last_block`: the last program to arrive combines what the others have left
- `cache_policy`: L2 eviction priorities
- `compile_time`: smaller choices where compilers would take too long

The rules are in `pointwise`, `rows`, `columns`, `pairwise`, `gemm`, and `cascade` for contractions
that depend on other reductions, as attention does.
"""
