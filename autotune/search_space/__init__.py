"""What there is to choose.

- `problem`: the rules, or a user's function, as a function of choices
- `space`: the tree of named choices that it draws, define by run
- `constant_sizes`: computations whose sizes are constants of a function
- `anonymous_names`: names of stages left out, so that records fit programs that differ in names
"""
