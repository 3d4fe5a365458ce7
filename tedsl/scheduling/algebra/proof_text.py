"""A proof of a repair, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tedsl.expr.nodes import BinaryOp, Expr
from tedsl.expr.printer import print_expr
from tedsl.scheduling.algebra.problem import Problem
from tedsl.scheduling.algebra.rescaling import Kind, Repair
from tedsl.scheduling.algebra.rescaling_forms import Line
from tedsl.scheduling.algebra.terms import Role

_FOLDS = {BinaryOp.ADD: "sum", BinaryOp.MAX: "max", BinaryOp.MIN: "min", BinaryOp.MUL: "product"}
_SIGNS = {"any": "any sign", "positive": "> 0", "nonnegative": ">= 0"}


def fold_name(operator: BinaryOp | None) -> str:
    """What a fold with `operator` is called."""
    return "reduction" if operator is None else _FOLDS.get(operator, operator.value)


def proof_text(
    repair: Repair, problem: Problem, points: int, lines: Sequence[Line]
) -> Iterator[str]:
    """What was proved, and how: one line each for the value, what leaves the loop, what is folded,
    the repair, its two properties, and its conditions."""
    yield f"{fold_name(repair.reducer)} of g = {print_expr(repair.value)}"
    for label, text in _rows(repair, problem, points, lines):
        yield f"  {label:<10} {text}"


def _rows(
    repair: Repair, problem: Problem, points: int, lines: Sequence[Line]
) -> Iterator[tuple[str, str]]:
    for tag in repair.tags:
        yield "tag", f"{tag.var.name}: {fold_name(tag.operator)}, {_SIGNS[tag.sign.value]}"
    for role in (Role.ELEMENT, Role.PARAMETER):
        found = [leaf for var, leaf in problem.leaves.items() if problem.roles.get(var) is role]
        if found:
            yield f"{role.value}s", ", ".join(map(print_expr, found))
    for label, pieces in lines:
        texts = [p if isinstance(p, str) else print_expr(problem.restored(p)) for p in pieces]
        yield label, "".join(texts)
    for total, expr in zip(repair.totals, repair.basis, strict=True):
        yield "folded", f"{total.name} = {fold_name(repair.reducer)} of {print_expr(expr)}"
    if repair.kind is Kind.NONE:
        yield "repair", "none: what is folded depends on no tag"
    else:
        yield from _repair_rows(repair)
    if repair.deferred:
        yield "result", print_expr(repair.finish)
        yield "(iii)", "the result is the fold of g: the difference expands to 0"
    if points:
        yield "numbers", f"agrees with direct folds at {points} random points (seed 0)"
    else:
        yield "numbers", "not checked: a function in it has no exact evaluation"
    for condition in repair.conditions:
        yield "requires", f"{print_expr(condition.holds)}: {condition.proof}"
    for each in repair.consented:
        yield "consent", f"{each} is taken as exact"
    if repair.extrapolate:
        names = ", ".join(tag.var.name for tag in repair.extrapolate)
        yield "free", f"(i) holds for any value of {names}: estimates may stand for partial sums"


def _repair_rows(repair: Repair) -> Iterator[tuple[str, str]]:
    many = repair.kind is Kind.MATRIX
    for total, update in zip(repair.totals, repair.update, strict=True):
        yield "repair", f"h{total.name[1:]}({_listed(repair.totals)}) = {print_expr(update)}"
    if many:
        rank = len(repair.basis)
        yield "rank", f"{rank}: every derivative by a tag is a combination of the folded values"
    yield "(i)", "h(g(r, c), r, r') = g(r', c): the difference expands to 0"
    if repair.reducer is BinaryOp.ADD:
        yield "(ii)", "h(x + y) = h(x) + h(y): h is linear without constant term"
    else:
        name = fold_name(repair.reducer)
        yield "(ii)", f"h({name}(x, y)) = {name}(h(x), h(y)): h does not fall, its slope is >= 0"


def _listed(exprs: Sequence[Expr]) -> str:
    return ", ".join(map(print_expr, exprs))
