"""Constant bounds of integer and bool expressions.

Every rule gives an interval around all values that the expression takes where the facts hold.
Arithmetic over values read from memory may wrap: such an interval is given up for the range of the
dtype as soon as it leaves that range. Division by zero has no meaning, so a divisor that is known
not to be negative counts as positive.
"""

from __future__ import annotations

from tedsl.dtypes import DType
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
    Select,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.index.evaluate import numbers_of, reach, source_of
from tedsl.index.facts import EVERYTHING, Facts, Interval
from tedsl.index.intern import INDEX_DTYPES
from tedsl.index.linear import Monomial, Poly, combine

__all__ = ["EVERYTHING", "Interval", "interval", "monomial_interval", "poly_interval"]

_BOOL = Interval(0, 1)
_MAX_SHIFT = 64


def interval(expr: Expr, facts: Facts = Facts.EMPTY) -> Interval:
    """An interval that contains every value of `expr` under `facts`."""
    known = facts.intervals.get(expr)
    if known is not None:
        return known
    if expr.dtype.is_float:
        return EVERYTHING
    facts = facts.own()
    result = _structure(expr, facts)
    if facts.bounds:
        bound = facts.bounds.get(facts.interner.rep(expr))
        if bound is not None:
            result = result.meet(bound)
    if facts.truths and expr.dtype is DType.bool:
        truth = facts.truths.get(facts.interner.rep(expr))
        if truth is not None:
            result = Interval(int(truth), int(truth))
    facts.intervals[expr] = result
    return result


def _structure(expr: Expr, facts: Facts) -> Interval:
    if isinstance(expr, Const):
        return Interval(int(expr.value), int(expr.value))
    if isinstance(expr, Axis):
        return _axis(expr, facts)
    if isinstance(expr, Var):
        known = _axis(expr, facts) if expr in facts.ranges else EVERYTHING
        return known.meet(Interval(expr.lower, None))
    result = _operation(expr, facts)
    if expr.dtype not in INDEX_DTYPES or facts.interner.is_data(expr):
        return _wrapped(result, expr.dtype)
    return result


def _operation(expr: Expr, facts: Facts) -> Interval:
    match expr:
        case Binary():
            return _binary(expr, facts)
        case Compare():
            return _compare(expr, facts)
        case Select() | IfThenElse():
            return _choice(expr, facts)
        case Cast():
            return _cast(expr, facts)
        case Unary():
            return _unary(expr, facts)
        case _:
            return EVERYTHING


def _axis(axis: Expr, facts: Facts) -> Interval:
    known = facts.range_of(axis)
    if known is None:
        return EVERYTHING
    facts.intervals[axis] = (
        EVERYTHING  # while its own range is looked at: a range may not define itself
    )
    low, extent = interval(known.min, facts), interval(known.extent, facts)
    hi = None if low.hi is None or extent.hi is None else low.hi + extent.hi - 1
    if type(known.min) is not Const:  # min + extent may be less than the sum of what each reaches
        top = combine(known.upper, {(facts.interner.rep(axis),): 1})
        hi = Interval(None, hi).meet(Interval(None, poly_interval(top, facts).hi)).hi
    return Interval(low.lo, hi)


def _wrapped(found: Interval, dtype: DType) -> Interval:
    if dtype.is_bool:
        return found.meet(_BOOL)
    lowest, highest = int(dtype.info.lowest), int(dtype.info.highest)
    if found.lo is None or found.hi is None or found.lo < lowest or found.hi > highest:
        return Interval(lowest, highest)
    return found


def _choice(expr: Select | IfThenElse, facts: Facts) -> Interval:
    condition = interval(expr.condition, facts)
    if condition.lo == 1:
        return interval(expr.a, facts)
    if condition.hi == 0:
        return interval(expr.b, facts)
    return interval(expr.a, facts).join(interval(expr.b, facts))


def _cast(expr: Cast, facts: Facts) -> Interval:
    source = expr.a.dtype
    if source.is_float:
        return _rounded(expr, facts)
    if expr.dtype is DType.bool:
        inner = interval(expr.a, facts)
        if inner.lo == 0 == inner.hi:
            return Interval(0, 0)
        return _BOOL if inner.contains(0) else Interval(1, 1)
    return interval(expr.a, facts)


