"""From loop IR to code that runs: `cpu` (LLVM) and `triton` (source text).

- `call_fragments`: text that a backend contributes to the function of a kernel's calls
"""
