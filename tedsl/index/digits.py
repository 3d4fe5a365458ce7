"""Inverting maps of indices: permutations, splits, fusions and shifts, in any combination.

A map takes a point of a box to a point of another.  Each of its results is read as a sum of
`scale * digit`, where a digit is `((axis + offset) // lower) % extent`: what division and remainder
by constants leave of an axis.  Where the digits of a result do not overlap they can be read off
again, and where those of an axis are complete they give its value:

    i -> (i // 4, i % 4)      has the inverse      (a, b) -> a * 4 + b

`invert` proves its answer, so that it never depends on how it was found.  `collision` finds two
points with one image where there is no inverse.  Imports `expr.nodes` and `index`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from tedsl.expr.index_arith import (
    ONE,
    ZERO,
    add,
    as_index,
    at_most,
    ceil_div,
    constant,
    floordiv,
    floormod,
    less,
    mul,
    sub,
    widened,
)
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Range,
    Var,
)
from tedsl.expr.visit import axes_of, structural_equal, substitute, variables, walk
from tedsl.index.evaluate import EvaluationError, evaluate_int
from tedsl.index.facts import Facts
from tedsl.index.prove import equal, prove
from tedsl.index.simplify import simplify

_MOST_POINTS = 4096
_SIZE = 6  # what a runtime size is tried with


@dataclass(frozen=True, slots=True, eq=False)
class Inverse:
    """The way back.

    `values` has the old axes over the new ones; `extents` are those of the new axes, which start
    at 0; `conditions` hold at the new points that are images of old ones, and are empty when all
    are.
    """

    axes: tuple[Axis, ...]
    extents: tuple[Expr, ...]
    values: Mapping[Axis, Expr]
    conditions: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Digit:
    """`((axis + offset) // lower) % extent`; the topmost digit of an axis has no extent."""

    axis: Axis
    offset: int = 0
    lower: int = 1
    extent: int | None = None

    def size(self) -> Expr:
        """How many values the digit has."""
        if self.extent is not None:
            return as_index(self.extent)
        whole = ONE if self.axis.domain is None else self.axis.domain.extent
        return ceil_div(add(whole, self.offset), self.lower)


@dataclass(frozen=True, slots=True, eq=False)
class _Term:
    scale: Expr
    digit: _Digit


@dataclass(frozen=True, slots=True, eq=False)
class _Form:
    """`offset` and the terms."""

    offset: Expr
    terms: tuple[_Term, ...] = ()


def invert(
    axes: Sequence[Axis], indices: Sequence[Expr], names: Sequence[str], facts: Facts
) -> Inverse | None:
    """The inverse of the map from `axes` (which start at 0) to `indices`, or None when none was
    found.

    Args:
        axes: what the map takes; each has a domain.
        indices: what it gives, over `axes` and runtime sizes.
        names: for the new axes.
        facts: what is known of the sizes.
    """
    parser = _Parser(facts)
    forms = [parser.parse(simplify(index, facts)) for index in indices]
    known = [form for form in forms if form is not None]
    if len(known) < len(forms):
        return None
    ends = [_range(form, facts) for form in known]
    if not all(prove(at_most(ZERO, low), facts) for low, _ in ends):
        return None
    extents = tuple(_extent(end, facts) for _, end in ends)
    new = tuple(Axis(n, dtype=e.dtype) for n, e in zip(names, extents, strict=True))
    digits: dict[_Digit, Expr] = {}
    for axis, form in zip(new, known, strict=True):
        read = _read_off(axis, form, facts)
        if read is None:
            return None
        digits.update(read)
    for joined in reversed(parser.joined):
        whole = _value(joined.axis, digits, facts)
        read = None if whole is None else _read_off(whole, joined.form, facts)
        digits.update(read or {})
    values = {axis: _value(axis, digits, facts) for axis in axes}
    found = {axis: value for axis, value in values.items() if value is not None}
    there: dict[Expr, Expr] = dict(zip(new, indices, strict=True))
    if len(found) < len(values) or not all(
        equal(substitute(value, there), axis, facts) for axis, value in found.items()
    ):
        return None
    for axis, extent in zip(new, extents, strict=True):
        facts = facts.with_axis(axis, 0, extent)
    back = {axis: simplify(value, facts) for axis, value in found.items()}
    return Inverse(new, extents, back, _conditions(new, indices, back, facts))


@dataclass(frozen=True, slots=True, eq=False)
class _Joined:
    """A sum of digits without gaps, such as `i * extent(j) + j`, that is divided like an axis."""

    expr: Expr
    form: _Form
    axis: Axis


class _Parser:
    """Reads indices as sums of digits, and remembers what was joined for it."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.joined: list[_Joined] = []

    def parse(self, expr: Expr) -> _Form | None:
        """An index as a sum of digits; None when it is none."""
        if not axes_of(expr):
            return _Form(expr)
        match expr:
            case Axis():
                return _Form(ZERO, (_Term(ONE, _Digit(expr)),))
            case Cast(a=a):
                return self.parse(a)
            case Binary(op=BinaryOp.ADD | BinaryOp.SUB as op, a=a, b=b):
                left, right = self.parse(a), self.parse(b)
                if left is None or right is None:
                    return None
                if op is BinaryOp.SUB:
                    right = _scaled(right, Const(-1, right.offset.dtype))
                return _Form(add(left.offset, right.offset), (*left.terms, *right.terms))
            case Binary(op=BinaryOp.MUL, a=a, b=b):
                if axes_of(b):
                    a, b = b, a
                form = None if axes_of(b) else self.parse(a)
                return None if form is None else _scaled(form, b)
            case Binary(op=BinaryOp.FLOORDIV | BinaryOp.FLOORMOD as op, a=a, b=b):
                form, divisor = self.parse(a), constant(b)
                if form is None or divisor is None or divisor < 1:
                    return None
                parts = _parted(form, divisor) or self._parted_whole(a, form, divisor)
                return None if parts is None else parts[op is BinaryOp.FLOORMOD]
            case _:
                return None

    def _parted_whole(self, expr: Expr, form: _Form, divisor: int) -> tuple[_Form, _Form] | None:
        """`form // divisor` and `form % divisor`, of digits of the sum itself."""
        chain = _chain(form.terms, self.facts)
        if not chain or constant(form.offset) != 0:
            return None
        reach = ONE
        for term in chain:
            if not equal(term.scale, reach, self.facts):
                return None
            reach = simplify(mul(reach, term.digit.size()), self.facts)
        for known in self.joined:
            if structural_equal(known.expr, expr):
                break
        else:
            axis = Axis("joined", domain=Range(Const(0, reach.dtype), reach), dtype=reach.dtype)
            known = _Joined(expr, form, axis)
            self.joined.append(known)
        high, low = _cut(_Digit(known.axis), divisor)
        if high is None or low is None:
            return None
        return _Form(ZERO, (_Term(ONE, high),)), _Form(ZERO, (_Term(ONE, low),))


