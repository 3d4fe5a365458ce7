"""Schedule rules: what `te.build` does when no schedule is given, and the space that the search
explores.

Written with the public interface only.  A rule looks at the shape of a loop nest (what is folded,
what lines up with what, what lies next to what in memory) and applies primitives; each of its
choices is a knob with a default. Imports everything below it; never the backends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tedsl.expr.tensor import Operation, Tensor
from tedsl.schedules import cpu, cpu_chain, gpu
from tedsl.schedules.beside import Beside, join_all
from tedsl.schedules.cpu_shared import share_inputs
from tedsl.schedules.fusion import fuse
from tedsl.schedules.gpu_along import take_along
from tedsl.schedules.gpu_both import Both, finish_together, reduce_both, share_reads
from tedsl.schedules.gpu_caches import keep_inputs
from tedsl.schedules.gpu_chain import schedule_chains
from tedsl.schedules.gpu_folds import take_results
from tedsl.schedules.gpu_pairs import take_pairs
from tedsl.schedules.gpu_products import schedule_products
from tedsl.schedules.gpu_statistics import schedule_statistics
from tedsl.schedules.scans import schedule_scans
from tedsl.scheduling.schedule import Schedule, create_schedule
from tedsl.target import Target

Outputs = Tensor | Operation | Sequence[Tensor | Operation]


def schedule_for(
    outputs: Outputs, target: str | Target, decisions: Mapping[str, object] | None = None
) -> Schedule:
    """The rules' schedule of `outputs` for `target` under `decisions`.

    Args:
        outputs: tensors or operations to compute.
        target: as for `te.build`.
        decisions: values for knobs by name; a knob that is not named takes its default.

    Returns:
        A schedule; `schedule.knobs` lists the choices that were met.

    Raises:
        ScheduleError: a decision that is not among the choices, or an illegal combination.
    """
    where = Target.parse(target)
    s = create_schedule(outputs, decisions)
    schedule_scans(s, where)
    taken: list[str] = []
    if where.is_triton:
        taken += schedule_chains(s, where)
        taken += schedule_products(s, taken)
        taken += schedule_statistics(s, where, taken)
    else:
        taken += cpu_chain.schedule_chains(s)
    beside = Beside(launches=where.is_triton)
    busy = gpu.BUSY_ROWS if where.is_triton else cpu.BUSY_ROWS
    groups = fuse(s, busy, taken, loops=not where.is_triton)
    shared: list[Both] = []
    if where.is_triton:
        groups = take_along(s, take_results(s, take_pairs(s, groups)))
        shared = share_reads(s, groups)
    for both in shared:
        reduce_both(s, both)
        groups.remove(both.rows)
    for group in groups:
        if where.is_triton:
            gpu.schedule_group(s, group, where, beside)
        else:
            cpu.schedule_group(s, group, beside)
    for both in shared:
        finish_together(s, both)
    join_all(s, beside)
    if where.is_triton:
        keep_inputs(s)
    else:
        share_inputs(s, beside)
    return s


def default_schedule(outputs: Outputs, target: str | Target) -> Schedule:
    """The schedule that `te.build(tensor)` uses: the rules with all knobs at their defaults."""
    return schedule_for(outputs, target)


__all__ = ["default_schedule", "schedule_for"]
