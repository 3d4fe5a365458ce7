"""What binding to the grid and to threads implies: the grid is outside all other loops, and what is
computed at a loop of threads is computed for all threads at once, outside them.

Threads run together, so a stage that each computes a part of is a tile of the program: it has the
threads as dimensions.  Imports the plan.
"""

from __future__ import annotations

from dataclasses import replace

from tedsl.expr.nodes import Axis, AxisKind
from tedsl.ir.nodes import LoopKind, Scope
from tedsl.scheduling.kernels.tree import guests
from tedsl.scheduling.plan import AT_ROOT, Online, Plan, StagePlan, Unit, at_loop, stored
from tedsl.scheduling.plan.graph import is_output, loop_readers
from tedsl.scheduling.plan.labels import labels, unique_name
from tedsl.scheduling.plan.links import special
from tedsl.scheduling.plan.relations import ranks
from tedsl.scheduling.plan.scan_structure import is_step_axis
from tedsl.tensor.tensor import ScanOp


def settled(plan: Plan, name: str) -> Plan:
    """The plan in which the loops of the stage `name` that are bound stand where they run."""
    return outside_threads(_grid_outside(plan, plan.stage(name)), name)


def _grid_outside(plan: Plan, stage: StagePlan) -> Plan:
    """Loops that are bound to the grid enclose all others, in their order; those over the steps of
    a scan stay where they are.

    Before:  for i.outer (blockIdx.y): for i.inner: for j (blockIdx.x)
    After:   for i.outer (blockIdx.y): for j (blockIdx.x): for i.inner
    """
    scan = isinstance(stage.op, ScanOp)

    def outer(axis: Axis) -> bool:
        grid = stage.mark(axis).kind is LoopKind.PROGRAM
        return grid or (not scan and is_step_axis(plan, stage, axis))

    order = tuple(sorted(stage.leaf_axes, key=lambda axis: not outer(axis)))
    if all(a is b for a, b in zip(order, stage.leaf_axes, strict=True)):
        return plan
    return plan.with_stage(replace(stage, leaf_axes=order))


def threads_of(stage: StagePlan) -> tuple[Axis, ...]:
    """The loops that are bound to threads, outermost first."""
    return tuple(axis for axis in stage.leaf_axes if stage.mark(axis).thread)


def per_thread(stage: StagePlan) -> frozenset[Axis]:
    """The loops of threads and the data loops inside them: what threads have of their own."""
    threads = threads_of(stage)
    if not threads:
        return frozenset()
    first = ranks(stage.leaf_axes)[threads[0]]
    inside = stage.leaf_axes[first:]
    return frozenset((*threads, *(a for a in inside if a.kind is AxisKind.DATA)))


def attached(plan: Plan, stage: StagePlan) -> Plan:
    """The plan with a stage that has been given a place at a loop, and what that implies.

    Copies of it that have no place yet are at the same loop: they will be further in.
    """
    plan = plan.with_stage(stage)
    for reader in loop_readers(plan, stage.op):
        if is_unplaced(plan, reader) and reader.name != stage.placement.host:
            plan = attached(plan, replace(reader, placement=stage.placement))
    return outside_threads(plan, stage.placement.host)


def is_unplaced(plan: Plan, stage: StagePlan) -> bool:
    """True for a copy that is about to be attached: in the memory of a program, and at root."""
    own = stage.placement == AT_ROOT and stage.scope is not Scope.GLOBAL
    return own and not is_output(plan, stage.op)


def outside_threads(plan: Plan, name: str) -> Plan:
    """Stages at loops of threads of the stage `name`, or at data loops inside them, are at the loop
    around the threads, and so is what is stored there; a loop that runs once is made where there is
    none.

    Before:  for io (blockIdx.x): for ii (threadIdx.x): B[io*32 + ii] = ...; C[...] = B[...]
    After:   for io (blockIdx.x): (for i: B[io*32 + i] = ...); for ii (threadIdx.x): C[...] = B[...]
    """
    stage = plan.stage(name)
    lanes = per_thread(stage)
    if not lanes:
        return plan
    stored_here = (each for each in special(plan) if each.placement.kept is not None)
    for name in dict.fromkeys(each.name for each in (*guests(plan, stage), *stored_here)):
        place = plan.stage(name).placement
        kept = None if place.kept is None else place.kept.axis
        inside = [axis for axis in (place.axis, kept) if axis is not None and axis in lanes]
        if not inside or isinstance(place, Online):
            continue
        first = min(ranks(stage.leaf_axes)[axis] for axis in inside)
        free = [
            outer
            for outer in stage.leaf_axes[:first]
            if outer not in lanes and stage.mark(outer).kind is not LoopKind.VECTORIZED
        ]
        if not free:
            stage, unit = with_unit(stage)
            plan, free = plan.with_stage(stage), [unit]
        if place.axis is not None and place.axis in lanes:
            place = at_loop(place, stage.name, free[-1])
        if place.kept is not None and kept is not None and kept in lanes:
            place = stored(place, replace(place.kept, axis=free[-1])) or place
        plan = plan.with_stage(replace(plan.stage(name), placement=place))
    return plan


def with_unit(stage: StagePlan) -> tuple[StagePlan, Axis]:
    """One more loop, outside all others, that runs once."""
    unit = Axis(unique_name("unit", set(labels(stage).values())))
    leaves, relations = (unit, *stage.leaf_axes), (*stage.relations, Unit(unit))
    return replace(stage, leaf_axes=leaves, relations=relations), unit