def _scaled(form: _Form, by: Expr) -> _Form:
    terms = tuple(_Term(_times(term.scale, by), term.digit) for term in form.terms)
    return _Form(_times(form.offset, by), terms)


def _times(a: Expr, b: Expr) -> Expr:
    x, y = constant(a), constant(b)
    return as_index(x * y) if x is not None and y is not None else mul(a, b)


def _parted(form: _Form, divisor: int) -> tuple[_Form, _Form] | None:
    """`form // divisor` and `form % divisor`."""
    offset = constant(form.offset)
    if offset is None or offset < 0:
        return None
    terms = form.terms
    if offset and len(terms) == 1 and constant(terms[0].scale) == 1:
        digit = terms[0].digit
        if digit.lower > 1 or digit.extent is not None or digit.offset:
            return None
        terms, offset = (_Term(ONE, replace(digit, offset=offset)),), 0
    if offset:
        return None
    above: list[_Term] = []
    below: list[_Term] = []
    highest = 0  # of the remainder
    for term in terms:
        scale, size = constant(term.scale), constant(simplify(term.digit.size()))
        if scale is None or scale < 1:
            return None
        if scale % divisor == 0:
            above.append(_Term(as_index(scale // divisor), term.digit))
        elif size is not None and scale * (size - 1) < divisor:
            below.append(term)
            highest += scale * max(size - 1, 0)
        elif divisor % scale == 0:
            high, low = _cut(term.digit, divisor // scale)
            if high is None or low is None:
                return None
            above.append(_Term(ONE, high))
            below.append(_Term(term.scale, low))
            highest += scale * (divisor // scale - 1)
        else:
            return None
    return None if highest >= divisor else (_Form(ZERO, tuple(above)), _Form(ZERO, tuple(below)))


def _cut(digit: _Digit, by: int) -> tuple[_Digit | None, _Digit | None]:
    """`digit // by` and `digit % by`."""
    if digit.extent is not None and digit.extent % by:
        return None, None
    high = None if digit.extent is None else digit.extent // by
    return replace(digit, lower=digit.lower * by, extent=high), replace(digit, extent=by)


def _range(form: _Form, facts: Facts) -> tuple[Expr, Expr]:
    """The least value and the end (greatest value + 1)."""
    low, high = form.offset, form.offset
    for term in form.terms:
        span = mul(sub(term.digit.size(), 1), term.scale)
        if (constant(term.scale) or 0) < 0:
            low = add(low, span)
        else:
            high = add(high, span)
    return simplify(low, facts), simplify(add(high, 1), facts)


def _extent(end: Expr, facts: Facts) -> Expr:
    """An end as an extent: of an empty box it may come out below 0."""
    known = constant(end)
    if known is not None:
        return Const(max(known, 0), end.dtype)
    zero = Const(0, end.dtype)
    return end if prove(at_most(zero, end), facts) else Binary(BinaryOp.MAX, end, zero)


def _read_off(whole: Expr, form: _Form, facts: Facts) -> dict[_Digit, Expr] | None:
    """The digits of a sum from its value `whole`."""
    chain = _chain(form.terms, facts)
    if chain is None:
        return None
    rest = sub(whole, form.offset)
    for term in chain:
        if (constant(term.scale) or 0) < 0:  # counted backwards from its last value
            rest = sub(rest, mul(sub(term.digit.size(), 1), term.scale))
    digits: dict[_Digit, Expr] = {}
    for place, term in enumerate(chain):
        scale = _absolute(term.scale)
        value = floordiv(rest, scale)
        if place + 1 < len(chain):
            above, here = constant(_absolute(chain[place + 1].scale)), constant(scale)
            ratio = term.digit.size()
            if above is not None and here is not None:
                ratio = as_index(above // here)
            value = floormod(value, ratio)
        if (constant(term.scale) or 0) < 0:
            value = sub(sub(term.digit.size(), 1), value)
        digits[term.digit] = value
    return digits


def _absolute(scale: Expr) -> Expr:
    known = constant(scale)
    return scale if known is None else as_index(abs(known))


def _chain(terms: Sequence[_Term], facts: Facts) -> list[_Term] | None:
    """The terms from the smallest scale up, each beyond the reach of those below; None when two
    overlap."""
    fixed = [term for term in terms if constant(term.scale) is not None]
    order = sorted(fixed, key=lambda term: abs(constant(term.scale) or 0))
    left = [term for term in terms if constant(term.scale) is None]
    for lower, upper in pairwise(order):
        scale, size = abs(constant(lower.scale) or 0), constant(simplify(lower.digit.size(), facts))
        step = abs(constant(upper.scale) or 0)
        if size is None or scale == 0 or step % scale or step < scale * size:
            return None
    if order and constant(order[0].scale) == 0:
        return None
    while left:
        reach = ONE if not order else mul(_absolute(order[-1].scale), order[-1].digit.size())
        following = [term for term in left if equal(term.scale, reach, facts)]
        if not following:
            return None
        order.append(following[0])
        left.remove(following[0])
    return order


def _value(axis: Axis, digits: Mapping[_Digit, Expr], facts: Facts) -> Expr | None:
    """`axis` from its digits, from the lowest up; None when one is missing."""
    whole = ONE if axis.domain is None else axis.domain.extent
    own = [digit for digit in digits if digit.axis is axis]
    if not own:
        return Const(0, axis.dtype) if prove(at_most(whole, ONE), facts) else None
    for offset in dict.fromkeys(digit.offset for digit in own):
        total: Expr = as_index(-offset)
        lower: int | None = 1
        while lower is not None:
            here = [d for d in own if d.offset == offset and d.lower == lower]
            if not here:
                break
            best = max(here, key=lambda d: (d.extent is None, d.extent or 0))
            total = add(total, mul(digits[best], lower))
            lower = None if best.extent is None else lower * best.extent
        if lower is None or prove(at_most(add(whole, offset), as_index(lower)), facts):
            return total if total.dtype is axis.dtype else widened(total, axis.dtype)
    return None


def _conditions(
    new: Sequence[Axis], indices: Sequence[Expr], back: Mapping[Axis, Expr], facts: Facts
) -> tuple[Expr, ...]:
    """A new point is an image when the way back ends in the box, and from there leads to it."""
    needed: list[Expr] = []
    for axis, value in back.items():
        whole = ONE if axis.domain is None else axis.domain.extent
        needed += [at_most(ZERO, value), less(value, whole)]
    values: dict[Expr, Expr] = {**back}
    for axis, index in zip(new, indices, strict=True):
        again = simplify(substitute(index, values), facts)
        if not equal(again, axis, facts):
            a, b = (again, axis) if again.dtype is axis.dtype else (widened(again), widened(axis))
            needed.append(Compare(CompareOp.EQ, a, b))
    return tuple(simplify(each, facts) for each in needed if not prove(each, facts))


Point = dict[Axis, int]


def collision(
    axes: Sequence[Axis], indices: Sequence[Expr]
) -> tuple[Point, Point, tuple[int, ...], dict[str, int]] | None:
    """Two points that the map takes to one, with that image and the sizes tried; None when none
    was found.
    """
    seen: dict[tuple[int, ...], Point] = {}
    sizes = _sizes(axes, indices)
    for point in _points(axes, indices, sizes):
        image = _image(indices, point, sizes)
        if image is None:
            continue
        first = seen.setdefault(image, point)
        if first is not point:
            return first, point, image, {size.name: n for size, n in sizes.items()}
    return None


def negative(
    axes: Sequence[Axis], indices: Sequence[Expr]
) -> tuple[Point, tuple[int, ...], dict[str, int]] | None:
    """A point that the map takes below 0, with its image and the sizes tried."""
    sizes = _sizes(axes, indices)
    for point in _points(axes, indices, sizes):
        image = _image(indices, point, sizes)
        if image is not None and min(image, default=0) < 0:
            return point, image, {size.name: n for size, n in sizes.items()}
    return None


def _sizes(axes: Sequence[Axis], indices: Sequence[Expr]) -> dict[Var, int]:
    extents = [axis.domain.extent for axis in axes if axis.domain is not None]
    return {
        size: max(_SIZE, size.lower or 0)
        for size in variables(*extents, *indices)
        if isinstance(size, Var)
    }


def _image(
    indices: Sequence[Expr], point: Point, sizes: Mapping[Var, int]
) -> tuple[int, ...] | None:
    values: dict[Expr, int] = {**point, **sizes}
    try:
        return tuple(evaluate_int(index, values) for index in indices)
    except EvaluationError:
        return None


def _points(
    axes: Sequence[Axis], indices: Sequence[Expr], sizes: Mapping[Var, int]
) -> Iterator[Point]:
    """All points of a small box; of a large one those near the origin, the end and the constants of
    the map."""
    marks = {int(n.value) for n in walk(*indices) if isinstance(n, Const) and not n.dtype.is_float}
    values: dict[Expr, int] = {**sizes}
    extents = [evaluate_int(a.domain.extent, values) if a.domain else 1 for a in axes]
    count = 1
    for extent in extents:
        count *= extent
    each = max(2, int(_MOST_POINTS ** (1 / max(1, len(axes)))))
    ranges: list[list[int]] = []
    for extent in extents:
        chosen = range(extent)
        if count > _MOST_POINTS and extent > each:
            near = sorted(m for m in marks if each // 2 <= m < extent)[: each // 4]
            chosen = [*range(each // 2), *near, extent - 1]
        ranges.append(list(dict.fromkeys(chosen)))
    for values_of in product(*ranges):
        yield dict(zip(axes, values_of, strict=True))
