"""The loop nest of a plan as text, at any moment: kernels, attached stages inside them,
annotations.

Imports `expr`, the plan and region inference.
"""

from __future__ import annotations

from collections.abc import Iterator

from tedsl.expr.integers import add
from tedsl.expr.nodes import Axis, AxisKind, BinaryOp, Expr, Reduce, Var
from tedsl.expr.printer import print_expr
from tedsl.expr.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, ScanOp, Tensor
from tedsl.ir.nodes import Evict
from tedsl.scheduling.bounds import Bounds, infer
from tedsl.scheduling.checks.loops import PLAIN, mark_text
from tedsl.scheduling.inline import inline_stages
from tedsl.scheduling.kernels.tree import beside, finishers, guests, leader_of, sharing
from tedsl.scheduling.kernels.tree import depth as loops_shared
from tedsl.scheduling.names import axis_text, labels
from tedsl.scheduling.plan import AttachKind, Pieces, Plan, StagePlan
from tedsl.scheduling.relations import constant
from tedsl.scheduling.scans import is_state
from tedsl.scheduling.separate import separate_axes


def print_plan(plan: Plan) -> str:
    """One loop nest for each stage at root; loops with the extents of what is computed there.

    inputs A: float32[64, 32]
    B is inlined
    kernel D: float32[64, 48]
      for i.outer in 0..4  (bound to blockIdx.x)
        C: float32, local
          for i in 0..16
            ...
    """
    lines = [f"assume {print_expr(condition)}" for condition in plan.assumptions]
    for stage in plan.stages:
        if isinstance(stage.op, PlaceholderOp):
            what = "state" if is_state(plan, stage.op) else "input"
            lines.append(f"{what} {stage.name}: {type_text(stage)}{_evict(stage)}")
        elif isinstance(stage.op, ComputeOp) and stage.attach.kind is AttachKind.INLINE:
            lines.append(f"{stage.name} is inlined: {definition(plan, stage, stage.op)[0]}")
    shown = separate_axes(inline_stages(plan))
    bounds = infer(shown)
    for stage in shown.stages:
        if isinstance(stage.op, ExternOp):
            lines.append(_extern(shown, stage, stage.op))
        if leader_of(shown, stage) is not stage or not isinstance(stage.op, ComputeOp):
            continue
        if stage.pieces is not None:
            lines.append(_pieces(stage, stage.op, stage.pieces))
            continue
        if stage.attach.kind is AttachKind.ROOT:
            head = f"{type_text(stage)}{_evict(stage)}{_launch(stage)}{_atomic(stage)}"
            lines.append(f"kernel {stage.name}: {head}")
            lines.extend(f"  version when {print_expr(c)}" for c in stage.specializations)
            lines.extend(_nest(shown, bounds, stage, stage.op, 1))
            for other in beside(shown, stage):
                if isinstance(other.op, ComputeOp):
                    lines.append(f"  and in the same grid {other.name}: {type_text(other)}")
                    lines.extend(_nest(shown, bounds, other, other.op, 2))
                    lines.extend(_last(shown, bounds, other, 2))
            lines.extend(_last(shown, bounds, stage, 1))
    return "\n".join(lines)


def _last(plan: Plan, bounds: Bounds, leader: StagePlan, depth: int) -> Iterator[str]:
    """What the last programs of a stage compute."""
    for stage in finishers(plan, leader):
        if isinstance(stage.op, ComputeOp):
            yield f"{'  ' * depth}by the last programs {stage.name}: {type_text(stage)}"
            yield from _nest(plan, bounds, stage, stage.op, depth + 1)


def _pieces(stage: StagePlan, op: ComputeOp, pieces: Pieces) -> str:
    """`C: float32[64] is stored by C.head, and from i = 48 on by C.tail`."""
    where = f"{labels(stage)[op.axes[pieces.dim]]} = {print_expr(pieces.at)}"
    made = f"{stage.name}: {type_text(stage)}"
    return f"{made} is stored by {pieces.head}, and from {where} on by {pieces.tail}"


def type_text(stage: StagePlan) -> str:
    """`float32[64, 32]`, what the stage makes."""
    kinds = [dtype.value for dtype in stage.op.output_dtypes]
    shape = ", ".join(str(extent) for extent in stage.op.shape)
    return f"{kinds[0] if len(kinds) == 1 else '(' + ', '.join(kinds) + ')'}[{shape}]"


def _extern(plan: Plan, stage: StagePlan, op: ExternOp) -> str:
    """`extern E: float32[64] calls sort_rows(A, B), on the GPU fast_sort`."""
    kinds = [f"{t.dtype.value}[{', '.join(map(str, t.shape))}]" for t in op.outputs]
    names = [f"{plan.stage_of(t.op).name}{_output(t)}" for t in op.inputs]
    gpu = "" if op.gpu is None else f", on the GPU {op.gpu.label}"
    made = f"{stage.name}: {', '.join(kinds)}"
    return f"extern {made} calls {op.function.label}({', '.join(names)}){gpu}"


