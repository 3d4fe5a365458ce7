"""Loop structure: split, tile, fuse, reorder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from tedsl.expr.nodes import Axis, Expr
from tedsl.scheduling.kernels.tree import guests
from tedsl.scheduling.plan import Online, Plan, Scatter, Skew, StagePlan, at_loop
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.relations import derived, fuse_loops, ranks, split_loop
from tedsl.scheduling.plan.thread_loops import settled, with_unit
from tedsl.scheduling.primitives.arguments import (
    distinct_leaves,
    leaf,
    looped_stage,
    size,
    whole_size,
)
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.loops.legality import (
    require_adjacent,
    require_one_kind,
    require_scatter,
    require_skew,
    require_unmarked,
)
from tedsl.scheduling.primitives.placement.legality import require_places
from tedsl.scheduling.primitives.scans.legality import require_steps_in_order, require_whole_steps


def moved_guests(plan: Plan, stage: StagePlan, moves: Mapping[Axis, Axis]) -> Plan:
    """The plan with stages attached at a key of `moves` (loops of `stage`) attached at its
    value."""
    for guest in guests(plan, stage):
        axis = guest.placement.axis
        if axis is not None and axis in moves:
            there = at_loop(guest.placement, guest.placement.host, moves[axis])
            plan = plan.with_stage(replace(guest, placement=there))
    return plan


def split(
    plan: Plan, call: Call, parent: object, factor: object, nparts: object
) -> tuple[Plan, tuple[Axis, Axis]]:
    """parent --> outer, inner.  Stages attached at parent are then attached at inner."""
    stage = looped_stage(plan, call, call.stage)
    axis = leaf(plan, call, stage, parent)
    require_unmarked(plan, call, stage, axis)
    require_whole_steps(plan, call, stage, axis)
    if (factor is None) == (nparts is None):
        raise call.refuse(
            plan,
            "neither factor nor nparts is given"
            if factor is None
            else "both factor and nparts are given",
            axis=axis,
            hint="give factor (extent of the inner loop) or nparts (extent of the outer loop)",
        )
    given = (
        (size(plan, call, "factor", factor), None)
        if nparts is None
        else (None, size(plan, call, "nparts", nparts))
    )
    after, made = _split(plan, stage, axis, *given)
    return after, made


def _split(
    plan: Plan, stage: StagePlan, parent: Axis, factor: Expr | None, nparts: Expr | None
) -> tuple[Plan, tuple[Axis, Axis]]:
    changed, made = split_loop(stage, parent, factor, nparts)
    return moved_guests(plan.with_stage(changed), changed, {parent: made[1]}), made


def skew(
    plan: Plan, call: Call, parent: object, along: object, step: object, modulus: object
) -> tuple[Plan, Axis]:
    """parent --> parent.skewed.  Stages attached at parent are then attached at it."""
    stage = looped_stage(plan, call, call.stage)
    axis = leaf(plan, call, stage, parent)
    require_unmarked(plan, call, stage, axis)
    require_whole_steps(plan, call, stage, axis)
    require_skew(plan, call, stage, axis, along)
    by, most = (whole_size(plan, call, *each) for each in (("step", step), ("modulus", modulus)))
    if by % most == 0:
        raise call.refuse(
            plan,
            f"{by} is a multiple of {most}, and no iteration would be moved",
            axis=axis,
            hint="leave skew out, or give another modulus",
        )
    skewed = derived(stage, f"{labels(stage)[axis]}.skewed", axis)
    at = ranks(stage.leaf_axes)[axis]
    changed = replace(
        stage,
        leaf_axes=(*stage.leaf_axes[:at], skewed, *stage.leaf_axes[at + 1 :]),
        relations=(*stage.relations, Skew(axis, skewed, cast("Axis", along), by % most, most)),
    )
    after = moved_guests(plan.with_stage(changed), changed, {axis: skewed})
    return after, skewed


def scatter(plan: Plan, call: Call, axis: object) -> Plan:
    """A data axis is no loop any more, but what a condition says; the invariants say if it can."""
    stage = looped_stage(plan, call, call.stage)
    loop = leaf(plan, call, stage, axis)
    require_unmarked(plan, call, stage, loop)
    require_scatter(plan, call, stage, loop)
    leaves = tuple(each for each in stage.leaf_axes if each is not loop)
    relations = (*stage.relations, Scatter(loop))
    return plan.with_stage(replace(stage, leaf_axes=leaves, relations=relations))


def tile(plan: Plan, call: Call, arguments: Sequence[object]) -> tuple[Plan, tuple[Axis, ...]]:
    """x, y --> x.outer, y.outer, x.inner, y.inner, in the places of x and y."""
    stage = looped_stage(plan, call, call.stage)
    count = len(arguments) // 2
    if len(arguments) % 2 or not arguments:
        raise call.refuse(
            plan,
            f"{len(arguments)} arguments given: tile takes as many factors as axes",
            hint="write tile(x, y, x_factor, y_factor)",
        )
    axes = distinct_leaves(plan, call, stage, arguments[:count])
    factors = [size(plan, call, "factor", value) for value in arguments[count:]]
    for axis in axes:
        require_unmarked(plan, call, stage, axis)
        require_whole_steps(plan, call, stage, axis)
    tiled = plan
    outers: list[Axis] = []
    inners: list[Axis] = []
    for axis, factor in zip(axes, factors, strict=True):
        tiled, (outer, inner) = _split(tiled, tiled.stage(stage.name), axis, factor, None)
        outers.append(outer)
        inners.append(inner)
    tiled = settled(_reordered(tiled, tiled.stage(stage.name), (*outers, *inners)), stage.name)
    require_steps_in_order(plan, call, tiled.stage(stage.name))
    require_places(plan, call, tiled)
    return tiled, (*outers, *inners)


def fuse(plan: Plan, call: Call, axes: Sequence[object]) -> tuple[Plan, Axis]:
    """x, y --> x.y.fused.  Stages attached at the innermost of them are then attached at the fused
    loop.
    """
    stage = looped_stage(plan, call, call.stage)
    if not axes:
        return _with_unit(plan, call, stage)
    loops = distinct_leaves(plan, call, stage, axes)
    for axis in loops:
        require_unmarked(plan, call, stage, axis)
        require_whole_steps(plan, call, stage, axis)
    require_one_kind(plan, call, stage, loops)
    require_adjacent(plan, call, stage, loops)
    for axis in loops[:-1]:
        for guest in guests(plan, stage, axis):
            known = labels(stage)
            raise call.refuse(
                plan,
                f"{guest.name} is attached at {stage.name}.{known[axis]}, "
                f"which would be gone inside the fused loop",
                axis=axis,
                hint=f"fuse before online of {stage.name}"
                if isinstance(guest.placement, Online)
                else f"attach {guest.name} at {known[loops[-1]]} or elsewhere first, "
                "or fuse before compute_at",
            )
    fused = loops[0]
    for axis in loops[1:]:
        plan, fused = _fuse(plan, plan.stage(stage.name), fused, axis)
    return plan, fused


def _with_unit(plan: Plan, call: Call, stage: StagePlan) -> tuple[Plan, Axis]:
    """One more loop, outside all others, that runs once."""
    changed, unit = with_unit(stage)
    after = settled(plan.with_stage(changed), stage.name)
    require_places(plan, call, after)
    return after, unit


def _fuse(plan: Plan, stage: StagePlan, outer: Axis, inner: Axis) -> tuple[Plan, Axis]:
    changed, fused = fuse_loops(stage, outer, inner)
    return moved_guests(plan.with_stage(changed), changed, {inner: fused}), fused


def reorder(plan: Plan, call: Call, axes: Sequence[object]) -> Plan:
    """The named loops take each other's places, in the order given; all other loops stay."""
    stage = looped_stage(plan, call, call.stage)
    loops = distinct_leaves(plan, call, stage, axes)
    changed = settled(_reordered(plan, stage, loops), stage.name)
    require_steps_in_order(plan, call, changed.stage(stage.name))
    require_places(plan, call, changed)
    return changed


def _reordered(plan: Plan, stage: StagePlan, axes: Sequence[Axis]) -> Plan:
    order, named = iter(axes), ranks(axes)
    leaves = tuple(next(order) if axis in named else axis for axis in stage.leaf_axes)
    return plan.with_stage(replace(stage, leaf_axes=leaves))
