"""Scans (recurrences over time): which loops a step has, and whether threads or programs keep a
slice of the state through all steps.

Where no element of a step depends on another element of the step before, slices of the state run
through all steps independently, in one kernel.  Otherwise the elements of each step run in
parallel, one step after the other: on the GPU each step is a launch of its own.
"""

from __future__ import annotations

from collections.abc import Collection

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import reads
from tedsl.schedules.analysis.nests import any_order, cost, is_reduction, padded
from tedsl.schedules.analysis.views import extent_of, volume
from tedsl.schedules.cpu.tasks import SMALL
from tedsl.schedules.gpu.launch import bind_all, pick_warps
from tedsl.schedules.gpu.prefixes import by_prefixes
from tedsl.schedules.knobs import pick
from tedsl.schedules.loops import fused
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.plan.scan_structure import crossing, scan_stages, step_axes
from tedsl.target import Target
from tedsl.tensor.scan_body import body_of
from tedsl.tensor.tensor import ComputeOp, ScanOp

# A value that a step needs more than once is computed again up to this much arithmetic.
CHEAP = 12
# Bytes of a word, and threads of a warp.
WORD, THREADS = 4, 32


def stored_for_scans(s: Schedule) -> list[str]:
    """The stages that scans read: each is computed, and stored, before the first step."""
    found: dict[str, None] = {}
    for stage, scan in scan_stages(s.plan):
        body = frozenset(body_of(scan))
        for op in (scan, *body):
            for read in reads(*op.bodies):
                source = read.tensor.op
                if isinstance(source, ComputeOp) and source not in body:
                    found[s.plan.stage_of(source).name] = None
        found[stage.name] = None
    return list(found)


def schedule_scans(s: Schedule, target: Target, left: Collection[str] = ()) -> None:
    """Decide the loops of every scan and of its steps, but those `left` as they are; what is a
    prefix on a GPU is no scan any more."""
    given = [stage.name for stage, _ in scan_stages(s.plan)]
    waiting = list(given)
    while waiting:
        name = waiting.pop(0)
        if name in left:
            continue
        _inline_steps(s, name)
        op = s[name].op
        # Blocks of which nobody knows how many there are, are scanned in order.
        free = name in given or (isinstance(op, ScanOp) and extent_of(op.axes[0]) is not None)
        if target.is_triton and free and by_prefixes(s, name):
            known = (*given, *waiting)
            waiting += [each.name for each, _ in scan_stages(s.plan) if each.name not in known]
            continue
        if not isinstance(op, ScanOp) or not op.spatial_axis:
            continue
        apart = all(crossing(op, place) is None for place in range(1, len(op.axes)))
        if apart and _holds_updates_only(s, op):
            _by_pieces(s, s[name], op, target)
        else:
            _by_steps(s, op, target)


def _steps(s: Schedule, op: ScanOp) -> list[tuple[Stage, ComputeOp]]:
    """The stages of the steps that are not inlined."""
    stages = [(s[inner], inner) for inner in body_of(op)]
    return [(st, inner) for st, inner in stages if not st.plan.placement.inlined]


def _inline_steps(s: Schedule, name: str) -> None:
    """Inline the pointwise stages of a step, where that costs little."""
    op = s[name].op
    if not isinstance(op, ScanOp):
        return
    updates = {update.op for update in op.updates}
    for inner in body_of(op):
        if inner in updates or is_reduction(inner) or len(inner.bodies) > 1:
            continue
        users = [r for user in body_of(op) for r in reads(*user.bodies) if r.tensor.op is inner]
        if len(users) == 1 or cost(inner) * len(users) <= CHEAP:
            s[inner].compute_inline()


def _holds_updates_only(s: Schedule, op: ScanOp) -> bool:
    updates = {update.op for update in op.updates}
    return all(inner in updates for _, inner in _steps(s, op))


def _by_pieces(s: Schedule, stage: Stage, op: ScanOp, target: Target) -> None:
    """Slices of the last axis, and single elements of the others, through all steps."""
    t, *others = op.axes
    last = others.pop()
    sizes, usual = (32, 64, 128, 256, 512, 1024), 128 if target.is_triton else 64
    piece = pick(s, f"{stage.name}.piece", sizes, usual, padded(extent_of(last)))
    outer, inner = stage.split(last, factor=piece)
    stage.reorder(*others, outer, t, inner)
    around = [*others, outer]
    if target.is_triton:
        bind_all(stage, around)
        # What is copied ahead, of the steps to come, is copied in words.
        read = {r.tensor for _, each in _steps(s, op) for r in reads(*each.bodies)}
        words = piece * min(tensor.dtype.nbytes for tensor in read) // WORD
        warps = min(4, max(1, words // THREADS))
        stage.launch(num_warps=pick_warps(s, stage, (1, 2, 4), warps, piece))
    else:
        stage.parallel(fused(stage, around))
    for step, inner_op in _steps(s, op):
        step.vectorize(inner_op.axes[-1])


def _by_steps(s: Schedule, op: ScanOp, target: Target) -> None:
    """Parallel loops over the elements of each step."""
    fixed = step_axes(op)
    for stage, inner in _steps(s, op):
        axes = [a for a in inner.axes if a not in fixed[inner]]
        if not axes:
            continue
        if target.is_triton:
            _programs(s, stage, inner, axes)
        else:
            _threads(s, stage, inner, axes)


def _threads(s: Schedule, stage: Stage, op: ComputeOp, axes: list[Axis]) -> None:
    """SIMD lanes over the last axis inside a reduction, threads over the rest."""
    last = axes.pop()
    width = pick(s, f"{stage.name}.width", (8, 16, 32, 64), 32, extent_of(last))
    outer, inner = stage.split(last, factor=width)
    stage.reorder(*axes, outer, *op.reduce_axes, inner)
    stage.vectorize(inner)
    total = volume((*op.axes[1:], *op.reduce_axes))
    if total is None or total > SMALL:
        stage.parallel(fused(stage, (*axes, outer)))


def _programs(s: Schedule, stage: Stage, op: ComputeOp, axes: list[Axis]) -> None:
    """A tile of the last axis in each program; a reduction loops over tiles of its last axis."""
    last = axes.pop()
    folds = is_reduction(op)
    usual, most = 32 if folds else 256, padded(extent_of(last))
    width = pick(s, f"{stage.name}.width", (16, 32, 64, 128, 256, 512), usual, most)
    outer, inner = stage.split(last, factor=width)
    if folds and any_order(op):
        most = padded(extent_of(op.reduce_axes[-1]))
        step = pick(s, f"{stage.name}.depth", (16, 32, 64), 32, most)
        ko, ki = stage.split(op.reduce_axes[-1], factor=step)
        stage.reorder(*axes, outer, *op.reduce_axes[:-1], ko, inner, ki)
        stage.vectorize(ki)
    else:
        stage.reorder(*axes, outer, *op.reduce_axes, inner)
    stage.vectorize(inner)
    stage.bind(fused(stage, (*axes, outer)), "blockIdx.x")
