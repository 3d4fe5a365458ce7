"""Symbolic bounds of integer expressions when some of their variables range over their domains.

Axes are eliminated one at a time, inner ones first.  Where the expression is monotone in an axis,
an end of the axis's range is put in, which is exact; elsewhere each term is bounded by itself,
which is sound.
"""

from __future__ import annotations

from collections.abc import Iterable

from tedsl.expr.nodes import Axis, Binary, BinaryOp, Cast, Const, Expr, IfThenElse, Select, Var
from tedsl.expr.visit import occurs, substitute
from tedsl.index.division import Sum, add_term, collect, expression, factors_of, is_natural
from tedsl.index.facts import EVERYTHING, Facts
from tedsl.index.inequality import nonnegative
from tedsl.index.intern import INDEX_DTYPES
from tedsl.index.interval import interval
from tedsl.index.linear import combine, product, without
from tedsl.index.simplify import simplify


def lower_bound(expr: Expr, axes: Iterable[Axis | Var], facts: Facts = Facts.EMPTY) -> Expr | None:
    """The least value of `expr` while `axes` range over their domains in `facts`, other variables
    fixed.

    Exact for affine expressions and others that are monotone in each axis; for the rest a value
    that is not greater; None when nothing is known (an axis without range, a data-dependent read).
    """
    return _bound(expr, axes, facts.own(), highest=False)


def upper_bound(expr: Expr, axes: Iterable[Axis | Var], facts: Facts = Facts.EMPTY) -> Expr | None:
    """The greatest value of `expr` (included), as `lower_bound`."""
    return _bound(expr, axes, facts.own(), highest=True)


def _bound(expr: Expr, axes: Iterable[Axis | Var], facts: Facts, highest: bool) -> Expr | None:
    current: Expr | None = simplify(expr, facts)
    for axis in elimination_order(axes, facts):
        if current is None:
            return None
        current = _eliminate(current, axis, highest, facts)
    return current


def elimination_order(axes: Iterable[Axis | Var], facts: Facts) -> list[Axis | Var]:
    """`axes` so that each comes before those that its range depends on."""
    order: list[Axis | Var] = []
    pending: list[Axis | Var] = list(dict.fromkeys(axes))
    while pending:
        for axis in reversed(pending):
            if not any(other is not axis and _ranges_over(other, axis, facts) for other in pending):
                break
        else:
            axis = pending[-1]
        pending = [other for other in pending if other is not axis]
        order.append(axis)
    return order


def _ranges_over(inner: Expr, outer: Expr, facts: Facts) -> bool:
    known = facts.range_of(inner)
    return known is not None and (occurs(outer, known.min) or occurs(outer, known.extent))


def _eliminate(expr: Expr, axis: Expr, highest: bool, facts: Facts) -> Expr | None:
    """A bound of `expr` over `axis`, without `axis`."""
    if not occurs(axis, expr):
        return expr
    direction = monotone(expr, axis, facts)
    if direction is None:
        direction = _proved_direction(expr, axis, facts)
    if direction is not None:
        end = _end(axis, highest == (direction >= 0), facts)
        if end is None:
            return _constant_bound(expr, highest, facts)
        return simplify(substitute(expr, {axis: facts.interner.cast(end, axis.dtype)}), facts)
    return _termwise(expr, axis, highest, facts)


def _end(axis: Expr, highest: bool, facts: Facts) -> Expr | None:
    """The last or first value of an axis; a constant where conditions give one."""
    known = facts.range_of(axis)
    limit = interval(axis, facts)
    value = limit.hi if highest else limit.lo
    tightened = facts.bounds.get(axis, EVERYTHING)
    constant = None if value is None else facts.interner.const(value, axis.dtype)
    if known is None:
        return constant
    if constant is not None and (tightened.hi if highest else tightened.lo) == value:
        return constant
    if not highest:
        return known.min
    start = facts.interner.cast(known.min, axis.dtype)
    count = facts.interner.cast(known.extent, axis.dtype)
    end = facts.interner.binary(BinaryOp.ADD, start, count)
    one = facts.interner.const(1, axis.dtype)
    return simplify(facts.interner.binary(BinaryOp.SUB, end, one), facts)


def monotone(expr: Expr, axis: Expr, facts: Facts) -> int | None:
    """1 when `expr` never falls as `axis` rises, -1 when it never rises, 0 when it does not
    depend, else None.
    """
    if expr is axis:
        return 1
    if not occurs(axis, expr):
        return 0
    match expr:
        case Binary(op=BinaryOp.ADD, a=a, b=b):
            return _joined(monotone(a, axis, facts), monotone(b, axis, facts))
        case Binary(op=BinaryOp.SUB, a=a, b=b):
            return _joined(monotone(a, axis, facts), _flipped(monotone(b, axis, facts)))
        case Binary(op=BinaryOp.MUL, a=a, b=b):
            return _product_direction(a, b, axis, facts)
        case Binary(op=BinaryOp.FLOORDIV | BinaryOp.TRUNCDIV, a=a, b=b) if not occurs(axis, b):
            return monotone(a, axis, facts) if is_natural(b, facts) else None
        case Binary(op=BinaryOp.MIN | BinaryOp.MAX, a=a, b=b):
            return _joined(monotone(a, axis, facts), monotone(b, axis, facts))
        case Cast(a=a) if expr.dtype in INDEX_DTYPES and a.dtype in INDEX_DTYPES:
            return monotone(a, axis, facts)
        case _:
            return None


def _joined(a: int | None, b: int | None) -> int | None:
    if a is None or b is None or a * b < 0:
        return None
    return a or b


