"""Memory that kernels run on.

- `dlpack`: a DLPack capsule
- `views`: arrays of any framework as a pointer, a shape and strides
- `allocation`: memory for outputs and workspaces
"""
