"""Third room: the loop IR.  `nodes` says what it is, `interp` what it means, `verify` what is allowed."""
