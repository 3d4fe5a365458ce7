"""The scans of a plan: which stages belong to their steps, which axes are fixed within one step,
and along which dimensions a step needs only what lies at the same place of earlier ones.

Imports `expr` and the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from tedsl.expr.nodes import Axis, AxisKind, Const, TensorRead
from tedsl.expr.visit import reads, substitute
from tedsl.index.evaluate import EvaluationError, evaluate_int
from tedsl.scheduling.plan import At, Plan, StagePlan
from tedsl.scheduling.plan.links import places
from tedsl.tensor.scan_body import body_of, step_axes, within_scans
from tedsl.tensor.tensor import ComputeOp, Operation, PlaceholderOp, ScanOp, Tensor


def scan_stages(plan: Plan) -> tuple[tuple[StagePlan, ScanOp], ...]:
    """The scans of the plan with their operations."""
    found = (plan.stage_at(number) for number in places(plan).scans)
    return tuple((stage, stage.op) for stage in found if isinstance(stage.op, ScanOp))


def steps(plan: Plan) -> list[tuple[str, ...]]:
    """The stages that each step of each scan computes."""
    return [tuple(plan.stage_of(op).name for op in body_of(scan)) for _, scan in scan_stages(plan)]


@lru_cache(maxsize=4)
def _members(plan: Plan) -> dict[Operation, ScanOp]:
    return within_scans(stage.op for stage in plan.stages)


def scan_of(plan: Plan, op: Operation) -> StagePlan | None:
    """The scan of which `op` is a state, or to whose steps it belongs."""
    if not scan_stages(plan):
        return None
    found = _members(plan).get(op)
    return None if found is None else plan.stage_of(found)


def is_state(plan: Plan, op: Operation) -> bool:
    """True when `op` only stands for the result of a scan."""
    return isinstance(op, PlaceholderOp) and scan_of(plan, op) is not None


def inputs_of(plan: Plan) -> tuple[Tensor, ...]:
    """The inputs of the computation, in plan order: placeholders that are no states."""
    placeholders = [s.op for s in plan.stages if isinstance(s.op, PlaceholderOp)]
    return tuple(op.outputs[0] for op in placeholders if not is_state(plan, op))


def step_place(scan: StagePlan) -> At:
    """The place of what each step of `scan` computes."""
    return At(scan.name, step_loop(scan))


def step_loop(scan: StagePlan) -> Axis:
    """The loop over the steps."""
    return next(axis for axis in scan.leaf_axes if axis.kind is AxisKind.ORDERED)


def outside_steps(scan: StagePlan) -> tuple[Axis, ...]:
    """The loops of a scan around its steps, outermost first."""
    at = next(n for n, a in enumerate(scan.leaf_axes) if a.kind is AxisKind.ORDERED)
    return scan.leaf_axes[:at]


def stored_as(plan: Plan) -> dict[Tensor, Tensor]:
    """Where tensors live that are no memory of their own: in the result of their scan, or in that
    which they initialise."""
    found: dict[Tensor, Tensor] = {}
    for _, op in scan_stages(plan):
        for part in (op.states, op.updates, op.inits):
            found.update(zip(part, op.outputs, strict=True))
    for stage in plan.stages:
        if stage.placement.home:
            results = plan.stage(stage.placement.home).op.outputs
            found.update(zip(stage.op.outputs, results, strict=True))
    return found


def role(plan: Plan, op: Operation) -> tuple[str, StagePlan] | None:
    """What `op` is for a scan, `"init"` or `"update"`, and that scan."""
    for stage, scan in scan_stages(plan):
        for word, tensors in (("init", scan.inits), ("update", scan.updates)):
            if any(tensor.op is op for tensor in tensors):
                return word, stage
    return None


def is_step_axis(plan: Plan, stage: StagePlan, axis: Axis) -> bool:
    """True when `axis` of a stage of the steps, or what it was split from, is fixed in a step."""
    if isinstance(stage.op, ScanOp):
        return axis.kind is AxisKind.ORDERED
    scan = scan_of(plan, stage.op)
    if scan is None or not isinstance(scan.op, ScanOp):
        return False
    return axis in step_axes(scan.op).get(stage.op, frozenset())


@dataclass(frozen=True, slots=True)
class Crossing:
    """A read through which an element of a step depends on other elements of an earlier one."""

    stage: ComputeOp
    read: TensorRead

    def __str__(self) -> str:
        return f"{self.stage.name} reads {self.read}"


def crossing(scan: ScanOp, place: int) -> Crossing | None:
    """Why dimension `place` is not computed element by element; None when it is.

    Each operation of the body must have one axis for the dimension, and read the states, and the
    others, at that axis.  (TVM: a fix point of the scan.)
    """
    return _followed(scan, place, {})


def aligned(scan: ScanOp, place: int) -> Mapping[Operation, Axis] | None:
    """The axis that each operation of the body has for dimension `place`; None when elements
    cross."""
    axes: dict[Operation, Axis] = {}
    return axes if _followed(scan, place, axes) is None else None


def _followed(scan: ScanOp, place: int, axes: dict[Operation, Axis]) -> Crossing | None:
    """The first crossing, from the updates on; fills in `axes` on the way."""
    if any(len(shape) < len(scan.axes) for shape in scan.output_shapes):  # no loop over all of it
        return Crossing(scan, reads(*scan.bodies)[-1])
    updates = {update.op for update in scan.updates}
    body = frozenset(body_of(scan))
    for op in reversed(body_of(scan)):
        if op in updates:
            axes.setdefault(op, op.axes[place])
            if axes[op] is not op.axes[place]:
                return _first_use(scan, op)
        mine = axes.get(op)
        for read in reads(*op.bodies):
            source = read.tensor.op
            if any(read.tensor is state for state in scan.states):
                if mine is None or read.indices[place] is not mine:
                    return Crossing(op, read)
            elif source in body and isinstance(source, ComputeOp):
                theirs = _along(source, read, mine)
                if theirs is None or axes.setdefault(source, theirs) is not theirs:
                    return Crossing(op, read)
    return None


def _along(source: ComputeOp, read: TensorRead, mine: Axis | None) -> Axis | None:
    """The axis of `source` that `read` indexes by `mine`."""
    found = [a for a, i in zip(source.axes, read.indices, strict=True) if i is mine]
    return found[0] if mine is not None and found else None


def _first_use(scan: ScanOp, op: ComputeOp) -> Crossing:
    """A read of an update by another operation of the steps."""
    for user in body_of(scan):
        for read in reads(*user.bodies):
            if read.tensor.op is op:
                return Crossing(user, read)
    return Crossing(op, reads(*op.bodies)[0])


def carried(scan: ScanOp) -> str:
    """Two steps of which one needs the other, in words: `step t = 2 reads S[1, i], which step t = 1
    computes`."""
    first = int(scan.first.value) if isinstance(scan.first, Const) else None
    for update in scan.updates:
        op = update.op
        for read in reads(*op.bodies) if isinstance(op, ComputeOp) else ():
            if first is None or not isinstance(op, ComputeOp):
                break
            if not any(read.tensor is state for state in scan.states):
                continue
            for step in range(first, first + 8):
                at = substitute(read.indices[0], {op.axes[0]: Const(step, op.axes[0].dtype)})
                row = _value(at)
                if row is not None and row >= first:
                    name, rest = op.axes[0].name, "".join(f", {i}" for i in read.indices[1:])
                    return (
                        f"step {name} = {step} reads {read.tensor.name}[{row}{rest}], which step "
                        f"{name} = {row} computes"
                    )
    return f"a step reads the state {scan.states[0].name}, which the steps before it compute"


def _value(index: object) -> int | None:
    try:
        return evaluate_int(index, {})  # pyright: ignore[reportArgumentType]
    except EvaluationError:
        return None
