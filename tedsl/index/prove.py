"""Proofs about conditions, and points where they fail."""

from __future__ import annotations

from tedsl.dtypes import DType
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Const,
    Expr,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.index.algebra import nonnegative_by_factors, worth_factoring
from tedsl.index.facts import INVERSE, Facts, inequalities_of
from tedsl.index.linear import combine
from tedsl.index.logic import decide_difference, simplify_not
from tedsl.index.search import find_point, refuted_at_corner
from tedsl.index.simplify import simplify
from tedsl.index.width import of_two_widths, one_width


def prove(cond: Expr, facts: Facts = Facts.EMPTY) -> bool:
    """True when `cond` (a bool) is proved to hold at every point of `facts`; False when it is not
    known.

    Integers of the index types are mathematical here, values read from memory included.
    """
    facts = facts.own()
    if _holds(simplify(cond, facts), facts):
        return True
    return of_two_widths(cond) and _holds(simplify(one_width(cond), facts), facts)


def _holds(cond: Expr, facts: Facts) -> bool:
    match cond:
        case Const(value=value):
            return bool(value)
        case Binary(op=BinaryOp.AND, a=a, b=b, dtype=DType.bool):
            return _holds(a, facts) and _holds(b, facts)
        case Binary(op=BinaryOp.OR, a=a, b=b, dtype=DType.bool):
            if _holds(a, facts) or _holds(b, facts):
                return True
            return prove(b, facts.assume(simplify_not(a, facts)))
        case Unary(op=UnaryOp.NOT, a=a):
            return _fails(a, facts)
        case Compare(op=op, a=a, b=b) if a.dtype.is_integer:
            return _decide(op, a, b, facts) is True or _by_factors(cond, facts)
        case _:
            return False


def _by_factors(cond: Compare, facts: Facts) -> bool:
    """A comparison from the signs of its factors; tried only where no corner point refutes it."""
    if cond.op is CompareOp.NE:
        return False
    poly = facts.expander.poly
    difference = combine(poly(cond.b), poly(cond.a), -1)
    needed = inequalities_of(cond.op, difference)
    if not all(map(worth_factoring, needed)) or refuted_at_corner(cond, facts):
        return False
    return all(nonnegative_by_factors(one, facts) for one in needed)


def _fails(cond: Expr, facts: Facts) -> bool:
    """Whether a condition is false everywhere."""
    match cond:
        case Binary(op=BinaryOp.AND, a=a, b=b, dtype=DType.bool):
            return _fails(a, facts) or _fails(b, facts) or prove_not(b, facts.assume(a))
        case Binary(op=BinaryOp.OR, a=a, b=b, dtype=DType.bool):
            return _fails(a, facts) and _fails(b, facts)
        case Compare(op=op, a=a, b=b) if a.dtype.is_integer:
            return _decide(INVERSE[op], a, b, facts) is True
        case _:
            return False


def prove_not(cond: Expr, facts: Facts = Facts.EMPTY) -> bool:
    """True when `cond` is proved to be false at every point of `facts`."""
    facts = facts.own()
    return prove(simplify_not(simplify(cond, facts), facts), facts)


def _decide(op: CompareOp, a: Expr, b: Expr, facts: Facts) -> bool | None:
    difference = combine(facts.expander.poly(b), facts.expander.poly(a), -1)
    return decide_difference(op, difference, facts)


def equal(a: Expr, b: Expr, facts: Facts = Facts.EMPTY) -> bool:
    """True when two integer expressions are proved to have the same value at every point of
    `facts`.
    """
    facts = facts.own()
    if _equal(a, b, facts):
        return True
    return of_two_widths(a, b) and _equal(one_width(a), one_width(b), facts)


def _equal(a: Expr, b: Expr, facts: Facts) -> bool:
    first, second = simplify(a, facts), simplify(b, facts)
    if facts.interner.rep(first) is facts.interner.rep(second):
        return True
    if first.dtype.is_float or first.dtype is DType.bool or second.dtype.is_float:
        return False
    return _decide(CompareOp.EQ, first, second, facts) is True


def counterexample(cond: Expr, facts: Facts = Facts.EMPTY) -> dict[Axis | Var, int] | None:
    """Values of the variables, inside `facts`, where `cond` is false; None when none was found.

    The search is deterministic and bounded: corners of the ranges first, then points near the
    constants that occur, then every point when there are few.  Only variables that `cond` depends
    on (also through ranges) are given. A condition in `facts` on values read from memory can hold
    or not: then no point is a counterexample.
    """
    return find_point(cond, False, facts.own())
