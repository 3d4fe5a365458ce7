"""Grid barriers (`compute_across`): where the programs of a kernel wait for each other.  On the GPU
a barrier stands after the stores of what they exchange; on the CPU there is none, and each thread
computes all of it.

Part of `build_nests`; imports `places` and `ir`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tedsl.dtypes import DType
from tedsl.errors import LowerError
from tedsl.expr.integers import ZERO, constant
from tedsl.expr.nodes import Axis
from tedsl.ir.nodes import Buffer, Meet
from tedsl.lower.places import Context
from tedsl.scheduling.bounds import kernel_of
from tedsl.scheduling.graph import loop_readers
from tedsl.scheduling.plan import Across, Plan, StagePlan
from tedsl.scheduling.together import grid_loops

Group = tuple[StagePlan, ...]
Phased = tuple[int, Group]


def each_by_itself(plan: Plan) -> Plan:
    """The plan without grid barriers, for the CPU: every program computes all parts of what it
    would share with others, since threads of a pool are not all running and must not wait for one
    another.

    Raises:
        LowerError: other kernels read such a stage.
    """
    if all(stage.across is None for stage in plan.stages):
        return plan
    for stage in plan.stages:
        here = kernel_of(plan, stage)
        for reader in loop_readers(plan, stage.op) if stage.across is not None else ():
            if kernel_of(plan, reader) is not here:
                raise LowerError(
                    f"{stage.name} is computed across the programs of {here.name}, and "
                    f"{reader.name} reads it in another kernel: on the CPU no program waits for "
                    "others, and each has a copy of its own",
                    subject=f"compute_across({stage.name})",
                    hint=f"compute {reader.name} in {here.name}, or build for a GPU",
                )
    return replace(plan, stages=tuple(replace(stage, across=None) for stage in plan.stages))


def meeting_counters(context: Context) -> Mapping[str, Buffer]:
    """The barrier counters by stage: an element for each group of programs that waits together; the
    same for all stages of a kernel that the programs of one loop compute."""
    made: dict[tuple[str, Axis], Buffer] = {}
    found: dict[str, Buffer] = {}
    for stage in context.plan.stages:
        if stage.across is None:
            continue
        host = context.plan.stage(stage.attach.stage)
        sizes = context.bounds[host.name].extents
        shape = tuple(sizes[axis] for axis in _others(host, stage.across))
        key = host.name, stage.across.program
        found[stage.name] = made.setdefault(key, Buffer(f"{host.name}_met", DType.int32, shape))
    return found


def meetings_after(context: Context, order: Sequence[Phased]) -> Mapping[Group, Meet]:
    """The stages after which there is a barrier: of those that share a phase and a counter, the
    last."""
    found: dict[Group, Meet] = {}
    for place, (number, group) in enumerate(order):
        meet = _meeting(context, group)
        if meet is None:
            continue
        following = order[place + 1 : place + 2]
        later = _meeting(context, following[0][1]) if following else None
        if later is None or later.counter is not meet.counter or following[0][0] != number:
            found[group] = meet
    return found


def _meeting(context: Context, group: Group) -> Meet | None:
    stage = next((each for each in group if each.across is not None), None)
    if stage is None or stage.across is None:
        return None
    host = context.plan.stage(stage.attach.stage)
    sizes = context.bounds[host.name].extents
    others = _others(host, stage.across)
    place = tuple(ZERO if constant(sizes[axis]) == 1 else axis for axis in others)
    return Meet(context.counters[stage.name], place, sizes[stage.across.program])


def _others(host: StagePlan, across: Across) -> tuple[Axis, ...]:
    return tuple(axis for axis in grid_loops(host) if axis is not across.program)
