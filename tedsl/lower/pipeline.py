"""The lowering, read from top to bottom: a plan becomes loop IR, pass by pass.

Fifth room of the pipeline; imports `scheduling`, `ir` and `index`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce, wraps

from tedsl.errors import within
from tedsl.index.evaluate import evaluate_int
from tedsl.ir.alike import Template, form_of
from tedsl.ir.nodes import Func, Level, Module
from tedsl.ir.verify import verify
from tedsl.lower.nests.grid_barrier import copy_for_others
from tedsl.lower.nests.kernels import build_nests
from tedsl.lower.passes.carry_states import carry_states
from tedsl.lower.passes.check_limits import check_limits
from tedsl.lower.passes.check_registers import check_registers
from tedsl.lower.passes.choose_intrinsics import choose_intrinsics
from tedsl.lower.passes.choose_warps import choose_warps
from tedsl.lower.passes.cut_loops import cut_loops
from tedsl.lower.passes.fetch_ahead import fetch_ahead
from tedsl.lower.passes.fill_padding import fill_padding
from tedsl.lower.passes.mark_last_reads import mark_last_reads
from tedsl.lower.passes.order_lanes import order_lanes
from tedsl.lower.passes.partition_loops import partition_loops
from tedsl.lower.passes.run_backwards import run_backwards
from tedsl.lower.passes.shorten_loops import shorten_loops
from tedsl.lower.passes.simplify import simplify_func
from tedsl.lower.passes.tabulate import tabulate_operands
from tedsl.lower.passes.through_memory import through_memory, with_private
from tedsl.lower.passes.vectorize_loops import vectorize_loops
from tedsl.lower.passes.widen_accumulators import widen_accumulators
from tedsl.lower.plan.atomic_starts import separate_starts
from tedsl.lower.plan.kernel_versions import all_bounds, find_versions
from tedsl.lower.plan.scan_steps import separate_inits
from tedsl.lower.tile_operations.find_dots import find_dots
from tedsl.lower.tile_operations.find_prefixes import find_prefixes
from tedsl.lower.tile_operations.pad_products import pad_products
from tedsl.scheduling.kernels.complete import complete, hoist_threads
from tedsl.scheduling.kernels.printer import print_plan
from tedsl.scheduling.kernels.verify import PlanLevel, verify_plan
from tedsl.scheduling.memo import Memory
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.plan.bounded_reads import bound_reads
from tedsl.scheduling.plan.inline import inline_stages
from tedsl.scheduling.plan.unshare_axes import separate_axes
from tedsl.target import Target

# A CPU accumulator is widened up to a few registers; one of a program of tiles to its tile.
CPU_WIDE = 256
BLOCK_WIDE = 1 << 16


@dataclass(frozen=True, slots=True)
class Nests:
    """What a pass over a plan leaves: `str()` of it is the printed tree of kernels."""

    plan: Plan

    def __str__(self) -> str:
        return print_plan(self.plan)


Dump = Callable[[str, Nests | Module], None]


@dataclass(frozen=True, slots=True)
class PlanPass:
    """One step over a plan: its name, what it does, the level it leaves, and whether it is for
    programs of tiles only (True), for the CPU only (False), or for both."""

    name: str
    run: Callable[[Plan, Target], Plan]
    level: PlanLevel = PlanLevel.NESTS
    blocks: bool | None = None


def _always(run: Callable[[Plan], Plan]) -> Callable[[Plan, Target], Plan]:
    """A step that does the same for each target that it is for."""

    @wraps(run)
    def ran(plan: Plan, _: Target) -> Plan:
        return run(plan)

    return ran


PLAN_PASSES: tuple[PlanPass, ...] = (
    PlanPass("bound_reads", _always(bound_reads), PlanLevel.SAID),
    PlanPass("inline_stages", _always(inline_stages), PlanLevel.SAID),
    PlanPass("separate_axes", _always(separate_axes)),
    PlanPass("separate_inits", _always(separate_inits)),
    PlanPass("hoist_threads", _always(hoist_threads)),
    PlanPass("copy_for_others", _always(copy_for_others), blocks=False),
    PlanPass("complete", complete, PlanLevel.COMPLETE),
    # After it is known which loops contend for a result.
    PlanPass("separate_starts", separate_starts, PlanLevel.COMPLETE),
    PlanPass("find_versions", _always(find_versions), PlanLevel.COMPLETE, blocks=True),
)


@dataclass(frozen=True, slots=True)
class Pass:
    """One step over each kernel: its name, what it does, and the level it leaves."""

    name: str
    run: Callable[[Func], Func]
    level: Level


CPU_PASSES: tuple[Pass, ...] = (
    Pass("cut_loops", cut_loops, Level.NEST),
    Pass("simplify", simplify_func, Level.NEST),
    Pass("shorten_loops", shorten_loops, Level.NEST),
    Pass("partition_loops", partial(partition_loops, symbolic=True), Level.NEST),
    # Cleans the index arithmetic of the tails that partition_loops made.
    Pass("simplify_parts", simplify_func, Level.NEST),
    Pass("choose_intrinsics", partial(choose_intrinsics, blocks=False), Level.NEST),
    Pass("run_backwards", run_backwards, Level.NEST),
    Pass("vectorize_loops", partial(vectorize_loops, padded=False), Level.TILE),
    Pass("widen_accumulators", partial(widen_accumulators, limit=CPU_WIDE), Level.TILE),
    Pass("tabulate_operands", tabulate_operands, Level.TILE),
    # Decides the masks that vectorize_loops made under the ranges of the tiles.
    Pass("simplify_tiles", simplify_func, Level.TILE),
)

BLOCK_PASSES: tuple[Pass, ...] = (
    # Before loops fall into parts: each part of the last one reads for the last time.
    Pass("mark_last_reads", mark_last_reads, Level.NEST),
    Pass("cut_loops", cut_loops, Level.NEST),
    Pass("simplify", simplify_func, Level.NEST),
    Pass("shorten_loops", shorten_loops, Level.NEST),
    Pass("partition_loops", partial(partition_loops, symbolic=False), Level.NEST),
    # Cleans the index arithmetic of the tails that partition_loops made.
    Pass("simplify_parts", simplify_func, Level.NEST),
    Pass("run_backwards", run_backwards, Level.NEST),
    Pass("through_memory", through_memory, Level.NEST),
    # After it is known which tiles are in registers.
    Pass("choose_intrinsics", partial(choose_intrinsics, blocks=True), Level.NEST),
    Pass("pad_products", pad_products, Level.NEST),
    Pass("vectorize_loops", partial(vectorize_loops, padded=True), Level.TILE),
    # Decides the masks that vectorize_loops made under the ranges of the tiles.
    Pass("simplify_tiles", simplify_func, Level.TILE),
    Pass("find_prefixes", find_prefixes, Level.TILE),
    Pass("check_registers", check_registers, Level.TILE),
    Pass("carry_states", carry_states, Level.TILE),
    Pass("find_dots", find_dots, Level.TILE),
    Pass("order_lanes", order_lanes, Level.TILE),
    Pass("widen_accumulators", partial(widen_accumulators, limit=BLOCK_WIDE), Level.TILE),
    # After products are found, which have no value of all their axes.
    Pass("check_limits", check_limits, Level.TILE),
    Pass("fetch_ahead", fetch_ahead, Level.TILE),
    Pass("choose_warps", choose_warps, Level.TILE),
)

MODULE_PASSES: Mapping[str, Callable[[Module], Module]] = {"fill_padding": fill_padding}
"""What is done after all of these with all kernels of a Triton target together."""


def lower(
    plan: Plan,
    target: Target,
    *,
    dump: Dump | None = None,
    check: bool = False,
    calls: Sequence[Mapping[str, int]] = (),
) -> Module:
    """The loop IR of `plan` for `target`, at TILE level.

    Args:
        plan: a legal plan (`Schedule.plan`).
        target: decides between loops with SIMD tiles (CPU) and programs of padded tiles (Triton).
        dump: called with the name of each pass and what it leaves: nests of a plan, then modules;
            the text of either shows it.
        check: verify the invariants of plans, then the rules of the level, after each pass.
        calls: values of all sizes, by name: versions of kernels that none of these calls takes stay
            as they are built, for who only looks at the others; all are lowered where it is empty.

    Raises:
        LowerError: what the plan asks for cannot be done on the target.
    """
    if dump is not None or check or calls:
        return _lowered(plan, target, dump, check, calls)
    return _LAST.get((plan, target), lambda: _lowered(plan, target, dump, check, calls))


# The rules lower what they made to judge it, and who asked for that lowers it next.
_LAST = Memory(1)


def _lowered(
    plan: Plan,
    target: Target,
    dump: Dump | None,
    check: bool,
    calls: Sequence[Mapping[str, int]],
) -> Module:
    for each in PLAN_PASSES:
        if each.blocks in (None, target.is_triton):
            plan = each.run(plan, target)
            if dump is not None:
                dump(each.name, Nests(plan))
            if check:
                verify_plan(plan, each.level, each.name)
    module = build_nests(plan, all_bounds(plan), target)
    _observed(module, "build_nests", Level.NEST, dump, check)
    idle = frozenset(func.name for func in module.funcs if not _taken(func, module, calls))
    steps = BLOCK_PASSES if target.is_triton else CPU_PASSES
    none = dict[str, Callable[[Module], Module]]()
    after = MODULE_PASSES if target.is_triton else none
    if dump is None and not check:
        module = with_private(replace(module, funcs=_all_passed(steps, module.funcs, idle)))
        for run in after.values():
            module = run(module)
        return module
    for step in steps:
        funcs = (func if func.name in idle else _passed(step, func) for func in module.funcs)
        module = with_private(replace(module, funcs=tuple(funcs)))
        _observed(module, step.name, step.level, dump, check)
    for name, run in after.items():
        module = run(module)
        _observed(module, name, Level.TILE, dump, check)
    return module


def _all_passed(
    steps: Sequence[Pass], funcs: Sequence[Func], idle: Collection[str]
) -> tuple[Func, ...]:
    """The kernels after all passes: of those that are one but for names the second goes through
    them without names, and all others are made of it."""
    if len(funcs) == 1 and not idle and funcs[0].host_call is None:
        return (reduce(_then, steps, funcs[0]),)
    met = set[tuple[str, ...]]()
    templates: dict[tuple[str, ...], tuple[Template, Func]] = {}
    found: list[Func] = []
    for func in funcs:
        if func.name in idle or func.host_call is not None:
            found.append(func)
            continue
        form = form_of(func)
        if form.key not in met:
            met.add(form.key)
            found.append(reduce(_then, steps, func))
            continue
        if form.key not in templates:
            template = Template(func, form)
            templates[form.key] = template, reduce(_then, steps, template.func)
        template, passed = templates[form.key]
        found.append(template.filled_in(passed, func, form))
    return tuple(found)


def _then(func: Func, step: Pass) -> Func:
    return _passed(step, func)


def _taken(func: Func, module: Module, calls: Sequence[Mapping[str, int]]) -> bool:
    """Whether one of some calls runs a kernel."""
    if func.when is None or not calls:
        return True
    return any(
        evaluate_int(func.when, {size: call[size.name] for size in module.sizes}) for call in calls
    )


def _passed(step: Pass, func: Func) -> Func:
    """The kernel after a pass; what is called between kernels stays as it is."""
    if func.host_call is not None:
        return func
    with within(func.name):
        return step.run(func)


def _observed(module: Module, name: str, level: Level, dump: Dump | None, check: bool) -> None:
    if dump is not None:
        dump(name, module)
    if check:
        verify(module, level)
