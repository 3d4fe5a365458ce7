"""What a plan with atomic reductions needs before its loops are built: a nest that stores what each
result starts from, and a target that can combine values in one indivisible step."""

from __future__ import annotations

from tedsl.dtypes import DType
from tedsl.errors import LowerError
from tedsl.expr.nodes import Axis, AxisKind, BinaryOp, Const, Expr, Range, Reduce
from tedsl.expr.tensor import ComputeOp, Tensor
from tedsl.expr.visit import substitute
from tedsl.scheduling.call import Call
from tedsl.scheduling.graph import fresh_stage, insert_before
from tedsl.scheduling.names import unique_name
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.primitives import loops, marks
from tedsl.target import Target, TargetKind

# Lanes of the programs that store what results start from.
START_LANES = 512

_WIDE = frozenset(
    (DType.int32, DType.int64, DType.uint32, DType.uint64, DType.float32, DType.float64)
)
_EXTREMES = (BinaryOp.MIN, BinaryOp.MAX)


def separate_starts(plan: Plan, target: Target) -> tuple[Plan, dict[Tensor, Tensor]]:
    """The plan with a stage before each atomic reduction that stores its start, and in which tensor
    each of these is stored.

    Before:  parallel for k: C[i] += A[i, k]
    After:   C.start[i] = 0, stored in C;  parallel for k: C[i] += A[i, k]
    Raises:
        LowerError: the target cannot combine the dtype atomically.
    """
    homes: dict[Tensor, Tensor] = {}
    for stage in plan.stages:
        op = stage.op
        body = op.bodies[0] if isinstance(op, ComputeOp) else None
        if not isinstance(op, ComputeOp) or not isinstance(body, Reduce) or not stage.contended:
            continue
        _require_update(stage, body, target)
        start = _start(stage, op, body, {s.name for s in plan.stages})
        plan = insert_before(plan, stage.name, start)
        if target.is_triton and op.axes:
            plan = _in_blocks(plan, start)
        homes.update(zip(plan.stage(start.name).op.outputs, op.outputs, strict=True))
    return plan, homes


def _start(stage: StagePlan, op: ComputeOp, body: Reduce, taken: set[str]) -> StagePlan:
    """The stage that stores what `stage` starts from."""
    axes = tuple(_fresh(axis) for axis in op.axes)
    over: dict[Expr, Expr] = dict(zip(op.axes, axes, strict=True))
    (value,) = (substitute(each, over) for each in body.init or body.reducer.identity)
    name = unique_name(f"{stage.name}.start", taken)
    return fresh_stage(name, ComputeOp(name, axes, (value,), op.shape))


def _fresh(axis: Axis) -> Axis:
    domain = axis.domain
    return Axis(axis.name, AxisKind.DATA, domain and Range(domain.min, domain.extent), axis.dtype)


def _in_blocks(plan: Plan, start: StagePlan) -> Plan:
    """The loops of a start as programs of one block axis each."""
    call = Call("atomic", start.name)
    plan, whole = loops.fuse(plan, call, start.leaf_axes)
    plan, (outer, inner) = loops.split(plan, call, whole, START_LANES, None)
    plan = marks.bind(plan, call, outer, "blockIdx.x")
    return marks.vectorize(plan, call, inner)


def _require_update(stage: StagePlan, body: Reduce, target: Target) -> None:
    """The target has an atomic update for the operator and the dtype, and for the start."""
    op, dtype = body.reducer.operator, body.dtype
    hint = "accumulate in a 32-bit type (dtype=, s.set_precision)"
    if not target.is_triton:
        short = dtype.is_float and dtype.bits < 32
        problem = f"the CPU has no atomic update of {dtype}" if short else ""
    else:
        problem = _triton_problem(op, dtype, target)
        if not problem and dtype.is_float and op in _EXTREMES and not _is_number(body):
            problem = "its init= may be NaN, which Triton's atomic minima and maxima do not keep"
            hint = f"take the {body.reducer.name} with it in a stage that reads {stage.name}"
    if problem:
        raise LowerError(
            f"{stage.name} is atomic, and {problem}",
            subject=f"atomic({stage.name})",
            facts=[("target", str(target)), ("reducer", f"{body.reducer.name} of {dtype}")],
            hint=f"{hint}, or keep its reduce loops serial, or use s.rfactor",
        )


def _triton_problem(op: BinaryOp | None, dtype: DType, target: Target) -> str:
    """Why Triton cannot combine `dtype` atomically; empty when it can."""
    if dtype in _WIDE:
        return ""
    if op is BinaryOp.ADD and dtype is DType.bfloat16:
        simulated = target.kind is TargetKind.TRITON_INTERPRET
        return f"Triton's interpreter has no atomic sum of {dtype}" if simulated else ""
    if op is BinaryOp.ADD and dtype is DType.float16:
        return ""
    return f"Triton has no atomic {op.value if op else 'update'} of {dtype}"


def _is_number(body: Reduce) -> bool:
    """True when the start is surely no NaN."""
    (start,) = body.init or body.reducer.identity
    return isinstance(start, Const) and start.value == start.value
