"""Which other values an element may have because a rounding fell on the other side of a step.

A step is where a small change of a computed float flips a whole result: a comparison, a conversion
to an integer, floor, round, sign.  The definition is evaluated again at the elements in question
with what stands before each step moved by its radius, down or up:

    before  q[i, j] = cast(int8, round(h[i, j] * 9))           h[i, j] = sum(k) a[i, k] * b[k, j]
    after   q[i, j] = cast(int8, round(h[i, j] * 9 - r[i, j])) r = what roundings may do to h * 9

and an element is excused where it is what one of these gives.  The radius of an expression is that
of ball arithmetic: of a sum the sum of the radii and some roundings of the sum of magnitudes, of a
function what it does to both ends of its argument.  Where a step lies below a sum, any of its terms
may flip: an element is excused there inside the ball whose radius takes in the flips.  What no
evaluation gives, a NaN that was left in the output for one, is excused nowhere.  Imports
`sampled_outputs`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tedsl.checking.array_chunks import parts
from tedsl.checking.random_inputs import Array
from tedsl.checking.sampled_outputs import affordable, evaluate_samples
from tedsl.checking.tolerance import Bound, epsilon, is_step, wrong_floats
from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    IfThenElse,
    Reduce,
    Reducer,
    Select,
    TensorRead,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.expr.visit import map_children, reads, walk
from tedsl.reference.reference import evaluate
from tedsl.tensor.tensor import ComputeOp, ScanOp, Tensor
from tedsl.workload.extents import Extents

MARGIN = 2.0
"""By how much the radius of what stands before a step is made larger."""
ROUNDINGS = 4.0
"""Of its own type, that each function and operation may be off."""
ALL_WAYS = 3
"""Steps of which all combinations of sides are tried; of more of them some."""
SOME_WAYS = 8
RUN = 8
"""Neighbours that roundings may flip together; more of them are a part that was left out."""
POINTS = 20_000_000
"""Points that one evaluation of samples may cost."""
MOST_PIECES = 16
"""Evaluations that one output may cost."""
_WIDE = DType.float64
_PLAIN = (BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX)
_LOGIC = (BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR)
_ASKING = (UnaryOp.ISNAN, UnaryOp.ISINF, UnaryOp.ISFINITE, UnaryOp.POPCOUNT, UnaryOp.BITS)


class Sides:
    """What the elements of one output may be, for one kind of inputs.

    Args:
        size: the sizes.
        output: the output.
        inputs: makes an array for every placeholder; asked when an element is in question.
    """

    def __init__(
        self, size: Extents, output: Tensor, inputs: Callable[[], dict[Tensor, Array]]
    ) -> None:
        self.size = size
        self.output = output
        self.inputs = inputs
        self._known: dict[int, Array] = {}

    def unexcused(self, places: Array, values: Array, bound: Bound) -> int | None:
        """Which of some differing elements is the first that roundings do not explain; None where
        they explain all.

        Args:
            places: flat indices, in order.
            values: what was found there.
            bound: how close is enough.
        """
        run = longest_run(places)
        if run[1] > RUN:
            return run[0]
        fresh = np.array([place for place in places.tolist() if place not in self._known], np.int64)
        if not self._learn(fresh):
            return 0
        known = np.stack([self._known[place] for place in places.tolist()], axis=1)
        right = np.zeros(len(places), np.bool_)
        *ways, base, smooth, whole = known
        with np.errstate(all="ignore"):
            for way in (*ways, base):
                right |= _equal(values, way, bound)
            flips = (whole > smooth * (1 + 1e-9)) & np.isfinite(whole)
            wide = values.astype(np.float64)
            near = np.abs(wide - base) <= whole + bound.absolute + bound.relative * np.abs(base)
        right |= flips & near
        return None if right.all() else int(np.argmin(right))

    def _learn(self, places: Array) -> bool:
        """Evaluate at these flat places; false where that would take too long."""
        if not len(places):
            return True
        most = affordable(self.size, self.output, POINTS)
        sided = _Ways(self.size, self.output)
        if not most and not sided.has_scans:
            return False
        inputs = self.inputs()
        shape = self.size.shape(self.output)
        chunks = list(parts(places, most)) if most else [places]
        if len(chunks) > MOST_PIECES:
            return False
        for chunk in chunks:
            points = list(np.unravel_index(chunk, shape))
            rows = [self._at(output, inputs, points, most) for output in sided.outputs]
            columns = np.stack([row.astype(np.float64) for row in rows])
            for n, place in enumerate(chunk.tolist()):
                self._known[place] = columns[:, n]
        return True

    def _at(
        self, output: Tensor, inputs: dict[Tensor, Array], points: list[Array], most: int
    ) -> Array:
        if most:
            return evaluate_samples(self.size, inputs, output, points).reshape(-1)
        (found,) = evaluate([output], inputs, self.size.values, precise=True)
        return np.asarray(found)[tuple(points)]


@dataclass(frozen=True, slots=True)
class SampledSides:
    """The same for samples of an output, by their numbers."""

    whole: Sides
    points: Sequence[Array]
    shape: tuple[int, ...]

    def unexcused(self, places: Array, values: Array, bound: Bound) -> int | None:
        """As `Sides.unexcused`; samples are no neighbours."""
        flat = np.ravel_multi_index(tuple(p[places] for p in self.points), self.shape)
        order = np.argsort(flat, kind="stable")
        distinct, first = np.unique(flat[order], return_index=True)
        found = self.whole.unexcused(distinct, values[order][first], bound)
        return None if found is None else int(order[first[found]])


def longest_run(places: Array) -> tuple[int, int]:
    """Where the longest run of neighbours begins among sorted places, and how many they are."""
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    starts = np.concatenate([[0], breaks])
    lengths = np.diff(np.concatenate([starts, [len(places)]]))
    longest = int(np.argmax(lengths))
    return int(starts[longest]), int(lengths[longest])


def _equal(values: Array, way: Array, bound: Bound) -> Array:
    """Where found values are those of one evaluation; `way` has them as float64."""
    if values.dtype.kind in "iub":
        return values.astype(np.float64) == way
    return ~wrong_floats(np, values.astype(np.float64), way, bound)


class _Ways:
    """The definitions that give the values of one output on either side of its steps.

    Attributes:
        outputs: the output for each choice of sides, then as it is defined, then its radius without
            and with the flips of steps below a sum (0 where there are none).
        has_scans: whether samples alone cannot be evaluated.
    """

    def __init__(self, size: Extents, output: Tensor) -> None:
        steps = _steps_of(output)
        count = len(steps)
        ways = list(itertools.product((-1, 1), repeat=min(count, ALL_WAYS)))
        if count > ALL_WAYS:
            rng = np.random.default_rng(count)
            drawn = rng.integers(0, 2, (SOME_WAYS, count)) * 2 - 1
            ways = [(-1,) * count, (1,) * count, *(tuple(row.tolist()) for row in drawn)]
        found = [_Moved(size, dict(zip(steps, way, strict=True))).tensor(output) for way in ways]
        still = _Moved(size, {})
        self.outputs = [*found, output]
        for flips in (False, True):
            radius = still.radius_of(output, flips) if _folds_steps(output) else None
            self.outputs.append(still.zero_like(output) if radius is None else radius)
        self.has_scans = any(isinstance(op, ScanOp) for op in _ops_of(output))


def _ops_of(output: Tensor) -> list[ComputeOp]:
    """The operations that an output is computed by, its own last."""
    found: dict[ComputeOp, None] = {}

    def visit(op: object) -> None:
        if isinstance(op, ComputeOp) and op not in found:
            for read in reads(*op.bodies):
                visit(read.tensor.op)
            found[op] = None

    visit(output.op)
    return list(found)


def _steps_of(output: Tensor) -> list[Expr]:
    """The steps that an output depends on, in order; those inside scans are not told apart."""
    ops = [op for op in _ops_of(output) if not isinstance(op, ScanOp)]
    return [node for op in ops for node in walk(*op.bodies) if is_step(node)]


def _folds_steps(output: Tensor) -> bool:
    """True where a step lies below a reduction."""
    stepped: set[ComputeOp] = set()
    for op in _ops_of(output):
        own = any(is_step(node) for node in walk(*op.bodies))
        if own or any(read.tensor.op in stepped for read in reads(*op.bodies)):
            stepped.add(op)
            if op.reduce_axes:
                return True
    return False


@dataclass(slots=True)
class _Moved:
    """Definitions in which what stands before steps is moved by its radius, and the radii.

    Attributes:
        signs: to which side of each step; steps that are not in it stay.
    """

    size: Extents
    signs: dict[Expr, int]
    ops: dict[ComputeOp, ComputeOp] = field(default_factory=dict[ComputeOp, ComputeOp])
    radii: dict[tuple[ComputeOp, bool], ComputeOp | None] = field(
        default_factory=dict[tuple[ComputeOp, bool], "ComputeOp | None"]
    )
    memo: dict[Expr, Expr] = field(default_factory=dict[Expr, Expr])
    balls: dict[tuple[Expr, bool], Expr | None] = field(
        default_factory=dict[tuple[Expr, bool], "Expr | None"]
    )

    def tensor(self, tensor: Tensor) -> Tensor:
        """What stands for a tensor."""
        op = tensor.op
        if not isinstance(op, ComputeOp) or isinstance(op, ScanOp):
            return tensor
        if op not in self.ops:
            self.ops[op] = replace(op, bodies=tuple(self.value(body) for body in op.bodies))
        return self.ops[op].outputs[tensor.index]

    def value(self, node: Expr) -> Expr:
        """What stands for a node."""
        if node not in self.memo:
            if isinstance(node, TensorRead):
                indices = tuple(self.value(index) for index in node.indices)
                made: Expr = TensorRead(self.tensor(node.tensor), indices)
            elif node in self.signs:
                made = self._stepped(node, self.signs[node])
            else:
                made = map_children(node, self.value)
            self.memo[node] = made
        return self.memo[node]

    def _stepped(self, node: Expr, sign: int) -> Expr:
        """A step with what stands before it moved to one side."""
        first, *rest = node.children()
        others = [self.value(child) for child in rest]
        radius = _sum([self.radius(child, False) for child in node.children()])
        if radius is None:
            return map_children(node, self.value)
        radius = build.mul(radius, MARGIN)
        wide = build.cast(self.value(first), _WIDE)
        if isinstance(node, Compare) and node.op in (CompareOp.EQ, CompareOp.NE):
            apart = build.unary(UnaryOp.ABS, build.sub(wide, build.cast(others[0], _WIDE)))
            within = build.le(apart, radius)
            equal = within if sign > 0 else build.logical_not(within)
            if sign < 0:
                equal = build.logical_and(build.eq(apart, 0.0), equal)
            return equal if node.op is CompareOp.EQ else build.logical_not(equal)
        moved = build.add(wide, radius) if sign > 0 else build.sub(wide, radius)
        return node.rebuild([build.cast(moved, first.dtype), *others])

    def zero_like(self, tensor: Tensor) -> Tensor:
        """A tensor of zeros."""
        op = tensor.op
        axes = op.axes if isinstance(op, ComputeOp) else ()
        return ComputeOp("zero", axes, (Const(0.0, _WIDE),), tensor.shape, ()).outputs[0]

    def radius_of(self, tensor: Tensor, flips: bool) -> Tensor | None:
        """The radius of each element of a tensor; None where it is exact."""
        op = tensor.op
        if not isinstance(op, ComputeOp):
            return None
        if (op, flips) not in self.radii:
            self.radii[op, flips] = self._radius_op(op, flips)
        made = self.radii[op, flips]
        return None if made is None else made.outputs[tensor.index]

    def _radius_op(self, op: ComputeOp, flips: bool) -> ComputeOp | None:
        first = op.bodies[0]
        simple = not isinstance(op, ScanOp) and len(op.bodies) == 1
        if isinstance(first, Reduce) and simple and first.finish is None:
            folded = self._fold(first, flips)
            if folded is not None:
                return replace(op, name=f"{op.name}_radius", bodies=(folded,))
        if isinstance(op, ScanOp) or any(isinstance(body, Reduce) for body in op.bodies):
            return self._some_roundings(op)
        bodies = [self.radius(body, flips) for body in op.bodies]
        if all(body is None for body in bodies):
            return None
        plain = tuple(Const(0.0, _WIDE) if body is None else body for body in bodies)
        return replace(op, name=f"{op.name}_radius", bodies=plain)

    def _some_roundings(self, op: ComputeOp) -> ComputeOp | None:
        """A share of each value, where nothing better is known."""
        share = (ROUNDINGS + math.sqrt(self._length(op)) / 2) * epsilon(op.outputs[0].dtype)
        if not share:
            return None
        bodies = tuple(
            build.mul(_magnitude(TensorRead(self.tensor(output), op.axes)), share)
            for output in op.outputs
        )
        return ComputeOp(f"{op.name}_radius", op.axes, bodies, op.shape, ())

    def _fold(self, node: Reduce, flips: bool) -> Reduce | None:
        """The radius of a sum, a maximum or a minimum; None of another reduction."""
        operator = node.reducer.operator
        radius = self.radius(node.sources[0], flips)
        if operator is BinaryOp.ADD:
            length = math.prod(
                max(1, self.size.extent(axis.domain.extent))
                for axis in node.axes
                if axis.domain is not None
            )
            share = (ROUNDINGS + math.sqrt(length) / 2) * epsilon(node.dtype)
            size = build.mul(_magnitude(self.value(node.sources[0])), share)
            source = size if radius is None else build.add(radius, size)
        elif operator in (BinaryOp.MAX, BinaryOp.MIN):
            operator = BinaryOp.MAX
            source = Const(0.0, _WIDE) if radius is None else radius
        else:
            return None
        where = None if node.where is None else self.value(node.where)
        return Reduce(_reducer(operator), (source,), node.axes, where)

    def _length(self, op: ComputeOp) -> int:
        axes = (*op.reduce_axes, *(op.axes[:1] if isinstance(op, ScanOp) else ()))
        extents = [self.size.extent(a.domain.extent) for a in axes if a.domain is not None]
        return max(1, math.prod(extents))

    def radius(self, node: Expr, flips: bool) -> Expr | None:
        """By how much a node may be off, in float64; None where it is exact.

        With `flips`, a step that may fall on its other side is off by the difference.
        """
        if (node, flips) not in self.balls:
            found = self._radius(node, flips)
            if found is not None:  # an end beyond the domain of a function says nothing
                found = build.select(build.eq(found, found), found, 0.0)
            self.balls[node, flips] = found
        return self.balls[node, flips]

    def _radius(self, node: Expr, flips: bool) -> Expr | None:
        match node:
            case TensorRead(tensor=tensor, indices=indices):
                made = self.radius_of(tensor, flips)
                if made is None:
                    return None
                return TensorRead(made, tuple(self.value(index) for index in indices))
            case Select(condition=condition, a=a, b=b) | IfThenElse(condition=condition, a=a, b=b):
                return self._chosen(node, condition, a, b, flips)
            case Compare(a=a, b=b):
                off = _sum([self.radius(a, flips), self.radius(b, flips)]) if flips else None
                if off is None:
                    return None
                apart = build.sub(self._wide(a), self._wide(b))
                soft = build.le(build.unary(UnaryOp.ABS, apart), build.mul(off, MARGIN))
                return build.cast(soft, _WIDE)
            case Cast(a=a, dtype=dtype):
                return self._converted(node, a, dtype, flips)
            case Unary(op=op, a=a):
                return self._unary(node, op, a, flips)
            case Binary(op=op, a=a, b=b):
                return self._binary(node, op, a, b, flips)
            case _:
                return None

    def _wide(self, node: Expr) -> Expr:
        return build.cast(self.value(node), _WIDE)

    def _own(self, node: Expr) -> Expr | None:
        """Some roundings of a node's own type."""
        share = ROUNDINGS * epsilon(node.dtype)
        return build.mul(_magnitude(self.value(node)), share) if share else None

    def _chosen(self, node: Expr, condition: Expr, a: Expr, b: Expr, flips: bool) -> Expr | None:
        one, other = self.radius(a, flips), self.radius(b, flips)
        soft = self.radius(condition, flips)
        choose = build.if_then_else if isinstance(node, IfThenElse) else build.select
        off: Expr | None = None
        if one is not None or other is not None:
            zero = Const(0.0, _WIDE)
            off = choose(self.value(condition), one or zero, other or zero)
        if soft is None:
            return off
        jump = build.mul(soft, _magnitude(build.sub(self._wide(a), self._wide(b))))
        return jump if off is None else build.add(off, jump)

    def _converted(self, node: Expr, a: Expr, dtype: DType, flips: bool) -> Expr | None:
        off = self.radius(a, flips)
        if not a.dtype.is_float or dtype.is_float:
            return _sum([off, self._own(node)]) if a.dtype.is_float else off
        return self._jump(off, flips, self._wide(a), lambda end: build.cast(end, dtype))

    def _jump(
        self, off: Expr | None, flips: bool, wide: Expr, step: Callable[[Expr], Expr]
    ) -> Expr | None:
        """How far apart a step is at the two ends of its argument."""
        if off is None or not flips:
            return None
        off = build.mul(off, MARGIN)
        ends = [step(build.add(wide, off)), step(build.sub(wide, off))]
        return _magnitude(build.sub(*(build.cast(end, _WIDE) for end in ends)))

    def _unary(self, node: Expr, op: UnaryOp, a: Expr, flips: bool) -> Expr | None:
        off = self.radius(a, flips)
        if op in _ASKING:
            return None
        if op is UnaryOp.NOT:
            return off if a.dtype is DType.bool else None
        if is_step(node):
            return self._jump(off, flips, self._wide(a), lambda end: build.unary(op, end))
        if not _holds(a):
            return None
        return _sum([self._ends(op, off, a), self._own(node)])

    def _ends(self, op: UnaryOp, off: Expr | None, a: Expr) -> Expr | None:
        """How far a function goes at either end of its argument."""
        if off is None or op in (UnaryOp.NEG, UnaryOp.ABS):
            return off
        wide = self._wide(a)
        middle = build.unary(op, wide)
        ends = [build.unary(op, end) for end in (build.add(wide, off), build.sub(wide, off))]
        return build.maximum(*(_finite(_magnitude(build.sub(end, middle))) for end in ends))

    def _binary(self, node: Expr, op: BinaryOp, a: Expr, b: Expr, flips: bool) -> Expr | None:
        one, other = self.radius(a, flips), self.radius(b, flips)
        if op in _LOGIC:
            if node.dtype is not DType.bool or (one is None and other is None):
                return None
            return _sum([one, other])
        if not node.dtype.is_float and op not in _PLAIN:
            return None
        if not _holds(a) and not _holds(b):
            return None
        if is_step(node):
            divisor = self._wide(b)
            off = _sum([one, other])
            return self._jump(off, flips, self._wide(a), lambda end: build.binary(op, end, divisor))
        if op in (BinaryOp.ADD, BinaryOp.SUB):
            return _sum([one, other, self._own(node)])
        corners = self._corners(op, self._wide(a), self._wide(b), one, other)
        return _sum([corners, self._own(node)])

    def _corners(
        self, op: BinaryOp, a: Expr, b: Expr, one: Expr | None, other: Expr | None
    ) -> Expr | None:
        """How far an operation goes at the ends of its arguments."""
        if one is None and other is None:
            return None
        firsts = [a] if one is None else [build.add(a, one), build.sub(a, one)]
        seconds = [b] if other is None else [build.add(b, other), build.sub(b, other)]
        middle = build.binary(op, a, b)
        apart = [
            _finite(_magnitude(build.sub(build.binary(op, x, y), middle)))
            for x, y in itertools.product(firsts, seconds)
        ]
        found = apart[0]
        for each in apart[1:]:
            found = build.maximum(found, each)
        return found


def _holds(node: Expr) -> bool:
    """True for what is computed of something that is read."""
    return any(isinstance(each, TensorRead) for each in walk(node))


def _magnitude(node: Expr) -> Expr:
    return build.unary(UnaryOp.ABS, build.cast(node, _WIDE))


def _finite(node: Expr) -> Expr:
    """A distance, or 0 where an end lies beyond the domain of a function."""
    return build.select(build.unary(UnaryOp.ISFINITE, node), node, 0.0)


def _sum(terms: Sequence[Expr | None]) -> Expr | None:
    """The sum of those that there are."""
    found: Expr | None = None
    for term in terms:
        if term is not None:
            found = term if found is None else build.add(found, term)
    return found


def _reducer(operator: BinaryOp) -> Reducer:
    """A sum or a maximum of radii."""
    lhs, rhs = Var("lhs0", _WIDE), Var("rhs0", _WIDE)
    combine = Binary(operator, lhs, rhs)
    return Reducer(operator.name.lower(), (lhs,), (rhs,), (combine,), (Const(0.0, _WIDE),))
