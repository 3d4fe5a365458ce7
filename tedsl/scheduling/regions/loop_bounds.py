"""The loops of one stage that computes a region: how long each of them is, what its axes are over
them, and which points are not of the definition.

Used by `infer`; imports `index` and `plan`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tedsl.errors import InternalError
from tedsl.expr.index_arith import (
    ONE,
    ZERO,
    add,
    at_most,
    ceil_div,
    constant,
    floordiv,
    floormod,
    less,
    mul,
    sub,
    widened,
)
from tedsl.expr.nodes import Axis, Const, Expr, Range
from tedsl.expr.visit import substitute
from tedsl.index.facts import Facts
from tedsl.index.interval import interval
from tedsl.index.prove import prove
from tedsl.index.simplify import simplify
from tedsl.scheduling.plan import Fuse, Relation, Scatter, Skew, Split, StagePlan, Unit
from tedsl.scheduling.plan.relations import skew_of, upwards
from tedsl.scheduling.plan.scattered import scattered
from tedsl.tensor.tensor import ComputeOp


def pass_down(relation: Relation, extents: dict[Axis, Expr], facts: Facts) -> None:
    """Extents of the axes a relation makes, from those it takes.

    Split:  inner = min(factor, parent), outer = ceil(parent / inner)   (nparts: the other way
    round) Fuse:   fused = outer * inner   Skew:   skewed = parent + modulus - 1, of nothing nothing
    (a single iteration would be no loop, and its guard, which is then of no reduce axis, would skip
    the initialisation of a reduction as well)
    """
    if isinstance(relation, Scatter):
        return
    if isinstance(relation, Unit):
        extents[relation.axis] = ONE
        return
    if isinstance(relation, Skew):
        parent = extents[relation.parent]
        longer = simplify(add(parent, relation.modulus - 1), facts)
        extents[relation.skewed] = parent if constant(parent) == 0 else longer
        return
    if isinstance(relation, Fuse):
        outer, inner = extents[relation.outer], extents[relation.inner]
        wide = relation.fused.dtype
        extents[relation.fused] = simplify(mul(widened(outer, wide), widened(inner, wide)), facts)
        return
    parent = extents[relation.parent]
    given = relation.factor if relation.factor is not None else relation.nparts
    if given is None:
        raise InternalError(f"split of {relation.parent.name} has neither factor nor nparts")
    fixed = _tightened(given, parent, facts)
    other = simplify(ceil_div(parent, fixed), facts)
    outer, inner = (other, fixed) if relation.factor is not None else (fixed, other)
    extents[relation.outer], extents[relation.inner] = outer, inner


def _tightened(given: Expr, parent: Expr, facts: Facts) -> Expr:
    """min(given, parent) where that is a constant, and at least 1."""
    known, size = interval(given, facts), interval(parent, facts)
    if known.lo == known.hi and size.lo == size.hi and known.lo is not None and size.lo is not None:
        return Const(max(1, min(known.lo, size.lo)), given.dtype)
    return given


def pass_up(
    stage: StagePlan,
    extents: dict[Axis, Expr],
    starts: Mapping[Axis, Expr],
    names: Mapping[Axis, Axis],
) -> dict[Axis, Expr]:
    """Every axis of the stage over its leaf axes (relative to the start of the region, which
    `starts` gives for root axes), those that another stage runs under its names; a scattered one
    over what data say."""
    values: dict[Axis, Expr] = {
        a: ZERO if constant(extents[a]) == 1 else names.get(a, a) for a in stage.leaf_axes
    }
    for relation in upwards(stage.relations):
        match relation:
            case Split(parent=parent, outer=outer, inner=inner):
                values[parent] = add(mul(values[outer], extents[inner]), values[inner])
            case Fuse(outer=outer, inner=inner, fused=fused) if constant(extents[outer]) == 1:
                # What is past its end stays there: a loop of which it is split has the guard.
                values[outer], values[inner] = ZERO, values[fused]
            case Fuse(outer=outer, inner=inner, fused=fused):
                values[outer] = floordiv(values[fused], extents[inner])
                values[inner] = floormod(values[fused], extents[inner])
            case Unit() | Scatter():
                pass
            case Skew(parent=parent, skewed=skewed, along=along):
                ahead = skew_of(relation, add(starts[along], values[along]))
                values[parent] = sub(values[skewed], ahead)
    if stage.scatters:
        found = scattered(stage)
        if found is None:
            raise InternalError(f"no condition says which elements {stage.name} is folded into")
        index: dict[Expr, Expr] = {a: add(starts[a], values[a]) for a in starts if a in values}
        values |= {axis: substitute(value, index) for axis, value in found.values.items()}
    return values


def guards_of(
    stage: StagePlan,
    op: ComputeOp,
    extents: dict[Axis, Expr],
    values: dict[Axis, Expr],
    starts: dict[Axis, Expr],
    facts: Facts,
) -> tuple[Expr, ...]:
    """Conditions for a point of the loops to be a point of the definition, less those that are
    proved."""
    needed: list[Expr] = []
    skewed: set[Axis] = set()
    for relation in stage.relations:
        if isinstance(relation, Skew):
            skewed.add(relation.skewed)  # what is beyond its end is beyond the parent's
        elif not isinstance(relation, Split) or relation.parent in skewed:
            continue
        place = simplify(values[relation.parent], facts)
        needed.append(less(place, extents[relation.parent]))
        if isinstance(relation, Skew):
            needed.append(at_most(ZERO, place))
    for axis, size in zip(op.axes, op.shape, strict=True):
        if not _is_whole(starts[axis], extents[axis], size):
            index = simplify(add(starts[axis], values[axis]), facts)
            needed += [less(index, size), at_most(ZERO, index)]
    for axis in op.reduce_axes:
        if axis.domain is not None and not _is_domain(axis.domain, starts[axis], extents[axis]):
            end = add(axis.domain.min, axis.domain.extent)
            needed.append(less(simplify(add(starts[axis], values[axis]), facts), end))
    return tuple(condition for condition in needed if not prove(condition, facts))


def beyond(place: Expr, held: Expr, facts: Facts) -> tuple[Expr, ...]:
    """Conditions for a place to be in what is kept of a stage: a box that is rounded up for each
    iteration of the loops between is larger than its share of what all of them read."""
    needed = at_most(ZERO, place), less(place, held)
    return tuple(condition for condition in needed if not prove(condition, facts))


def _is_domain(domain: Range, start: Expr, extent: Expr) -> bool:
    """True when a reduce axis runs over its whole domain."""
    return start is domain.min and extent is domain.extent


def _is_whole(start: Expr, extent: Expr, size: Expr) -> bool:
    """True when the region is the whole dimension."""
    equal = extent is size or (constant(extent) is not None and constant(extent) == constant(size))
    return constant(start) == 0 and equal
