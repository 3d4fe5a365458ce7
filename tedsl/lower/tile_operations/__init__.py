"""Which statements over tiles are an operation of their own on a GPU: matrix products (`Dot`) and
running folds (`Accumulate.along`).

- `pad_products`: sides that are too short for matrix units, made long enough
- `find_prefixes`: folds over a triangle, as running folds along a tile
- `find_dots`: reductions of products, as matrix products; `missed_dots`: why one is none
"""
