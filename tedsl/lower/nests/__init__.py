"""From plan to loop IR: the loop nests of the stages.

- `context`: where tensors live, what expressions read there, and loops
- `reduction`: initialise, accumulate, store; online reductions
- `divided`: parts of a result, stored in place
- `shared_loops`: horizontal fusion; `last_block`: what the last program to arrive computes;
  `grid_barrier`: where programs wait for each other
- `kernels`: the nests of all stages; `callers_arrays`: outputs in another layout
- `host_calls`: which function of an extern the target runs
"""
