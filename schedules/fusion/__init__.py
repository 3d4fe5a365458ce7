"""Which stages share a kernel, decided for both targets before any kernel is scheduled.

- `vertical`: producer and consumer: inlined, as prologue, as epilogue, as reduction
- `recomputation`: what each reader computes again, judged by bytes
- `unflattened`, `regrouped`: axes put together and taken apart, so that stages have the same rows
- `row_results`, `row_partials`, `sibling_folds`: what a kernel of rows stores beside its own
- `stacked`: results along a short axis that share what they are computed from
- `horizontal`: pointwise kernels side by side: in one loop, or in one launch
"""
