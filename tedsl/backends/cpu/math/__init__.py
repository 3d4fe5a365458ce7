"""Mathematical functions as LLVM IR, vectorised.

- `functions`: which implementation serves which type
- `core`: what float32 and float64 share
- `float32`: functions of float32
- `float64`: functions of float64
"""
