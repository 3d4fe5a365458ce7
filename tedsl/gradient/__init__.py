"""Derivatives of tensor expressions, as tensor expressions.

- `api`: `te.gradient`
- `scan`: reverse mode over a graph that has scans
- `backward`: reverse mode over a graph of definitions
- `scan_steps`: the steps of a scan as definitions, last step first
- `reduce`: what a definition passes back
- `sweep`: from the adjoint of a body to those of its reads
- `rules`: derivatives of scalar operators
- `solve`: which points of an iteration space read an element
- `divisions`: divisions of one index by several numbers
- `zero`: adjoints that are zero by algebra
"""
