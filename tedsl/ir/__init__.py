"""Third room: the loop IR.  `nodes` is what it is, `interp` what it means, `verify` its rules."""
