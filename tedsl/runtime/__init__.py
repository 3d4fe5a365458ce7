"""Running kernels: arrays, argument checks, `Kernel`, the on-disk cache, memory, timing.

The names here are public as `te.runtime.<name>`.

- `arrays`: memory that kernels run on; `arguments`: what a call is given, checked
- `executors`: how a module becomes code; `cache`: code kept on disk
- `kernel`: what `te.build` returns; `calls`: what makes its next call cheaper
- `timing`: how long calls take
"""

from types import FunctionType
from typing import TYPE_CHECKING

from tedsl.errors import BackendError
from tedsl.runtime.arrays.allocation import release_memory
from tedsl.runtime.cache.disk import set_cache_dir
from tedsl.runtime.like_module import convert
from tedsl.runtime.profiling import profile_ranges
from tedsl.runtime.timing import Stats, compare, compare_cuda, measure, measure_cuda
from tedsl.slips import in_module
from tedsl.tensor.signatures import explained

__all__ = [
    "Stats",
    "compare",
    "compare_cuda",
    "convert",
    "measure",
    "measure_cuda",
    "profile_ranges",
    "release_memory",
    "set_cache_dir",
]

if not TYPE_CHECKING:  # a type checker knows the names there are
    for _name in __all__:
        if isinstance(globals()[_name], FunctionType):
            globals()[_name] = explained(globals()[_name], BackendError)
    __getattr__ = in_module(__name__, __all__)
