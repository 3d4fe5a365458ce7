"""May the partial results of a reducer be combined in any order?

A combination is proved associative and commutative over the real numbers, refuted by values, or
neither.  Besides `index/`, this is the only place where sympy is used; it is loaded when a proof is
first asked for.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Any

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
    Reducer,
    Select,
    Unary,
    UnaryOp,
)
from tedsl.expr.printer import print_expr
from tedsl.expr.visit import walk
from tedsl.index.intern import Interner, structure
from tedsl.scheduling.algebra.counterexamples import counterexample
from tedsl.scheduling.algebra.orders import keeps_one
from tedsl.scheduling.algebra.wrapping import Exactness, Wraps
from tedsl.scheduling.memo import Memory

KNOWN = frozenset(
    {
        BinaryOp.ADD,
        BinaryOp.MUL,
        BinaryOp.MIN,
        BinaryOp.MAX,
        BinaryOp.AND,
        BinaryOp.OR,
        BinaryOp.XOR,
    }
)
MAX_CASES = 3000
_proofs, _operators, _sums = Memory(64), Memory(64), Memory(64)


class Verdict(StrEnum):
    """What is known of a reducer."""

    PROVED = "proved"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Result:
    """The verdict and, unless proved, why."""

    verdict: Verdict
    text: str = ""


@lru_cache(maxsize=256)
def combines_in_any_order(reducer: Reducer, sources: tuple[Expr, ...]) -> Result:
    """Is `combine` associative and commutative on what a reduction of `sources` can meet?

    Proved: the caller answers for it, known operators side by side, one of two elements is kept by
    comparing them (all orders are tried), exponentials are added up, or both laws hold over the
    real numbers in every case of the comparisons made.
    Refuted: values that such a reduction can meet break a law.
    """
    if reducer.believed or _known(reducer) or keeps_one(reducer) or adds_exponentials(reducer):
        return Result(Verdict.PROVED)
    found = counterexample(reducer, sources)
    if found is not None:
        return Result(Verdict.REFUTED, found)
    why = _wrapping(reducer) or _unproved(reducer)
    return Result(Verdict.PROVED) if why is None else Result(Verdict.UNKNOWN, why)


def _known(reducer: Reducer) -> bool:
    """True when every component is combined by one known operator, apart from the others."""
    return all(
        isinstance(expr, Binary) and expr.op in KNOWN and expr.a is a and expr.b is b
        for expr, a, b in zip(reducer.combine, reducer.lhs, reducer.rhs, strict=True)
    )


@lru_cache(maxsize=64)
def _wrapping(reducer: Reducer) -> str | None:
    """Why a proof over the real numbers says nothing of integers, which wrap; None where it does.

    What has been combined is as exact as what combines it (see `wrapping`).
    """
    loose: set[int] = set()
    for _ in reducer.combine:
        same = Interner()
        unsure = {same.rep(side[n]) for n in loose for side in (reducer.lhs, reducer.rhs)}
        judge = Exactness({}, (), unsure, same)
        try:
            found = {n for n, each in enumerate(reducer.combine) if not judge.exact(each)}
        except Wraps as wraps:
            text = print_expr(wraps.culprit)
            return f"integers of {wraps.of.dtype} wrap, and {text} is of what may have wrapped"
        if found <= loose:
            return None
        loose |= found
    return None


class _NoProof(Exception):
    """The method does not cover this combination."""


class _Undecided(Exception):
    """A case distinction is due: the sign of `difference`, or the value of the bool `symbol`."""

    def __init__(self, difference: Any, is_bool: bool = False) -> None:
        super().__init__()
        self.difference = difference
        self.is_bool = is_bool


@dataclass(frozen=True, slots=True)
class _Case:
    """Assumptions: signs (-1, 0, 1) of differences, values of bools, and symbols replaced by
    equalities.
    """

    signs: tuple[tuple[Any, int], ...] = ()
    bools: tuple[tuple[Any, bool], ...] = ()
    equal: tuple[tuple[Any, Any], ...] = ()


def _sympy() -> Any:
    return importlib.import_module("sympy")


def _unproved(reducer: Reducer) -> str | None:
    """Why the laws could not be proved; None when they hold in every case.

    Each comparison of the two sides splits the case in three (less, equal, greater); a case whose
    assumptions contradict each other is dropped; in the others both sides must be the same real
    expression.
    """

    def find() -> str | None:
        symbols = _symbols(reducer, "xyz")
        said = "the two orders could not be shown to be"
        return _fails(lambda case: _laws_hold(reducer, symbols, case), said)

    return _proofs.get(_form(reducer), find)


def _form(reducer: Reducer) -> tuple[object, ...]:
    """Equal for reducers that combine alike, whatever their variables are called."""
    variables = (*reducer.lhs, *reducer.rhs)
    combined = structure({var: n for n, var in enumerate(variables)}, *reducer.combine)
    return tuple(var.dtype for var in variables), combined


def _symbols(reducer: Reducer, names: str) -> list[tuple[Any, ...]]:
    """One tuple of real symbols per name, as long as the reducer's."""
    count = range(len(reducer.lhs))
    return [tuple(_sympy().Symbol(f"{name}{n}", real=True) for n in count) for name in names]


