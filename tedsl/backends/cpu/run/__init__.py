"""LLVM text to machine code in this process.

- `machine`: the processor that code is made for
- `jit`: from text to something that can be called
- `single_lanes`: masked stores that LLVM gets wrong, written otherwise
- `linking`: sections side by side, calls that reach any distance
- `thread_pool`: the process's pool of threads
- `thread_pool_ir`: the pool in LLVM IR
- `asm_stats`: what can be read off the assembly
"""