def _rounded(expr: Cast, facts: Facts) -> Interval:
    """What floating-point arithmetic on one integer is cast to."""
    whole = source_of(expr.a) if expr.dtype in INDEX_DTYPES else None
    if whole is None or facts.interner.is_data(whole):
        return EVERYTHING
    lo, hi = interval(whole, facts)
    numbers = numbers_of(lo, hi)
    found = None if numbers is None else reach(expr.a, numbers)
    return EVERYTHING if found is None else Interval(*found)


def _unary(expr: Unary, facts: Facts) -> Interval:
    if expr.dtype is DType.bool:
        if expr.op is not UnaryOp.NOT:
            return _BOOL
        inner = interval(expr.a, facts)
        lo = 0 if inner.hi is None else max(0, 1 - inner.hi)
        return Interval(lo, 1 if inner.lo is None else min(1, 1 - inner.lo))
    inner = interval(expr.a, facts)
    match expr.op:
        case UnaryOp.NEG:
            return negate(inner)
        case UnaryOp.NOT:
            return shift(negate(inner), -1)
        case UnaryOp.ABS:
            return _abs(inner)
        case UnaryOp.SIGN:
            lo = -1 if inner.lo is None else max(-1, min(1, inner.lo))
            return Interval(lo, 1 if inner.hi is None else max(-1, min(1, inner.hi)))
        case UnaryOp.POPCOUNT:
            return Interval(0, expr.dtype.bits)
        case _:
            return EVERYTHING


def _abs(x: Interval) -> Interval:
    if x.lo is not None and x.lo >= 0:
        return x
    if x.hi is not None and x.hi <= 0:
        return negate(x)
    return Interval(0, None if x.lo is None or x.hi is None else max(-x.lo, x.hi))


def _compare(expr: Compare, facts: Facts) -> Interval:
    if expr.a.dtype.is_float:
        return _BOOL
    a, b = interval(expr.a, facts), interval(expr.b, facts)
    truth = compare_intervals(expr.op, a, b)
    return _BOOL if truth is None else Interval(int(truth), int(truth))


def compare_intervals(op: CompareOp, a: Interval, b: Interval) -> bool | None:
    """Whether `a op b` for all values of both; None when it depends."""
    match op:
        case CompareOp.GT | CompareOp.GE:
            mirrored = CompareOp.LT if op is CompareOp.GT else CompareOp.LE
            return compare_intervals(mirrored, b, a)
        case CompareOp.LT:
            if a.hi is not None and b.lo is not None and a.hi < b.lo:
                return True
            return False if a.lo is not None and b.hi is not None and a.lo >= b.hi else None
        case CompareOp.LE:
            if a.hi is not None and b.lo is not None and a.hi <= b.lo:
                return True
            return False if a.lo is not None and b.hi is not None and a.lo > b.hi else None
        case CompareOp.EQ:
            if a.lo is not None and a.lo == a.hi == b.lo == b.hi:
                return True
            apart = compare_intervals(CompareOp.LT, a, b) or compare_intervals(CompareOp.LT, b, a)
            return False if apart else None
        case CompareOp.NE:
            equal = compare_intervals(CompareOp.EQ, a, b)
            return None if equal is None else not equal


def _binary(expr: Binary, facts: Facts) -> Interval:
    op = expr.op
    if op is BinaryOp.ADD or op is BinaryOp.SUB:
        return _sum(expr, facts)
    a, b = interval(expr.a, facts), interval(expr.b, facts)
    match op:
        case BinaryOp.MUL:
            if facts.interner.rep(expr.a) is facts.interner.rep(expr.b):
                a = b = _abs(a)
            return multiply(a, b)
        case BinaryOp.FLOORDIV:
            return floordiv(a, b)
        case BinaryOp.FLOORMOD:
            return floormod(a, b)
        case BinaryOp.TRUNCDIV:
            return _truncdiv(a, b)
        case BinaryOp.TRUNCMOD:
            return _truncmod(a, b)
        case BinaryOp.MIN:
            return negate(_maximum(negate(a), negate(b)))
        case BinaryOp.MAX:
            return _maximum(a, b)
        case BinaryOp.AND | BinaryOp.OR | BinaryOp.XOR:
            return _bitwise(op, a, b)
        case BinaryOp.SHL | BinaryOp.SHR:
            return _shifted(op, a, b)
        case _:
            return EVERYTHING


