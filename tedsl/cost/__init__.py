"""What a kernel asks of a device, whether it can launch, and how long it should take, before
anything runs.

`estimate` works on the lowered program alone and needs no GPU and no compiler (tier 0); the exact
shared memory is `tedsl.backends.triton.compile.shared_memory_early` (tier 1), registers and code
come with the compiled kernel (tier 2).  Nothing here knows an operator: all figures come from tile
values, loops and accesses.  Imports `ir`, `expr` and `runtime`.

- `devices`: what the model knows of a device
- `roofline`: what any schedule has to move and calculate
- `statement_list`: what the programs of a kernel do; `trip_counts`: how often
- `sampled_indices`: index expressions at many points; `accesses`: what moves; `dram_traffic`:
  bytes from and to memory; `l2_sharing`: what the second-level cache saves
- `instruction_costs`: instructions of a statement; `register_pressure`: registers and shared
  memory; `split_products`: what products of float32 in parts hold
- `gpu`, `cpu`: seconds of a kernel; `estimate`: of a program, with features for learned models
"""
