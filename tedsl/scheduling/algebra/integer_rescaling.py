"""Repairs over integers: which of them hold although integers wrap (see `wrapping`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import BinaryOp, Expr
from tedsl.scheduling.algebra.problem import Problem
from tedsl.scheduling.algebra.rescaling_forms import ORDERED, Derivation, Form, Line
from tedsl.scheduling.algebra.terms import Mixed, Reader, Symbols
from tedsl.scheduling.algebra.wrapping import Exactness, Wraps, whole

_WIDER = "cast to a wider type before the arithmetic, or compute the tag in a pass of its own"


def same_whole(problem: Problem, reader: Reader) -> bool:
    """Whether the value of a problem, which is 0 over the real numbers, is 0 where integers
    wrap."""
    try:
        _judge(problem, reader.symbols, ()).exact(problem.value)
    except Wraps:
        return False
    return True


def kept_whole(derivation: Derivation, form: Form) -> list[Line]:
    """Why a repair that is proved over the real numbers holds for integers that wrap, a line of the
    proof; none when no integers are computed with.

    Raises:
        Mixed: it need not hold.
    """
    problem, symbols = derivation.problem, derivation.symbols
    dtype = problem.value.dtype
    ordered = dtype.is_integer and problem.operator in ORDERED
    totals = () if ordered or not dtype.is_integer else form.totals
    judge = _judge(problem, symbols, totals)
    try:
        folded = [judge.exact(each) for each in (problem.value, *form.basis)]
        for each in (*form.update, form.finish):
            judge.exact(each)
    except Wraps as wraps:
        raise _refused(wraps) from None
    moves = form.update[0] is not form.totals[0] or form.finish is not form.totals[0]
    if ordered and moves:
        _require_extremes(problem, form, folded, judge)
    return _lines(judge, dtype, ordered)


def _judge(problem: Problem, symbols: Symbols, loose: Collection[Expr]) -> Exactness:
    """What is exact: whatever symbols stand for, but for the totals of a sum."""
    same = symbols.same
    return Exactness(problem.spans, symbols.known, {same.rep(each) for each in loose}, same)


def _require_extremes(
    problem: Problem, form: Form, folded: Sequence[bool], judge: Exactness
) -> None:
    """What is folded does not wrap, and differs from a fold of nothing, which stays as it is.

    Raises:
        Mixed: it may not.
    """
    dtype, largest = problem.value.dtype, problem.operator is BinaryOp.MAX
    for expr, exact in zip((problem.value, *form.basis), folded, strict=True):
        if not exact:
            raise Mixed(
                expr,
                f"integers of {dtype} wrap: {{0}} may, and a {problem.operator.value} of what "
                f"wrapped does not follow, since it is no function modulo 2**{dtype.bits}",
                _WIDER,
            )
    low, high = judge.span(form.basis[0])
    empty = whole(dtype)[0 if largest else 1]
    if low <= empty <= high:
        raise Mixed(
            form.basis[0],
            f"integers of {dtype} wrap: {{0}} may be {empty}, which is also what a "
            f"{problem.operator.value} of no elements gives, and that does not follow",
            _WIDER,
        )
    if form.finish is not form.totals[0]:
        total = form.totals[0]
        nothing = build.eq(total, build.const(empty, dtype))
        form.finish = build.select(nothing, total, form.finish)


def _refused(wraps: Wraps) -> Mixed:
    """Why integers that wrapped are in the way."""
    dtype = wraps.of.dtype
    return Mixed(
        wraps.culprit,
        f"integers of {dtype} wrap: {{0}} depends on more of a number than what is left of it "
        f"modulo 2**{dtype.bits}, and its operand may wrap",
        _WIDER,
        wraps.of,
    )


def _lines(judge: Exactness, dtype: DType, ordered: bool) -> list[Line]:
    if judge.rings:
        text = (
            f"{dtype} wraps: only sums, differences and products follow, which are those of "
            f"numbers modulo 2**{dtype.bits}"
        )
        return [("integers", (text,))]
    if judge.ranged or ordered:
        return [("integers", ("by the ranges of what is read nothing wraps",))]
    return []
