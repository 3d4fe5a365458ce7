"""What is launched: which stages share a kernel, in which phases and loops.

Here belongs what is derived of a plan about its kernels, for checks, printing, lowering and
explaining alike.  Nothing changes a plan but to complete it for a target.

- `tree`: kernels, their phases and loops, and questions about them
- `printer`: the loop nest as text
- `complete`: what a target implies; `updates`: without an atomic update; `tile_room`: how large
  tiles may be that nobody asked for; `thread_tiles`: schedules written for threads
- `verify`: what holds after each pass
"""
