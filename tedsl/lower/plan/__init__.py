"""From plan to plan: what a target needs before loops are built.

- `scan_steps`: rows for every init of a scan; whether its steps are a loop or launches
- `atomic_starts`: nests that initialise the results of atomic reductions
- `kernel_versions`: versions of a kernel for some sizes
"""