def _flipped(direction: int | None) -> int | None:
    return None if direction is None else -direction


def _product_direction(a: Expr, b: Expr, axis: Expr, facts: Facts) -> int | None:
    if occurs(axis, a) and occurs(axis, b):
        if not (is_natural(a, facts) and is_natural(b, facts)):
            return None
        return _joined(monotone(a, axis, facts), monotone(b, axis, facts))
    varying, fixed = (a, b) if occurs(axis, a) else (b, a)
    direction = monotone(varying, axis, facts)
    if is_natural(fixed, facts):
        return direction
    limit = interval(fixed, facts)
    return _flipped(direction) if limit.hi is not None and limit.hi <= 0 else None


def _proved_direction(expr: Expr, axis: Expr, facts: Facts) -> int | None:
    """The direction of a sum from its difference at neighbouring points."""
    if not isinstance(expr, Binary) or expr.op not in (BinaryOp.ADD, BinaryOp.SUB):
        return None
    if facts.interner.is_data(expr):
        return None
    one = facts.interner.const(1, axis.dtype)
    following = substitute(expr, {axis: facts.interner.binary(BinaryOp.ADD, axis, one)})
    step = combine(facts.expander.poly(following), facts.expander.poly(expr), -1)
    if nonnegative(step, facts):
        return 1
    return -1 if nonnegative(combine({}, step, -1), facts) else None


def _termwise(expr: Expr, axis: Expr, highest: bool, facts: Facts) -> Expr | None:
    """The sum of the bounds of its terms."""
    form = collect(expr, facts)
    if len(form.terms) == 1 and not form.constant and 1 in form.terms.values():
        return _atom_bound(expr, axis, highest, facts)
    total = Sum({}, form.constant, form.dtype)
    for atom, scale in form.terms.items():
        bound = _eliminate(atom, axis, highest == (scale > 0), facts)
        if bound is None:
            return _constant_bound(expr, highest, facts)
        add = collect(bound, facts)
        for term, coefficient in add.terms.items():
            add_term(total.terms, term, coefficient * scale)
        total.constant += add.constant * scale
    return simplify(expression(total, facts), facts)


def _atom_bound(expr: Expr, axis: Expr, highest: bool, facts: Facts) -> Expr | None:
    found: Expr | None = None
    match expr:
        case Binary(op=BinaryOp.MUL):
            found = _product_bound(expr, axis, highest, facts)
        case Binary(op=BinaryOp.FLOORDIV, a=a, b=b):
            if not occurs(axis, b) and is_natural(b, facts):
                top = _eliminate(a, axis, highest, facts)
                found = None if top is None else facts.interner.binary(expr.op, top, b)
        case Binary(op=BinaryOp.FLOORMOD, b=b):
            found = _remainder_bound(expr, b, axis, highest, facts)
        case Binary(op=BinaryOp.MIN | BinaryOp.MAX, a=a, b=b):
            first = _eliminate(a, axis, highest, facts)
            second = _eliminate(b, axis, highest, facts)
            if first is not None and second is not None:
                found = facts.interner.binary(expr.op, first, second)
            elif (expr.op is BinaryOp.MIN) == highest:  # one of the two is enough
                found = second if first is None else first
        case Select(condition=c, a=a, b=b) | IfThenElse(condition=c, a=a, b=b):
            first = _eliminate(a, axis, highest, facts.assume(c))
            second = _eliminate(b, axis, highest, facts)
            if first is not None and second is not None:
                op = BinaryOp.MAX if highest else BinaryOp.MIN
                found = facts.interner.binary(op, first, second)
        case Cast(a=a) if expr.dtype in INDEX_DTYPES and a.dtype in INDEX_DTYPES:
            inner = _eliminate(a, axis, highest, facts)
            found = None if inner is None else facts.interner.cast(inner, expr.dtype)
        case _:
            pass
    if found is None or occurs(axis, found):
        return _constant_bound(expr, highest, facts)
    return simplify(found, facts)


def _product_bound(expr: Expr, axis: Expr, highest: bool, facts: Facts) -> Expr | None:
    """A product with one factor that varies and others of known sign."""
    factors = factors_of(expr)
    varying = [factor for factor in factors if occurs(axis, factor)]
    if len(varying) != 1:
        return None
    fixed = without(factors, (varying[0],)) or ()
    if not all(is_natural(factor, facts) for factor in fixed):
        return None
    bound = _eliminate(varying[0], axis, highest, facts)
    return None if bound is None else product(facts.interner, (bound, *fixed), expr.dtype)


def _remainder_bound(
    expr: Expr, divisor: Expr, axis: Expr, highest: bool, facts: Facts
) -> Expr | None:
    if occurs(axis, divisor) or not is_natural(divisor, facts):
        return None
    limit = interval(expr, facts)
    if not highest:
        return facts.interner.const(limit.lo or 0, expr.dtype)
    if limit.hi is not None:
        return facts.interner.const(limit.hi, expr.dtype)
    one = facts.interner.const(1, expr.dtype)
    return facts.interner.binary(BinaryOp.SUB, divisor, one)


def _constant_bound(expr: Expr, highest: bool, facts: Facts) -> Expr | None:
    """A constant bound that says more than the dtype does."""
    limit = interval(expr, facts)
    value = limit.hi if highest else limit.lo
    info = expr.dtype.info
    if value is None or (
        expr.dtype in INDEX_DTYPES and value == int(info.highest if highest else info.lowest)
    ):
        return None
    return Const(value, expr.dtype)
