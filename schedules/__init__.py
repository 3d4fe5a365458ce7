"""The default schedules: what `te.build` does when no schedule is given, and the space that
`te.autotune` searches.

Written with the public primitives only.  A rule looks at the shape of a loop nest (which axes are
reduced, which loops line up, what is contiguous in memory) and never at a name: GEMM, implicit
GEMM, flash attention, softmax and norms in one pass, split-K and stream-K come from structure
alone.  Each choice of a rule is a knob with a default.  Imports everything below it; of the
backends only the estimate of compile time.

In the order in which a computation passes through them:

- `analysis`: what the rules see: stages, loop nests, cascaded reductions
- `fusion`: which stages share a kernel
- `scans`: recurrences, on both targets; `scatters`: reductions into elements that data say
- `cpu`, `gpu`: `select` picks the rule for each kernel; the other files are the rules, each of
  which says in its first line which kernel pattern it schedules
- `fallback`: simpler rules where a target cannot carry one out
- `knobs`, `trial`, `loops`: what rules are written with: choices, steps tried on a copy, loops
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tedsl.deep import deep
from tedsl.devices import Device
from tedsl.lower.pipeline import lower
from tedsl.schedules.analysis.kernel_order import kernels_of
from tedsl.schedules.cpu import cascade
from tedsl.schedules.cpu import select as cpu
from tedsl.schedules.cpu import stacked_results as cpu_stacks
from tedsl.schedules.cpu.shared_inputs import share_inputs
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.fallback import (
    Attempts,
    Caution,
    Judge,
    Level,
    left_scans,
    schedule_kernel,
    settle,
)
from tedsl.schedules.fusion.horizontal import Beside, join_all
from tedsl.schedules.fusion.row_partials import reduce_rows_first
from tedsl.schedules.fusion.unflattened import unflatten
from tedsl.schedules.fusion.vertical import fuse, inline_indices
from tedsl.schedules.gpu import select as gpu
from tedsl.schedules.gpu.cache_policy import keep_inputs
from tedsl.schedules.gpu.cascade.cascaded_contraction import schedule_chains
from tedsl.schedules.gpu.cascade.nested_contractions import schedule_products
from tedsl.schedules.gpu.columns.full_reductions import take_results
from tedsl.schedules.gpu.gemm.row_reduction_epilogue import schedule_statistics
from tedsl.schedules.gpu.gemm.split_floats import split_floats
from tedsl.schedules.gpu.pairwise.pairwise import take_pairs
from tedsl.schedules.gpu.pointwise import stacked_results as gpu_stacks
from tedsl.schedules.gpu.rows.rows_and_columns import (
    Both,
    finish_together,
    reduce_both,
    share_reads,
)
from tedsl.schedules.gpu.rows.split_rows import split_cascades
from tedsl.schedules.scans import schedule_scans
from tedsl.schedules.scatters import schedule_scatters
from tedsl.scheduling.handles.schedule import Schedule, create_schedule
from tedsl.target import Target
from tedsl.tensor.tensor import Outputs


@deep
def schedule_for(
    outputs: Outputs,
    target: str | Target,
    decisions: Mapping[str, object] | None = None,
    device: Device | None = None,
) -> Schedule:
    """The rules' schedule of `outputs` for `target` under `decisions`.

    Args:
        outputs: tensors or operations to compute.
        target: as for `te.build`.
        decisions: values for knobs by name; a knob that is not named takes its default.
        device: what it is for, where that is not the device of the target here.

    Returns:
        A schedule; `schedule.knobs` lists the choices that were met.

    Raises:
        ScheduleError: a decision that is not among the choices, or an illegal combination.
    """
    where = Target.parse(target)
    s = Schedule(create_schedule(outputs).plan, decisions, where, device or where.resolve())
    _apply(s, where, {})
    return s


def _apply(s: Schedule, where: Target, caution: Caution, compared: bool = True) -> None:
    """Schedule all stages, those that `caution` names by simpler rules.

    On a GPU the rules that take whole subgraphs come first (cascaded reductions such as flash
    attention, nested contractions, row reductions in a GEMM's epilogue); `fuse` groups what is left
    into kernels, and each kernel gets the rule for its shape.  What rules attach is to stay in
    registers or on the stack.  Where the cost model weighs one kernel against several it compares
    what all rules make of each; in those no more is `compared`.
    """
    s.in_registers = True
    schedule_scans(s, where, left_scans(s, caution))
    simpler = {name for name, level in caution.items() if level >= Level.ALONE}
    schedule_scatters(s, where, simpler)
    settle(s, where, caution)
    taken: list[str] = []
    if where.is_triton:
        inline_indices(s)
        reduce_rows_first(s, gpu.busy_rows(gpu_of(s)))
        unflatten(s)
        taken += schedule_chains(s)
        taken += schedule_products(s, taken)
        taken += schedule_statistics(s, taken)
        taken += gpu_stacks.stack_results(s, taken)
    else:
        taken += cascade.schedule_chains(s)
        taken += cpu_stacks.stack_results(s, taken)
    beside = Beside(launches=where.is_triton)
    busy = gpu.busy_rows(gpu_of(s)) if where.is_triton else cpu.BUSY_ROWS
    rules = partial(_apply, where=where, caution={}, compared=False)
    weighed = rules if compared and where.is_triton else None
    groups = fuse(s, busy, taken, loops=not where.is_triton, rules=weighed)
    shared: list[Both] = []
    if where.is_triton:
        groups = take_pairs(s, groups)
        split_cascades(s, groups, beside)
        groups = take_results(s, groups)
        shared = share_reads(s, groups)
    for both in shared:
        reduce_both(s, both)
        groups.remove(both.rows)
    beside.kernels = kernels_of([*groups, *(both.rows for both in shared)])
    for both in shared:
        beside.kernels.join(each.root for each in both.columns)
    for group in groups:
        schedule_kernel(s, group, where, beside)
    for both in shared:
        finish_together(s, both)
    join_all(s, beside)
    if where.is_triton:
        split_floats(s)
        keep_inputs(s)
    else:
        share_inputs(s, beside)


@deep
def default_schedule(outputs: Outputs, target: str | Target) -> Schedule:
    """The schedule that `te.build(tensor)` uses: the rules with all knobs at their defaults, and
    simpler rules where the lowering refuses what these make, or Triton and ptxas would take too
    long to compile it; `schedule.fallbacks` says which.

    It is lowered once to know that: who goes on to lower or build it does so by `attempts`.
    """
    found = attempts(outputs, target)

    def lowered(s: Schedule, judge: Judge) -> Schedule:
        judge(lower(s.plan, found.target))
        return s

    return found.carried_out(lowered)


def attempts(outputs: Outputs, target: str | Target) -> Attempts:
    """The default schedule of `outputs`, and simpler ones where that cannot be carried out."""
    return Attempts(_apply, outputs, Target.parse(target))


__all__ = ["attempts", "default_schedule", "schedule_for"]
