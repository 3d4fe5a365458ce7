"""From source to cubin.

- `source_files`: generated source as real files
- `compile_time`: an estimate of how long compilers will take
- `assembler`: PTX that ptxas gets wrong, written otherwise
- `shared_memory_early`: the exact shared memory, before LLVM and ptxas
- `offline`: cubins without a GPU, and what they ask of one
"""
