"""What is launched: which stages share a kernel, in which phases and loops.

Here belongs what is derived of a plan about its kernels, for checks, printing, lowering and
explaining alike, and nothing that changes a plan.

- `tree`: kernels, their phases and loops, and questions about them
- `printer`: the loop nest as text
"""
