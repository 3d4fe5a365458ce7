"""The associative combination behind the steps of a scan.

A step `s[t] = u(s[t - 1], x[t])` whose `u` combines partial results in any order makes the scan
a prefix of the terms `x`: s[t] = x[0] . x[1] . ... . x[t], whichever way the brackets stand
(Blelloch, Prefix sums and their applications, 1990).  Imports `associativity`, and the structure of
scans.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.index_arith import conjuncts, constant, sub
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Const,
    Expr,
    Reduce,
    Reducer,
    Select,
    TensorRead,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.expr.visit import reads, rewrite, rewrite_down, structural_equal, substitute, walk
from tedsl.index.intern import Interner
from tedsl.index.simplify import simplify
from tedsl.scheduling.algebra.associativity import (
    KNOWN,
    Verdict,
    adds_exponentials,
    combines_in_any_order,
    real_identity,
)
from tedsl.scheduling.algebra.orders import keeps_one, kept_identity
from tedsl.tensor.reduce import simple_reducer
from tedsl.tensor.scan_body import body_of
from tedsl.tensor.tensor import ComputeOp, ScanOp

# Ways to tell which term belongs to which state that are tried.
MOST_ORDERS = 24
# Bytes of a float that holds sums of as many exponentials as there are steps.
WIDE = 4


@dataclass(frozen=True, slots=True)
class Combination:
    """`states[t] = reducer(states[t - 1], terms[t])`; the terms are over the axes of the scan.

    Logarithms of sums of exponentials are `summed` instead (`scaled_sums`), (x, 1) for a term x,
    and m + log(s) for what it comes to.
    """

    reducer: Reducer
    terms: tuple[Expr, ...]
    summed: bool = False


def combination(scan: ScanOp) -> Combination | str:
    """What the steps of `scan` combine; or why they do not combine terms in any order.

    Requires: steps that compute element by element (`scan_structure.crossing`).
    """
    values = _values(scan)
    if isinstance(values, str):
        return values
    before = tuple(Var(f"before{n}", state.dtype) for n, state in enumerate(scan.states))
    opened = _opened(scan, values, before)
    if isinstance(opened, str):
        return opened
    return _combined(scan, tuple(map(_added, opened)), before)


def scaled_sums(dtype: DType) -> Reducer:
    """Sums of exponentials, each as the largest exponent m and the sum s over exp(m): (m, s) stands
    for s exp(m), and one more exponent x is (x, 1).

    (m, s) . (n, t) = (m, s + t exp(n - m)) if m >= n: one exponential where the logarithm of a sum
    takes one of each.
    """
    before = Var("largest0", dtype), Var("sum0", dtype)
    after = Var("largest1", dtype), Var("sum1", dtype)
    start = build.const(-math.inf, dtype), build.const(0, dtype)
    return Reducer("scaled_sums", before, after, _scaled(before, after), start)


def _scaled(before: Sequence[Var], after: Sequence[Var]) -> tuple[Expr, ...]:
    """The combination of `scaled_sums`; equal exponents may be infinite."""
    (m, s), (n, t) = before, after
    distance = Unary(UnaryOp.ABS, Binary(BinaryOp.SUB, m, n))
    ratio = Unary(UnaryOp.EXP, Unary(UnaryOp.NEG, distance))
    e = Select(Compare(CompareOp.EQ, m, n), build.const(1, m.dtype), ratio)
    first = Binary(BinaryOp.ADD, s, Binary(BinaryOp.MUL, t, e))
    second = Binary(BinaryOp.ADD, Binary(BinaryOp.MUL, s, e), t)
    return Binary(BinaryOp.MAX, m, n), Select(Compare(CompareOp.GE, m, n), first, second)


def _values(scan: ScanOp) -> tuple[Expr, ...] | str:
    """What each step makes of the states and of what does not move, over the axes of the scan."""
    body = frozenset(body_of(scan))
    if any(isinstance(each, Reduce) for op in body for each in op.bodies):
        return "a step reduces"
    if any(len(update.shape) != len(scan.axes) for update in scan.updates):
        return "its states have different dimensions"
    memo: dict[Expr, Expr] = {}

    def inlined(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead) or node.tensor.op not in body:
            return None
        op = node.tensor.op
        assert isinstance(op, ComputeOp)
        here: dict[Expr, Expr] = dict(zip(op.axes, node.indices, strict=True))
        return rewrite(substitute(op.bodies[node.tensor.index], here), inlined)

    return tuple(rewrite(TensorRead(u, scan.axes), inlined, memo) for u in scan.updates)


def _opened(scan: ScanOp, values: Sequence[Expr], before: Sequence[Var]) -> tuple[Expr, ...] | str:
    """The values over variables for the states of the step before."""
    named = dict(zip(scan.states, before, strict=True))
    elsewhere: list[TensorRead] = []

    def state(node: Expr) -> Expr | None:
        variable = named.get(node.tensor) if isinstance(node, TensorRead) else None
        if variable is None or not isinstance(node, TensorRead):
            return None
        back = constant(simplify(sub(scan.scan_axis, node.indices[0])))
        if back != 1 or any(
            a is not b for a, b in zip(node.indices[1:], scan.axes[1:], strict=True)
        ):
            elsewhere.append(node)
        return variable

    found = tuple(rewrite(value, state) for value in values)
    return f"a step reads {elsewhere[0]}" if elsewhere else found


def _added(value: Expr) -> Expr:
    """Differences as sums: a - b = a + -b; indices are left as they are."""
    indices = {node for read in reads(value) for node in walk(*read.indices)}

    def sum_of(node: Expr) -> Expr | None:
        match node:
            case Binary(op=BinaryOp.SUB, a=a, b=b) if node not in indices and not b.dtype.is_bool:
                return Binary(BinaryOp.ADD, a, Unary(UnaryOp.NEG, b))
            case _:
                return None

    return rewrite(value, sum_of) if isinstance(value, Binary) else value


def _combined(scan: ScanOp, values: tuple[Expr, ...], before: tuple[Var, ...]) -> Combination | str:
    same = Interner()
    terms = _terms(values, frozenset(before), same)
    if len(terms) != len(before):
        shown = ", ".join(map(str, terms)) or "none"
        return f"a step takes {len(terms)} terms ({shown}) for {len(before)} states"
    why = "the terms have other types than the states"
    for order in itertools.islice(itertools.permutations(terms), MOST_ORDERS):
        if any(a.dtype is not b.dtype for a, b in zip(order, before, strict=True)):
            continue
        after = tuple(Var(f"term{n}", each.dtype) for n, each in enumerate(order))
        named: dict[Expr, Expr] = {same.rep(t): v for t, v in zip(order, after, strict=True)}
        combine = tuple(_named(value, named, same) for value in values)
        allowed = {*before, *after}
        if any(isinstance(n, (Axis, TensorRead, Var)) and n not in allowed for n in walk(*combine)):
            why = "what a step does depends on more than its terms"
            continue
        found = _proved(scan, before, after, combine, order)
        if isinstance(found, Combination):
            return found
        why = found
    return why


def _named(value: Expr, names: Mapping[Expr, Expr], same: Interner) -> Expr:
    return rewrite_down(value, lambda node: names.get(same.rep(node)))


def _terms(values: Sequence[Expr], moving: frozenset[Var], same: Interner) -> list[Expr]:
    """The largest parts that no state is in, but for those made of other such parts alone."""
    found: dict[Expr, None] = {}
    waiting, seen = list(values), set[Expr]()
    while waiting:
        expr = waiting.pop(0)
        if expr in seen or isinstance(expr, Const):
            continue
        seen.add(expr)
        if any(node in moving for node in walk(expr)):
            waiting += expr.children()
        else:
            found[same.rep(expr)] = None
    return [each for each in found if not _made_of(each, found.keys() - {each}, same)]


def _made_of(expr: Expr, parts: Collection[Expr], same: Interner) -> bool:
    """True when some parts, and constants, are all that an expression is of."""
    waiting = list(expr.children())
    while waiting:
        node = waiting.pop()
        if same.rep(node) in parts:
            continue
        if isinstance(node, (Axis, TensorRead, Var)):
            return False
        waiting += node.children()
    return bool(expr.children()) and not isinstance(expr, TensorRead)


def _proved(
    scan: ScanOp,
    before: tuple[Var, ...],
    after: tuple[Var, ...],
    combine: tuple[Expr, ...],
    terms: tuple[Expr, ...],
) -> Combination | str:
    """The combination where it is proved to be associative and commutative, with an identity."""
    match combine:
        case (Binary(op=op, a=a, b=b),) if op in KNOWN and {a, b} == {before[0], after[0]}:
            return Combination(simple_reducer(op, before[0].dtype), terms)
        case (Binary(), Select()) if before[0].dtype is before[1].dtype and all(
            map(structural_equal, combine, _scaled(before, after))
        ):
            return Combination(scaled_sums(before[0].dtype), terms)
        case _:
            pass
    zeros = tuple(build.const(0, each.dtype) for each in before)
    combine, nothing = _without_rest(before, after, combine)
    reducer = Reducer(f"{scan.name}.step", before, after, combine, zeros)
    result = combines_in_any_order(reducer, terms)
    if result.verdict is not Verdict.PROVED:
        return result.text
    if adds_exponentials(reducer):
        identity: tuple[Expr, ...] | None = (build.const(-math.inf, before[0].dtype),)
    else:
        identity = kept_identity(reducer) if keeps_one(reducer) else real_identity(reducer)
    if identity is None:
        return "no element is known that leaves all others as they are"
    if nothing is not None and not all(map(structural_equal, nothing, identity)):
        return "a step leaves out a term that is not the one which changes nothing"
    summed = adds_exponentials(reducer) and before[0].dtype.nbytes >= WIDE
    return Combination(replace(reducer, identity=identity), terms, summed)


def _without_rest(
    before: Sequence[Var], after: Sequence[Var], combine: tuple[Expr, ...]
) -> tuple[tuple[Expr, ...], tuple[Expr, ...] | None]:
    """The combination without a case of its own for terms that change nothing, and these terms
    (`counterexamples.with_rest` makes such a case): a if b = e else a . b --> a . b."""
    first = combine[0]
    if not isinstance(first, Select):
        return combine, None
    tests = conjuncts(first.condition)
    nothing = {t.a: t.b for t in tests if isinstance(t, Compare) and t.op is CompareOp.EQ}
    constants = all(isinstance(value, Const) for value in nothing.values())
    if not constants or nothing.keys() != {*after} or len(tests) != len(after):
        return combine, None
    inner = list[Expr]()
    for state, value in zip(before, combine, strict=True):
        if not isinstance(value, Select) or value.a is not state:
            return combine, None
        if not structural_equal(value.condition, first.condition):
            return combine, None
        inner.append(value.b)
    return tuple(inner), tuple(nothing[term] for term in after)
