"""Stages computed twice: recompute.  The graph is rebuilt; axes of existing stages stay the same
objects.
"""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.copies import copied, stage_name
from tedsl.scheduling.plan.graph import fresh_stage, insert_after, reroute
from tedsl.scheduling.plan.scan_structure import scan_of
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.graph_rewrites.legality import (
    require_another_reader,
    require_computed,
    require_readers,
)
from tedsl.scheduling.primitives.online.legality import require_own_place
from tedsl.scheduling.primitives.placement.legality import require_places
from tedsl.scheduling.primitives.scans.legality import require_no_scan
from tedsl.tensor.tensor import ComputeOp, Tensor


def recompute(plan: Plan, call: Call, tensor: Tensor, readers: Sequence[str]) -> tuple[Plan, str]:
    """B[i] = f(i); C[i] = g(B[i]); D[i] = h(B[i])
    --> B[i] = f(i); B.again[i] = f(i); C[i] = g(B[i]); D[i] = h(B.again[i])."""
    require_readers(plan, call, tensor, readers)
    source = plan.stage(call.stage)
    op = require_computed(plan, call, source)
    require_own_place(plan, call, source)
    require_no_scan(plan, call, source, "its rows are stored where its steps read them")
    require_another_reader(plan, call, source, readers)
    name = stage_name(plan, source.name, "again")
    made = copied(op, name)
    after = insert_after(plan, source.name, fresh_stage(name, made))
    moved = dict(zip(op.outputs, made.outputs, strict=True))
    after = reroute(after, moved, frozenset(readers))
    require_places(plan, call, after)
    return after, name


def stored(plan: Plan, stage: StagePlan, index: int) -> tuple[Plan, Tensor] | None:
    """The plan in which output `index` of a stage is a result, and that: of the stage, where it has
    a kernel of its own, or of another of the same definition, where it is inside a loop; None where
    it is stored nowhere."""
    op = stage.op
    if not isinstance(op, ComputeOp) or stage.placement.inlined or scan_of(plan, op) is not None:
        return None
    if stage.placement.axis is not None:
        op = copied(op, stage_name(plan, stage.name, "again"))
        plan = insert_after(plan, stage.name, fresh_stage(op.name, op))
    result = op.outputs[index]
    outputs = tuple(dict.fromkeys((*plan.outputs, result)))
    return Plan(plan.stages, outputs, plan.assumptions, plan.retired), result
