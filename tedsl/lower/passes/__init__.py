"""From loop IR to loop IR; most files are named for their pass, in the order of `pipeline`:

- `mark_last_reads`, `cut_loops`, `simplify`, `shorten_loops`, `partition_loops`,
  `choose_intrinsics`, `run_backwards`, `through_memory`: over nests of loops
- `vectorize_loops`: from loops to tiles; `masks`: conditions there
- `check_registers`, `carry_states`, `order_lanes`, `widen_accumulators`, `tabulate` (operands),
  `check_limits`, `fetch_ahead`, `choose_warps`: over tiles; `tile_operations` has what becomes one
  operation
- `fresh_copies`: statements that stand twice
"""
