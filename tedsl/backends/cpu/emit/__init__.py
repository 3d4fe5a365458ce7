"""Loop IR to the text of an LLVM module.

- `module`: functions, loops, parallel bodies
- `parallel_tasks`: what a parallel body uses, and how much work it is
- `allocation`: memory of buffers inside a kernel
- `prefetch`: pipelined loops
- `statements`: tile statements
- `tiling`: which axis becomes SIMD lanes, how wide, what is unrolled
- `frame`: what is known while one function is written
- `values`: expressions
- `arith`: operators
- `casts`: conversions between element types
- `memory`: loads and stores
- `affine`: index expressions as polynomials, for addresses
- `atomics`: atomic updates
- `intrinsics`: intrinsics of the user
- `types`: element types in memory and in registers
- `llvm_values`: arithmetic on LLVM values with Python's operators
- `llvm_text`: the builder of text
"""
