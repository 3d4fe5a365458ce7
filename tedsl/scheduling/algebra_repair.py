"""The derivation and proof of repairs (see `repair` for what a repair is)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tedsl.expr.nodes import Axis, BinaryOp, Expr, Reducer, Var
from tedsl.expr.visit import variables
from tedsl.scheduling.repair import Refusal, Repair, Tag


def derive_repair(
    value: Expr,
    tags: Sequence[Tag],
    reducer: Reducer | BinaryOp,
    over: Collection[Axis],
    *,
    consent_casts: bool = False,
    consent_rounding: bool = False,
    defer: bool = True,
    time_limit: float = 2.0,
) -> Repair | Refusal:
    """How the fold of `value` over `over` is computed in one pass with its tags.

    Args:
        value: g, a scalar over the tags' variables and anything else.  What mentions an axis of
            `over` is an element, what does not and is no tag is a parameter; both may be any
            expression (selects, reads, other functions) as long as the tags enter by arithmetic,
            exponentials, roots and logarithms.
        tags: the finished results that `value` reads.
        reducer: what folds, one operator on scalars.
        over: the axes being reduced.
        consent_casts: take narrowing casts of floats that depend on tags and elements as exact.
        consent_rounding: the same for floor, ceil, round, trunc and casts to integers.
        defer: let factors (addends) of tags alone leave the loop.
        time_limit: seconds after which the derivation gives up.

    Returns:
        A proved repair, or the reason why there is none.
    """
    operator = reducer if isinstance(reducer, BinaryOp) else reducer.operator
    used = set(variables(value))
    if operator is not None and not any(tag.var in used for tag in tags):
        old = tuple(Var(tag.var.name, tag.var.dtype) for tag in tags)
        new = tuple(Var(f"{tag.var.name}'", tag.var.dtype) for tag in tags)
        total = Var("t", value.dtype)
        return Repair(value, tuple(tags), operator, (value,), (total,), old, new, (total,), total)
    return Refusal("not derived: the value depends on tags")
