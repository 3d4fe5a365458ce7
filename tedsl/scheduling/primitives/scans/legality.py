"""Legality around scans: their steps run in order, and what belongs to the steps stays in them."""

from __future__ import annotations

from tedsl.errors import ScheduleError
from tedsl.expr.nodes import Axis, AxisKind
from tedsl.scheduling.kernels.tree import hosts
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.graph import tensors_read
from tedsl.scheduling.plan.labels import axis_text, labels, loops_text
from tedsl.scheduling.plan.relations import ranks, related
from tedsl.scheduling.plan.scan_structure import (
    Crossing,
    carried,
    crossing,
    is_step_axis,
    outside_steps,
    role,
    scan_of,
    scan_stages,
    step_loop,
)
from tedsl.scheduling.primitives.call import Call
from tedsl.tensor.scan_body import within_scans
from tedsl.tensor.tensor import ComputeOp, Operation, ScanOp, Tensor


def check_outputs(ops: tuple[Operation, ...], outputs: tuple[Tensor, ...]) -> None:
    """What the steps of a scan compute is used by them only.

    Raises:
        ScheduleError: an output, or a reader, of a part of the steps.
    """
    steps = within_scans(ops)
    for tensor in outputs:
        if tensor.op in steps:
            raise _escaping(tensor.op, steps[tensor.op], "is an output of the schedule")
    for op in ops:
        if op in steps:
            continue
        for tensor in tensors_read(op):
            source = tensor.op
            if source in steps and steps[source] is not op:
                raise _escaping(source, steps[source], f"is read by {op.name}")


def _escaping(op: Operation, scan: ScanOp, what: str) -> ScheduleError:
    return ScheduleError(
        f"{op.name} belongs to the steps of the scan {scan.name} and {what}",
        subject="create_schedule",
        primitive="create_schedule",
        stage=op.name,
        hint=f"use the result of te.scan ({scan.name}); to keep an intermediate value of each "
        "step, make it a state",
    )


def scan_problem(plan: Plan, stage: StagePlan) -> tuple[str, str] | None:
    """Why a scan, or a part of one, may not be where it is, and what to do."""
    if not scan_stages(plan):
        return None
    if isinstance(stage.op, ScanOp):
        if stage.placement.at_root:
            return _order_problem(stage, stage.op)
        return (
            f"{stage.name} is a scan, whose rows follow from each other: it is computed as a whole",
            f"leave {stage.name} at root, and attach its readers to each other",
        )
    part = role(plan, stage.op)
    if part is not None and part[0] == "init" and not stage.placement.at_root:
        return (
            f"{stage.name} is stored in the first rows of {part[1].name}, before its steps",
            f"leave {stage.name} at root",
        )
    scan = scan_of(plan, stage.op) if isinstance(stage.op, ComputeOp) else None
    return None if scan is None else _step_problem(plan, stage, scan)


def _order_problem(stage: StagePlan, op: ScanOp) -> tuple[str, str] | None:
    """Why a loop may not be around the steps."""
    found = _crossed(stage, op)
    if found is None:
        return None
    axis, root, read = found
    name = labels(stage)[axis]
    return (
        f"{name} is around the steps, and each step needs elements at other {root.name}: {read}",
        f"leave {labels(stage)[step_loop(stage)]} outside {name}",
    )


def _crossed(stage: StagePlan, op: ScanOp) -> tuple[Axis, Axis, Crossing] | None:
    """A loop around the steps, the dimension it is of, and the read that crosses it."""
    for axis in outside_steps(stage):
        group = related(stage, axis)
        for place, root in enumerate(op.axes):
            found = crossing(op, place) if root in group else None
            if found is not None:
                return axis, root, found
    return None


def _step_problem(plan: Plan, stage: StagePlan, scan: StagePlan) -> tuple[str, str] | None:
    """Why a part of the steps of `scan` may not be where it is."""
    where = f"{scan.name}.{labels(scan)[step_loop(scan)]}"
    if stage.placement.at_root:
        return (
            f"{stage.name} depends on the state of the scan {scan.name}: it is computed in the "
            f"steps, inside {where}",
            f"attach it at {where} or at a loop inside it",
        )
    if stage.placement.inlined:
        part = role(plan, stage.op)
        if part is None:
            return None
        return (
            f"{stage.name} is stored in the rows of {scan.name}",
            f"leave {stage.name} in the steps, and inline what it reads",
        )
    around = _axis_of(plan, stage, scan)
    rank = ranks(scan.leaf_axes)
    if around is not None and rank[around] < rank[step_loop(scan)]:
        return (
            f"{stage.name} depends on the state of the scan {scan.name}, and "
            f"{axis_text(plan, around)} is outside its steps",
            f"attach it at {where} or at a loop inside it",
        )
    return None


