"""Loop structure: split, tile, fuse, reorder.

`legality` has what is asked of loops and marks alike.
"""
