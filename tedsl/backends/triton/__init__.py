"""The Triton backend: loop IR to readable source, compiled offline, interpreted or launched.

- `emit`: loop IR to one source file
- `math`: operators in it, and how accurate they have to be
- `compile`: source to cubin, without a GPU
- `launch`: on a GPU
- `interpret`: on NumPy arrays
"""
