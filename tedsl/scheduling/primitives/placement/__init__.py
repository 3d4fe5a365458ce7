"""Where a stage is computed: compute_at, compute_inline, compute_root.

`groups` are stages that are placed together.  `rewrite` has set_scope and launch as well.
"""
