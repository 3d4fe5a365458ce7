"""From a producer to its reader: reverse_compute_at, reverse_compute_inline; and the start of a
reduction as a stage of its own, decompose_reduction.
"""