def _output(tensor: Tensor) -> str:
    return f".v{tensor.index}" if tensor.op.num_outputs > 1 else ""


def _launch(stage: StagePlan) -> str:
    launch = stage.launch
    options = {
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
        "num_ctas": launch.num_ctas,
        "maxnreg": launch.maxnreg,
    }
    given = [f"{key}={value}" for key, value in options.items() if value is not None]
    return f"  ({', '.join(given)})" if given else ""


def _evict(stage: StagePlan) -> str:
    then = "" if stage.evict_then is None else f", then {stage.evict_then.value}"
    usual = stage.evict is Evict.NORMAL and not then
    return "" if usual else f", evicted {stage.evict.value}{then}"


def _atomic(stage: StagePlan) -> str:
    """That parts of a reduction are combined atomically, and what that means for the numbers."""
    if not stage.atomic:
        return ""
    body = stage.op.bodies[0] if isinstance(stage.op, ComputeOp) else None
    varies = (
        isinstance(body, Reduce)
        and body.reducer.operator is BinaryOp.ADD
        and body.dtype.is_float
        and bool(stage.contended)
    )
    return f"  (atomic{', rounded in an order that may change from run to run' if varies else ''})"


def _nest(
    plan: Plan, bounds: Bounds, stage: StagePlan, op: ComputeOp, depth: int, skipped: int = 0
) -> Iterator[str]:
    """The loops of a stage, less the `skipped` outermost, with all that runs in them."""
    known, sizes = labels(stage), bounds[stage.name].extents
    order, start = stage.loop_order, depth - skipped
    if isinstance(op, ScanOp):
        inner = [n for n, axis in enumerate(order) if guests(plan, stage, axis)]
        order = order[: max(inner, default=-1) + 1]
    for axis in order[skipped:]:
        mark = stage.mark(axis)
        note = "" if mark == PLAIN else f"  ({mark_text(mark)})"
        yield f"{'  ' * depth}for {known[axis]} in {_range(op, axis, sizes[axis])}{note}"
        depth += 1
        for guest in guests(plan, stage, axis):
            if isinstance(guest.op, ComputeOp) and leader_of(plan, guest) is guest:
                region = ", ".join(str(r.extent) for r in bounds[guest.name].region)
                kinds = ", ".join(dtype.value for dtype in guest.op.output_dtypes)
                yield f"{'  ' * depth}{guest.name}: {kinds}[{region}], {_memory(plan, guest)}"
                yield from _nest(plan, bounds, guest, guest.op, depth + 1)
    for line in definition(plan, stage, op):
        yield "  " * depth + line
    for other in sorted(sharing(plan, stage), key=lambda each: -loops_shared(plan, each)):
        if isinstance(other.op, ComputeOp):
            shared = loops_shared(plan, other)
            at = start + shared
            yield f"{'  ' * at}with {other.name}: {type_text(other)}"
            yield from _nest(plan, bounds, other, other.op, at + 1, shared)


def _memory(plan: Plan, stage: StagePlan) -> str:
    """Where a stage lives: its scope, and the loop that it is stored in when that is another."""
    if stage.across is not None:
        return f"passed on by the programs {axis_text(plan, stage.across.program)}"
    if stage.kept is None:
        return stage.scope.value
    axis = stage.kept.axis
    home = "outside all loops" if axis is None else f"in {axis_text(plan, axis)}"
    return f"{stage.scope.value}, stored {home}{' as a window' if stage.kept.rolling else ''}"


def _range(op: ComputeOp, axis: Axis, extent: Expr) -> str:
    low = axis.domain.min if axis.domain is not None else None
    if isinstance(op, ScanOp) and axis.kind is AxisKind.ORDERED:
        return f"{op.first}..{op.shape[0]}"
    if low is None or constant(low) == 0:
        return f"0..{extent}"
    first, size = constant(low), constant(extent)
    end = add(low, extent) if first is None or size is None else first + size
    return f"{low}..{end}"


def definition(plan: Plan, stage: StagePlan, op: ComputeOp) -> list[str]:
    """The stage's outputs, over the names of stages and loops."""
    names: dict[Operation, str] = {s.op: s.name for s in plan.stages}
    if isinstance(op, ScanOp):
        rows = zip(op.inits, op.updates, strict=True)
        parts = [f"{names[a.op]}, then {names[b.op]}" for a, b in rows]
        return [f"{stage.name}: rows of {'; '.join(parts)}"]
    known = labels(stage)

    def naming(node: Axis | Var | Operation) -> str:
        if isinstance(node, Operation):
            return names.get(node, node.name)
        return known.get(node, node.name) if isinstance(node, Axis) else node.name

    indices = ", ".join(known[axis] for axis in op.axes)
    return [
        f"{stage.name}{f'.v{n}' if len(op.bodies) > 1 else ''}[{indices}] = "
        f"{print_expr(body, naming)}"
        for n, body in enumerate(op.bodies)
    ]
