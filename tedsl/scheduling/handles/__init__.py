"""What a user holds: a schedule and its stages, and what is given to primitives.

- `thread_axis`, `index_map`, `auto`: arguments of primitives; `auto_choices`: what `te.auto`
  stands for
- `schedule`: the stages of a computation, the trace of what was decided, its knobs
- `stage`: one operation of a schedule
- `observers`: who is told after each step
- `fallback`: what of the default rules was refused
- `tvm_schedule`: TVM's module `te.schedule`
"""
