"""Loop IR to one Triton source file.

- `module`: the file, and its kernels
- `program`: what comes of it: source and how to call each kernel
- `writer`: the growing text of one kernel
- `names`: names in it
- `statements`: statements
- `reduction`: reductions over tile axes
- `dots`: `tl.dot`
- `descriptors`: tensor descriptors, which TMA serves
- `address`: pointers and offsets
- `masks`: masks as lists of conditions
- `dividends`: quotients and remainders that are never negative
- `wide_clamps`: clamps in which ptxas loses a sign
- `divisibility`: proved divisibility, written so that Triton sees it
- `axis_analysis`: what Triton's analysis of addresses may be shown, so that it is never wrong
- `values`: expressions
- `float8`: 8-bit floats
- `intrinsics`: Triton functions of the user
- `user_kernels`: Triton kernels of the user
"""
