"""Is a kernel right: inputs, expected outputs, tolerance.  Below the search, which asks it of every
candidate; imports what is below and, for expected outputs of large computations, `build`.

- `random_inputs`: inputs of every kind
- `expected_outputs`: by the NumPy oracle, or by a kernel that it has checked
- `sampled_outputs`: some elements of a large output by the oracle
- `tolerance`: is an output right
- `rounding_flips`: which other values an element may have beside a step
- `array_chunks`: large arrays by several threads
- `other_sizes`: sizes at which a kernel has to be right as well
- `shrink_problem`: a smaller copy of a computation
- `checked`: `te.checked`
- `step_check`: the check after every primitive call
- `minimise`: `te.minimise`, a small program that fails as a given one does
- `simpler_programs`: what it tries
- `written_out`: definitions as Python
"""
