"""What a user gives to a search, and what comes back.

- `options`: the keywords of `te.autotune`
- `sizes`: which sizes to tune for
- `settings`: what follows from the options: trials, limits, time
- `driver`: from tensors and options to the result
- `result`: what a search gives back
- `lockfile`: `tedsl.lock`: schedules that a program is pinned to
- `space_summary`: `te.space`: what there is to choose
"""
