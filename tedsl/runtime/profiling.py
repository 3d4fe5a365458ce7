"""`te.runtime.profile_ranges()`: kernels by name in the timeline of a profiler.

Off, it costs nothing: calls are wrapped while it is on, and only then.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tedsl.errors import BackendError
from tedsl.packages import install

if TYPE_CHECKING:
    from tedsl.runtime.kernel import Kernel

_LOCK = threading.Lock()
_PLAIN: list[Callable[..., Any]] = []
"""The call of a kernel as it is without ranges, once for each block that is open."""


@contextmanager
def profile_ranges() -> Generator[None]:
    """Within it each call of a kernel is a range of `torch.profiler`, and on a GPU an NVTX range,
    which Nsight Systems shows: `tedsl softmax: softmax.max, softmax.sum, softmax`, the kernel and
    what is launched in it, in order.  May be nested, and entered by several threads.

    Example::

        with torch.profiler.profile() as found, te.runtime.profile_ranges():
            kernel(x)
        print(found.key_averages().table())

    Raises:
        BackendError: PyTorch, whose profiler it is, is not installed.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise BackendError(
            "ranges are those of PyTorch's profiler, and PyTorch is not installed",
            subject="profile_ranges",
            hint=install("torch"),
        ) from error

    def ranged(self: Kernel, /, *inputs: Any, **options: Any) -> Any:
        with ExitStack() as stack:
            name = range_name(self)
            stack.enter_context(torch.profiler.record_function(name))
            if self.target.is_triton and torch.cuda.is_available():
                stack.enter_context(torch.cuda.nvtx.range(name))
            return plain(self, *inputs, **options)

    kind: Any = importlib.import_module("tedsl.runtime.kernel").Kernel
    with _LOCK:
        plain = _PLAIN[0] if _PLAIN else kind.__call__
        _PLAIN.append(plain)
        kind.__call__ = ranged
    try:
        yield
    finally:
        with _LOCK:
            kind.__call__ = ranged
            if not _PLAIN[1:]:
                kind.__call__ = plain
            _PLAIN.pop()


def range_name(kernel: Kernel) -> str:
    """What the range of a call is called."""
    return f"tedsl {kernel.name}: {', '.join(func.name for func in kernel.module.funcs)}"
