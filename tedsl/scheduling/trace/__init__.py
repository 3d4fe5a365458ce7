"""The calls of a schedule, written down and made again.

- `trace`: the calls with stable names, as values that print and serialise
- `as_python`: a trace as Python text that makes the same schedule
- `replay`: the same calls on a new schedule, and what is left of them where some do not apply
"""
