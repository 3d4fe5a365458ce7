"""What a plan with scans needs before its loops are built: rows of their own for every init, and
whether the steps of a scan are a loop of one kernel or launches of several."""

from __future__ import annotations

from dataclasses import replace

from tedsl.expr.nodes import Axis, AxisKind, Range, TensorRead
from tedsl.expr.tensor import ComputeOp, ExternOp
from tedsl.scheduling.graph import fresh_stage, insert_before, reroute
from tedsl.scheduling.names import unique_name
from tedsl.scheduling.plan import AttachKind, Plan, StagePlan
from tedsl.scheduling.scans import is_step_axis, outside_steps, scan_stages, step_loop


def separate_inits(plan: Plan) -> Plan:
    """The plan with a copy of each init that cannot be stored in the first rows of its scan: it is
    an output itself, or another scan or an extern has it.

    Before:  Z[t, i] = 0;  a = scan(Z, ...);  b = scan(Z, ...)
    After:   Z[t, i] = 0;  a = scan(Z, ...);  b.init[t, i] = Z[t, i];  b = scan(b.init, ...)
    """
    taken = {tensor.op for tensor in plan.outputs}
    for each in plan.stages:
        if isinstance(each.op, ExternOp):
            taken |= {tensor.op for tensor in each.op.inputs}
    for stage, scan in scan_stages(plan):
        inits = scan.inits
        for init in inits:
            if init.op not in taken:
                continue
            name = unique_name(f"{stage.name}.init", {s.name for s in plan.stages})
            axes = tuple(_fresh(axis) for axis in init.op.axis)
            copy = ComputeOp(name, axes, (TensorRead(init, axes),), init.shape)
            plan = insert_before(plan, stage.name, fresh_stage(name, copy))
            plan = reroute(plan, {init: copy.outputs[0]}, frozenset((stage.name,)))
        taken |= {init.op for init in inits}
    return plan


def _fresh(axis: Axis) -> Axis:
    domain = axis.domain
    return Axis(axis.name, AxisKind.DATA, domain and Range(domain.min, domain.extent), axis.dtype)


def launched_scans(plan: Plan) -> frozenset[str]:
    """The scans of which every step is launched by itself: those without loops around the steps,
    and with loops in them.

    Between two launches all programs see what all others have stored.  A scan with loops around its
    steps needs nothing from other programs, and one without loops in them has one program.
    """
    return frozenset(
        stage.name
        for stage, _ in scan_stages(plan)
        if not outside_steps(stage) and any(_has_loops(plan, s) for s in _in_steps(plan, stage))
    )


def _in_steps(plan: Plan, scan: StagePlan) -> list[StagePlan]:
    """The stages directly inside the loop over the steps, or another loop of the scan."""
    return [
        stage
        for stage in plan.stages
        if stage.attach.kind is AttachKind.AT and stage.attach.stage == scan.name
    ]


def _has_loops(plan: Plan, stage: StagePlan) -> bool:
    """True when a stage of the steps has elements that are computed in any order."""
    return any(
        axis.kind is AxisKind.DATA and not is_step_axis(plan, stage, axis)
        for axis in stage.leaf_axes
    )


def keep_order(plan: Plan) -> Plan:
    """Loops over steps without a software pipeline, which would load rows before they are
    stored."""
    for stage, _ in scan_stages(plan):
        loop = step_loop(stage)
        mark = replace(stage.mark(loop), num_stages=1)
        plan = plan.with_stage(replace(stage, marks={**stage.marks, loop: mark}))
    return plan
