"""What a call is given, checked.

- `order`: the order of arguments that a user named
- `signature`: arguments against the kernel's signature, and the symbolic sizes
- `sizes`: integer expressions over runtime scalars
- `index_ranges`: whether index arithmetic stays within its integer type
"""
