"""Primitives that rewrite the graph of operations; axes of other stages stay the same objects.

- `cache`: cache_read, cache_write; `recompute`: a stage computed twice
- `rfactor`: split reductions
- `divide`, `divide_legality`: a result that two stages store
"""
