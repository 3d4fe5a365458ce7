"""Horizontal fusion on the CPU of kernels of any shape that read one input: they share their loops
where each takes it in equal parts that stay in a core's cache, so that memory is read once.

    parallel for i: a[i] = sum(j)(f(x[i, j]))
    parallel for i: b[i] = sum(j)(g(x[i, j]))
    --> parallel for i: (a[i] = ...; b[i] = ...)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from operator import attrgetter

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import axes_of, reads
from tedsl.ir.nodes import LoopKind
from tedsl.schedules.analysis.nests import nbytes_of
from tedsl.schedules.analysis.views import View, definitions
from tedsl.schedules.fusion.horizontal import Beside
from tedsl.schedules.trial import accepts
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.plan.links import places
from tedsl.scheduling.plan.relations import constant, extents, related
from tedsl.tensor.tensor import ComputeOp, Tensor

# Bytes of a part that is still in a core's cache when the second kernel reads it.
KEPT = 1 << 19
# Bytes of an input from which sharing a loop costs less than reading it twice and starting threads
# twice.
WORTH = 1 << 17
# The name of the knob; one that `beside.py` has asked for a stage stands.
BESIDE = ".beside"
# Pairs of kernels that are tried.
TRIED = 64


@dataclass(frozen=True, slots=True, eq=False)
class _Kernel:
    """The loops of a kernel, a parallel one first, and how often each runs; and which dimensions of
    each tensor that it reads move with the parallel one."""

    name: str
    place: int
    loops: tuple[tuple[Axis, int], ...]
    moved: Mapping[Tensor, frozenset[int]]


def share_inputs(s: Schedule, beside: Beside) -> None:
    """Fuse kernels into the loops of an earlier one that reads the same input."""
    view = definitions(s)
    joined = {name for name, _, _ in beside.joins}
    asked = {knob.name.removesuffix(BESIDE) for knob in s.knobs if knob.name.endswith(BESIDE)}
    leaders: dict[Tensor, list[_Kernel]] = {}
    tried = 0
    for stage in s.stages:
        kernel = None if stage.name in joined else _kernel(view, stage)
        if kernel is None:
            continue
        large = [t for t, dims in kernel.moved.items() if dims and nbytes_of(t) >= WORTH]
        readers = dict.fromkeys(each for t in large for each in leaders.get(t, ()))
        near = [each for each in readers if _shared(each, kernel)]
        near = [] if kernel.name in asked else sorted(near, key=attrgetter("place"))
        near = near[: TRIED - tried]
        tried += len(near)
        if not any(_join(s, kernel, each) for each in near):
            for tensor in large:
                leaders.setdefault(tensor, []).append(kernel)


def _kernel(view: View, stage: Stage) -> _Kernel | None:
    """The description of a kernel whose outermost loop is parallel and of known extent."""
    plan, op = stage.plan, view.get(stage.name)
    if op is None or not plan.placement.at_root or not plan.leaf_axes:
        return None
    first, size = plan.leaf_axes[0], extents(plan)
    loops: list[tuple[Axis, int]] = []
    for axis in plan.leaf_axes:
        turns, kind = constant(size[axis]), plan.mark(axis).kind
        if turns is None or kind is not (LoopKind.SERIAL if loops else LoopKind.PARALLEL):
            break
        loops.append((axis, turns))
    if not loops:
        return None
    place = places(stage.schedule.plan).by_name[stage.name]
    moved = _moved(stage.schedule, view, op, related(plan, first))
    return _Kernel(stage.name, place, tuple(loops), moved)


def _moved(
    s: Schedule, view: View, op: ComputeOp, moving: Set[Axis]
) -> Mapping[Tensor, frozenset[int]]:
    """Which dimensions of each tensor move with some axes of a kernel's root, through the stages
    that are computed inside of it."""
    moved, waiting = dict[Tensor, frozenset[int]](), [(op, moving)]
    while waiting:
        reader, axes = waiting.pop()
        for read in reads(*reader.bodies):
            dims = {n for n, index in enumerate(read.indices) if axes & set(axes_of(index))}
            known = moved.get(read.tensor)
            now = frozenset(dims) if known is None else known | dims
            if now == known:
                continue
            moved[read.tensor] = now
            name = view.names.get(read.tensor.op)
            if name is not None and s[name].plan.placement.axis is not None:
                inner = view[name]
                waiting.append((inner, {inner.axes[n] for n in now}))
    return moved


def _shared(leader: _Kernel, kernel: _Kernel) -> list[Tensor]:
    """The large tensors that both read in the same parts."""
    if leader.loops[0][1] != kernel.loops[0][1]:
        return []
    both = [t for t, dims in kernel.moved.items() if dims and leader.moved.get(t) == dims]
    return [t for t in both if nbytes_of(t) >= WORTH]


def _join(s: Schedule, kernel: _Kernel, leader: _Kernel) -> bool:
    """Fuse as many loops as both have in common, by the knob `beside`: the default where what one
    iteration of them reads stays in the cache."""
    alike = 0
    for (_, mine), (_, theirs) in zip(kernel.loops, leader.loops, strict=False):
        if mine != theirs:
            break
        alike += 1

    def shared(trial: Schedule) -> None:
        trial[kernel.name].compute_with(trial[leader.name], leader.loops[alike - 1][0])

    while alike and not accepts(s, shared):
        alike -= 1
    if not alike:
        return False
    turns = math.prod(n for _, n in leader.loops[:alike])
    part = max(nbytes_of(t) for t in _shared(leader, kernel)) // turns
    default = "loops" if part <= KEPT else "alone"
    if s.knob(f"{kernel.name}{BESIDE}", ("alone", "loops"), default) == "alone":
        return False
    shared(s)
    return True
