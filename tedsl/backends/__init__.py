"""From loop IR to code that runs: `cpu` (LLVM) and `triton` (source text).

- `parallel`: kernels that compile at once, in threads
- `processes`: and in processes beside this one
- `call_fragments`: text that a backend contributes to the function of a kernel's calls
"""