def _fails(holds: Callable[[_Case], bool], what: str) -> str | None:
    """Why `holds` could not be shown in some case; None when it holds in all."""
    todo, count = [_Case()], 0
    while todo:
        case = todo.pop()
        count += 1
        if count > MAX_CASES:
            return f"no proof within {MAX_CASES} cases"
        if not _feasible(case):
            continue
        try:
            if not holds(case):
                return f"{what} equal"
        except _Undecided as undecided:
            todo.extend(_branches(case, undecided))
        except _NoProof as reason:
            return f"no proof: {reason}"
    return None


def real_identity(reducer: Reducer) -> tuple[Expr, ...] | None:
    """Zeros and ones that leave every element as it is, proved over the real numbers."""
    (symbols,) = _symbols(reducer, "x")
    for numbers in itertools.product((0, 1), repeat=len(reducer.lhs)):
        start = tuple(map(_number, numbers))

        def leaves(case: _Case, start: tuple[Any, ...] = start) -> bool:
            return _same(_combine(reducer, start, symbols, case), symbols, case)

        if _fails(leaves, "") is None:
            pairs = zip(numbers, reducer.lhs, strict=True)
            return tuple(build.const(number, v.dtype) for number, v in pairs)
    return None


def adds_exponentials(reducer: Reducer) -> bool:
    """True for a sum of numbers that are given by their logarithms: exp(a . b) = exp(a) + exp(b),
    so that the `.` is as associative and commutative as the sum; what it leaves alone is -inf.

    Proved over the real numbers, in every case of the comparisons made.
    """
    (a, *others) = reducer.combine
    if others or not a.dtype.is_float or not any(isinstance(n, Unary) for n in walk(a)):
        return False

    def holds(case: _Case) -> bool:
        (x,), (y,) = _symbols(reducer, "xy")
        (both,) = _combine(reducer, [x], [y], case)
        x, y = (each.subs(dict(case.equal)) for each in (x, y))
        exp = _sympy().exp
        return _same([_sympy().expand(exp(both))], [exp(x) + exp(y)], case)

    def find() -> bool:
        return _fails(holds, "") is None

    return _sums.get(_form(reducer), find)


def component_operator(reducer: Reducer, index: int) -> BinaryOp | None:
    """The operator that combines component `index` of a reducer, when it is one operator whatever
    the other components are: `max` for the value of an argmax.

    Proved over the real numbers; None when it is none of sum, product, minimum and maximum, or not
    shown to be.
    """
    combine, a, b = reducer.combine[index], reducer.lhs[index], reducer.rhs[index]
    if isinstance(combine, Binary) and combine.op in KNOWN and {combine.a, combine.b} == {a, b}:
        return combine.op
    if not a.dtype.is_float:
        return None
    key = (index, _form(reducer))
    return _operators.get(key, lambda: _component_operator(reducer, index))


def _component_operator(reducer: Reducer, index: int) -> BinaryOp | None:
    a, b, symbols = reducer.lhs[index], reducer.rhs[index], _symbols(reducer, "xy")
    for op in (BinaryOp.MAX, BinaryOp.MIN, BinaryOp.ADD, BinaryOp.MUL):
        parts = list(reducer.combine)
        parts[index] = Binary(op, a, b)
        plain = replace(reducer, combine=tuple(parts))
        if (
            _fails(lambda case, other=plain: _agree(reducer, other, index, symbols, case), "")
            is None
        ):
            return op
    return None


