"""Whether loops compute what an intrinsic declares, and if not, where they first differ.

Used by the check of `tensorize` and again by the lowering, when all loops are known.  Imports
`expr`, the plan and region inference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from tedsl.expr.index_arith import add, constant, sub
from tedsl.expr.nodes import (
    Axis,
    AxisKind,
    Binary,
    BinaryOp,
    Const,
    Expr,
    IfThenElse,
    Reduce,
    TensorRead,
)
from tedsl.expr.printer import print_expr
from tedsl.expr.visit import axes_of, substitute
from tedsl.index.simplify import simplify
from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.links import special
from tedsl.scheduling.plan.unshare_axes import own_nests
from tedsl.scheduling.regions.infer import StageBounds, infer
from tedsl.tensor.intrin import TensorIntrin
from tedsl.tensor.tensor import ComputeOp, Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """The loop for each axis of the intrinsic, and the read that each of its inputs stands for."""

    loops: tuple[Axis, ...]
    operands: tuple[TensorRead, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """The first thing that differs, and what to do."""

    reason: str
    hint: str


def loops_for(inner: Sequence[Axis]) -> tuple[Axis, ...]:
    """Loops in the order of an intrinsic's axes: data loops, then reduce loops, as they stand."""
    data = [axis for axis in inner if axis.kind is not AxisKind.REDUCE]
    return (*data, *(axis for axis in inner if axis.kind is AxisKind.REDUCE))


def kinds_text(known: Mapping[Axis, str], axes: Sequence[Axis]) -> str:
    """`[i, j] and reduce [k]`."""
    names = {axis: known.get(axis, axis.name) for axis in axes}
    data = [name for axis, name in names.items() if axis.kind is not AxisKind.REDUCE]
    rest = [name for axis, name in names.items() if axis.kind is AxisKind.REDUCE]
    return f"[{', '.join(data)}] and reduce [{', '.join(rest)}]"


def match_intrinsic(
    stage: StagePlan,
    op: ComputeOp,
    bounds: StageBounds,
    intrin: TensorIntrin,
    loops: Sequence[Axis],
) -> Match | Difference:
    """Compare `loops` of `stage`, and its body `op`, with the meaning of `intrin`."""
    found = _loops_differ(stage, bounds, intrin, loops)
    if found is not None:
        return found
    if op.num_outputs > 1:
        return Difference(f"{stage.name} has {op.num_outputs} outputs", "tensorize one output")
    first: Difference | None = None
    for swapped in (False, True):
        result = _matched(stage, op, bounds, intrin, loops, swapped)
        if isinstance(result, Match):
            return result
        first = result if first is None else first
    return first or Difference("the bodies differ", "declare an intrinsic of this body")


def _matched(
    stage: StagePlan,
    op: ComputeOp,
    bounds: StageBounds,
    intrin: TensorIntrin,
    loops: Sequence[Axis],
    swapped: bool,
) -> Match | Difference:
    """The match of the bodies; `swapped` has operands of sums and products change places."""
    reads: dict[Tensor, TensorRead] = {}
    text = _Bodies(reads, swapped).differ(op.bodies[0], intrin.op.bodies[0])
    if text is not None:
        return Difference(text, f"declare an intrinsic of this body, or rewrite {stage.name}")
    moved = _moves_differ(stage, bounds, intrin, loops, reads)
    if moved is not None:
        return moved
    return Match(tuple(loops), tuple(reads[tensor] for tensor in intrin.inputs))


def _loops_differ(
    stage: StagePlan, bounds: StageBounds, intrin: TensorIntrin, loops: Sequence[Axis]
) -> Difference | None:
    known = labels(stage)
    names = [known.get(axis, axis.name) for axis in loops]
    for axis, name, own, size in zip(loops, names, intrin.axes, intrin.extents, strict=True):
        extent = bounds.extents[axis]
        if constant(extent) != size:
            return Difference(
                f"the loop {name} has the extent {print_expr(extent)}, {own.name} of {intrin.name} "
                f"has {size}",
                f"split the loop by {size} and tensorize the inner part",
            )
    inside = frozenset(loops)
    for guard in bounds.guards:
        if not axes_of(guard).isdisjoint(inside):
            return Difference(
                f"a guard remains inside: {print_expr(guard)}",
                f"{intrin.name} always computes whole tiles: use extents that its sizes divide "
                "(te.compute over a padded shape), or s.assume that they do",
            )
    return None


