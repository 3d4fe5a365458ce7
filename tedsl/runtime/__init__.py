"""Running kernels: arrays, argument checks, `Kernel`, the on-disk cache, memory, timing.

The names here are public as `te.runtime.<name>`.
"""

from tedsl.runtime.cache import set_cache_dir
from tedsl.runtime.memory import release_memory
from tedsl.runtime.timing import Stats, compare, compare_cuda, measure, measure_cuda

__all__ = [
    "Stats",
    "compare",
    "compare_cuda",
    "measure",
    "measure_cuda",
    "release_memory",
    "set_cache_dir",
]
