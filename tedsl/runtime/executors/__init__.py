"""How a module becomes code, and how a call runs it.

- `by_target`: the executor of a target, and that of the CPU
- `triton`: in Triton's interpreter, compiled only, or on the GPU
"""
