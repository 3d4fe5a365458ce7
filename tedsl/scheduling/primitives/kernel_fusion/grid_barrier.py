"""Which stages the programs of a loop may compute together (`compute_across`): all of them run at
the same time, come to the meeting equally often, and store what the others read.

    host   grid (g, p): for t: at t:  P[p, i(g, t)] = f(p, ...)   then  host reads P[0..c, i(g, t)]
    legal  i does not depend on p        the programs (g, 0), (g, 1), ... store all that is read
           nor does any condition or bound around t           all of them come, at the same turns

Asked of the plan as it would be after a call, for all such stages, so that no primitive can take
from them what they need.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tedsl.devices import GPUS
from tedsl.errors import ScheduleError
from tedsl.expr.nodes import Axis
from tedsl.expr.printer import print_expr
from tedsl.expr.visit import axes_of
from tedsl.index.prove import equal
from tedsl.scheduling.kernels.tree import (
    beside,
    finishers,
    followers,
    grid_loops,
    is_in_circle,
    root_of,
)
from tedsl.scheduling.plan import Cooperative, Plan, StagePlan
from tedsl.scheduling.plan.graph import is_reduction, loop_readers, path_between
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.links import special
from tedsl.scheduling.plan.relations import constant
from tedsl.scheduling.plan.scan_structure import role, scan_of
from tedsl.scheduling.plan.unshare_axes import own_nests
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.stage_facts import Problem
from tedsl.scheduling.regions.infer import Bounds, covered, infer
from tedsl.tensor.tensor import ComputeOp

# More programs than any known device runs at the same time.
MOST_PROGRAMS = max(gpu.sms * gpu.blocks_sm for gpu in GPUS)


def across_problem(
    plan: Plan, before: Plan | None = None, called: str = ""
) -> tuple[StagePlan, Problem] | None:
    """The first stage that programs may not compute together, and why."""
    placed = [(stage, stage.placement) for stage in special(plan)]
    found = [(stage, place) for stage, place in placed if isinstance(place, Cooperative)]
    for stage, across in found:
        problem = (
            _stage_problem(plan, stage, across)
            or _host_problem(plan, stage, across)
            or _order_problem(plan, stage)
        )
        if problem is not None:
            return stage, problem
    if not found:
        return None
    shown = own_nests(plan)
    bounds = infer(shown)
    for stage, _ in found:
        now = shown.stage(stage.name)
        if isinstance(now.placement, Cooperative):
            problem = (
                _size_problem(shown, bounds, now, now.placement)
                or _meeting_problem(shown, bounds, now, now.placement)
                or _whole_problem(shown, bounds, now, now.placement)
            )
            if problem is not None:
                return stage, problem
    return None


def refuse_across(
    before: Plan, call: Call, after: Plan, stage: StagePlan, problem: Problem
) -> ScheduleError:
    """The error for a call after which programs could not compute `stage` together."""
    if call.primitive == "compute_across" and call.stage == stage.name:
        return call.refuse(before, problem.reason, hint=problem.hint)
    return call.refuse(
        before,
        f"{stage.name} is computed across programs: {problem.reason}",
        hint=f"first call s[{stage.name}].compute_root(), or compute_at, which takes that back, "
        "and compute_across again afterwards",
    )


def _stage_problem(plan: Plan, stage: StagePlan, across: Cooperative) -> Problem | None:
    name = stage.name
    if not isinstance(stage.op, ComputeOp) or is_reduction(stage.op):
        return Problem(
            f"{name} is a reduction, whose accumulators are registers of one program",
            "pass on its results: c = s.cache_read(..., 'local', readers), s[c].compute_across",
        )
    if role(plan, stage.op) is not None or scan_of(plan, stage.op):
        return Problem(f"{name} belongs to a scan", "name a stage outside scans")
    others = followers(plan, stage)
    if others:
        return Problem(f"{name} runs together with {others[0].name}", "leave it by itself")
    if across.part not in frozenset(stage.op.axes).intersection(stage.leaf_axes):
        return Problem(
            f"{across.part.name} is no loop over a dimension of {name}",
            "name one of s[...].op.axis that is not split or fused",
        )
    return None


def _host_problem(plan: Plan, stage: StagePlan, across: Cooperative) -> Problem | None:
    host = plan.stage(stage.placement.host)
    grid, known = grid_loops(host), labels(host)
    if not host.placement.at_root or host.placement.leader:
        return Problem(
            f"{host.name}, in whose loops it is, has no programs of its own",
            f"attach {stage.name} at a loop of the stage at root",
        )
    if across.program not in frozenset(grid):
        name = known.get(across.program, across.program.name)
        return Problem(
            f"{name} is no loop of the grid of {host.name}",
            f"bind one of the outermost loops of {host.name} to blockIdx.x and name it",
        )
    if finishers(plan, host) or beside(plan, host):
        return Problem(
            f"other programs run, or go on, in the kernel of {host.name}",
            "leave those stages kernels of their own",
        )
    kernel = host.placement.kernel
    if kernel.versions or host.atomic:
        what = kernel.said if kernel.versions else "atomic updates"
        return Problem(f"{host.name} has {what}", "do without, or without compute_across")
    if (kernel.launch.num_ctas or 1) > 1:
        return Problem(
            f"a program of {host.name} is {kernel.launch.num_ctas} blocks",
            f"call s[{host.name}].launch(num_ctas=1)",
        )
    for axis in _around(stage, host):
        mark = host.mark(axis)
        if mark.num_stages > (2 if axis is stage.placement.axis else 1):
            return Problem(
                f"{known[axis]} of {host.name} is pipelined in {mark.num_stages} stages: its "
                "iterations overlap, and what one waits for the next would read before",
                "fetch one iteration ahead in the loop of the meeting (num_stages=2), call "
                "pipeline for loops inside, or let several programs share a processor",
            )
        if mark.cuts.points and axis in frozenset(grid):
            return Problem(
                f"{known[axis]} of {host.name} runs in parts", "take back loop_partition"
            )
    return None


def _order_problem(plan: Plan, stage: StagePlan) -> Problem | None:
    """No kernel that reads the stage is needed where it is computed."""
    here = root_of(plan, stage)
    others = [r for r in loop_readers(plan, stage.op) if root_of(plan, r) is not here]
    if not others or not is_in_circle(plan, stage):
        return None
    reader = next((r for r in others if path_between(plan, r, here)), others[0])
    return Problem(
        f"{reader.name} reads {stage.name} in a kernel of its own, whose result {here.name} needs",
        f"compute {reader.name} inside {here.name}, or leave {stage.name} at root",
    )


def _whole_problem(
    plan: Plan, bounds: Bounds, stage: StagePlan, across: Cooperative
) -> Problem | None:
    """Where other kernels read the stage, its own computes all of it."""
    here = root_of(plan, stage)
    others = [r for r in loop_readers(plan, stage.op) if root_of(plan, r) is not here]
    if not others or not isinstance(stage.op, ComputeOp):
        return None
    sizes = zip(stage.op.axes, covered(plan, stage, bounds), stage.op.shape, strict=True)
    for axis, box, size in sizes:
        whole = constant(box.min) == 0 and equal(box.extent, size, bounds[stage.name].facts)
        if axis is not across.part and not whole:
            return Problem(
                f"{others[0].name} reads all of {stage.name} in a kernel of its own, and the "
                f"programs of {here.name} are not known to compute all of it along {axis.name}",
                f"give {others[0].name} another source, or compute it in {here.name}",
            )
    return None


def _around(stage: StagePlan, host: StagePlan) -> Iterator[Axis]:
    """The loops of `host` around `stage`, outermost first."""
    for axis in host.loop_order:
        yield axis
        if axis is stage.placement.axis:
            return


def _size_problem(
    plan: Plan, bounds: Bounds, stage: StagePlan, across: Cooperative
) -> Problem | None:
    """There are as many programs as parts, and no more than run at the same time."""
    host = plan.stage(stage.placement.host)
    own, known = bounds[host.name], labels(host)
    sizes = [constant(own.extents[axis]) for axis in grid_loops(host)]
    fixed = [size for size in sizes if size is not None]
    if len(fixed) < len(sizes):
        return Problem(
            f"the grid of {host.name} has no constant size, and programs that wait for each other "
            "must all run at the same time",
            f"split the loops of {host.name} by constants: few programs, each with a loop",
        )
    if prod(fixed) > MOST_PROGRAMS:
        return Problem(
            f"{host.name} has {prod(fixed)} programs, more than run at the same time (at most "
            f"{MOST_PROGRAMS})",
            f"split the loops of {host.name} so that each program loops over some of the work",
        )
    count = constant(own.extents[across.program])
    parts = dict(zip(stage.root_axes, stage.op.shape, strict=False))[across.part]
    if constant(parts) != count or count == 1:
        return Problem(
            f"{known[across.program]} of {host.name} has {count} iterations, and {stage.name} has "
            f"{parts} elements along {across.part.name}",
            "split by nparts so that there are as many programs, two at least",
        )
    return None


def _meeting_problem(
    plan: Plan, bounds: Bounds, stage: StagePlan, across: Cooperative
) -> Problem | None:
    """All programs come, at the same turns, and store what the others read there."""
    host = plan.stage(stage.placement.host)
    own, known = bounds[host.name], labels(host)
    around = list(_around(stage, host))
    program, name = across.program, known[across.program]
    for axis in around:
        if program in axes_of(own.extents[axis]):
            return Problem(
                f"{known[axis]} of {host.name} has {own.extents[axis]} iterations, not as many in "
                f"each program of {name}: some would wait forever",
                "split by constants",
            )
    for guard in own.guards:
        if program in axes_of(guard) and set(axes_of(guard)) <= set(around):
            return Problem(
                f"some programs of {name} have nothing to do where {print_expr(guard)} is false, "
                "and the others would wait for them forever",
                f"split so that {name} has work in each iteration",
            )
    axes = stage.op.axes if isinstance(stage.op, ComputeOp) else ()
    for axis, box in zip(axes, bounds[stage.name].region, strict=True):
        if axis is not across.part and program in axes_of(box.min, box.extent):
            return Problem(
                f"the programs of {name} do not read the same elements of {stage.name} along "
                f"{axis.name}: {print_expr(box.min)} depends on {name}, and so does who stores it",
                f"name a loop of the grid that {host.name} does not index them by",
            )
    missing = [
        axis for axis in grid_loops(host)
        if axis is not program and constant(own.extents[axis]) != 1
        and all(axis not in axes_of(box.min) for box in bounds[stage.name].region)
    ]  # fmt: skip
    if missing:
        return Problem(
            f"programs of {known[missing[0]]} that do not wait for each other store the same "
            f"elements of {stage.name}",
            f"attach {stage.name} where it depends on {known[missing[0]]}",
        )
    return None
