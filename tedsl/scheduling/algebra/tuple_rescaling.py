"""One repair of sums that are folded together, from the repairs of each.

A tuple of sums (g_0, g_1, ...) follows its tags when each g_i does: the folds of all their bases
follow together, and what two bases share is folded once.  The totals of a matrix repair in parts
are such a tuple, and so are those of its merged parts: by (i) and (ii) of `rescaling`, for parts b
with the totals T_b at the tags r_b,

    sum over b of h(T_b, r_b, r')  =  sum over b, c in b of g(r', c)  =  the totals of all at r'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tedsl.expr.nodes import Binary, BinaryOp, Expr, Reducer, Var
from tedsl.expr.visit import substitute
from tedsl.scheduling.algebra.rescaling import Condition, Repair


def adds(reducer: Reducer) -> bool:
    """True when the reducer adds scalars or, place by place, tuples."""
    return all(
        isinstance(expr, Binary) and expr.op is BinaryOp.ADD and expr.a is a and expr.b is b
        for expr, a, b in zip(reducer.combine, reducer.lhs, reducer.rhs, strict=True)
    )


def joined(repairs: Sequence[Repair], same: Callable[[Expr, Expr], bool]) -> Repair:
    """The repair of a tuple of sums; the first totals are those of its places, in order.

    `same` tells whether two expressions are folded to one total.
    Requires: every one is of a sum, over the same tags, and leaves nothing for the end.
    """
    first = repairs[0]
    basis: list[Expr] = [each.basis[0] for each in repairs]
    update: list[tuple[Repair, Expr]] = [(each, each.update[0]) for each in repairs]
    places: list[list[int]] = []
    for n, each in enumerate(repairs):
        own = [n]
        for expr, moved in zip(each.basis[1:], each.update[1:], strict=True):
            known = [k for k, other in enumerate(basis) if same(expr, other)]
            if not known:
                known = [len(basis)]
                basis.append(expr)
                update.append((each, moved))
            own.append(known[0])
        places.append(own)
    totals = tuple(Var(f"t{n}" if n else "t", expr.dtype) for n, expr in enumerate(basis))
    names = [_names(each, first, own, totals) for each, own in zip(repairs, places, strict=True)]
    by_repair = dict(zip(repairs, names, strict=True))
    estimated = {tag.var for each in repairs for tag in each.extrapolate}
    steps = [line for each in repairs for line in each.steps]
    return replace(
        first,
        basis=tuple(basis),
        totals=totals,
        update=tuple(substitute(expr, by_repair[each]) for each, expr in update),
        finish=totals[0],
        matrix=(),
        extrapolate=tuple(tag for tag in first.tags if tag.var in estimated),
        conditions=tuple(
            Condition(substitute(c.holds, by_repair[each]), c.proof)
            for each in repairs
            for c in each.conditions
        ),
        consented=tuple(dict.fromkeys(text for each in repairs for text in each.consented)),
        steps=tuple(steps),
    )


def _names(
    each: Repair, first: Repair, places: Sequence[int], totals: Sequence[Var]
) -> dict[Expr, Expr]:
    """The joint variables for those of one repair."""
    return {
        **dict(zip(each.old, first.old, strict=True)),
        **dict(zip(each.new, first.new, strict=True)),
        **dict(zip(each.totals, (totals[place] for place in places), strict=True)),
    }
