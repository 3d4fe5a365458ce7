"""Ranges of a profiler: named, in order, and gone afterwards."""

from __future__ import annotations

import numpy as np
import pytest

import tedsl as te
from tedsl.runtime import profiling


@pytest.mark.cpu
def test_calls_are_ranges_while_it_is_on() -> None:
    torch = pytest.importorskip("torch")
    x = te.placeholder((8, 8), name="x")
    y = te.compute((8, 8), lambda i, j: x[i, j] * 2, name="y")
    z = te.compute((8, 8), lambda i, j: y[i, j] + 1, name="z")
    kernel = te.build(te.create_schedule(z), "cpu")
    plain = te.Kernel.__call__
    values = np.ones((8, 8), np.float32)
    with torch.profiler.profile(acc_events=True) as found, te.runtime.profile_ranges():
        with te.runtime.profile_ranges():
            assert np.array_equal(kernel(values), values * 2 + 1)
        assert np.array_equal(kernel(x=values), values * 2 + 1)
    kernel(values)
    ranges = [event.name for event in found.events() if event.name.startswith("tedsl")]
    assert ranges == ["tedsl z: y, z"] * 2 and profiling.range_name(kernel) == ranges[0]
    assert te.Kernel.__call__ is plain


@pytest.mark.cpu
def test_it_ends_with_an_error_of_the_block() -> None:
    pytest.importorskip("torch")
    plain = te.Kernel.__call__
    with pytest.raises(ValueError, match="of the block"), te.runtime.profile_ranges():
        raise ValueError("of the block")
    assert te.Kernel.__call__ is plain
