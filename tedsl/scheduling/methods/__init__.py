"""What a user calls on a stage or a schedule, one file per family: the arguments, the documentation
and the step of the trace of each primitive; `primitives` does the work.
"""