def _sum(expr: Binary, facts: Facts) -> Interval:
    a, b = interval(expr.a, facts), interval(expr.b, facts)
    plain = add(a, b if expr.op is BinaryOp.ADD else negate(b))
    if expr.dtype not in INDEX_DTYPES or facts.interner.is_data(expr):
        return plain
    return plain.meet(poly_interval(facts.expander.poly(expr), facts))


def poly_interval(poly: Poly, facts: Facts) -> Interval:
    """An interval around a polynomial: the sum of the intervals of its monomials."""
    lo: int | None = 0
    hi: int | None = 0
    for monomial, scale in poly.items():
        if not monomial:
            low = high = 1
        else:
            low, high = monomial_interval(monomial, facts)
        if scale < 0:
            low, high = high, low
        lo = None if lo is None or low is None else lo + low * scale
        hi = None if hi is None or high is None else hi + high * scale
        if lo is None and hi is None:
            break
    return Interval(lo, hi)


def monomial_interval(monomial: Monomial, facts: Facts) -> Interval:
    """An interval around a product of atoms."""
    if len(monomial) == 1:
        return interval(monomial[0], facts)
    result = Interval(1, 1)
    for index, atom in enumerate(monomial):
        factor = interval(atom, facts)
        if index and monomial[index - 1] is atom:
            factor = _abs(factor)
        result = multiply(result, factor)
        if len(monomial) == 2 and monomial[0] is monomial[1]:
            square = _abs(interval(atom, facts))
            return multiply(square, square)
    return result


def negate(x: Interval) -> Interval:
    """-x."""
    return Interval(None if x.hi is None else -x.hi, None if x.lo is None else -x.lo)


def shift(x: Interval, offset: int) -> Interval:
    """x + offset."""
    return Interval(
        None if x.lo is None else x.lo + offset, None if x.hi is None else x.hi + offset
    )


def add(a: Interval, b: Interval) -> Interval:
    """a + b."""
    return Interval(
        None if a.lo is None or b.lo is None else a.lo + b.lo,
        None if a.hi is None or b.hi is None else a.hi + b.hi,
    )


def multiply(a: Interval, b: Interval) -> Interval:
    """a * b; the product with an empty range is empty."""
    for x in (a, b):
        if x.lo is not None and x.hi is not None and x.lo > x.hi:
            return x
    if None not in a and None not in b:
        corners = [x * y for x in a for y in b if x is not None and y is not None]
        return Interval(min(corners), max(corners))
    if (a.lo == a.hi == 0) or (b.lo == b.hi == 0):
        return Interval(0, 0)
    if a.hi is not None and a.hi <= 0:
        return negate(multiply(negate(a), b))
    if b.hi is not None and b.hi <= 0:
        return negate(multiply(a, negate(b)))
    if a.lo is None or b.lo is None or (a.lo < 0 and b.lo < 0):
        if a.lo is not None and a.lo >= 0 and b.hi is not None and a.hi is not None:
            return Interval(None, a.hi * b.hi)
        if b.lo is not None and b.lo >= 0 and a.hi is not None and b.hi is not None:
            return Interval(None, a.hi * b.hi)
        return EVERYTHING
    if a.lo >= 0 and b.lo >= 0:
        hi = None if a.hi is None or b.hi is None else a.hi * b.hi
        return Interval(a.lo * b.lo, hi)
    low, high = (a, b) if a.lo < 0 else (b, a)  # low may be negative, high is not
    lo = None if high.hi is None or low.lo is None else low.lo * high.hi
    hi = None if low.hi is None or high.hi is None else low.hi * high.hi
    return Interval(lo, hi)


def floordiv(a: Interval, b: Interval) -> Interval:
    """a // b, rounding down."""
    if b.hi is not None and b.hi < 0:
        a, b = negate(a), negate(b)
    if b.lo is None or b.lo < 0:
        if a.lo is None or a.hi is None:
            return EVERYTHING
        reach = max(abs(a.lo), abs(a.hi))
        return Interval(-reach, reach)
    small = max(b.lo, 1)
    return Interval(_quotient(a.lo, small, b.hi, False), _quotient(a.hi, small, b.hi, True))