def _agree(
    reducer: Reducer, other: Reducer, index: int, symbols: Sequence[tuple[Any, ...]], case: _Case
) -> bool:
    """Both combine component `index` alike in this case."""
    x, y = symbols
    left, right = (_combine(each, x, y, case)[index] for each in (reducer, other))
    return _same([left], [right], case)


def _branches(case: _Case, undecided: _Undecided) -> list[_Case]:
    difference = undecided.difference
    if undecided.is_bool:
        return [
            _Case(case.signs, (*case.bools, (difference, value)), case.equal)
            for value in (False, True)
        ]
    cases = [_Case((*case.signs, (difference, sign)), case.bools, case.equal) for sign in (-1, 1)]
    for symbol in sorted(difference.free_symbols, key=str):
        slope = _sympy().diff(difference, symbol)
        if slope.is_number and slope != 0:
            value = _sympy().expand(symbol - difference / slope)
            equal = tuple((s, _sympy().expand(v.subs(symbol, value))) for s, v in case.equal)
            signs = tuple((_sympy().expand(d.subs(symbol, value)), sign) for d, sign in case.signs)
            return [*cases, _Case(signs, case.bools, (*equal, (symbol, value)))]
    raise _NoProof(f"cannot solve {difference} = 0")


def _laws_hold(reducer: Reducer, symbols: Sequence[tuple[Any, ...]], case: _Case) -> bool:
    x, y, z = symbols
    xy = _combine(reducer, x, y, case)
    if not _same(xy, _combine(reducer, y, x, case), case):
        return False
    left = _combine(reducer, xy, z, case)
    right = _combine(reducer, x, _combine(reducer, y, z, case), case)
    return _same(left, right, case)


def _combine(
    reducer: Reducer, lhs: Sequence[Any], rhs: Sequence[Any], case: _Case
) -> tuple[Any, ...]:
    values: dict[Expr, Any] = {}
    equal = dict(case.equal)
    for var, value in zip((*reducer.lhs, *reducer.rhs), (*lhs, *rhs), strict=True):
        if not var.dtype.is_bool:
            values[var] = value.subs(equal) if equal else value
        elif isinstance(value, bool):
            values[var] = value
        else:
            values[var] = _bool_value(value, case)
    return tuple(_value(expr, values, case) for expr in reducer.combine)


def _bool_value(symbol: Any, case: _Case) -> bool:
    for known, value in case.bools:
        if known == symbol:
            return value
    raise _Undecided(symbol, is_bool=True)


def _same(left: Sequence[Any], right: Sequence[Any], case: _Case) -> bool:
    for a, b in zip(left, right, strict=True):
        if isinstance(a, bool) or isinstance(b, bool):
            if a is not b:
                return False
            continue
        difference = _sympy().expand(a - b)
        if difference == 0 or _sympy().cancel(_sympy().together(difference)) == 0:
            continue
        if _sympy().simplify(difference) != 0:
            return False
    return True


def _value(expr: Expr, values: Mapping[Expr, Any], case: _Case) -> Any:
    """`expr` as a real expression, or as a Python bool."""
    if expr in values:
        return values[expr]

    def of(child: Expr) -> Any:
        return _value(child, values, case)

    match expr:
        case Const(value=value):
            return value if isinstance(value, bool) else _number(value)
        case Select(condition=condition, a=a, b=b) | IfThenElse(condition=condition, a=a, b=b):
            return of(a) if of(condition) else of(b)
        case Compare(op=op, a=a, b=b):
            return _compare(op, of(a), of(b), case)
        case Cast(a=a, dtype=dtype):
            if dtype.is_float or a.dtype is dtype or (a.dtype.is_integer and dtype.is_integer):
                inner = of(a)
                return _number(int(inner)) if isinstance(inner, bool) else inner
            raise _NoProof(f"a cast to {dtype.value}")
        case Unary(op=op, a=a):
            return _unary(op, of(a), case)
        case Binary(op=op, a=a, b=b):
            return _binary(op, of(a), of(b), case)
        case _:
            raise _NoProof(f"an operand of type {type(expr).__name__}")


def _number(value: float) -> Any:
    try:
        exact = Fraction(value)
    except (OverflowError, ValueError) as error:
        raise _NoProof(f"the constant {value}") from error
    return _sympy().Rational(exact.numerator, exact.denominator)


