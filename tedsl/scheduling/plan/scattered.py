"""Reductions that are run the other way round: a condition says which element each of their points
is folded into, so that a loop over all elements, most of which it tells apart, is not needed.

    C[g, j] = sum(i)(A[i, j] where X[i] == g)
    --> for i, j: C[X[i], j] += A[i, j] where 0 <= X[i] < n

Histograms, sums by group, and gradients of what is gathered are such.  Imports the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tedsl.dtypes import DType
from tedsl.expr.index_arith import at_most, both, conjuncts, constant, less
from tedsl.expr.nodes import (
    Axis,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    IfThenElse,
    Reduce,
    Select,
)
from tedsl.expr.visit import axes_of
from tedsl.once import once
from tedsl.scheduling.plan.stage_plan import Scatter, StagePlan
from tedsl.tensor.tensor import ComputeOp

_NUMBERS = frozenset((DType.int32, DType.int64))


@dataclass(frozen=True, slots=True, eq=False)
class Scattered:
    """`values` has, for each scattered axis, where a point is folded into, over the other axes;
    `fold` is what is folded there, at the points that are for an element."""

    values: Mapping[Axis, Expr]
    fold: Reduce


def scattered_axes(stage: StagePlan) -> tuple[Axis, ...]:
    """The data axes of a stage that are no loops of it, since a condition says their values."""
    return tuple(each.axis for each in stage.relations if isinstance(each, Scatter))


@once
def scattered(stage: StagePlan) -> Scattered | None:
    """How the reduction of a stage runs the other way round; None where no condition says the
    values of its scattered axes, or it has none."""
    axes = scattered_axes(stage)
    body = stage.op.bodies[0] if axes and isinstance(stage.op, ComputeOp) else None
    return inverted(body, axes) if isinstance(body, Reduce) else None


def inverted(body: Reduce, axes: Sequence[Axis]) -> Scattered | None:
    """A reduction the other way round along data axes, each of which one of its conditions has to
    equate with what does not depend on any of them; None where none does."""
    conditions, sources = _conditions(body)
    values: dict[Axis, Expr] = {}
    for axis in axes:
        found = next(_equated(conditions, axis, frozenset(axes)), None)
        if found is None or axis.domain is None:
            return None
        place, value = found
        wide = value if value.dtype in _NUMBERS else Cast(value, DType.int32)
        least, end = axis.domain.min, axis.domain.extent
        conditions[place] = both(at_most(least, wide), less(wide, end))
        values[axis] = wide if wide.dtype is axis.dtype else Cast(wide, axis.dtype)
    if not values:
        return None
    return Scattered(values, replace(body, sources=sources, where=both(*conditions)))


def may_scatter(body: Reduce, axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """The data axes along which a reduction can run the other way round, all of them at once."""
    found: list[Axis] = []
    for axis in axes:
        if inverted(body, (*found, axis)) is not None:
            found.append(axis)
    return tuple(found)


def _conditions(body: Reduce) -> tuple[list[Expr], tuple[Expr, ...]]:
    """The conditions under which there is something to fold, and what: where a source is the
    identity otherwise, that is one too."""
    conditions = [] if body.where is None else list(conjuncts(body.where))
    if len(body.sources) != 1 or body.init is not None:
        return conditions, body.sources
    (source,), identity = body.sources, next(iter(body.reducer.identity))
    while isinstance(source, (IfThenElse, Select)) and _same(source.b, identity):
        conditions += conjuncts(source.condition)
        source = source.a
    return conditions, (source,)


def _same(a: Expr, b: Expr) -> bool:
    return isinstance(a, Const) and isinstance(b, Const) and repr(a.value) == repr(b.value)


def _equated(
    conditions: Sequence[Expr], axis: Axis, others: frozenset[Axis]
) -> Iterator[tuple[int, Expr]]:
    """The conditions that say the value of an axis, by number, and that value."""
    for place, condition in enumerate(conditions):
        if isinstance(condition, Compare) and condition.op is CompareOp.EQ:
            for own, value in ((condition.a, condition.b), (condition.b, condition.a)):
                if _is_number_of(own, axis) and others.isdisjoint(axes_of(value)):
                    yield place, value


def _is_number_of(expr: Expr, axis: Axis) -> bool:
    """True for an axis itself, in an integer type that has all its numbers and whose numbers are
    told apart in 32 or 64 bits with a sign."""
    bits = expr.dtype.bits if expr.dtype.is_integer else 64
    if expr.dtype not in _NUMBERS and bits >= 32:
        return False
    if expr is axis:
        return True
    if not isinstance(expr, Cast) or expr.a is not axis or axis.domain is None:
        return False
    end = constant(axis.domain.extent)
    most = expr.dtype.info.highest
    return most >= axis.dtype.info.highest or (end is not None and end - 1 <= most)
