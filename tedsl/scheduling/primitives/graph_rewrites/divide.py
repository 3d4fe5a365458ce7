"""A result that two stages store: divide.  The graph is rebuilt; axes of other stages stay the same
objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tedsl.expr.index_arith import ZERO, add, at_most, less, sub, widened
from tedsl.expr.nodes import Axis, AxisKind, Expr, IfThenElse, Range, Reduce, TensorRead
from tedsl.expr.visit import substitute
from tedsl.index.prove import prove
from tedsl.index.simplify import simplify
from tedsl.scheduling.plan import Partitioned, Plan, by_itself
from tedsl.scheduling.plan.copies import stage_name
from tedsl.scheduling.plan.graph import (
    defined_anew,
    fresh_stage,
    insert_before,
    is_output,
    readers,
    reroute,
    rewrite_reads,
)
from tedsl.scheduling.primitives.arguments import computed_stage, size
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.graph_rewrites.divide_legality import (
    require_data_axis,
    require_inside,
    require_undecided,
)
from tedsl.scheduling.primitives.placement.legality import require_places
from tedsl.scheduling.regions.infer import plan_facts
from tedsl.tensor.tensor import ComputeOp


@dataclass(frozen=True, slots=True)
class _Cut:
    """An operation that is divided before position `at` of its data axis number `dim`."""

    op: ComputeOp
    dim: int
    at: Expr

    def head(self, name: str) -> ComputeOp:
        """C.head[i] = f(i)"""
        return self._piece(name, self.at, ZERO)

    def tail(self, name: str) -> ComputeOp:
        """C.tail[i] = f(i + at)"""
        return self._piece(name, simplify(sub(self.op.shape[self.dim], self.at)), self.at)

    def whole(self, head: ComputeOp, tail: ComputeOp) -> ComputeOp:
        """C[i] = C.head[i] if i < at else C.tail[i - at]"""
        axes = self.op.axes
        behind = self._moved(axes, sub(axes[self.dim], self.at))
        bodies = tuple(
            IfThenElse(less(axes[self.dim], self.at), TensorRead(a, axes), TensorRead(b, behind))
            for a, b in zip(head.outputs, tail.outputs, strict=True)
        )
        return ComputeOp(self.op.name, axes, bodies, self.op.shape, tag=self.op.tag)

    def _moved(self, indices: tuple[Expr, ...], index: Expr) -> tuple[Expr, ...]:
        return tuple(index if n == self.dim else each for n, each in enumerate(indices))

    def _piece(self, name: str, extent: Expr, start: Expr) -> ComputeOp:
        """The definition from `start` on, over axes of its own."""
        dtype = self.op.axes[self.dim].dtype
        shape = self._moved(self.op.shape, widened(extent, dtype))
        axes = tuple(
            Axis(a.name, AxisKind.DATA, Range(ZERO, extent), a.dtype)
            for a, extent in zip(self.op.axes, shape, strict=True)
        )
        folded = tuple(Axis(a.name, a.kind, a.domain, a.dtype) for a in self.op.reduce_axes)
        own = (*axes, *folded)
        values: dict[Expr, Expr] = dict(
            zip((*self.op.axes, *self.op.reduce_axes), own, strict=True)
        )
        values[self.op.axes[self.dim]] = add(axes[self.dim], start)
        return ComputeOp(name, axes, _bodies(self.op, values, folded), shape, folded, self.op.tag)

    def direct(self, plan: Plan, whole: ComputeOp, head: ComputeOp, tail: ComputeOp) -> Plan:
        """The plan in which reads of the whole that surely are of one piece read that."""
        facts = plan_facts(plan)
        for stage in plan.stages:
            for axis in stage.root_axes:
                if axis.domain is not None:
                    facts = facts.with_axis(axis, axis.domain.min, axis.domain.extent)

        def read(number: int, indices: tuple[Expr, ...]) -> Expr:
            index = indices[self.dim]
            if prove(less(index, self.at), facts):
                return TensorRead(head.outputs[number], indices)
            if prove(at_most(self.at, index), facts):
                place = simplify(sub(index, self.at), facts)
                return TensorRead(tail.outputs[number], self._moved(indices, place))
            return TensorRead(whole.outputs[number], indices)

        return rewrite_reads(plan, dict.fromkeys(whole.outputs, read))


def _bodies(
    op: ComputeOp, values: Mapping[Expr, Expr], folded: tuple[Axis, ...]
) -> tuple[Expr, ...]:
    """The bodies over other axes; outputs of one reduction keep sharing their sources."""
    first = substitute(op.bodies[0], values)
    if not isinstance(first, Reduce):
        return tuple(substitute(body, values) for body in op.bodies)
    moved = replace(first, axes=folded)
    return tuple(replace(moved, index=body.index) for body in op.bodies if isinstance(body, Reduce))


def divide(plan: Plan, call: Call, axis: object, at: object) -> tuple[Plan, tuple[str, str]]:
    """C[i] = f(i) --> C.head[i] = f(i), stored in C[i]; C.tail[i] = f(i + at), stored in
    C[i + at]."""
    stage, op = computed_stage(plan, call, call.stage)
    require_undecided(plan, call, stage)
    cut = _Cut(op, require_data_axis(plan, call, stage, axis), size(plan, call, "at", at))
    require_inside(plan, call, op.axes[cut.dim], cut.at)
    head = cut.head(stage_name(plan, stage.name, "head"))
    tail = cut.tail(stage_name(plan, stage.name, "tail"))
    whole = cut.whole(head, tail)
    joined = replace(defined_anew(stage, whole), placement=by_itself(stage.placement))
    if stage.placement.at_root:
        joined = replace(joined, placement=Partitioned(head.name, tail.name, cut.dim, cut.at))
    after = plan.with_stage(joined)
    for each in (head, tail):
        piece = replace(
            fresh_stage(each.name, each), placement=by_itself(stage.placement), scope=stage.scope
        )
        after = insert_before(after, stage.name, piece)
    after = reroute(after, dict(zip(op.outputs, whole.outputs, strict=True)))
    after = cut.direct(after, whole, head, tail)
    if not is_output(after, whole) and not readers(after, whole):
        after = replace(after, stages=tuple(s for s in after.stages if s.name != stage.name))
    require_places(plan, call, after)
    return after, (head.name, tail.name)