def _sign(difference: Any, case: _Case) -> int:
    """The sign of a real expression in this case; asks for a case distinction when it is open."""
    difference = _sympy().expand(difference)
    if difference.is_number:
        if not difference.is_finite or not difference.is_real:
            raise _NoProof("a comparison of what is no real number")
        return 0 if difference == 0 else 1 if difference > 0 else -1
    for known, sign in case.signs:
        if _sympy().expand(known - difference) == 0:
            return sign
        if _sympy().expand(known + difference) == 0:
            return -sign
    raise _Undecided(difference)


def _compare(op: CompareOp, a: Any, b: Any, case: _Case) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        a, b = _number(int(a)), _number(int(b))
    sign = _sign(a - b, case)
    match op:
        case CompareOp.EQ:
            return sign == 0
        case CompareOp.NE:
            return sign != 0
        case CompareOp.LT:
            return sign < 0
        case CompareOp.LE:
            return sign <= 0
        case CompareOp.GT:
            return sign > 0
        case CompareOp.GE:
            return sign >= 0


def _unary(op: UnaryOp, a: Any, case: _Case) -> Any:
    sympy = _sympy()
    match op:
        case UnaryOp.NOT if isinstance(a, bool):
            return not a
        case UnaryOp.NEG:
            return -a
        case UnaryOp.ABS:
            return a if _sign(a, case) >= 0 else -a
        case UnaryOp.EXP:
            return sympy.exp(a)
        case UnaryOp.EXP2:
            return sympy.Integer(2) ** a
        case UnaryOp.LOG:
            return sympy.log(a)
        case UnaryOp.LOG1P:
            return sympy.log(1 + a)
        case UnaryOp.EXPM1:
            return sympy.exp(a) - 1
        case UnaryOp.ISINF:
            return False  # of a real number
        case UnaryOp.SQRT:
            return sympy.sqrt(a)
        case _:
            raise _NoProof(f"the function {op.value}")


def _binary(op: BinaryOp, a: Any, b: Any, case: _Case) -> Any:
    if isinstance(a, bool) and isinstance(b, bool):
        match op:
            case BinaryOp.AND:
                return a and b
            case BinaryOp.OR:
                return a or b
            case BinaryOp.XOR:
                return a is not b
            case _:
                raise _NoProof(f"the operator {op.value} on bool")
    match op:
        case BinaryOp.ADD:
            return a + b
        case BinaryOp.SUB:
            return a - b
        case BinaryOp.MUL:
            return a * b
        case BinaryOp.DIV:
            if b == 0:
                raise _NoProof("a quotient by 0")
            return a / b
        case BinaryOp.MIN:
            return a if _sign(a - b, case) <= 0 else b
        case BinaryOp.MAX:
            return a if _sign(a - b, case) >= 0 else b
        case _:
            raise _NoProof(f"the operator {op.value}")


def _feasible(case: _Case) -> bool:
    """False when the signs contradict each other, taking distinct products of symbols as
    independent.

    Fourier-Motzkin: each difference is made positive, then one unknown after another is eliminated.
    """
    rows: list[dict[Any, Any]] = []
    for difference, sign in case.signs:
        if difference.is_number:
            if (difference > 0) != (sign > 0) or difference == 0:
                return False
            continue
        rows.append(dict((sign * difference).as_coefficients_dict()))
    one = _sympy().S.One
    while True:
        unknowns = sorted({key for row in rows for key in row if key != one}, key=str)
        if any(not any(key != one for key in row) and row.get(one, 0) <= 0 for row in rows):
            return False
        if not unknowns:
            return True
        rows = _eliminated(rows, unknowns[0])
        if len(rows) > MAX_CASES:
            return True


def _eliminated(rows: list[dict[Any, Any]], unknown: Any) -> list[dict[Any, Any]]:
    """Positive combinations of rows (each > 0) in which `unknown` cancels."""
    rest = [row for row in rows if row.get(unknown, 0) == 0]
    below = [row for row in rows if row.get(unknown, 0) > 0]
    above = [row for row in rows if row.get(unknown, 0) < 0]
    for p in below:
        for q in above:
            mixed: dict[Any, Any] = {}
            for key in {**p, **q}:
                value = p.get(key, 0) * -q[unknown] + q.get(key, 0) * p[unknown]
                if value != 0 and key != unknown:
                    mixed[key] = value
            rest.append(mixed)
    return rest
