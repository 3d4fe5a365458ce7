"""Schedules written for threads: what they compute together has the dimensions of the result,
however deep its loops were split for them."""

from __future__ import annotations

from typing import Any

import pytest
from lowering import agrees

import tedsl as te


def five_levels(size: int, shared: bool, vectorize: bool) -> te.Schedule:
    """A product, both sides split five times from outside, as a search for TVM splits them: blocks,
    virtual threads, threads, and two levels of each thread's own."""
    A, B = (te.placeholder((size, size), name=name) for name in "AB")
    k = te.reduce_axis((0, size), name="k")
    C = te.compute((size, size), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    s = te.create_schedule(C)
    copies = [s[s.cache_read(x, "shared", [C])] for x in (A, B)] if shared else []

    def parts(axis: Any, *factors: int) -> list[Any]:
        found: list[Any] = []
        for factor in factors:
            axis, inner = s[C].split(axis, factor=factor)
            found.insert(0, inner)
        return [axis, *found]

    i, j = (parts(axis, 2, 2, 2, 2) for axis in s[C].op.axis)
    (k,) = s[C].op.reduce_axis
    deep = parts(k, 4, 4)
    order = [i[0], j[0], i[1], j[1], i[2], j[2], deep[0], deep[1], i[3], j[3], deep[2], i[4], j[4]]
    s[C].reorder(*order)
    for n, tag in enumerate(("blockIdx.x", "vthread", "threadIdx.x")):
        s[C].bind(s[C].fuse(i[n], j[n]), te.thread_axis(tag))
    if vectorize:
        s[C].vectorize(j[4])
    for copy in copies:
        copy.compute_at(s[C], deep[0])
    return s


@pytest.mark.parametrize("size", [32, 26])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("vectorize", [False, True])
def test_levels_of_loops_are_one_dimension_each(size: int, shared: bool, vectorize: bool) -> None:
    """Seven dimensions took Triton no end."""
    s = five_levels(size, shared, vectorize)
    source = te.build(s, target="cuda:sm_90", cache=False).source
    assert "None, :, None" not in source and "[:, :, None]" not in source
    assert ("tl.dot" in source) is shared
    assert agrees(s)
