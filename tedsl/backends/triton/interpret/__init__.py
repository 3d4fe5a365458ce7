"""Programs on NumPy arrays, in Triton's interpreter.

- `client`: starts a process and asks it
- `server`: the process, which imports nothing of tedsl
- `inline_ptx`: PTX instructions on NumPy arrays
"""
