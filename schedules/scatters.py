"""Reductions into elements that data say (sums by group, histograms, the gradients of gathers): run
over what is folded, each point of which is added where it belongs, instead of asking all points for
each element.

On the GPU all points at once, by atomic updates, with what they are computed from in the same
kernel; on the CPU the elements beside each other over the threads, point after point.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from tedsl.expr.nodes import Axis, Reduce
from tedsl.expr.visit import reads
from tedsl.schedules.analysis.nests import among, cost, is_reduction, moves, padded
from tedsl.schedules.analysis.views import definitions, extent_of, volume
from tedsl.schedules.cpu.tasks import run_parallel
from tedsl.schedules.devices import cpu_of, gpu_of
from tedsl.schedules.gpu.launch import pick_warps
from tedsl.schedules.knobs import flip, pick
from tedsl.schedules.loops import fused
from tedsl.schedules.scans import stored_for_scans
from tedsl.schedules.trial import takes
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.kernels.updates import has_update
from tedsl.scheduling.plan.graph import extern_readers
from tedsl.scheduling.plan.inline import may_inline
from tedsl.scheduling.plan.scattered import inverted, may_scatter
from tedsl.target import Target
from tedsl.tensor.tensor import ComputeOp

# Instructions of a test whether a point belongs to an element, and of loading both, lanes of an SM
# that test at once, and clocks of an update where another one of the same element is under way.
TESTED, LANES, MET = 8, 128, 2
# On the CPU: lanes that test at once, and clocks of looking up and updating an element.
SIMD, UPDATED = 8, 5
# Points of a tile, of the smallest, how many of them are of one row, and choices for both sides.
TILE, LEAST, ROW = 1024, 128, 256
ROWS, COLUMNS = (1, 2, 4, 8, 16, 32, 64, 256, 1024), (32, 64, 128, 256, 512, 1024)
# Programs along the second dimension of a grid.
GRID = 65535
# What is computed for each element of a row again, though it is the same for the row.
CHEAP = 12


def schedule_scatters(s: Schedule, target: Target, left: Container[str]) -> None:
    """Scatter the reductions for which that is quicker (the knob `scattered`), but those `left` as
    they are; no other rule looks at them."""
    for name in list(definitions(s)):
        op = definitions(s)[name]
        body = op.bodies[0]
        if name in left or not isinstance(body, Reduce) or len(op.bodies) > 1:
            continue
        axes = by_data(body, op.axes)
        if not axes or (target.is_triton and not has_update(body, target)):
            continue

        def steps(trial: Schedule, name: str = name, axes: Sequence[Axis] = axes) -> None:
            for axis in axes:
                trial[name].scatter(axis)
            if target.is_triton:
                trial[name].atomic()

        legal = takes(s, (schedule_scatters, name), steps)
        quicker = (_on_gpu_quicker if target.is_triton else _on_cpu_quicker)(s, op, axes)
        if not legal or not flip(s, f"{name}.scattered", quicker):
            continue
        steps(s)
        _take_in(s, name)
        beside = [axis for axis in op.axes if not among(axis, axes)]
        (_tiles if target.is_triton else _rows)(s, s[name], op, beside)
        s.settled |= {name}


def by_data(body: Reduce, axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """The data axes of a reduction whose values are read from memory for each of its points."""
    found = inverted(body, may_scatter(body, axes))
    if found is None:
        return ()
    return tuple(a for a in axes if a in found.values and reads(found.values[a]))


def _on_gpu_quicker(s: Schedule, op: ComputeOp, axes: Sequence[Axis]) -> bool:
    """True where all tests take longer than another launch, and than updates of one element after
    the other, of as many for each."""
    gpu, folded, elements = gpu_of(s), volume(op.reduce_axes), volume(axes)
    tests = volume((*op.axes, *op.reduce_axes))
    if folded is None or tests is None or not elements:
        return True
    tested = tests * TESTED / (gpu.sms * LANES * gpu.clock)
    return tested > gpu.launch + folded / elements * MET / gpu.clock


def _on_cpu_quicker(s: Schedule, op: ComputeOp, axes: Sequence[Axis]) -> bool:
    """True where all tests, on all processors, take longer than the updates, which run at once for
    elements that stand beside each other alone."""
    elements = volume(axes)
    if elements is None:
        return True
    if not among(op.axes[-1], axes):
        return elements > SIMD
    rows = volume([axis for axis in op.axes if not among(axis, axes)]) or 1
    return elements > SIMD * UPDATED * max(1, cpu_of(s).cores // rows)


def _take_in(s: Schedule, name: str) -> None:
    """Inline the pointwise stages that only this one reads, and those that only move elements."""
    plan = s.plan
    stored = {*(s[tensor].name for tensor in s.outputs), *stored_for_scans(s)}
    computed = [each for each in plan.stages if isinstance(each.op, ComputeOp)]
    stored |= {each.name for each in computed if extern_readers(plan, each.op)}
    while True:
        view = definitions(s)
        whole = volume((*view[name].axes, *view[name].reduce_axes))
        for source in view.sources(name):
            op, users = view[source], {user for user, _ in view.readers[source]}
            if source in stored or is_reduction(op) or len(op.bodies) > 1:
                continue
            again = cost(op) > CHEAP and volume(op.axes) != whole
            if (users == {name} or moves(op)) and not again and may_inline(s.plan, source):
                s[source].compute_inline()
                break
        else:
            return


def _tiles(s: Schedule, stage: Stage, op: ComputeOp, beside: Sequence[Axis]) -> None:
    """A tile of points for each program: of some rows, and of the elements of a row that lie beside
    each other in the result; of rows alone where none do."""
    rows, data, lanes, wide = fused(stage, op.reduce_axes), list(beside), list[Axis](), 1
    if data and data[-1] is op.axes[-1]:
        last = data.pop()
        wide = pick(s, f"{stage.name}.columns", COLUMNS, ROW, padded(extent_of(last)))
        outer, inner = stage.split(last, factor=wide)
        data.append(outer)
        lanes.append(inner)
    folded = volume(op.reduce_axes)
    tile = TILE
    while folded is not None and tile > LEAST and folded * wide < gpu_of(s).sms * tile:
        tile //= 2  # for fewer programs than there are SMs
    tall = pick(s, f"{stage.name}.rows", ROWS, max(1, tile // wide), padded(folded))
    outer, inner = stage.split(rows, factor=tall)
    lanes.insert(0, inner)
    stage.reorder(*data, outer, *lanes)
    for lane in lanes:
        stage.vectorize(lane)
    if data:
        many = volume(beside)
        small = many is not None and many <= GRID * wide
        stage.bind(fused(stage, data), "blockIdx.y" if small else "blockIdx.x")
        stage.bind(outer, "blockIdx.x" if small else "blockIdx.y")
    else:
        stage.bind(outer, "blockIdx.x")
    stage.launch(num_warps=pick_warps(s, stage, (2, 4, 8), 4, tall * wide))


def _rows(s: Schedule, stage: Stage, op: ComputeOp, beside: Sequence[Axis]) -> None:
    """Pieces of rows over the threads, one point of them after the other."""
    total = volume((*beside, *op.reduce_axes))
    tasks = list(beside)
    if beside and beside[-1] is op.axes[-1]:
        last = tasks.pop()
        wide = pick(s, f"{stage.name}.width", (16, 64, 256, 1024), 64, extent_of(last))
        outer, inner = stage.split(last, factor=wide)
        tasks.append(outer)
        stage.reorder(*tasks, *op.reduce_axes, inner)
        stage.vectorize(inner)
    run_parallel(s, stage, tasks, total)
