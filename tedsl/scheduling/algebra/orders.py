"""Reducers that keep one of two elements by comparing them (argmax, the first of equals): proved by
trying all orders.

What such a combination does depends on how the parts of two elements compare, and on which are NaN,
and on nothing else; and its result is one of the two, part by part.  So do both laws for three
elements, of which each part has at most three values: with three numbers and NaN for each part, all
cases are met.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import lru_cache

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.fold import COMPARE
from tedsl.expr.nodes import (
    Binary,
    BinaryOp,
    Compare,
    Expr,
    Reducer,
    Select,
    Unary,
    UnaryOp,
    Var,
)

# Elements that are tried, at most: four parts of integers, or three of floats.
MOST = 81
Element = tuple[float, ...]


@lru_cache(maxsize=64)
def keeps_one(reducer: Reducer) -> bool:
    """True when `combine` only compares and chooses, and is associative and commutative."""
    pairs = list(zip(reducer.lhs, reducer.rhs, strict=True))
    part = {variable: n for n, pair in enumerate(pairs) for variable in pair}
    if not all(_chosen(each, part, n) for n, each in enumerate(reducer.combine)):
        return False
    parts = [_values(a.dtype) for a, _ in pairs]
    if math.prod(map(len, parts)) > MOST:
        return False
    elements = list(itertools.product(*parts))
    places = {_known(each): n for n, each in enumerate(elements)}

    def both(a: Element, b: Element) -> int:
        values = dict(zip((*reducer.lhs, *reducer.rhs), (*a, *b), strict=True))
        return places[_known(tuple(_value(each, values) for each in reducer.combine))]

    count = range(len(elements))
    table = [[both(a, b) for b in elements] for a in elements]
    if any(table[a][b] != table[b][a] for a in count for b in range(a)):
        return False
    return all(
        table[table[a][b]][c] == table[a][table[b][c]] for a in count for b in count for c in count
    )


def kept_identity(reducer: Reducer) -> tuple[Expr, ...] | None:
    """The element that every other is kept against, of a reducer that `keeps_one`; None where none
    of the ends of the ranges does.

    Tried against numbers, NaN and the ends themselves, which are all the ways to compare with one.
    """
    ends = [_ends(variable.dtype) for variable in reducer.lhs]
    parts = [(*_values(v.dtype), *e) for v, e in zip(reducer.lhs, ends, strict=True)]
    elements = list(itertools.product(*parts))
    variables = (*reducer.lhs, *reducer.rhs)

    def leaves(start: Element, other: Element) -> bool:
        values = dict(zip(variables, (*start, *other), strict=True))
        return _known(tuple(_value(e, values) for e in reducer.combine)) == _known(other)

    for start in itertools.product(*ends):
        if all(leaves(start, other) for other in elements):
            pairs = zip(start, reducer.lhs, strict=True)
            return tuple(build.const(_number(value, v.dtype), v.dtype) for value, v in pairs)
    return None


def _ends(dtype: DType) -> tuple[float, float]:
    if dtype.is_bool:
        return (0.0, 1.0)
    return (-math.inf, math.inf) if dtype.is_float else (dtype.info.lowest, dtype.info.highest)


def _number(value: float, dtype: DType) -> float | bool:
    return bool(value) if dtype.is_bool else value if dtype.is_float else int(value)


def _values(dtype: DType) -> tuple[float, ...]:
    if dtype.is_bool:
        return (0.0, 1.0)
    return (0.0, 1.0, 2.0, math.nan) if dtype.is_float else (0.0, 1.0, 2.0)


def _known(element: Element) -> tuple[float | None, ...]:
    """The same for equal elements, NaN among them."""
    return tuple(None if math.isnan(value) else value for value in element)


def _chosen(expr: Expr, part: Mapping[Var, int], own: int) -> bool:
    """True for a choice, by comparisons, between the two elements' part `own`."""
    if isinstance(expr, Select):
        return (
            _compares(expr.condition, part)
            and _chosen(expr.a, part, own)
            and _chosen(expr.b, part, own)
        )
    return isinstance(expr, Var) and part.get(expr) == own


def _compares(expr: Expr, part: Mapping[Var, int]) -> bool:
    match expr:
        case Compare(a=Var() as a, b=Var() as b):
            return a in part and part.get(a) == part.get(b)
        case Unary(op=UnaryOp.ISNAN, a=Var() as a):
            return a in part
        case Unary(op=UnaryOp.NOT, a=a) if a.dtype.is_bool:
            return _compares(a, part)
        case Binary(op=BinaryOp.AND | BinaryOp.OR | BinaryOp.XOR, a=a, b=b) if a.dtype.is_bool:
            return _compares(a, part) and _compares(b, part)
        case _:
            return False


def _value(expr: Expr, values: Mapping[Var, float]) -> float:
    """The value of an expression of those that `_chosen` and `_compares` let pass."""
    match expr:
        case Select(condition=condition, a=a, b=b):
            return _value(a if _value(condition, values) else b, values)
        case Compare(op=op, a=a, b=b):
            return float(COMPARE[op](_value(a, values), _value(b, values)))
        case Unary(op=UnaryOp.ISNAN, a=a):
            return float(math.isnan(_value(a, values)))
        case Unary(a=a):
            return 1.0 - _value(a, values)
        case Binary(op=op, a=a, b=b):
            one, other = bool(_value(a, values)), bool(_value(b, values))
            found = one and other if op is BinaryOp.AND else one or other
            return float(one != other if op is BinaryOp.XOR else found)
        case _:
            assert isinstance(expr, Var)
            return values[expr]
