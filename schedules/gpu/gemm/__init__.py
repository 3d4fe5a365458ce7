"""Contractions on GPUs: GEMM, batched GEMM, implicit-GEMM convolution.

- `gemm`: the rule: tiles over the grid, then mainloop and epilogue
- `operand_layouts`: how operands lie in memory, and copies that tiles are loaded from
- `flattened_axes`: implicit GEMM: several output axes as one M or N
- `cost_model`: clocks for a tile size, for the default tile
- `tile_scheduler`: the swizzle of the grid, persistent programs
- `tile_order`: tiles of several heads, or images: which come first
- `mainloop`: the K loop: stages, TMA, tensor cores
- `k_steps`: steps of the K loop, and along which axis their lanes are
- `shared_operand`: several GEMMs in one mainloop
- `stationary_operand`: small K: rows of A stay, the program walks along N
- `stream_k_tail`: stream-K for the last partial wave
- `row_reduction_epilogue`: row and column reductions of the result in its tiles
"""
