"""What stands for methods that schedules and stages have in other languages: newer TVM, Halide.

`tedsl.slips` says so where they are asked for.  Imports nothing."""

SCHEDULE = {
    "get_block": "s[T], or s['name'], is a stage",
    "get_loops": "s[T].leaf_iter_vars are the loops, s[T].op.axis those of the definition",
    "get_sref": "s[T], or s['name'], is a stage",
    "mod": "te.lower(s) is the loop IR",
    "show": "print(s)",
    "work_on": "s[T], or s['name'], is a stage of the one function that there is",
}
"""By attribute of a schedule."""
STAGE = {
    "inline": "s[T].compute_inline()",
    "at": "s[T].compute_at(s[consumer], axis)",
    "compute_at_root": "s[T].compute_root()",
    "decompose_reduction": "a reduction's start is placed by itself; s.rfactor(T, axis) splits it",
    "annotate": "s[T].pragma(axis, name, value)",
}
"""By attribute of a stage."""
LOWERED = {
    "body": "print it: the loops of each kernel are in .funcs, nodes of tedsl.ir.nodes",
    "script": "print it",
    "show": "print it",
    "functions": "the kernels are .funcs",
    "get_global_vars": "the kernels are .funcs",
    "params": "the arguments are .inputs and .outputs",
}
"""By attribute of what `te.lower` gives."""
