"""Records calls on a CUDA stream into a graph, and leaves PyTorch usable where that fails.

Imports nothing of tedsl.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def recording(torch: Any, graph: Any, **options: Any) -> Generator[None]:
    """Record what the block launches on the current stream into `graph`.

    Garbage is not collected meanwhile: kernels and graphs that are freed during a recording spoil
    it.  After a recording that failed PyTorch takes its random numbers for those of a graph, so
    that none can be drawn outside; an empty recording mends that.

    Args:
        torch: the module.
        graph: a `torch.cuda.CUDAGraph`.
        options: those of its `capture_begin`.

    Raises:
        RuntimeError: if the device cannot record it.
    """
    collects, begun, recorded = gc.isenabled(), False, False
    gc.disable()
    try:
        graph.capture_begin(**options)
        begun = True
        yield
        begun = False
        graph.capture_end()
        recorded = True
    finally:
        if begun:
            with suppress(RuntimeError):
                graph.capture_end()
        if not recorded:
            with suppress(RuntimeError):  # of a device that takes no more work: the next call tells
                _record_nothing(torch)
        if collects:
            gc.enable()


def _record_nothing(torch: Any) -> None:
    empty = torch.cuda.CUDAGraph()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is empty
        empty.capture_begin()
        empty.capture_end()
