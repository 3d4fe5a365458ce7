"""Several stages in one kernel: compute_with, compute_last; several programs for one stage:
compute_across.

- `horizontal`: which stages may share loops or a grid
- `last_block`: which the last program to arrive may compute
- `grid_barrier`: which programs that wait for each other may compute together
"""
