"""Algebra over the relations of a stage: extents of derived axes, values of root axes, what came of
an axis.

All positions are counted from 0: a root axis with domain `min .. min + extent` has the value `min +
position`, and a relation joins positions (Split: parent = outer * extent(inner) + inner; Fuse:
outer = fused // extent(inner), inner = fused % extent(inner); Skew: parent = skewed - along * step
% modulus).  Imports `expr` and the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tedsl.dtypes import DType
from tedsl.expr import index_arith
from tedsl.expr.index_arith import at_most, both, less, same_width, widened
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Const, Expr
from tedsl.scheduling.plan import Fuse, Relation, Scatter, Skew, Split, StagePlan, Unit
from tedsl.scheduling.plan.labels import labels, unique_name


def constant(expr: Expr | None) -> int | None:
    """The value of an integer literal, else None."""
    return None if expr is None else index_arith.constant(expr)


def integer(value: int, dtype: DType = DType.int32) -> Const:
    """An integer literal."""
    return Const(value, dtype)


def add(a: Expr, b: Expr) -> Expr:
    """`a + b`, folded where constant."""
    x, y = constant(a), constant(b)
    if x == 0:
        return b
    if y == 0:
        return a
    a, b = same_width(a, b)
    if x is not None and y is not None:
        return integer(x + y, a.dtype)
    return Binary(BinaryOp.ADD, a, b)


def subtract(a: Expr, b: Expr) -> Expr:
    """`a - b`, folded where constant."""
    x, y = constant(a), constant(b)
    a, b = same_width(a, b)
    if x is not None and y is not None:
        return integer(x - y, a.dtype)
    return a if y == 0 else Binary(BinaryOp.SUB, a, b)


def multiply(a: Expr, b: Expr) -> Expr:
    """`a * b`, folded where constant."""
    x, y = constant(a), constant(b)
    a, b = same_width(a, b)
    if x is not None and y is not None:
        return integer(x * y, a.dtype)
    if x == 0 or y == 0:
        return integer(0, a.dtype)
    if x == 1:
        return b
    if y == 1:
        return a
    return Binary(BinaryOp.MUL, a, b)


def floordiv(a: Expr, b: Expr) -> Expr:
    """`a // b` for b > 0, folded where constant."""
    x, y = constant(a), constant(b)
    a, b = same_width(a, b)
    if x is not None and y:
        return integer(x // y, a.dtype)
    return a if y == 1 else Binary(BinaryOp.FLOORDIV, a, b)


def floormod(a: Expr, b: Expr) -> Expr:
    """`a % b` for b > 0, folded where constant."""
    x, y = constant(a), constant(b)
    a, b = same_width(a, b)
    if x is not None and y:
        return integer(x % y, a.dtype)
    return integer(0, a.dtype) if y == 1 else Binary(BinaryOp.FLOORMOD, a, b)


def ceildiv(a: Expr, b: Expr) -> Expr:
    """`(a + b - 1) // b` for b > 0, folded where constant."""
    y = constant(b)
    rest = integer(y - 1, b.dtype) if y is not None else add(b, integer(-1, b.dtype))
    return floordiv(add(a, rest), b)


def ranks(axes: Sequence[Axis]) -> dict[Axis, int]:
    """The place of each axis.  (A tuple's `in` and `index` would compare axes with `==`, which
    builds an expression.)
    """
    return {axis: place for place, axis in enumerate(axes)}


def derived(stage: StagePlan, name: str, like: Axis, dtype: DType | None = None) -> Axis:
    """A new axis of the kind of `like`, with a name that no axis of the stage has."""
    taken = set(labels(stage).values())
    return Axis(unique_name(name, taken), like.kind, None, dtype or like.dtype)


def split_loop(
    stage: StagePlan, parent: Axis, factor: Expr | None, nparts: Expr | None = None
) -> tuple[StagePlan, tuple[Axis, Axis]]:
    """The stage with two loops in the place of `parent`, and these: of 64 bits where a constant in
    their arithmetic has as many."""
    base = labels(stage)[parent]
    given = factor if factor is not None else nparts
    if given is not None and parent.dtype is not DType.int64 and _is_far(stage, parent, given):
        given = widened(given)
        factor, nparts = (None, given) if factor is None else (given, None)
    wide = DType.int64 if given is not None and given.dtype is DType.int64 else parent.dtype
    outer = derived(stage, f"{base}.outer", parent, wide)
    inner = derived(stage, f"{base}.inner", parent, wide)
    return _joined(stage, Split(parent, outer, inner, factor, nparts), (parent,)), (outer, inner)


def _is_far(stage: StagePlan, parent: Axis, number: Expr) -> bool:
    """True when loops of a split by `number` go in steps beyond 32 bits."""
    count = steps(stage)[parent] * (constant(number) or 1)
    return count > DType.int32.info.highest and constant(extents(stage)[parent]) is None


def steps(stage: StagePlan) -> dict[Axis, int]:
    """The constants in the arithmetic of every axis of the stage, at most: what root axes are
    divided by for its extent, and what it is multiplied by for their values.

    i -> (io, ii) by 32, io -> (ioo, ioi) by 8:  ioo < ceil(n / 256),  i = ioo * 256 + ...
    """
    known = dict.fromkeys(stage.root_axes, 1)
    for relation in stage.relations:
        match relation:
            case Split(parent, outer, inner, factor, nparts):
                known[outer] = known[parent] * (constant(factor) or 1)
                known[inner] = known[parent] * (constant(nparts) or 1)
            case Fuse(outer, inner, fused):
                known[fused] = max(known[outer], known[inner])
            case Unit(axis=axis):
                known[axis] = 1
            case Scatter():
                pass
            case Skew(parent=parent, skewed=skewed):
                known[skewed] = known[parent]
    return known


def fuse_loops(stage: StagePlan, outer: Axis, inner: Axis) -> tuple[StagePlan, Axis]:
    """The stage with one loop in the place of two that follow each other, and this."""
    known = labels(stage)
    first = known[outer].removesuffix(".fused")
    sizes = extents(stage)
    large = _number_in(sizes[outer]) * _number_in(sizes[inner]) > DType.int32.info.highest
    wide = DType.int64 if large or inner.dtype is DType.int64 else outer.dtype
    fused = derived(stage, f"{first}.{known[inner]}.fused", outer, wide)
    return _joined(stage, Fuse(outer, inner, fused), (outer, inner)), fused


def _number_in(extent: Expr) -> int:
    """The constant that an extent is a multiple of, as it is written."""
    match extent:
        case Const(value=value):
            return int(value)
        case Binary(op=BinaryOp.MUL, a=a, b=b):
            return _number_in(a) * _number_in(b)
        case _:
            return 1


def _joined(stage: StagePlan, relation: Split | Fuse, gone: Sequence[Axis]) -> StagePlan:
    """The stage with one more relation, whose new loops stand where `gone` stood."""
    made = (relation.outer, relation.inner) if isinstance(relation, Split) else (relation.fused,)
    at = ranks(stage.leaf_axes)[gone[0]]
    leaves = (*stage.leaf_axes[:at], *made, *stage.leaf_axes[at + len(gone) :])
    return replace(stage, leaf_axes=leaves, relations=(*stage.relations, relation))


def extents(stage: StagePlan, roots: Mapping[Axis, Expr] | None = None) -> dict[Axis, Expr]:
    """The extent of every axis of the stage.

    Args:
        stage: the stage.
        roots: extents of root axes where they are not those of the definition (an attached stage
            computes a region).

    Returns:
        Root axes, then derived axes.  A factor larger than the extent stays: inner = factor, outer
        = 1.
    """
    known: dict[Axis, Expr] = {}
    for axis in stage.root_axes:
        if roots is not None and axis in roots:
            known[axis] = roots[axis]
        elif axis.domain is not None:
            known[axis] = axis.domain.extent
    for relation in stage.relations:
        match relation:
            case Split(parent, outer, inner, factor, nparts):
                if factor is not None:
                    known[inner] = factor
                    known[outer] = ceildiv(known[parent], factor)
                elif nparts is not None:
                    known[outer] = nparts
                    known[inner] = ceildiv(known[parent], nparts)
            case Fuse(outer, inner, fused):
                wide = max(known[outer].dtype, fused.dtype, key=lambda dtype: dtype.bits)
                known[fused] = multiply(widened(known[outer], wide), known[inner])
            case Unit(axis=axis):
                known[axis] = integer(1)
            case Scatter():
                pass
            case Skew(parent=parent, skewed=skewed, modulus=modulus):
                empty = constant(known[parent]) == 0
                known[skewed] = integer(0) if empty else add(known[parent], integer(modulus - 1))
    return known


def fixed_extent(stage: StagePlan, axis: Axis) -> int | None:
    """The extent of `axis` when the relations alone make it a constant, whatever region the stage
    computes.
    """
    free = {root: Axis(root.name) for root in stage.root_axes}
    return constant(extents(stage, free)[axis])


def positions(stage: StagePlan) -> dict[Axis, Expr]:
    """The position (from 0) of every axis of the stage, written over its leaf axes, and over the
    root axes along which some are skewed; a scattered axis stands for itself."""
    size = extents(stage)
    known: dict[Axis, Expr] = {axis: axis for axis in stage.leaf_axes}
    for relation in upwards(stage.relations):
        match relation:
            case Split(parent=parent, outer=outer, inner=inner):
                known[parent] = add(multiply(known[outer], size[inner]), known[inner])
            case Fuse(outer=outer, inner=inner, fused=fused) if constant(size[outer]) == 1:
                known[outer], known[inner] = integer(0, outer.dtype), known[fused]
            case Fuse(outer=outer, inner=inner, fused=fused):
                known[outer] = floordiv(known[fused], size[inner])
                known[inner] = floormod(known[fused], size[inner])
            case Unit():
                pass
            case Skew(parent=parent, skewed=skewed, along=along):
                known[parent] = subtract(known[skewed], skew_of(relation, along))
            case Scatter(axis=axis):
                known[axis] = axis
    return known


def upwards(relations: Sequence[Relation]) -> list[Relation]:
    """From the last to the first, so that each finds what it made known; skews, which are of root
    axes, after all that decide the axis along which they are."""
    return sorted(reversed(relations), key=lambda r: isinstance(r, Skew))


def skew_of(relation: Skew, along: Expr) -> Expr:
    """By how much a skewed axis is ahead of its parent, where `along` has a value."""
    step, modulus = (Const(value, along.dtype) for value in (relation.step, relation.modulus))
    return floormod(multiply(along, step), modulus)


def reached(stage: StagePlan, roots: Mapping[Axis, Expr]) -> dict[Axis, Expr]:
    """The position of each axis that the positions of some root axes decide: where in the loops a
    point of the domain is.
    """
    size = extents(stage)
    known = dict(roots)
    for relation in stage.relations:
        match relation:
            case Split(parent=parent, outer=outer, inner=inner):
                if parent in known:
                    known[outer] = floordiv(known[parent], size[inner])
                    known[inner] = floormod(known[parent], size[inner])
            case Fuse(outer=outer, inner=inner, fused=fused):
                if outer in known and inner in known:
                    known[fused] = add(multiply(known[outer], size[inner]), known[inner])
            case Unit(axis=axis):
                known[axis] = integer(0)
            case Scatter():
                pass
            case Skew(parent=parent, skewed=skewed, along=along):
                if parent in known and along in known:
                    known[skewed] = add(known[parent], skew_of(relation, known[along]))
    return known


def overruns(stage: StagePlan, position: Mapping[Axis, Expr]) -> dict[Axis, Expr]:
    """For each split axis whose pieces may reach past its end, the condition `position <
    extent`; for a skewed one that it is from 0 on, too."""
    size = extents(stage)
    conditions: dict[Axis, Expr] = {}
    skewed: set[Axis] = set()
    for relation in stage.relations:
        if isinstance(relation, Skew):
            skewed.add(relation.skewed)
            at = position[relation.parent]
            inside = less(at, size[relation.parent]), at_most(integer(0, at.dtype), at)
            conditions[relation.parent] = both(*inside)
        if isinstance(relation, Split) and relation.parent not in skewed:
            whole, piece = constant(size[relation.parent]), constant(size[relation.inner])
            exact = whole is not None and piece and whole % piece == 0
            outer = constant(size[relation.outer])
            if not (exact and outer is not None and piece and outer * piece == whole):
                conditions[relation.parent] = less(position[relation.parent], size[relation.parent])
    return conditions


def came_of(stage: StagePlan, axis: Axis) -> tuple[str, tuple[Axis, ...]] | None:
    """What a later call made of `axis`: `("split", (outer, inner))`, `("fused", (fused,))`, or
    None.
    """
    for relation in stage.relations:
        match relation:
            case Split(parent=parent, outer=outer, inner=inner) if parent is axis:
                return "split", (outer, inner)
            case Fuse(outer=outer, inner=inner, fused=fused) if axis is outer or axis is inner:
                return "fused", (fused,)
            case Skew(parent=parent, skewed=skewed) if parent is axis:
                return "skewed", (skewed,)
            case Scatter(axis=gone) if gone is axis:
                return "scattered", ()
            case _:
                pass
    return None


def _axes(relation: Relation) -> set[Axis]:
    match relation:
        case Split(parent=parent, outer=outer, inner=inner):
            return {parent, outer, inner}
        case Fuse(outer=outer, inner=inner, fused=fused):
            return {outer, inner, fused}
        case Unit(axis=axis) | Scatter(axis=axis):
            return {axis}
        case Skew(parent=parent, skewed=skewed):
            return {parent, skewed}


def related(stage: StagePlan, axis: Axis) -> frozenset[Axis]:
    """All axes joined to `axis` by relations, directly or not, with itself."""
    group = {axis}
    grew = True
    while grew:
        grew = False
        for relation in stage.relations:
            joined = _axes(relation)
            if joined & group and not joined <= group:
                group |= joined
                grew = True
    return frozenset(group)


def leaves_of(stage: StagePlan, axes: set[Axis]) -> set[Axis]:
    """The leaf axes that some of the root `axes` became."""
    for relation in stage.relations:
        match relation:
            case Split(parent=parent, outer=outer, inner=inner):
                if parent in axes:
                    axes = (axes - {parent}) | {outer, inner}
            case Fuse(outer=outer, inner=inner, fused=fused):
                if outer in axes or inner in axes:
                    axes = (axes - {outer, inner}) | {fused}
            case Unit():
                pass
            case Skew(parent=parent, skewed=skewed):
                if parent in axes:
                    axes = (axes - {parent}) | {skewed}
            case Scatter(axis=axis):
                axes = axes - {axis}
    return axes
