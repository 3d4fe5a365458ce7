"""A store beside an output does not go unnoticed."""

from __future__ import annotations

import numpy as np
import pytest
from red_zones import ZONE, red_zones

import tedsl as te
from tedsl.runtime import kernel as runtime
from tedsl.runtime.arguments.signature import ArraySpec


@pytest.mark.cpu
def test_a_sound_kernel_passes() -> None:
    x = te.placeholder((7,), name="x")
    kernel = te.build(te.compute((7,), lambda i: x[i] + 1.0, name="y"), "cpu")
    with red_zones():
        found = kernel(np.ones(7, np.float32))
    np.testing.assert_array_equal(found, np.full(7, 2.0, np.float32))


@pytest.mark.parametrize("place", [-1, -ZONE, 28, 28 + ZONE - 1])
def test_a_byte_beside_the_array_is_found(place: int) -> None:
    with pytest.raises(AssertionError, match=rf"28 bytes were given; .*\[{place}\]"), red_zones():
        made = runtime.numpy_allocator(ArraySpec((7,), te.DType.float32))()
        whole = made.base
        assert isinstance(whole, np.ndarray)
        begin = made.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        whole[begin + place] = 0
