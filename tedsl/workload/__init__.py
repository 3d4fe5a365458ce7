"""A computation as data: how it travels to a worker and into records.

- `workload`: a graph as JSON, and its hash without names
- `decode`: JSON back to operations
- `extents`: its shapes under given sizes
"""
