"""The loop nest of a plan as text, at any moment: kernels, attached stages inside them,
annotations.

Imports `expr`, the plan and region inference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tedsl.expr.index_arith import add
from tedsl.expr.nodes import Axis, AxisKind, BinaryOp, Expr, Reduce, Var
from tedsl.expr.printer import print_expr
from tedsl.ir.nodes import Evict
from tedsl.scheduling.kernels.complete import as_it_runs
from tedsl.scheduling.kernels.tree import Kernel, Nest, kernel_tree
from tedsl.scheduling.plan import Partitioned, Plan, StagePlan
from tedsl.scheduling.plan.labels import axis_text, labels
from tedsl.scheduling.plan.relations import constant
from tedsl.scheduling.plan.scan_structure import is_state
from tedsl.scheduling.plan.scattered import scattered_axes
from tedsl.scheduling.primitives.loops.legality import PLAIN, mark_text
from tedsl.scheduling.regions.infer import Bounds, infer
from tedsl.target import Target
from tedsl.tensor.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, ScanOp, Tensor


def print_plan(plan: Plan, target: Target | None = None) -> str:
    """One loop nest for each stage at root; loops with the extents of what is computed there, and
    for a target with what that implies: `(block)` is a loop that a program of tiles has no other
    way to run.

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
        elif isinstance(stage.op, ComputeOp) and stage.placement.inlined:
            lines.append(f"{stage.name} is inlined: {definition(plan, stage, stage.op)[0]}")
    shown = as_it_runs(plan, target)
    return "\n".join([*lines, *_Text(shown, infer(shown)).kernels()])


@dataclass(frozen=True, slots=True)
class _Text:
    """The lines of a plan without inlined stages, whose axes are loops of one stage each."""

    plan: Plan
    bounds: Bounds

    def kernels(self) -> Iterator[str]:
        """What is stored in pieces, then all kernels and calls in the order in which they run."""
        for stage in self.plan.stages:
            if isinstance(stage.placement, Partitioned):
                yield _pieces(stage, stage.placement)
        for kernel in kernel_tree(self.plan).kernels:
            yield from self.kernel(kernel)

    def kernel(self, kernel: Kernel) -> Iterator[str]:
        """The nests of all programs, each followed by what the last of its programs compute."""
        stage = kernel.leader
        if isinstance(stage.op, ExternOp):
            yield _extern(self.plan, stage, stage.op)
            return
        home = f" in {stage.placement.home}" if stage.placement.home else ""
        more = f"{home}{_evict(stage)}{_launch(stage)}{_atomic(stage)}"
        yield f"kernel {stage.name}: {type_text(stage)}{more}"
        yield from (
            f"  version when {print_expr(each)}" for each in stage.placement.kernel.versions
        )
        first, *others = kernel.programs.nests
        yield from self.nest(first, 1)
        for nest in others:
            yield f"  and in the same grid {nest.stage.name}: {type_text(nest.stage)}"
            yield from self.nest(nest, 2)
            yield from self.last(kernel, nest.stage, 2)
        yield from self.last(kernel, stage, 1)

    def last(self, kernel: Kernel, stage: StagePlan, depth: int) -> Iterator[str]:
        """What the last programs of a stage compute."""
        for nest in (
            nest for phase in kernel.last if phase.of == stage.name for nest in phase.nests
        ):
            yield f"{'  ' * depth}by the last programs {nest.stage.name}: {type_text(nest.stage)}"
            yield from self.nest(nest, depth + 1)

    def nest(self, nest: Nest, depth: int, skipped: int = 0) -> Iterator[str]:
        """The loops of a stage, less the `skipped` outermost, with all that runs in them."""
        stage, op = nest.stage, nest.stage.op
        if not isinstance(op, ComputeOp):
            return
        known, sizes = labels(stage), self.bounds[stage.name].extents
        order, start = stage.loop_order, depth - skipped
        if isinstance(op, ScanOp):
            inner = [n for n, axis in enumerate(order) if axis in nest.inside]
            order = order[: max(inner, default=-1) + 1]
        for axis in order[skipped:]:
            mark = stage.mark(axis)
            note = "" if mark == PLAIN else f"  ({mark_text(mark)})"
            yield f"{'  ' * depth}for {known[axis]} in {_range(op, axis, sizes[axis])}{note}"
            depth += 1
            for guest in (each for phase in nest.inside.get(axis, ()) for each in phase.nests):
                yield f"{'  ' * depth}{self.tile(guest.stage)}"
                yield from self.nest(guest, depth + 1)
        for line in definition(self.plan, stage, op):
            yield "  " * depth + line
        own = frozenset(nest.loops)
        shared = {other: len(own.intersection(other.loops)) for other in nest.sharing}
        for other in sorted(nest.sharing, key=lambda each: -shared[each]):
            at = start + shared[other]
            yield f"{'  ' * at}with {other.stage.name}: {type_text(other.stage)}"
            yield from self.nest(other, at + 1, shared[other])

    def tile(self, stage: StagePlan) -> str:
        """`C: float32[16, 48], local`, what an attached stage computes at a time and where that
        lives."""
        region = ", ".join(str(box.extent) for box in self.bounds[stage.name].region)
        kinds = ", ".join(dtype.value for dtype in stage.op.output_dtypes)
        return f"{stage.name}: {kinds}[{region}], {_memory(self.plan, stage)}"


def _pieces(stage: StagePlan, pieces: Partitioned) -> str:
    """`C: float32[64] is stored by C.head, and from i = 48 on by C.tail`."""
    where = f"{labels(stage)[stage.op.axis[pieces.dim]]} = {print_expr(pieces.position)}"
    made = f"{stage.name}: {type_text(stage)}"
    return f"{made} is stored by {pieces.head}, and from {where} on by {pieces.tail}"


def type_text(stage: StagePlan) -> str:
    """`float32[64, 32]`, what the stage makes, and the shape that the caller has it in."""
    given = "" if stage.array is None else f", stored as [{', '.join(map(str, stage.array.shape))}]"
    return _made(stage) + given


def _made(stage: StagePlan) -> str:
    kinds = [dtype.value for dtype in stage.op.output_dtypes]
    shapes = [", ".join(map(str, shape)) for shape in stage.op.output_shapes]
    shape = shapes[0]
    if any(other != shape for other in shapes):
        return ", ".join(f"{kind}[{each}]" for kind, each in zip(kinds, shapes, strict=True))
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
    launch = stage.placement.kernel.launch
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
    """That data say where parts of a reduction go, that they are combined atomically, and what that
    means for the numbers."""
    gone = ", ".join(labels(stage)[axis] for axis in scattered_axes(stage))
    where = f"  (scattered along {gone})" if gone else ""
    if not stage.atomic:
        return where
    body = stage.op.bodies[0] if isinstance(stage.op, ComputeOp) else None
    varies = (
        isinstance(body, Reduce)
        and body.reducer.operator is BinaryOp.ADD
        and body.dtype.is_float
        and bool(stage.contended)
    )
    order = ", rounded in an order that may change from run to run" if varies else ""
    return f"{where}  (atomic{order})"


def _memory(plan: Plan, stage: StagePlan) -> str:
    """Where a stage lives: its scope, and the loop that it is stored in when that is another."""
    program, kept = stage.placement.program, stage.placement.kept
    if program is not None:
        return f"passed on by the programs {axis_text(plan, program)}"
    if kept is None:
        return stage.scope.value
    home = "outside all loops" if kept.axis is None else f"in {axis_text(plan, kept.axis)}"
    return f"{stage.scope.value}, stored {home}{' as a window' if kept.rolling else ''}"


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
