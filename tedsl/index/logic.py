"""Comparisons and conditions: decided where possible, freed of terms that both sides share,
without repetition.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from tedsl.dtypes import DType
from tedsl.expr.nodes import Binary, BinaryOp, Compare, CompareOp, Const, Expr, Unary, UnaryOp
from tedsl.index.division import Sum, collect, expression
from tedsl.index.facts import INVERSE, Facts, inequalities_of, tighten
from tedsl.index.inequality import nonnegative
from tedsl.index.intern import INDEX_DTYPES
from tedsl.index.interval import compare_intervals, interval
from tedsl.index.linear import ONE, Poly, combine

Visit = Callable[[Expr, Facts], Expr]
AND, OR = BinaryOp.AND, BinaryOp.OR


def truth(value: bool, facts: Facts) -> Expr:
    """A bool constant."""
    return facts.interner.rep(Const(value, DType.bool))


def decide(op: CompareOp, a: Expr, b: Expr, facts: Facts) -> bool | None:
    """Whether `a op b` on integers: True, False, or None when it depends or is not known."""
    known = compare_intervals(op, interval(a, facts), interval(b, facts))
    if known is not None:
        return known
    if a.dtype not in INDEX_DTYPES or _wraps(a, facts) or _wraps(b, facts):
        return None
    difference = combine(facts.expander.poly(b), facts.expander.poly(a), -1)
    return decide_difference(op, difference, facts)


def decide_difference(op: CompareOp, difference: Poly, facts: Facts) -> bool | None:
    """Whether `a op b` for `difference` = b - a."""
    match op:
        case CompareOp.NE:
            known = decide_difference(CompareOp.EQ, difference, facts)
            return None if known is None else not known
        case CompareOp.EQ:
            if not difference:
                return True
            divisor = gcd(*(c for m, c in difference.items() if m))
            if difference.get(ONE, 0) % divisor if divisor else difference.get(ONE, 0):
                return False
            both = inequalities_of(CompareOp.EQ, difference)
            if all(nonnegative(poly, facts) for poly in both):
                return True
            apart = any(nonnegative(combine(poly, {ONE: -1}), facts) for poly in both)
            return False if apart else None
        case _:
            (poly,) = inequalities_of(op, difference)
            if nonnegative(poly, facts):
                return True
            (opposite,) = inequalities_of(INVERSE[op], difference)
            return False if nonnegative(opposite, facts) else None


def _wraps(expr: Expr, facts: Facts) -> bool:
    return facts.interner.is_data(expr) and isinstance(expr, (Binary, Unary))


def simplify_compare(expr: Compare, visit: Visit, facts: Facts) -> Expr:
    """A comparison with simplified sides, or its truth."""
    a, b = visit(expr.a, facts), visit(expr.b, facts)
    if a.dtype.is_float:
        return expr if a is expr.a and b is expr.b else Compare(expr.op, a, b)
    if a.dtype is DType.bool:
        return _compare_bools(expr, a, b, facts)
    if facts.interner.rep(a) is facts.interner.rep(b):
        return truth(expr.op in (CompareOp.EQ, CompareOp.LE, CompareOp.GE), facts)
    known = decide(expr.op, a, b, facts)
    if known is not None:
        return truth(known, facts)
    op = expr.op
    if a.dtype in INDEX_DTYPES and not _wraps(a, facts) and not _wraps(b, facts):
        shorter = _cancel(op, collect(a, facts), collect(b, facts), facts)
        if shorter is not None:
            op, a, b = shorter
    if op is expr.op and a is expr.a and b is expr.b:
        return expr
    return facts.interner.compare(op, a, b)


def _compare_bools(expr: Compare, a: Expr, b: Expr, facts: Facts) -> Expr:
    if expr.op in (CompareOp.EQ, CompareOp.NE):
        if isinstance(a, Const):
            a, b = b, a
        if isinstance(b, Const):
            return a if bool(b.value) == (expr.op is CompareOp.EQ) else simplify_not(a, facts)
    known = compare_intervals(expr.op, interval(a, facts), interval(b, facts))
    if known is not None:
        return truth(known, facts)
    return expr if a is expr.a and b is expr.b else Compare(expr.op, a, b)


def _cancel(op: CompareOp, a: Sum, b: Sum, facts: Facts) -> tuple[CompareOp, Expr, Expr] | None:
    """`a op b` without what both sides share, divided by the common factor; None when there is
    neither.
    """
    shared = any(atom in b.terms for atom in a.terms)
    apart = (a.constant and b.constant) or (
        (not a.terms and b.constant) or (not b.terms and a.constant)
    )
    if not shared and not apart and gcd(*a.terms.values(), *b.terms.values()) == 1:
        return None
    rest = a.plus(b, -1)
    divisor = gcd(*rest.terms.values())
    constant = rest.constant
    if divisor > 1:
        if op in (CompareOp.EQ, CompareOp.NE):
            if constant % divisor:  # never equal: decided before
                return None
            constant //= divisor
        elif op in (CompareOp.LT, CompareOp.GE):  # g*x + k < 0  <=>  x + floor(k / g) < 0
            constant //= divisor
        else:  # g*x + k <= 0  <=>  x + ceil(k / g) <= 0
            constant = -(-constant // divisor)
    left = {atom: c // divisor for atom, c in rest.terms.items() if c > 0}
    right = {atom: -c // divisor for atom, c in rest.terms.items() if c < 0}
    on_left = constant if not left or (right and constant > 0) else 0
    first = Sum(left, on_left, a.dtype)
    second = Sum(right, on_left - constant, a.dtype)
    return op, expression(first, facts), expression(second, facts)


def simplify_not(inner: Expr, facts: Facts) -> Expr:
    """The negation of a simplified condition."""
    match inner:
        case Const(value=value):
            return truth(not value, facts)
        case Unary(op=UnaryOp.NOT, a=a):
            return a
        case Compare(op=op, a=a, b=b) if not a.dtype.is_float or op in (CompareOp.EQ, CompareOp.NE):
            return facts.interner.compare(INVERSE[op], a, b)
        case _:
            return facts.interner.unary(UnaryOp.NOT, inner)


def simplify_logic(expr: Binary, visit: Visit, facts: Facts) -> Expr:
    """A conjunction or disjunction without terms that are known or follow from others."""
    if expr.op is BinaryOp.XOR:
        return _exclusive(expr, visit(expr.a, facts), visit(expr.b, facts), facts)
    op = expr.op
    absorbing = op is OR
    terms: dict[Expr, None] = {}
    for term in _flatten(expr, op):
        done = visit(term, facts)
        for part in _flatten(done, op):
            if isinstance(part, Const):
                if bool(part.value) == absorbing:
                    return truth(absorbing, facts)
            else:
                terms.setdefault(facts.interner.rep(part))
    kept = _without_weaker(list(terms), op, facts)
    kept = None if kept is None else _under_others(kept, op, visit, facts)
    if kept is None:
        return truth(absorbing, facts)
    if not kept:
        return truth(not absorbing, facts)
    result = kept[0]
    for term in kept[1:]:
        result = facts.interner.binary(op, result, term)
    return result


def _exclusive(expr: Binary, a: Expr, b: Expr, facts: Facts) -> Expr:
    if isinstance(a, Const):
        a, b = b, a
    if isinstance(b, Const):
        return simplify_not(a, facts) if b.value else a
    return expr if a is expr.a and b is expr.b else facts.interner.binary(expr.op, a, b)


def _flatten(expr: Expr, op: BinaryOp) -> list[Expr]:
    terms: list[Expr] = []
    stack = [expr]
    while stack:
        node = stack.pop()
        if isinstance(node, Binary) and node.op is op and node.dtype is DType.bool:
            stack += [node.b, node.a]
        else:
            terms.append(node)
    return terms


def _inequality(term: Expr, op: BinaryOp, facts: Facts) -> Poly | None:
    """`poly >= 0` for a term of a conjunction, or for the negation of a term of a disjunction."""
    if not isinstance(term, Compare) or term.a.dtype not in INDEX_DTYPES:
        return None
    if _wraps(term.a, facts) or _wraps(term.b, facts):
        return None
    kind = term.op if op is AND else INVERSE[term.op]
    difference = combine(facts.expander.poly(term.b), facts.expander.poly(term.a), -1)
    found = inequalities_of(kind, difference)
    return tighten(found[0]) if len(found) == 1 else None


def _without_weaker(terms: list[Expr], op: BinaryOp, facts: Facts) -> list[Expr] | None:
    """Terms without inequalities that another one of the same left side implies; None when two
    contradict.
    """
    if len(terms) < 2:
        return terms
    present = set(terms)
    limits: dict[frozenset[object], tuple[int, Expr]] = {}
    dropped: set[Expr] = set()
    for term in terms:
        if simplify_not(term, facts) in present:
            return None
        poly = _inequality(term, op, facts)
        if poly is None:
            continue
        constant = poly.get(ONE, 0)
        key = frozenset[object]((m, c) for m, c in poly.items() if m)
        opposite = limits.get(frozenset[object]((m, -c) for m, c in poly.items() if m))
        if opposite is not None and opposite[0] + constant < 0:
            return None
        known = limits.get(key)
        if known is not None and known[0] <= constant:
            dropped.add(term)
            continue
        if known is not None:
            dropped.add(known[1])
        limits[key] = (constant, term)
    return [term for term in terms if term not in dropped] if dropped else terms


def _under_others(terms: list[Expr], op: BinaryOp, visit: Visit, facts: Facts) -> list[Expr] | None:
    """Each term simplified where the earlier ones hold (fail, for a disjunction); None when two
    contradict.
    """
    if len(terms) < 2:
        return terms
    kept: list[Expr] = []
    seen: set[Expr] = set()
    inside = facts
    for term in terms:
        poly = _inequality(term, op, facts)
        atoms = {atom for monomial in poly or () for atom in monomial}
        if kept and atoms & seen and not facts.interner.is_data(term):
            done = visit(term, inside)
            if isinstance(done, Const):
                if bool(done.value) == (op is OR):
                    return None
                continue
        if poly is not None:
            seen |= atoms
            inside = inside.assume(term if op is AND else simplify_not(term, facts))
        kept.append(term)
    return kept
