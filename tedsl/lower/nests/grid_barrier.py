"""Grid barriers (`compute_across`): where the programs of a kernel wait for each other.  On the GPU
a barrier stands after the stores of what they exchange; on the CPU there is none.

Part of `build_nests`; imports `context` and `ir`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tedsl.dtypes import DType
from tedsl.errors import LowerError
from tedsl.expr.index_arith import ZERO, constant
from tedsl.expr.nodes import Axis
from tedsl.ir.nodes import Buffer, Meet
from tedsl.lower.nests.context import Context
from tedsl.scheduling.kernels.tree import Phase, grid_loops, root_of
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.graph import loop_readers


def check_copies(plan: Plan) -> Plan:
    """The same plan, in which only the kernel reads what its programs would exchange: on the CPU
    each has a copy of its own.

    Raises:
        LowerError: other kernels read such a stage.
    """
    together = [stage for stage in plan.stages if stage.placement.program is not None]
    for stage in together:
        here = root_of(plan, stage)
        for reader in loop_readers(plan, stage.op):
            if root_of(plan, reader) is not here:
                raise LowerError(
                    f"{stage.name} is computed across the programs of {here.name}, and "
                    f"{reader.name} reads it in another kernel: on the CPU no program waits for "
                    "others, and each has a copy of its own",
                    subject=f"compute_across({stage.name})",
                    hint=f"compute {reader.name} in {here.name}, or build for a GPU",
                )
    return plan


def meeting_counters(context: Context) -> Mapping[str | Axis, Buffer]:
    """Memory for the counts of programs, by the loop whose programs wait: an element for each group
    that waits together."""
    found: dict[str | Axis, Buffer] = {}
    for stage in context.plan.stages:
        program = stage.placement.program
        if program is not None and program not in found:
            host = context.plan.stage(stage.placement.host)
            sizes = context.bounds[host.name].extents
            shape = tuple(sizes[axis] for axis in _others(host, program))
            found[program] = Buffer(f"{host.name}_met", DType.int32, shape)
    return found


def meeting(context: Context, phase: Phase) -> Meet:
    """Where programs wait before a phase."""
    host, program = context.plan.stage(phase.of), phase.over[0]
    sizes = context.bounds[host.name].extents
    others = _others(host, program)
    place = tuple(ZERO if constant(sizes[axis]) == 1 else axis for axis in others)
    return Meet(context.counters[program], place, sizes[program])


def _others(host: StagePlan, program: Axis) -> tuple[Axis, ...]:
    return tuple(axis for axis in grid_loops(host) if axis is not program)
