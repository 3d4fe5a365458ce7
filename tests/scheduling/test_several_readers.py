"""One attached producer with several readers (its region is their union), and n-D tiles."""

from __future__ import annotations

from typing import Any

import pytest
from computations import chain
from lowering import agrees
from refusals import refused

import tedsl as te


def halo() -> tuple[Any, Any, Any, Any]:
    """P is read by Q at two rows, by R at two columns, and by S."""
    A = te.placeholder((20, 18), name="A")
    P = te.compute((20, 18), lambda i, j: A[i, j] * 2, name="P")
    Q = te.compute((19, 18), lambda i, j: P[i, j] + P[i + 1, j], name="Q")
    R = te.compute((20, 17), lambda i, j: P[i, j] - P[i, j + 1], name="R")
    S = te.compute((19, 17), lambda i, j: Q[i, j] * R[i, j] + P[i, j], name="S")
    return P, Q, R, S


def regions(s: te.Schedule, stage: Any) -> list[int]:
    bounds = te.schedule.InferBound(s)
    return [int(str(bounds[axis].extent)) for axis in s[stage].op.axis]


def test_readers_attached_at_different_loops(golden):
    P, Q, R, S = halo()
    s = te.create_schedule(S)
    _io, jo, ii, _ji = s[S].tile(*s[S].op.axis, 8, 4)
    s[Q].compute_at(s[S], jo)
    s[R].compute_at(s[S], ii)
    s[P].compute_at(s[S], jo)
    assert regions(s, P) == [9, 5]
    assert regions(s, R) == [1, 4]
    golden(str(s))
    assert agrees(s, targets=("cpu",))


def test_readers_in_different_attached_stages():
    """P in the loops of Q for one of them, of S for all."""
    P, Q, R, S = halo()
    s = te.create_schedule(S)
    io, jo, _ii, _ji = s[S].tile(*s[S].op.axis, 8, 4)
    s[Q].compute_at(s[S], jo)
    s[R].compute_at(s[S], jo)
    s[P].compute_at(s[S], io)
    copy = s.cache_read(P, "local", [Q])
    s[copy].compute_at(s[Q], s[Q].op.axis[0])
    assert regions(s, P) == [9, 18]
    assert regions(s, copy) == [2, 4]
    assert agrees(s, targets=("cpu",))


def test_a_reader_at_an_outer_loop_limits_the_places():
    P, Q, R, S = halo()
    s = te.create_schedule(S)
    io, ii = s[S].split(s[S].op.axis[0], 5)
    s[Q].compute_at(s[S], ii)
    s[R].compute_at(s[S], io)
    assert s[P].legal_places() == ((s[S], io),)
    with refused(s, "P is also read by R, which runs outside the loop S.i.inner"):
        s[P].compute_at(s[S], ii)
    s[P].compute_at(s[S], io)
    assert agrees(s, targets=("cpu",))


def test_readers_through_inlined_stages():
    P, Q, R, S = halo()
    s = te.create_schedule(S)
    s[Q].compute_inline()
    s[R].compute_inline()
    _io, jo, _ii, _ji = s[S].tile(*s[S].op.axis, 8, 4)
    s[P].compute_at(s[S], jo)
    assert regions(s, P) == [9, 5]
    assert agrees(s, targets=("cpu",))


def test_a_tile_of_three_dimensions():
    A = te.placeholder((9, 10, 11), name="A")
    P = te.compute((9, 10, 11), lambda i, j, k: A[i, j, k] * 2, name="P")

    def around(i: Any, j: Any, k: Any) -> Any:
        before = te.if_then_else(k > 0, P[i, j, k - 1], 0.0)
        return P[i, j, k] + before + te.if_then_else(i > 1, P[i - 2, j, k], 0.0)

    Q = te.compute((9, 10, 11), around, name="Q")
    s = te.create_schedule(Q)
    axes = s[Q].tile(*s[Q].op.axis, 4, 4, 4)
    assert [axis.name for axis in axes[:3]] == ["i.outer", "j.outer", "k.outer"]
    s[P].compute_at(s[Q], axes[2])
    assert regions(s, P) == [6, 4, 5]
    assert agrees(s, targets=("cpu",))


@pytest.mark.parametrize("shape", [(9, 7), (16, 8), (5, 3, 6)])
def test_tiles_with_several_readers_on_both_targets(shape: tuple[int, ...]):
    c = chain(*shape)
    s = te.create_schedule(c.D)
    axes = s[c.D].tile(*s[c.D].op.axis, *(4,) * len(shape))
    block = s[c.D].fuse(*axes[: len(shape)])
    s[c.D].bind(block, "blockIdx.x")
    s[c.C].compute_at(s[c.D], block)
    s[c.B].compute_at(s[c.D], block)
    assert agrees(s)