def _axis_of(plan: Plan, stage: StagePlan, scan: StagePlan) -> Axis | None:
    """The innermost loop of `scan` around `stage`, which is in no loop of its own."""
    return next((axis for host, axis in hosts(plan, stage) if host is scan), None)


def require_no_steps(plan: Plan, call: Call, stage: StagePlan, axis: Axis, how: str) -> None:
    """Steps of a scan run one after the other."""
    if not is_step_axis(plan, stage, axis):
        return
    scan = stage if isinstance(stage.op, ScanOp) else scan_of(plan, stage.op)
    if scan is None or not isinstance(scan.op, ScanOp):
        return
    name = labels(stage)[axis]
    data = ", ".join(
        labels(stage)[a]
        for a in stage.leaf_axes
        if a.kind is AxisKind.DATA and not is_step_axis(plan, stage, a)
    )
    raise call.refuse(
        plan,
        f"{name} counts the steps of the scan {scan.name}, which run one after the other: they "
        f"cannot {how}",
        axis=axis,
        facts=[("because", carried(scan.op)), ("loops", loops_text(stage))],
        hint=f"use the loops within a step: {data}"
        if data
        else "write a recurrence that may be regrouped as a reduction (te.sum, te.comm_reducer) "
        "and schedule that",
    )


def require_steps_in_order(plan: Plan, call: Call, stage: StagePlan) -> None:
    """A loop around the steps runs all of them for a part of each row: that part must depend on no
    other part."""
    op = stage.op
    found = _crossed(stage, op) if isinstance(op, ScanOp) else None
    if found is None or not isinstance(op, ScanOp):
        return
    axis, root, read = found
    name, steps = labels(stage)[axis], labels(stage)[step_loop(stage)]
    raise call.refuse(
        plan,
        f"{name} would be around the steps {steps}, and each step needs elements at other "
        f"{root.name} of {op.name}",
        axis=axis,
        facts=[
            ("because", f"{read}, an element that another iteration of {name} computes"),
            ("loops", loops_text(plan.stage(stage.name))),
        ],
        hint=f"leave {steps} outside {name}; the loops of "
        f"{', '.join(update.name for update in op.updates)} may run in parallel within a step",
    )


def require_whole_steps(plan: Plan, call: Call, stage: StagePlan, axis: Axis) -> None:
    """The loop over the steps of a scan is one loop, and within a step there is none."""
    if not is_step_axis(plan, stage, axis):
        return
    if axis.kind is not AxisKind.ORDERED:
        raise call.refuse(
            plan,
            f"{labels(stage)[axis]} has one value in each step of a scan, and makes no loop there",
            axis=axis,
            facts=[("loops", loops_text(stage))],
            hint=f"{call.primitive} the other loops of {stage.name}",
        )
    raise call.refuse(
        plan,
        f"{labels(stage)[axis]} counts the steps of the scan {stage.name}, and stays one loop",
        axis=axis,
        facts=[("loops", loops_text(stage))],
        hint="split, tile and fuse the loops within a step",
    )


def require_outside_steps(plan: Plan, call: Call, stage: StagePlan) -> None:
    """A rewrite that moves stages to places of its own, which are not those of a scan."""
    scan = scan_of(plan, stage.op)
    if scan is None:
        return
    raise call.refuse(
        plan,
        f"{stage.name} belongs to the steps of the scan {scan.name}, and {call.primitive} would "
        "move stages out of them",
        hint=f"attach {stage.name} within the steps with compute_at instead",
    )


def require_no_scan(plan: Plan, call: Call, stage: StagePlan, what: str) -> None:
    """A rewrite that would take the rows of a scan apart."""
    if not isinstance(stage.op, ScanOp):
        return
    raise call.refuse(
        plan,
        f"{stage.name} is a scan: {what}",
        hint=f"call this on a stage that {stage.name} reads, or that reads it",
    )