def _quotient(value: int | None, small: int, large: int | None, highest: bool) -> int | None:
    """The extreme of value // d for d in small .. large."""
    if value is None:
        return None
    if (value >= 0) == highest:
        return value // small
    if large is None:
        return 0 if value >= 0 else -1
    return value // max(large, 1)


def floormod(a: Interval, b: Interval) -> Interval:
    """a % b, with the sign of b."""
    if b.hi is not None and b.hi < 0:
        return negate(floormod(negate(a), negate(b)))
    if b.lo is None or b.lo < 0:
        if b.lo is None or b.hi is None:
            return EVERYTHING
        return Interval(min(b.lo + 1, 0), max(b.hi - 1, 0))
    if a.lo is not None and a.lo >= 0 and a.hi is not None and a.hi < max(b.lo, 1):
        return a
    if a.lo is not None and a.hi is not None and b.lo == b.hi and b.lo > 0:
        block = a.lo // b.lo
        if block == a.hi // b.lo:
            return shift(a, -block * b.lo)
    hi = None if b.hi is None else max(b.hi - 1, 0)
    if a.lo is not None and a.lo >= 0 and a.hi is not None:
        hi = a.hi if hi is None else min(hi, a.hi)
    return Interval(0, hi)


def _truncdiv(a: Interval, b: Interval) -> Interval:
    if b.hi is not None and b.hi < 0:
        return negate(_truncdiv(a, negate(b)))
    if b.lo is None or b.lo < 0:
        if a.lo is None or a.hi is None:
            return EVERYTHING
        reach = max(abs(a.lo), abs(a.hi))
        return Interval(-reach, reach)
    positive = floordiv(Interval(_clip(a.lo), _clip(a.hi)), b)
    negative = floordiv(negate(Interval(_clip_below(a.lo), _clip_below(a.hi))), b)
    if a.lo is not None and a.lo >= 0:
        return positive
    if a.hi is not None and a.hi <= 0:
        return negate(negative)
    return Interval(negate(negative).lo, positive.hi)


def _clip(value: int | None) -> int | None:
    return None if value is None else max(value, 0)


def _clip_below(value: int | None) -> int | None:
    return None if value is None else min(value, 0)


def _truncmod(a: Interval, b: Interval) -> Interval:
    divisor = _abs(b)
    if a.lo is not None and a.lo >= 0:
        return floormod(a, divisor)
    if a.hi is not None and a.hi <= 0:
        return negate(floormod(negate(a), divisor))
    reach = None if divisor.hi is None else max(divisor.hi - 1, 0)
    lo = None if reach is None else -reach
    if a.lo is not None:
        lo = a.lo if lo is None else max(lo, a.lo)
    hi = reach
    if a.hi is not None:
        hi = a.hi if hi is None else min(hi, a.hi)
    return Interval(lo, hi)


def _maximum(a: Interval, b: Interval) -> Interval:
    lo = b.lo if a.lo is None else a.lo if b.lo is None else max(a.lo, b.lo)
    return Interval(lo, None if a.hi is None or b.hi is None else max(a.hi, b.hi))


def _bitwise(op: BinaryOp, a: Interval, b: Interval) -> Interval:
    natural_a = a.lo is not None and a.lo >= 0
    natural_b = b.lo is not None and b.lo >= 0
    if op is BinaryOp.AND:
        tops = [x.hi for x, ok in ((a, natural_a), (b, natural_b)) if ok and x.hi is not None]
        if not natural_a and not natural_b:
            return EVERYTHING
        return Interval(int(a.lo == b.lo == 1 == a.hi == b.hi), min(tops) if tops else None)
    if not (natural_a and natural_b):
        return EVERYTHING
    hi = None
    if a.hi is not None and b.hi is not None:
        hi = (1 << max(a.hi.bit_length(), b.hi.bit_length())) - 1
    lo = max(a.lo or 0, b.lo or 0) if op is BinaryOp.OR else 0
    return Interval(lo, hi)


def _shifted(op: BinaryOp, a: Interval, b: Interval) -> Interval:
    if b.lo is None or b.lo < 0 or b.hi is None or b.hi > _MAX_SHIFT:
        if op is BinaryOp.SHR and a.lo is not None and a.lo >= 0:
            return Interval(0, a.hi)
        return EVERYTHING
    powers = Interval(1 << b.lo, 1 << b.hi)
    return multiply(a, powers) if op is BinaryOp.SHL else floordiv(a, powers)
