"""Loops carried out by an intrinsic that the user declared; the method is in `marks/api`.

- `legality`: tensorized stages still do
- `rewrite`: tensorize
"""
