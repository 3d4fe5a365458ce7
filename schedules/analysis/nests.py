"""Pattern matching on loop nests: contraction, row reduction, column reduction, pointwise.

A stage is described by its axes, its reads and its reducer, never by its name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tedsl.dtypes import DType
from tedsl.errors import InternalError
from tedsl.expr.index_arith import conjuncts, constant
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    IfThenElse,
    Reduce,
    Select,
    TensorRead,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.expr.visit import axes_of, reads, rewrite, walk
from tedsl.index.affine import coefficients, stride_of
from tedsl.ir.matrix_units import factors
from tedsl.schedules.analysis.views import View, elements_of, extent_of, size_of, volume
from tedsl.scheduling.algebra.associativity import Verdict, combines_in_any_order
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp, Tensor

# Elements between two of which no access to memory, and few lines of a cache, have both.
BLOCK = 8
# An axis with fewer elements is no row: what is contiguous along it has other neighbours too.
SHORT = 16


def is_reduction(op: ComputeOp) -> bool:
    """True when the outputs are reductions."""
    return isinstance(op.bodies[0], Reduce)


def among(axis: Axis | None, axes: Sequence[Axis]) -> bool:
    """True when `axis` is one of `axes` (`in` would build comparisons)."""
    return any(axis is a for a in axes)


def innermost(axes: Sequence[Axis]) -> Axis:
    """The last axis that has more than one element."""
    return next((a for a in reversed(axes) if extent_of(a) != 1), axes[-1])


def same_axes(a: Sequence[Axis] | None, b: Sequence[Axis]) -> bool:
    """True when both hold the same axes in the same order."""
    return a is not None and len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def long_axes(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """The axes of more than one element."""
    return tuple(axis for axis in axes if extent_of(axis) != 1)


def in_step(read: TensorRead, axes: Sequence[Axis]) -> bool:
    """True when an element of each place is read at that place, axes of one element left out."""
    sizes = zip(read.indices, read.tensor.shape, strict=True)
    own = [index for index, size in sizes if size_of(size) != 1]
    mine = long_axes(axes)
    return len(own) == len(mine) and all(x is y for x, y in zip(own, mine, strict=True))


def nbytes_of(tensor: Tensor) -> int:
    """Bytes of a tensor of known shape, else 0."""
    return elements_of(tensor) * tensor.dtype.nbytes


def pow2_at_least(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(0, size - 1).bit_length()


def padded(extent: int | None) -> int | None:
    """The lanes that an extent takes; None for a symbolic one."""
    return None if extent is None else pow2_at_least(extent)


def first(made: Tensor | Sequence[Tensor]) -> Tensor:
    """The first output of a stage that a rewrite made."""
    return made if isinstance(made, Tensor) else made[0]


def reduce_axes(stage: Stage) -> tuple[Axis, ...]:
    """The reduction axes of a stage as it is now."""
    return stage.op.reduce_axes if isinstance(stage.op, ComputeOp) else ()


def computed(stage: Stage) -> ComputeOp:
    """The operation of a stage that has loops."""
    op = stage.op
    if not isinstance(op, ComputeOp):
        raise InternalError(f"a rule for loop nests was asked of {stage.name}, {type(op).__name__}")
    return op


def direct_reads(stage: Stage) -> tuple[TensorRead, ...]:
    """What a stage reads itself, not through what is inlined in it."""
    return reads(*stage.op.bodies) if isinstance(stage.op, ComputeOp) else ()


def any_order(op: ComputeOp) -> bool:
    """True when the reducer is associative and commutative, as proved, so that partial results may
    be combined in any order: what split-K, trees and SIMD lanes need."""
    body = op.bodies[0]
    if not isinstance(body, Reduce):
        return True
    return combines_in_any_order(body.reducer, body.sources).verdict is Verdict.PROVED


def along(op: ComputeOp) -> Axis | None:
    """The axis along which the largest of what `op` reads is contiguous; of several as large as its
    loops an axis of the results, since what is reduced by tiles that transpose is stored in rows,
    unless one of them is short."""
    best: tuple[tuple[int, int, int], Axis] | None = None
    loops = len(long_axes((*op.axes, *op.reduce_axes)))
    for read in reads(*op.bodies):
        index = read.indices[-1:]
        last = sorted(axes_of(*index), key=lambda a: (_far(index[0], a), _longest_first(a), a.name))
        sizes = [extent_of(a) for a in axes_of(*read.indices)]
        points = math.prod(max(size, 1) for size in sizes if size is not None)
        folded = bool(last) and among(last[0], op.reduce_axes)
        short = bool(last) and (extent_of(last[0]) or SHORT) < SHORT
        whole = len(long_axes(tuple(axes_of(*read.indices)))) == loops
        rank = (sizes.count(None), points, 1 + 2 * short if folded else 2 * (whole and not short))
        if last and (best is None or rank > best[0]):
            best = rank, last[0]
    return None if best is None else best[1]


def in_memory_order(op: ComputeOp) -> tuple[Axis, ...]:
    """What `op` reduces, the axes as they lie in the largest of what it reads; in the order of its
    definition where that counts."""
    axes = op.reduce_axes
    found: list[tuple[int, bool, list[int]]] = []
    for read in reads(*op.bodies) if len(axes) > 1 and any_order(op) else ():
        used = [axes_of(index) for index in read.indices]
        places = [max((n for n, own in enumerate(used) if a in own), default=-1) for a in axes]
        points = volume(tuple(axes_of(*read.indices))) or 0
        found.append((points, places == sorted(places), places))
    if not found:
        return axes
    *_, places = max(found, key=lambda each: each[:2])
    return tuple(axes[n] for n in sorted(range(len(axes)), key=places.__getitem__))


def _far(index: Expr, axis: Axis) -> bool:
    """True when neighbours along an axis are no neighbours in memory: a block lies between them."""
    step = 1 if index is axis else stride_of(index, axis)
    return isinstance(step, int) and abs(step) >= BLOCK


def _longest_first(axis: Axis) -> float:
    return -math.inf if (size := extent_of(axis)) is None else -size


@dataclass(frozen=True, slots=True)
class Contraction:
    """A sum of products, as a GEMM is: both operands share the reduced axes (K) and differ in the
    others.

    `batch` axes are in both operands, `rows` (M) only in the first, `columns` (N) only in the
    second, `folded` are K.  `groups` are rows or columns of which so many in a row are multiplied
    by one part of the other operand (the groups of a convolution): that is indexed by their number
    divided by it.  `unit` is the dtype in which tensor cores take both operands, float32 rounded
    where the sum says `tf32`; None where products are rounded before they are added, or are of
    other types: a program then computes products of a K step in registers, without `tl.dot`.
    """

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    folded: tuple[Axis, ...]
    operands: tuple[Expr, Expr]
    unit: DType | None
    groups: Mapping[Axis, int]
    tf32: bool = False


def products(op: ComputeOp, grouped: bool = False) -> Contraction | None:
    """The sum of products that `op` is, if it is one, whatever the extents and the condition;
    `grouped` as for `contraction`."""
    body = op.bodies[0]
    if not isinstance(body, Reduce) or len(op.bodies) > 1:
        return None
    if body.reducer.operator is not BinaryOp.ADD or body.init is not None:
        return None
    term = source = body.sources[0]
    while isinstance(source, Cast):
        source = source.a
    match source:
        case Binary(op=BinaryOp.MUL, a=a, b=b):
            pass
        case _:
            return None
    left, right = _axes(a), _axes(b)
    if not all(k in left and k in right for k in long_axes(body.axes)):
        return None
    data, groups = op.axes, dict[Axis, int]()
    for mine, other, expr in ((left, right, a), (right, left, b)) if grouped else ():
        divided = {x: n for x, n in _divided(expr).items() if x in other and among(x, data)}
        mine -= set(divided)
        groups |= divided
    rows = tuple(x for x in data if x in left and x not in right)
    columns = tuple(x for x in data if x in right and x not in left)
    batch = tuple(x for x in data if not among(x, (*rows, *columns)))
    taken = factors(a, b, body.dtype) if term is source else None
    unit = None if taken is None else taken[0].dtype
    return Contraction(batch, rows, columns, body.axes, (a, b), unit, groups, body.tf32)


def _divided(expr: Expr) -> dict[Axis, int]:
    """The axes of which an expression uses nothing but the quotient by one number."""
    found: dict[Axis, set[int]] = {}
    inside = set[Axis]()
    for node in walk(expr):
        match node:
            case Binary(op=BinaryOp.FLOORDIV, a=Axis() as axis, b=Const(value=int(number))):
                found.setdefault(axis, set()).add(number)
            case Axis():
                continue
            case _:
                inside |= {child for child in node.children() if isinstance(child, Axis)}
    sizes = {axis: extent_of(axis) for axis in found}
    return {
        axis: number
        for axis, (number, *more) in found.items()
        if axis not in inside and not more and number > 1 and (sizes[axis] or 1) % number == 0
    }


def contraction(op: ComputeOp, masked: bool = False, grouped: bool = False) -> Contraction | None:
    """The contraction (GEMM, batched GEMM, convolution) that `op` is, if it is one: every element
    of each operand is reused.

    Points that a condition leaves out are 0 in both operands (as past the end of K split into
    parts), or in one where the sum says that all are finite; with `masked` they may be left out one
    by one, as loops over tiles (the CPU) can do it.  With `masked` or `grouped` rows or columns may
    be in groups.  A product that uses one operand once (GEMV) is an ordinary reduction.
    """
    shape, body = products(op, masked or grouped), op.bodies[0]
    if shape is None or volume(shape.rows) == 1 or volume(shape.columns) == 1:
        return None
    if isinstance(body, Reduce) and body.where is not None and not masked:
        sides = tuple(_axes(each) for each in shape.operands)
        may = any if body.finite else all  # 0 times an infinite number would be NaN
        if not all(may(_axes(c) <= axes for axes in sides) for c in conjuncts(body.where)):
            return None
    return shape


def for_units(op: ComputeOp) -> bool:
    """True for a contraction that tensor cores take."""
    shape = contraction(op)
    return shape is not None and shape.unit is not None


def growing(where: Expr | None, row: Axis, folded: Axis) -> bool:
    """True for a causal condition, under which later rows see more of the reduced axis: folded <=
    row."""
    for part in () if where is None else conjuncts(where):
        match part:
            case Compare(op=CompareOp.LE | CompareOp.LT, a=low, b=high):
                pass
            case Compare(op=CompareOp.GE | CompareOp.GT, a=high, b=low):
                pass
            case _:
                continue
        if _axes(low) == {folded} and _axes(high) == {row}:
            return True
    return False


def _axes(expr: Expr) -> set[Axis]:
    return {n for n in walk(expr) if isinstance(n, Axis)}


_SIMPLE = {UnaryOp.NEG, UnaryOp.NOT, UnaryOp.ABS, UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.TRUNC}


def cost(op: ComputeOp) -> int:
    """Rough arithmetic per element: transcendental functions count ten."""
    return arithmetic(*op.bodies)


def arithmetic(*exprs: Expr) -> int:
    """The same of expressions."""
    total = 0
    for node in walk(*exprs):
        if isinstance(node, Unary):
            total += 1 if node.op in _SIMPLE else 10
        elif isinstance(node, Binary):
            total += 10 if node.op in (BinaryOp.POW, BinaryOp.ATAN2) else 1
    return total


def chooses(op: ComputeOp) -> bool:
    """True when an element depends on a condition (a select)."""
    return any(isinstance(node, (Select, IfThenElse)) for node in walk(*op.bodies))


def moves(op: ComputeOp) -> bool:
    """True for data movement alone (transpose, pad, slice, concatenate): each element is one of
    those read, or a constant, chosen by its index alone."""
    return all(_moved(body) for body in op.bodies)


def _moved(expr: Expr) -> bool:
    match expr:
        case TensorRead(indices=indices):
            return not reads(*indices)
        case Const():
            return True
        case Cast(a=a):
            return _moved(a)
        case Select(condition=condition, a=a, b=b) | IfThenElse(condition=condition, a=a, b=b):
            return not reads(condition) and _moved(a) and _moved(b)
        case _:
            return False


def plain(read: TensorRead) -> tuple[Axis, ...] | None:
    """The indices of a read when each is a distinct axis, else None."""
    return distinct(read.indices)


def in_windows(op: ComputeOp, read: TensorRead) -> bool:
    """True where neighbouring results read the same elements: an index is that of the result and
    one in its window, added up, and there are more of both than places, by a window at least;
    blocks do not overlap, of which the last may reach beyond the end."""
    folded = frozenset(op.reduce_axes)
    for index, extent in zip(read.indices, read.tensor.shape, strict=True):
        axes, size = axes_of(index), size_of(extent)
        points, window = volume([*axes]), volume([*(axes & folded)])
        if axes.isdisjoint(folded) or axes <= folded:
            continue
        if size is not None and points is not None and points >= size + (window or 1):
            return True
    return False


def distinct(indices: Sequence[Expr]) -> tuple[Axis, ...] | None:
    axes = [i for i in indices if isinstance(i, Axis)]
    return tuple(axes) if len(axes) == len(indices) == len(set(axes)) else None


def crossing(op: ComputeOp, everything: Sequence[TensorRead]) -> tuple[Axis, TensorRead] | None:
    """A data axis, not the last, along which one of the reads is contiguous, and that read: a
    transposed one, of several that of the most elements."""
    last, best, most = op.axes[-1], None, 0
    for read in everything:
        axes = axes_of(*read.indices)
        end = coefficients(read.indices[-1], op.axes) if read.indices else None
        steps = {} if end is None else end[0]
        near = [axis for axis, step in steps.items() if step == 1 and isinstance(axis, Axis)]
        points = volume(tuple(axes)) or 1
        if last in axes and len(near) == 1 and among(near[0], op.axes[:-1]) and points > most:
            best, most = (near[0], read), points
    return best


def memory_steps(read: TensorRead, axes: Sequence[Axis]) -> dict[Axis, int]:
    """By how many elements of memory a read moves along each of the axes, where that is known."""
    found = dict.fromkeys(axes, 0)
    beyond: int | None = 1
    for index, size in zip(reversed(read.indices), reversed(read.tensor.shape), strict=True):
        known = coefficients(index, axes)
        for axis in axes_of(index):
            step = known[0].get(axis) if known is not None and beyond is not None else None
            if step is None:
                found.pop(axis, None)
            elif axis in found:
                found[axis] += step * (beyond or 0)
        extent = size_of(size)
        beyond = None if beyond is None or extent is None else beyond * extent
    return found


def neighbours(axes: Sequence[Axis], everything: Sequence[TensorRead]) -> list[tuple[Axis, ...]]:
    """Axes, data axes all of a result or reduce axes, in runs along which memory is walked in equal
    steps in each of the reads, and in the result: loops over a run are one loop."""
    runs = [tuple(axes[:1])]
    for axis in axes[1:]:
        if all(_in_step(read, runs[-1][-1], axis) for read in everything):
            runs[-1] += (axis,)
        else:
            runs.append((axis,))
    return runs


def _in_step(read: TensorRead, outer: Axis, inner: Axis) -> bool:
    """True where two axes are the indices of neighbouring dimensions, the first perhaps after
    others (channels of a group), of which the second is as long as its axis; are digits of one
    index; or not in the indices at all."""
    found = [n for n, i in enumerate(read.indices) if {outer, inner} & set(axes_of(i))]
    if len(found) == 1 and extent_of(inner) is not None:
        known = coefficients(read.indices[found[0]], (outer, inner))
        steps = {} if known is None else known[0]
        return outer in steps and steps[outer] == steps.get(inner, 0) * (extent_of(inner) or 0)
    if len(found) != 2 or found[1] != found[0] + 1:
        return not found
    first, second = (read.indices[n] for n in found)
    whole = size_of(read.tensor.shape[found[1]]) == extent_of(inner) is not None
    known = coefficients(first, (outer, inner))
    steps = {} if known is None else known[0]
    return whole and second is inner and steps.get(outer) == 1 and not steps.get(inner)


def sole_readers(view: View, outputs: Collection[str]) -> dict[str, str]:
    """For each stage with exactly one consumer, which is no output, that consumer."""
    users = {name: {user for user, _ in found} for name, found in view.readers.items()}
    return {n: next(iter(u)) for n, u in users.items() if len(u) == 1 and n not in outputs}


def needs_one_of(view: View, name: str, others: Collection[str]) -> bool:
    """True when the stage `name` is one of `others` or depends on one, transitively; what stands
    before all of those does not."""
    first = min(view.place(each) for each in others)
    found, waiting = {name}, [name]
    while waiting:
        more = (each for each in view.sources(waiting.pop()) if view.place(each) >= first)
        fresh = set(more) - found
        found |= fresh
        waiting += fresh
    return not found.isdisjoint(others)


def triangle(op: ComputeOp) -> Axis | None:
    """The axis j of a fold over k <= j, or over k <= j % n in blocks of n, whose terms depend on
    the block alone: what a tile of both does as a running fold; None for any other."""
    body = op.bodies[0]
    if not isinstance(body, Reduce) or body.where is None or len(body.axes) != 1:
        return None
    (k,) = body.axes
    length, tests = extent_of(k), conjuncts(body.where)
    for place, test in enumerate(tests):
        row = _row(test, k, length)
        if row is not None:
            rest = (*body.sources, *tests[:place], *tests[place + 1 :])
            return row if row not in axes_of(*_by_block(rest, row, length)) else None
    return None


def _row(test: Expr, k: Axis, length: int | None) -> Axis | None:
    """The axis j of a test k <= j or k <= j % n."""
    match test:
        case Compare(op=CompareOp.LE, a=a, b=Axis() as row) if a is k:
            return row if length is not None and extent_of(row) == length else None
        case Compare(
            op=CompareOp.LE, a=a, b=Binary(op=BinaryOp.FLOORMOD, a=Axis() as row, b=b)
        ) if a is k:
            return row if length is not None and constant(b) == length else None
        case _:
            return None


def _by_block(exprs: Sequence[Expr], row: Axis, length: int | None) -> list[Expr]:
    """The expressions with a number for each block of rows."""
    number = Var("block", row.dtype)

    def block(node: Expr) -> Expr | None:
        match node:
            case Binary(op=BinaryOp.FLOORDIV, a=a, b=b) if a is row and constant(b) == length:
                return number
            case _:
                return None

    return [rewrite(each, block) for each in exprs]
