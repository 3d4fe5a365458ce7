"""Running kernels: arrays, argument checks, `Kernel`, the on-disk cache, timing."""
