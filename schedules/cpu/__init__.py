"""Rules for the CPU: one file for each shape of loop nest.

- `select`: which rule a kernel gets, and the rule for pointwise kernels
- `tasks`: rows for each task of the thread pool
- `contraction`: GEMM, batched GEMM, convolution: register tiles, cache blocks, packing
- `cascade`: flash attention: cascaded reductions between two contractions
- `rows`: row reductions and what reads them
- `columns_and_full`: column reductions, and reductions to a scalar
- `stacked_results`: results along a short axis that share what they are computed from
- `shared_inputs`: horizontal fusion of kernels that read one input
"""
