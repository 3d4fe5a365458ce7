"""Drawn windows and groups: stages stored apart from where they are computed, and stages that run
together, or by the last programs of each other, on graphs made for it.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from drawn_calls import call
from hypothesis import Phase, event, given, note, settings
from lowering import agrees, same_in_any_order

import tedsl as te
from tedsl.scheduling.trace.replay import replay
from tedsl.scheduling.trace.trace import Trace

SIZES = st.sampled_from((1, 2, 5, 7, 12, 16, 33))
GRID = ("blockIdx.x", "blockIdx.y", "blockIdx.z")


def _stencil(source: te.Tensor, shifts: list[int], step: int, rows: int, name: str) -> te.Tensor:
    def body(i: Any, j: Any) -> Any:
        total = source[i * step + shifts[0], j]
        for shift in shifts[1:]:
            total = total + source[i * step + shift, j] * float(shift + 1)
        return total

    return te.compute((rows, 4), body, name=name)


def _replayed(s: te.Schedule, outputs: list[te.Tensor]) -> bool:
    return str(replay(outputs, Trace.from_json(s.trace.to_json()))) == str(s)


@settings(max_examples=60, phases=(Phase.explicit, Phase.generate, Phase.shrink))
@given(st.data())
def test_windows(data: st.DataObject) -> None:
    """A chain of stencils, each computed in a loop of the last one and stored at another."""
    draw = data.draw
    rows, step = draw(SIZES), draw(st.sampled_from((1, 1, 2)))
    first = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    second = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    middle = (rows - 1) * step + max(second) + 1
    a = te.placeholder((middle + max(first), 4), name="A")
    b = _stencil(a, first, 1, middle, "B")
    c = _stencil(b, second, step, rows, "C")
    d = (
        te.compute((rows, 4), lambda i, j: c[i, j] + b[i, j], name="D")
        if draw(st.booleans())
        else c
    )
    s = te.create_schedule(d)
    last = s[d]
    for _ in range(draw(st.integers(0, 2))):
        axis = draw(st.sampled_from(last.leaf_iter_vars))
        last.split(axis, factor=draw(st.sampled_from((1, 2, 3, 8))))
    if draw(st.integers(0, 3)) == 0:
        last.reorder(*draw(st.permutations(list(last.leaf_iter_vars))))
    for stage in (s[c], s[b]):
        places = stage.legal_places()
        if stage.name == last.name or not places:
            continue
        call(s, stage.compute_at, *draw(st.sampled_from(places)))
        for _ in range(draw(st.integers(0, 1))):
            call(s, stage.split, draw(st.sampled_from(stage.leaf_iter_vars)), factor=2)
        try:
            loops = last.leaf_iter_vars
            if draw(st.booleans()):
                call(s, stage.store_at, last, draw(st.sampled_from(loops)))
            else:
                call(s, stage.store_root)
            if draw(st.booleans()):
                call(s, stage.rolling_buffer)
                event("rolling")
            event("stored")
        except te.ScheduleError:
            event("refused")
    note(s.as_python())
    assert _replayed(s, [d])
    assert agrees(s, targets=("cpu",), bound=1e-4)


@settings(max_examples=60, phases=(Phase.explicit, Phase.generate, Phase.shrink))
@given(st.data())
def test_groups(data: st.DataObject) -> None:
    """Pointwise stages and reductions of one input, split alike, some of which run together."""
    draw = data.draw
    m, n = draw(SIZES), draw(SIZES)
    a = te.placeholder((m, n), name="A")
    k = te.reduce_axis((0, n), name="k")
    p = te.compute((m, n), lambda i, j: a[i, j] * 2.0, name="P")
    outs = [
        te.compute((m,), lambda i: te.sum(p[i, k], axis=k), name="S"),
        te.compute((m,), lambda i: te.max(a[i, k], axis=k, where=k <= i), name="M"),
        te.compute((m, n), lambda i, j: p[i, j] + 1.0, name="Y"),
        te.compute((n, m), lambda i, j: a[j, i], name="T"),
    ]
    s = te.create_schedule(outs)
    factor, count = draw(st.sampled_from((1, 2, 4, 8))), draw(st.integers(0, 2))
    for t in outs:
        for axis in s[t].leaf_iter_vars[:count]:
            s[t].split(axis, factor=factor)
        if draw(st.integers(0, 4)) == 0:
            s[t].reorder(*reversed(s[t].leaf_iter_vars))
    leader, *others = draw(st.permutations(outs))
    for mark in range(draw(st.integers(0, 2))):
        try:
            axis = s[leader].leaf_iter_vars[mark]
            call(s, draw(st.sampled_from((s[leader].parallel, s[leader].unroll))), axis)
        except (te.ScheduleError, IndexError):
            event("mark refused")
    for t in others:
        try:
            if draw(st.integers(0, 3)):
                call(
                    s, s[t].compute_with, s[leader], draw(st.sampled_from(s[leader].leaf_iter_vars))
                )
            else:
                call(s, s[t].compute_with, s[leader])
            event("together")
        except te.ScheduleError:
            event("refused")
    places = s[p].legal_places()
    if places and draw(st.booleans()):
        call(s, s[p].compute_at, *draw(st.sampled_from(places)))
        event("producer inside")
    note(s.as_python())
    assert _replayed(s, outs)
    assert agrees(s, targets=("cpu",), bound=1e-4)
    if draw(st.integers(0, 4)) == 0:
        _on_blocks(s)


def _on_blocks(s: te.Schedule) -> None:
    try:
        assert agrees(s, targets=("triton-interpret",), bound=1e-4)
    except te.LowerError as error:
        assert error.hint
        event("no blocks")


@settings(max_examples=40, phases=(Phase.explicit, Phase.generate, Phase.shrink))
@given(st.data())
def test_last_programs(data: st.DataObject) -> None:
    """Reductions in parts over a grid, and what merges them in tiles that fit it or not."""
    draw = data.draw
    m, n, k = draw(SIZES), draw(SIZES), draw(SIZES)
    a = te.placeholder((m, n, k), name="A")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, j, r], axis=r), name="C")
    d = te.compute((m, n), lambda i, j: c[i, j] * 2.0 + 1.0, name="D")
    s = te.create_schedule(d)
    rows, columns = draw(st.sampled_from((1, 4, 16))), draw(st.sampled_from((1, 8)))
    part, _ = s[c].split(r, nparts=draw(st.sampled_from((1, 2, 3, 8))))
    partial = s[s.rfactor(c, part)]
    grids: list[list[te.Axis]] = []
    for stage, axes in ((partial, partial.op.axis[1:]), (s[d], s[d].op.axis)):
        other = draw(st.sampled_from((0, 0, 0, 0, 1)))
        io, ii = stage.split(axes[0], factor=rows + other)
        jo, ji = stage.split(axes[1], factor=columns)
        outer = [io, jo] if draw(st.integers(0, 4)) else [jo, io]
        stage.reorder(*outer, *([partial.op.axis[0]] if stage is partial else []), ii, ji)
        if draw(st.booleans()):
            outer = [stage.fuse(*outer)]
        grids.append(outer)
        if draw(st.booleans()):
            stage.vectorize(ji)
    grids[0].append(partial.op.axis[0])
    try:
        for stage, loops in zip((partial, s[d]), grids, strict=True):
            for axis, name in zip(loops, draw(st.permutations(GRID)), strict=False):
                call(s, stage.bind, axis, name, descending=draw(st.booleans()))
        if draw(st.integers(0, 3)):
            call(s, s[c].compute_at, s[d], grids[1][-1])
            call(s, s[d].compute_last, partial)
        else:
            call(s, s[c].compute_last, partial)
        event("last")
    except te.ScheduleError:
        event("refused")
    note(s.as_python())
    assert _replayed(s, [d])
    assert agrees(s, bound=1e-4)
    assert same_in_any_order(s)