@dataclass(slots=True)
class _Bodies:
    """Compares two bodies node by node; `reads` gets what stands for each input.

    Operands of sums and products may change places: with `swapped` that is tried first.
    """

    reads: dict[Tensor, TensorRead]
    swapped: bool

    def differ(self, mine: Expr, theirs: Expr) -> str | None:
        """The first difference in words."""
        if isinstance(theirs, TensorRead):
            return self._read(mine, theirs)
        if isinstance(mine, Reduce) and isinstance(theirs, Reduce):
            return self._reduce(mine, theirs)
        if type(mine) is not type(theirs) or mine.dtype is not theirs.dtype:
            return _text(mine, theirs)
        if isinstance(mine, Const) and isinstance(theirs, Const):
            return None if repr(mine.value) == repr(theirs.value) else _text(mine, theirs)
        if not _same_payload(mine, theirs):
            return _text(mine, theirs)
        left, right = mine.children(), theirs.children()
        if isinstance(mine, Binary) and mine.op in (BinaryOp.ADD, BinaryOp.MUL):
            before = dict(self.reads)
            orders = (left[::-1], left) if self.swapped else (left, left[::-1])
            first = self._all(orders[0], right)
            if first is None:
                return None
            self.reads.clear()
            self.reads.update(before)
            return None if self._all(orders[1], right) is None else first
        return self._all(left, right)

    def _all(self, mine: Sequence[Expr], theirs: Sequence[Expr]) -> str | None:
        if len(mine) != len(theirs):
            return "the bodies have another number of operands"
        for a, b in zip(mine, theirs, strict=True):
            found = self.differ(a, b)
            if found is not None:
                return found
        return None

    def _read(self, mine: Expr, theirs: TensorRead) -> str | None:
        if isinstance(mine, IfThenElse) and isinstance(mine.a, TensorRead):
            return (
                f"{print_expr(mine.a)} counts only where {print_expr(mine.condition)}, and the "
                f"intrinsic reads all of {theirs.tensor.name}"
            )
        if not isinstance(mine, TensorRead):
            return _text(mine, theirs)
        if mine.dtype is not theirs.dtype:
            return (
                f"{print_expr(mine)} is {mine.dtype}, {theirs.tensor.name} of the intrinsic is "
                f"{theirs.dtype}"
            )
        self.reads[theirs.tensor] = mine
        return None

    def _reduce(self, mine: Reduce, theirs: Reduce) -> str | None:
        if mine.where is not None:
            return f"the reduction has a where: {print_expr(mine.where)}"
        if mine.repair is not None or mine.finish is not None or len(mine.sources) != 1:
            return "the reduction goes along with others (online) or folds a tuple"
        a, b = mine.reducer, theirs.reducer
        if a is not b and (a.operator is None or a.operator is not b.operator):
            return f"the reduction is {a.name}, that of the intrinsic {b.name}"
        if mine.dtype is not theirs.dtype:
            return f"the reduction is in {mine.dtype}, that of the intrinsic in {theirs.dtype}"
        return self.differ(mine.sources[0], theirs.sources[0])


def _text(mine: Expr, theirs: Expr) -> str:
    dtypes = "" if mine.dtype is theirs.dtype else f" ({mine.dtype}, not {theirs.dtype})"
    return f"{print_expr(mine)} stands where the intrinsic has {print_expr(theirs)}{dtypes}"


def _same_payload(a: Expr, b: Expr) -> bool:
    for spec in fields(a):  # pyright: ignore[reportArgumentType]
        u, v = getattr(a, spec.name), getattr(b, spec.name)
        if isinstance(u, (Expr, tuple)):
            continue
        if u is not v and u != v:
            return False
    return True


def _moves_differ(
    stage: StagePlan,
    bounds: StageBounds,
    intrin: TensorIntrin,
    loops: Sequence[Axis],
    reads: Mapping[Tensor, TensorRead],
) -> Difference | None:
    """Each operand moves along exactly the loops of its input's axes, by a fixed step each."""
    known = labels(stage)
    inside = frozenset(loops)
    for read, own in ((reads[each.tensor], each) for each in intrin.reads):
        index = [substitute(i, {**bounds.index}) for i in read.indices]
        for loop, axis in zip(loops, intrin.axes, strict=True):
            steps = [_step(i, loop, bounds) for i in index]
            fixed = all(axes_of(step).isdisjoint(inside) for step in steps)
            moves = any(constant(step) != 0 for step in steps)
            wanted = any(axis is each for each in own.indices)
            if moves != wanted or not fixed:
                how = "by no fixed step" if not fixed else "" if moves else "not at all"
                return Difference(
                    f"the index of {print_expr(read)} moves along the loop "
                    f"{known.get(loop, loop.name)} {how}".rstrip()
                    + f", {print_expr(own)} of the intrinsic {'does' if wanted else 'does not'}"
                    f" along {axis.name}",
                    "split, fuse and reorder so that the loops step through operands as declared",
                )
    return None


def _step(index: Expr, loop: Axis, bounds: StageBounds) -> Expr:
    """How far an index goes from one iteration of `loop` to the next."""
    return simplify(sub(substitute(index, {loop: add(loop, 1)}), index), bounds.facts)


def tensor_problem(plan: Plan) -> tuple[str, TensorIntrin, Difference] | None:
    """The first tensorized stage whose loops are not those of its intrinsic any more."""
    if not any(mark.tensorized for stage in special(plan) for mark in stage.marks.values()):
        return None
    shown = own_nests(plan)
    bounds = infer(shown)
    for stage in shown.stages:
        found = tensorized_loops(stage)
        if found is None or not isinstance(stage.op, ComputeOp):
            continue
        intrin, loops = found
        if len(loops) != len(intrin.axes):
            fewer = Difference("some of its loops are not tensorized", "call serial on all of them")
            return stage.name, intrin, fewer
        own = frozenset(loops)
        lanes = [a for a in stage.leaf_axes if stage.mark(a).kind is LoopKind.VECTORIZED]
        other = [labels(stage)[axis] for axis in lanes if axis not in own]
        if other:
            more = Difference(
                f"the loop {other[0]} is vectorized beside those of the intrinsic",
                f"leave {other[0]} serial, or make it parallel",
            )
            return stage.name, intrin, more
        match = match_intrinsic(stage, stage.op, bounds[stage.name], intrin, loops)
        if isinstance(match, Difference):
            return stage.name, intrin, match
    return None


def tensorized_loops(stage: StagePlan) -> tuple[TensorIntrin, tuple[Axis, ...]] | None:
    """The intrinsic of a stage, and its loops in the order of the intrinsic's axes."""
    marks = {axis: stage.mark(axis).tensorized for axis in stage.leaf_axes}
    found = {mark.place: (axis, mark.intrin) for axis, mark in marks.items() if mark is not None}
    if not found:
        return None
    places = sorted(found)
    return found[places[0]][1], tuple(found[place][0] for place in places)
