"""Outputs and workspaces with bytes around them that a kernel must leave as they are."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np

from tedsl.runtime import kernel
from tedsl.runtime.arguments.signature import ArraySpec
from tedsl.runtime.arrays.allocation import ALIGNMENT
from tedsl.runtime.arrays.views import NUMPY_DTYPES, AnyArray, numpy_pointer

ZONE = 256  # bytes: more than the widest store
MARK = 0xA5


def displaced(array: AnyArray, elements: int) -> AnyArray:
    """A copy that begins `elements` after an address fit for any vector: a slice is such an
    array."""
    shift = elements * array.itemsize
    raw = np.empty(array.nbytes + ALIGNMENT + shift, np.uint8)
    begin = -numpy_pointer(raw) % ALIGNMENT + shift
    made: AnyArray = np.ndarray(array.shape, array.dtype, raw, begin)
    made[...] = array
    return made


@contextmanager
def red_zones(elements: int = 0) -> Generator[None]:
    """What kernels called for the first time inside this allocate is guarded, and looked at when it
    ends.

    Args:
        elements: how far from an address fit for any vector outputs and workspaces begin.

    Raises:
        AssertionError: a byte beside an output or a workspace was written.
    """
    given: list[tuple[AnyArray, int, int]] = []

    def allocator(spec: ArraySpec) -> Callable[[], AnyArray]:
        def make() -> AnyArray:
            raw = np.full(spec.nbytes + ALIGNMENT + 3 * ZONE, MARK, np.uint8)
            begin = ZONE + -(numpy_pointer(raw) + ZONE) % ALIGNMENT
            begin += elements * spec.dtype.nbytes
            given.append((raw, begin, begin + spec.nbytes))
            return np.ndarray(spec.shape, NUMPY_DTYPES[spec.dtype], raw, begin)

        return make

    with patch.object(kernel, "numpy_allocator", allocator):
        yield
    for raw, begin, end in given:
        changed = np.flatnonzero(raw != MARK)
        places = (changed[(changed < begin) | (changed >= end)] - begin).tolist()
        assert not places, f"{end - begin} bytes were given; written beside them: {places[:8]}"
