"""Exact evaluation of a reducer's combination, and the search for values on which an order matters.

Imports `expr`.  Numbers are fractions; functions without an exact value are floats with a
tolerance.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

from tedsl.dtypes import DType, Kind
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
from tedsl.scheduling.memo import Memory

Number = Fraction | float | bool
Sample = tuple[Number, ...]
Program = Callable[[Mapping[Expr, Number]], Number]
_programs = Memory(4096)

_BINARY: dict[BinaryOp, Callable[[Any, Any], Any]] = {
    BinaryOp.ADD: lambda a, b: a + b,
    BinaryOp.SUB: lambda a, b: a - b,
    BinaryOp.MUL: lambda a, b: a * b,
    BinaryOp.DIV: lambda a, b: a / b,
    BinaryOp.FLOORDIV: lambda a, b: a // b,
    BinaryOp.FLOORMOD: lambda a, b: a % b,
    BinaryOp.MIN: min,
    BinaryOp.MAX: max,
    BinaryOp.POW: lambda a, b: a**b,
    BinaryOp.ATAN2: math.atan2,
}
_BITS: dict[BinaryOp, Callable[[int, int], int]] = {
    BinaryOp.AND: lambda a, b: a & b,
    BinaryOp.OR: lambda a, b: a | b,
    BinaryOp.XOR: lambda a, b: a ^ b,
}
_UNARY: dict[UnaryOp, Callable[[float], float]] = {
    UnaryOp.EXP: math.exp,
    UnaryOp.EXP2: math.exp2,
    UnaryOp.EXPM1: math.expm1,
    UnaryOp.LOG: math.log,
    UnaryOp.LOG2: math.log2,
    UnaryOp.LOG10: math.log10,
    UnaryOp.LOG1P: math.log1p,
    UnaryOp.SQRT: math.sqrt,
    UnaryOp.TANH: math.tanh,
    UnaryOp.ERF: math.erf,
    UnaryOp.SIN: math.sin,
    UnaryOp.COS: math.cos,
    UnaryOp.TAN: math.tan,
    UnaryOp.ASIN: math.asin,
    UnaryOp.ACOS: math.acos,
    UnaryOp.ATAN: math.atan,
    UnaryOp.SINH: math.sinh,
    UnaryOp.COSH: math.cosh,
    UnaryOp.ASINH: math.asinh,
    UnaryOp.ACOSH: math.acosh,
    UnaryOp.ATANH: math.atanh,
}


class NotEvaluated(Exception):
    """A node that has no value here: an operator that is not covered, or an argument out of
    domain."""


def evaluate(expr: Expr, values: Mapping[Expr, Number]) -> Number:
    """The value of `expr`.

    Raises:
        NotEvaluated: an operator that is not covered, division by zero, a root of a negative
            number.
    """
    try:
        return _program(expr)(values)
    except (ArithmeticError, ValueError, TypeError) as error:
        raise NotEvaluated(str(error)) from error


def _program(expr: Expr) -> Program:
    """What evaluates `expr`: all that is the same for any values is done once."""
    return _programs.get((expr,), lambda: _written(expr))


def _written(expr: Expr) -> Program:
    """The same of a new expression."""
    run = _steps(expr)

    def value(values: Mapping[Expr, Number]) -> Number:
        known = values.get(expr)
        return run(values) if known is None else known

    return value


def _steps(expr: Expr) -> Program:
    """The same for a node of which nothing is known."""
    match expr:
        case Const(value=value):
            exact = isinstance(value, (bool, int)) or math.isfinite(value)
            number = value if isinstance(value, bool) or not exact else Fraction(value)
            return lambda values: number
        case Select(condition=condition, a=a, b=b) | IfThenElse(condition=condition, a=a, b=b):
            which, one, other = _program(condition), _program(a), _program(b)
            return lambda values: (one if which(values) else other)(values)
        case Compare(op=op, a=a, b=b):
            one, other = _program(a), _program(b)
            return lambda values: _compare(op, one(values), other(values))
        case Cast(a=a, dtype=dtype):
            one = _program(a)
            return _held(lambda values: _cast(one(values), dtype), dtype)
        case Unary(op=op, a=a):
            one = _program(a)
            return _held(lambda values: _unary(op, one(values)), expr.dtype)
        case Binary(op=op, a=a, b=b) if op in _BINARY and not expr.dtype.is_integer:
            one, other, apply = _program(a), _program(b), _BINARY[op]
            return lambda values: apply(one(values), other(values))
        case Binary(op=op, a=a, b=b):
            one, other = _program(a), _program(b)
            return _held(lambda values: _binary(op, one(values), other(values)), expr.dtype)
        case _:
            return partial(_no_value, expr)


def _no_value(expr: Expr, values: Mapping[Expr, Number]) -> Number:
    raise NotEvaluated(f"no value for {type(expr).__name__}")


def _held(run: Program, dtype: DType) -> Program:
    """What `dtype` holds of a number."""
    return (lambda values: wrapped(run(values), dtype)) if dtype.is_integer else run


def wrapped(value: Number, dtype: DType) -> Number:
    """What an integer type holds of a number: integers of n bits are those modulo 2**n."""
    if not dtype.is_integer or not isinstance(value, (int, Fraction)):
        return value
    low, bits = int(dtype.info.lowest), dtype.bits
    return (Fraction(value) - low) % 2**bits + low


def _compare(op: CompareOp, a: Number, b: Number) -> bool:
    match op:
        case CompareOp.EQ:
            return a == b
        case CompareOp.NE:
            return a != b
        case CompareOp.LT:
            return a < b
        case CompareOp.LE:
            return a <= b
        case CompareOp.GT:
            return a > b
        case CompareOp.GE:
            return a >= b


def _cast(value: Number, dtype: DType) -> Number:
    if dtype.is_bool:
        return value != 0
    return Fraction(math.trunc(value)) if dtype.is_integer else Fraction(value)


def _unary(op: UnaryOp, value: Number) -> Number:
    match op:
        case UnaryOp.NEG:
            return -value
        case UnaryOp.ABS:
            return abs(value)
        case UnaryOp.NOT if isinstance(value, bool):
            return not value
        case UnaryOp.FLOOR:
            return Fraction(math.floor(value))
        case UnaryOp.CEIL:
            return Fraction(math.ceil(value))
        case UnaryOp.ROUND:
            return Fraction(round(value))
        case UnaryOp.TRUNC:
            return Fraction(math.trunc(value))
        case UnaryOp.SIGN:
            return Fraction((value > 0) - (value < 0))
        case UnaryOp.RSQRT:
            return 1 / math.sqrt(value)
        case UnaryOp.SIGMOID:
            return 1 / (1 + math.exp(-value))
        case _ if op in _UNARY:
            return _UNARY[op](float(value))
        case _:
            raise NotEvaluated(f"no value for {op.value}")


def _binary(op: BinaryOp, a: Number, b: Number) -> Number:
    if op in _BITS:
        if isinstance(a, bool) and isinstance(b, bool):
            return bool(_BITS[op](a, b))
        return Fraction(_BITS[op](int(a), int(b)))
    if op not in _BINARY:
        raise NotEvaluated(f"no value for {op.value}")
    return _BINARY[op](a, b)


def combine(reducer: Reducer, lhs: Sample, rhs: Sample) -> Sample:
    """The combination of two tuples."""
    values: dict[Expr, Number] = dict(zip((*reducer.lhs, *reducer.rhs), (*lhs, *rhs), strict=True))
    return tuple(evaluate(expr, values) for expr in reducer.combine)


@lru_cache(maxsize=256)
def with_rest(reducer: Reducer) -> Reducer:
    """The reducer, with a case of its own for an identity e, where two of them make none as it is
    written: exp(-inf - -inf) and 0 / 0 are no numbers, and masked lanes meet each other.

    a . b --> a if b = e else a . b
    """
    try:
        start = tuple(evaluate(value, {}) for value in reducer.identity)
        if combine(reducer, start, start) == start:
            return reducer
    except NotEvaluated:
        pass
    pairs = zip(reducer.rhs, reducer.identity, strict=True)
    nothing = build.conjunction(build.eq(value, e) for value, e in pairs)
    combined = zip(reducer.lhs, reducer.combine, strict=True)
    return replace(reducer, combine=tuple(build.select(nothing, a, value) for a, value in combined))


def counterexample(reducer: Reducer, sources: Sequence[Expr], tries: int = 400) -> str | None:
    """Values on which the order of combination matters, as text; None when none was found.

    Only tuples that a reduction can meet are tried: the identity, and combinations of up to three
    elements of which the components with constant sources (a count of 1, say) are those constants.

    Args:
        reducer: the reducer.
        sources: what is reduced.
        tries: how many triples to draw; the same ones every time.
    """
    return _counterexample(reducer, tuple(_constant(source) for source in sources), tries)


@lru_cache(maxsize=64)
def _counterexample(reducer: Reducer, fixed: tuple[Number | None, ...], tries: int) -> str | None:
    """The same, once for all sources that are constants in the same places."""
    rng = random.Random(0)
    for number in range(tries):
        ends = 2 * number >= tries  # plain numbers first: they are read more easily
        try:
            a, b, c = (_draw(reducer, fixed, rng, ends) for _ in range(3))
            found = _differ(reducer, a, b, c)
        except NotEvaluated:
            continue
        if found is not None:
            return found
    return None


def _constant(source: Expr) -> Number | None:
    try:
        return evaluate(source, {})
    except NotEvaluated:
        return None


def _draw(
    reducer: Reducer, fixed: Sequence[Number | None], rng: random.Random, ends: bool
) -> Sample:
    count = rng.randint(0, 3)
    if count == 0:
        return tuple(evaluate(value, {}) for value in reducer.identity)
    result = _element(reducer, fixed, rng, ends)
    for _ in range(count - 1):
        result = combine(reducer, result, _element(reducer, fixed, rng, ends))
    return result


def _element(
    reducer: Reducer, fixed: Sequence[Number | None], rng: random.Random, ends: bool
) -> Sample:
    values: list[Number] = []
    for var, constant in zip(reducer.lhs, fixed, strict=True):
        if constant is not None:
            values.append(constant)
        elif var.dtype.is_bool:
            values.append(rng.random() < 0.5)
        else:
            values.append(_number(var.dtype, rng, ends))
    return tuple(values)


def _number(dtype: DType, rng: random.Random, ends: bool) -> Fraction:
    """A small number, or, with `ends`, one near the ends of an integer type."""
    near = 0
    if ends and dtype.is_integer and rng.random() < 0.5:
        near = int(rng.choice((dtype.info.lowest, dtype.info.highest)))
    small = rng.randint(0 if dtype.kind is Kind.UINT else -2, 3)
    value = wrapped(Fraction(near + small), dtype)
    return Fraction(value)


def _differ(reducer: Reducer, a: Sample, b: Sample, c: Sample) -> str | None:
    ab, ba = combine(reducer, a, b), combine(reducer, b, a)
    if not _close(ab, ba):
        return f"x={_text(a)} y={_text(b)}: x.y = {_text(ab)}, y.x = {_text(ba)}"
    left = combine(reducer, ab, c)
    right = combine(reducer, a, combine(reducer, b, c))
    if not _close(left, right):
        return (
            f"x={_text(a)} y={_text(b)} z={_text(c)}: "
            f"(x.y).z = {_text(left)}, x.(y.z) = {_text(right)}"
        )
    return None


def _close(a: Sample, b: Sample) -> bool:
    return all(
        x == y if isinstance(x, Fraction) and isinstance(y, Fraction)
        else math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-9)
        for x, y in zip(a, b, strict=True)
    )  # fmt: skip


def _text(sample: Sequence[Number]) -> str:
    parts = [f"{v:.6g}" if isinstance(v, float) else str(v) for v in sample]
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
