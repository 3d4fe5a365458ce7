"""Where a result lives, and the options of its kernel: store_at, store_root, rolling_buffer,
set_scope, launch.

The rewrites are in `placement/rewrite`.
"""
