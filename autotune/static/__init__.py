"""What can be said of a candidate before anything runs: what it asks for, whether it can launch,
how fast it should be.

`estimate` works on the lowered program alone and needs no GPU and no compiler (tier 0); the exact
shared memory is `tedsl.backends.triton.early` (tier 1), registers and code come with the compiled
kernel (tier 2).  Nothing here knows an operator: all figures come from tile values, loops and
accesses.  Imports `ir`, `expr` and `runtime`.
"""
