"""Grid barriers (`compute_across`): where the programs of a kernel wait for each other.  On the GPU
a barrier stands after the stores of what they exchange; on the CPU there is none, and each program
computes for itself what the others would.

Part of `build_nests`; imports `context` and `ir`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tedsl.dtypes import DType
from tedsl.expr.index_arith import ZERO, constant
from tedsl.expr.nodes import Axis
from tedsl.ir.nodes import Buffer, Meet
from tedsl.lower.nests.context import Context
from tedsl.scheduling.kernels.tree import Phase, grid_loops, root_of
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.copies import copied, stage_name
from tedsl.scheduling.plan.graph import fresh_stage, insert_after, loop_readers, reroute
from tedsl.tensor.tensor import ComputeOp


def copy_for_others(plan: Plan) -> Plan:
    """What programs would exchange and other kernels read as well is computed for those once more:
    on the CPU each program has a copy of its own.  So is what that reads inside the kernel.

    Before:  P = f(M) across the programs of S, M in S, E = g(P) in a kernel of its own
    After:   and M.again, P.again = f(M.again) at root, E = g(P.again)
    """
    if all(stage.placement.program is None for stage in plan.stages):
        return plan
    while (found := _read_elsewhere(plan)) is not None:
        stage, op, readers = found
        again = copied(op, stage_name(plan, stage.name, "again"))
        moved = dict(zip(op.outputs, again.outputs, strict=True))
        plan = insert_after(plan, stage.name, fresh_stage(again.name, again))
        plan = reroute(plan, moved, readers)
    return plan


def _read_elsewhere(plan: Plan) -> tuple[StagePlan, ComputeOp, frozenset[str]] | None:
    """A stage inside a kernel that stages of other kernels read, and their names."""
    for stage in plan.stages:
        if stage.placement.axis is None or not isinstance(stage.op, ComputeOp):
            continue
        here = root_of(plan, stage)
        others = [r for r in loop_readers(plan, stage.op) if root_of(plan, r) is not here]
        if others:
            return stage, stage.op, frozenset(reader.name for reader in others)
    return None


def meeting_counters(context: Context) -> Mapping[str | Axis, Buffer]:
    """Memory for the counts of programs, by the loop whose programs wait: an element for each group
    that waits together."""
    found: dict[str | Axis, Buffer] = {}
    for stage in context.plan.stages:
        program = stage.placement.program
        if program is not None and program not in found:
            host = context.plan.stage(stage.placement.host)
            sizes = context.bounds[host.name].extents
            shape = tuple(sizes[axis] for axis in _others(host, program))
            found[program] = Buffer(f"{host.name}_met", DType.int32, shape)
    return found


def meeting(context: Context, phase: Phase) -> Meet:
    """Where programs wait before a phase."""
    host, program = context.plan.stage(phase.of), phase.over[0]
    sizes = context.bounds[host.name].extents
    others = _others(host, program)
    place = tuple(ZERO if constant(sizes[axis]) == 1 else axis for axis in others)
    return Meet(context.counters[program], place, sizes[program])


def _others(host: StagePlan, program: Axis) -> tuple[Axis, ...]:
    return tuple(axis for axis in grid_loops(host) if axis is not program)
