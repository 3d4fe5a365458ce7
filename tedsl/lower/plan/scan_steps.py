"""What a plan with scans needs before its loops are built: rows of their own for every init, and
whether the steps of a scan are a loop of one kernel or launches of several."""

from __future__ import annotations

from dataclasses import replace

from tedsl.expr.nodes import Axis, AxisKind, Expr, Range, TensorRead
from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.handles.thread_axis import GRID
from tedsl.scheduling.plan import Mark, Plan, Relation, Split, StagePlan
from tedsl.scheduling.plan.graph import fresh_stage, insert_before, reroute
from tedsl.scheduling.plan.labels import unique_name
from tedsl.scheduling.plan.relations import constant
from tedsl.scheduling.plan.scan_structure import (
    aligned,
    is_step_axis,
    outside_steps,
    scan_stages,
    step_loop,
)
from tedsl.tensor.tensor import ComputeOp, ExternOp, ScanOp


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


def hoist_threads(plan: Plan) -> Plan:
    """Loops of the steps that are bound to the grid, around the steps of scans that ask for it.

    Before:  for t: for io (blockIdx.x): for ii: S[t, io*32 + ii] = f(S[t - 1, io*32 + ii])
    After:   for io (blockIdx.x): for t: for ii: ...
    Only where no element needs one of another program, and the stages of the steps are bound alike.
    """
    for stage, scan in scan_stages(plan):
        dims = [GRID.index(tag) for tag in stage.env if tag in GRID]
        if dims and not outside_steps(stage):
            plan = _hoisted(plan, stage, scan, dims) or plan
    return plan


def _hoisted(plan: Plan, stage: StagePlan, scan: ScanOp, dims: list[int]) -> Plan | None:
    """The plan with grid loops `dims` around the steps; None when they cannot be."""
    parts = _in_steps(plan, stage)
    moved: dict[int, tuple[int, Expr | None]] = {}
    for part in parts:
        bound = {m.program: a for a, m in part.marks.items() if m.kind is LoopKind.PROGRAM}
        if set(bound) != set(dims) or part.placement.axis is not step_loop(stage):
            return None
        for program, axis in bound.items():
            place, factor = _origin(scan, part, axis)
            if place is None:
                return None
            known = moved.setdefault(program, (place, factor))
            if known[0] != place or constant(known[1]) != constant(factor):
                return None
            if (known[1] is None) != (factor is None):
                return None
        rest = {a: m for a, m in part.marks.items() if m.kind is not LoopKind.PROGRAM}
        plan = plan.with_stage(replace(part, marks=rest))
    outer: dict[Axis, Mark] = {}
    relations: list[Relation] = list(stage.relations)
    leaves = list(stage.leaf_axes)
    for program in dims:
        place, factor = moved[program]
        root = scan.axes[place]
        at = next((n for n, axis in enumerate(leaves) if axis is root), None)
        if at is None:
            return None
        leaves.pop(at)
        loop = root
        if factor is not None:
            loop = Axis(f"{root.name}.outer", root.kind, None, root.dtype)
            inner = Axis(f"{root.name}.inner", root.kind, None, root.dtype)
            relations.append(Split(root, loop, inner, factor))
            leaves.append(inner)
        outer[loop] = Mark(LoopKind.PROGRAM, program)
    order = (*outer, *leaves)
    marks = {**stage.marks, **outer}
    return plan.with_stage(replace(stage, leaf_axes=order, relations=tuple(relations), marks=marks))


def _origin(scan: ScanOp, part: StagePlan, axis: Axis) -> tuple[int | None, Expr | None]:
    """The dimension of the scan that a loop goes over, and by how many elements; None when it is
    none, or its elements are not computed by themselves."""
    root, factor = axis, None
    for relation in part.relations:
        if isinstance(relation, Split) and relation.outer is axis:
            if constant(relation.factor) is None:
                return None, None
            root, factor = relation.parent, relation.factor
    for place in range(1, len(scan.axes)):
        axes = aligned(scan, place)
        if axes is not None and axes.get(part.op) is root:
            return place, factor
    return None, None


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
        if stage.placement.axis is not None and stage.placement.host == scan.name
    ]


def _has_loops(plan: Plan, stage: StagePlan) -> bool:
    """True when a stage of the steps has elements that are computed in any order."""
    return any(
        axis.kind is AxisKind.DATA and not is_step_axis(plan, stage, axis)
        for axis in stage.leaf_axes
    )


def keep_order(plan: Plan) -> Plan:
    """Loops over steps without software pipelining, which would load rows before they are
    stored."""
    for stage, _ in scan_stages(plan):
        loop = step_loop(stage)
        mark = replace(stage.mark(loop), num_stages=1)
        plan = plan.with_stage(replace(stage, marks={**stage.marks, loop: mark}))
    return plan
