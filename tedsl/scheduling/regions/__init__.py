"""What each stage computes at the place where it is attached, and how its loops run.

- `span`: how far two integer expressions are apart
- `boxes`: the elements of a stage that others read while some loops stand still
- `loop_bounds`: the loops of a stage that computes a region
- `sliding_window`: what an iteration still has to compute where storage is outside (`store_at`)
- `computed_indices`: regions that are where a result says (`P[X[i]]`)
- `infer`: the bounds of all stages of a plan
- `match_intrinsic`: whether loops compute what an intrinsic declares
- `recompute_report`: how often the same element is computed, and which loop makes it so
"""
