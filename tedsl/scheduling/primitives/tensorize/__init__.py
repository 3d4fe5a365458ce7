"""Loops carried out by an intrinsic that the user declared; the method is in `marks/api`.

- `match`: whether loops compute what an intrinsic declares
- `legality`: tensorized stages still do
- `rewrite`: tensorize
"""
