"""What a computation looks like to the rules, both targets: nothing here changes a schedule.

- `views`: stages by name with inlined ones substituted, who reads whom, constant extents
- `nests`: patterns of loop nests
- `groups`: which stages share a kernel
- `chains`: cascaded reductions, and what one online loop needs for them
"""
