"""The second pass over a row runs in reverse, so that it starts with what is still in cache (norms,
softmax and cross entropy with their gradients, on rows too long for registers).

    for i: (for k: acc = sum(x[i, k]);  for j: y[i, j] = g(x[i, j], acc))
    --> ... for j from the last to the first: ...

What the reduction has read last is still in the caches, and is read again before it is evicted.
Measured on an H200, rows of 128256 numbers of 16 bits: 1.429 ms together with the `evict_last`
hints of `gpu/cache_policy.py`, 1.496 ms with neither.  Rows of 50257 in pieces as of
`gpu/rows/aligned_pieces.py`: 0.592 and 0.727 ms, and 0.642 ms with the reversed pass alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import axes_of, reads
from tedsl.ir.nodes import LoopKind
from tedsl.schedules.analysis.nests import among, is_reduction
from tedsl.schedules.analysis.views import size_of
from tedsl.schedules.knobs import flip
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.kernels.tree import hosts
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.inline import inline_stages
from tedsl.scheduling.plan.relations import extents, ranks, related
from tedsl.tensor.tensor import ComputeOp, Tensor

# Bytes of a row from which the second pass is reversed.
LONG_ROW = 1 << 16


def read_back(s: Schedule, stage: Stage, loop: Axis, nbytes: int) -> None:
    """The knob `backwards` of a kernel whose `loop` stores rows of `nbytes` bytes in pieces and
    reads again what has been reduced."""
    again = read_again(inline_stages(s.plan), stage.name)
    if again and flip(s, f"{stage.name}.backwards", nbytes >= LONG_ROW):
        stage.reverse(loop)


def runs_backwards(plan: Plan, name: str) -> bool:
    """True when a stage has a reversed loop."""
    marks = plan.stage(name).marks.values()
    return any(mark.descending and mark.kind is LoopKind.SERIAL for mark in marks)


def read_again(plan: Plan, name: str) -> list[Tensor]:
    """The tensors that the loops of a stage read and that reductions before them in the same
    programs have read already, seen through inlined stages."""
    root = plan.stage(name)
    if not isinstance(root.op, ComputeOp) or is_reduction(root.op):
        return []
    found: dict[Tensor, None] = {}
    for fold, place in _folds(plan, root):
        columns = _stored_in_pieces(root, place)
        again = {r.tensor for r in reads(*root.op.bodies) if _along(axes_of(*r.indices), columns)}
        for read in reads(*fold.bodies):
            if read.tensor in again and _along(axes_of(*read.indices), fold.reduce_axes):
                found[read.tensor] = None
    return list(found)


def _folds(plan: Plan, root: StagePlan) -> Iterator[tuple[ComputeOp, Axis]]:
    """The reductions in the kernel of a stage, and the loop of it that they are computed in."""
    for stage in plan.stages:
        place = next((axis for host, axis in hosts(plan, stage) if host.name == root.name), None)
        if isinstance(stage.op, ComputeOp) and is_reduction(stage.op) and place is not None:
            yield stage.op, place


def _stored_in_pieces(root: StagePlan, place: Axis) -> list[Axis]:
    """The axes of a stage that are stored piece by piece inside the loop `place`."""
    inside, sizes = root.leaf_axes[ranks(root.leaf_axes)[place] + 1 :], extents(root)
    serial = [axis for axis in inside if root.mark(axis).kind is LoopKind.SERIAL]
    joined = [related(root, axis) for axis in serial if size_of(sizes[axis]) != 1]
    return [a for a in root.root_axes if any(a in each for each in joined)]


def _along(axes: Iterable[Axis], wanted: Sequence[Axis]) -> bool:
    return any(among(axis, wanted) for axis in axes)
