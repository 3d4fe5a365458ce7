"""Substitute inlined stages into their readers, so that the stages left each own a loop nest.

Used by the lowering, by `bounds` and by printing; imports `expr` and `plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from tedsl.expr.nodes import Expr, TensorRead
from tedsl.expr.tensor import ComputeOp, ExternOp, Operation, Tensor
from tedsl.expr.visit import rewrite, substitute
from tedsl.scheduling.graph import tensors_read
from tedsl.scheduling.plan import AttachKind, Plan, StagePlan


def inline_stages(plan: Plan) -> Plan:
    """The plan without INLINE stages: each of their reads is replaced by the body at the read's
    indices.

    Before:  B[i] = A[i] + 1 (inline);  C[i] = B[i] * 2
    After:   C[i] = (A[i] + 1) * 2
    Requires: inlined stages have one output and no reduction (checked by `compute_inline`).
    Ensures: no stage is INLINE; axes of the remaining stages are the same objects.
    """
    if all(stage.attach.kind is not AttachKind.INLINE for stage in plan.stages):
        return plan
    bodies: dict[Tensor, ComputeOp] = {}
    renamed: dict[Operation, Operation] = {}
    kept: list[StagePlan] = []
    for stage in plan.stages:
        op = stage.op
        if isinstance(op, ComputeOp):
            op = reading(op, bodies, renamed)
            if stage.attach.kind is AttachKind.INLINE:
                bodies[stage.op.outputs[0]] = op
                continue
            if op is not stage.op:
                renamed[stage.op] = op
        elif isinstance(op, ExternOp):
            op = reading_whole(op, renamed)
            renamed[stage.op] = op
        kept.append(stage if op is stage.op else replace(stage, op=op))
    outputs = tuple(renamed.get(t.op, t.op).outputs[t.index] for t in plan.outputs)
    return replace(plan, stages=tuple(kept), outputs=outputs)


def reading(
    op: ComputeOp, bodies: Mapping[Tensor, ComputeOp], renamed: Mapping[Operation, Operation]
) -> ComputeOp:
    """`op` reading the finished bodies and the rebuilt operations; the same object when it reads
    neither."""
    read = tensors_read(op)
    within = tuple((t, bodies[t]) for t in read if t in bodies)
    moved = tuple((t.op, renamed[t.op]) for t in read if t not in bodies and t.op in renamed)
    return _reading(op, within, moved) if within or moved else op


@lru_cache(maxsize=512)
def _reading(
    op: ComputeOp,
    within: tuple[tuple[Tensor, ComputeOp], ...],
    moved: tuple[tuple[Operation, Operation], ...],
) -> ComputeOp:
    """The same object for the same operations: plans of one schedule differ in few of them."""
    bodies, renamed = dict(within), dict(moved)

    def replaced(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead):
            return None
        source = bodies.get(node.tensor)
        if source is not None:
            return substitute(source.bodies[0], dict(zip(source.axes, node.indices, strict=True)))
        producer = renamed.get(node.tensor.op)
        if producer is not None:
            return TensorRead(producer.outputs[node.tensor.index], node.indices)
        return None

    memo: dict[Expr, Expr] = {}
    return replace(op, bodies=tuple(rewrite(body, replaced, memo) for body in op.bodies))


def reading_whole(op: ExternOp, renamed: Mapping[Operation, Operation]) -> ExternOp:
    """`op` reading the rebuilt operations; the same object when it reads none."""
    moved = [tensor for tensor in op.inputs if tensor.op in renamed]
    return op.reading({each: renamed[each.op].outputs[each.index] for each in moved})
