"""How a loop runs: bind, vectorize, unroll, parallel, pipeline, reverse, serial, dot.

`atomic` is the legality of atomic reductions; what else is asked of a mark is in `loops/legality`
and, for lanes, in `invariants/lane_counts`.
"""
