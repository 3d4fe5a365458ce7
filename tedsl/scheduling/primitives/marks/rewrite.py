"""How a loop runs: bind, vectorize, unroll, parallel, pipeline, reverse, serial, dot."""

from __future__ import annotations

from dataclasses import replace

from tedsl.expr.nodes import Axis, AxisKind
from tedsl.ir.nodes import LoopKind, Precision, Products
from tedsl.scheduling.handles.thread_axis import GRID, LANES, VIRTUAL, ThreadAxis
from tedsl.scheduling.invariants.lane_counts import lanes_there, require_constant_lanes
from tedsl.scheduling.plan import Mark, Plan, StagePlan
from tedsl.scheduling.plan.graph import is_output
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.relations import constant, extents, fixed_extent, ranks
from tedsl.scheduling.plan.thread_loops import settled
from tedsl.scheduling.primitives.arguments import (
    MOST_STAGES,
    choice,
    leaf,
    looped_stage,
    positive,
)
from tedsl.scheduling.primitives.call import Call, kind_of
from tedsl.scheduling.primitives.loops.legality import (
    PLAIN,
    mark_text,
    require_any_order,
    require_data_parallel,
    require_forwards,
    require_lanes,
    require_one_loop_of_the_grid,
    require_own_kernel,
    require_plain_kind,
)
from tedsl.scheduling.primitives.placement.legality import require_places
from tedsl.scheduling.primitives.scans.legality import require_no_steps


def marked(plan: Plan, stage: StagePlan, axis: Axis, mark: Mark) -> Plan:
    """The plan with `axis` of `stage` run as `mark` says."""
    marks = {**stage.marks, axis: mark}
    if mark == PLAIN:
        del marks[axis]
    ordered = {leaf_axis: marks[leaf_axis] for leaf_axis in stage.leaf_axes if leaf_axis in marks}
    return plan.with_stage(replace(stage, marks=ordered))


def _loop(plan: Plan, call: Call, axis: object) -> tuple[StagePlan, Axis]:
    """The stage and its loop, with no way of running chosen yet."""
    stage = looped_stage(plan, call, call.stage)
    found = leaf(plan, call, stage, axis)
    require_plain_kind(plan, call, stage, found)
    return stage, found


def bind(plan: Plan, call: Call, axis: object, thread: object, descending: object = False) -> Plan:
    """A loop becomes a dimension of the grid, or lanes of the tile a program holds."""
    tag = thread.tag if isinstance(thread, ThreadAxis) else thread
    stage, loop = _loop(plan, call, axis)
    name = choice(plan, call, "thread", tag, (*GRID, *LANES, *VIRTUAL))
    if isinstance(thread, ThreadAxis) and thread.extent is not None:
        have = lanes_there(plan, stage, loop)
        unplaced = stage.placement.at_root and not is_output(plan, stage.op)
        if have != thread.extent and not (unplaced and fixed_extent(stage, loop) is None):
            label = labels(stage)[loop]
            raise call.refuse(
                plan,
                f"{label} has the extent {'known at the call' if have is None else have}, "
                f"{name} was declared with {thread.extent}",
                axis=loop,
                hint=f"split {label} by {thread.extent} and bind the inner loop, "
                f"or declare te.thread_axis({name!r}) without an extent",
            )
    if descending and name not in GRID:
        raise call.refuse(
            plan,
            f"{name} is no dimension of the grid, whose programs start one after another",
            axis=loop,
            hint="leave descending= out, or bind the loop to blockIdx.x",
        )
    if name not in GRID:
        return _vectorized(plan, call, stage, loop, name)
    require_no_steps(plan, call, stage, loop, "run in different programs")
    require_data_parallel(plan, call, stage, loop, "in different programs")
    if stage.mark(loop).descending:
        name = labels(stage)[loop]
        raise call.refuse(
            plan,
            f"{name} is backwards, and programs start in an order that is said here",
            axis=loop,
            hint=f"call s[{stage.name}].serial({name}) first, and give descending=True",
        )
    require_own_kernel(plan, call, stage, "its loops cannot be bound to the grid")
    program = GRID.index(name)
    own = stage.mark(loop)
    mark = replace(own, kind=LoopKind.PROGRAM, program=program, descending=bool(descending))
    require_one_loop_of_the_grid(plan, call, stage, loop, program)
    after = settled(marked(plan, stage, loop, mark), stage.name)
    require_places(plan, call, after)
    return after


def vectorize(plan: Plan, call: Call, axis: object) -> Plan:
    """A loop becomes lanes of the tile a program holds (SIMD lanes on the CPU)."""
    if _is_so(plan, call, axis, Mark(LoopKind.VECTORIZED)):
        return plan
    stage, loop = _loop(plan, call, axis)
    return _vectorized(plan, call, stage, loop)


def _is_so(plan: Plan, call: Call, axis: object, mark: Mark) -> bool:
    """True for a loop of which just this was said before: once more changes nothing."""
    stage = looped_stage(plan, call, call.stage)
    return stage.mark(leaf(plan, call, stage, axis)) == mark


def _vectorized(plan: Plan, call: Call, stage: StagePlan, loop: Axis, thread: str = "") -> Plan:
    require_no_steps(plan, call, stage, loop, "be lanes of a tile")
    require_constant_lanes(plan, call, plan, stage, loop)
    require_forwards(plan, call, stage, loop, "run at once, as lanes of a tile")
    require_lanes(plan, call, stage, loop)
    mark = replace(stage.mark(loop), kind=LoopKind.VECTORIZED, thread=thread)
    after = settled(marked(plan, stage, loop, mark), stage.name)
    require_places(plan, call, after)
    return after


def unroll(plan: Plan, call: Call, axis: object) -> Plan:
    """A loop is written out."""
    if _is_so(plan, call, axis, Mark(LoopKind.UNROLLED)):
        return plan
    stage, loop = _loop(plan, call, axis)
    mark = replace(stage.mark(loop), kind=LoopKind.UNROLLED)
    return marked(plan, stage, loop, mark)


def parallel(plan: Plan, call: Call, axis: object) -> Plan:
    """Iterations of a loop run on different threads."""
    if _is_so(plan, call, axis, Mark(LoopKind.PARALLEL)):
        return plan
    stage, loop = _loop(plan, call, axis)
    require_no_steps(plan, call, stage, loop, "run on different threads")
    require_data_parallel(plan, call, stage, loop, "on different threads")
    require_forwards(plan, call, stage, loop, "run on different threads")
    mark = replace(stage.mark(loop), kind=LoopKind.PARALLEL)
    return marked(plan, stage, loop, mark)


def atomic(plan: Plan, call: Call) -> Plan:
    """Reduce loops of a stage may run at the same time; `require_atomics` says if they can."""
    return plan.with_stage(replace(looped_stage(plan, call, call.stage), atomic=True))


def pipeline(plan: Plan, call: Call, axis: object, num_stages: object, flatten: object) -> Plan:
    """Loads of later iterations of a serial loop start while earlier ones compute."""
    stage, loop = _loop(plan, call, axis)
    require_no_steps(plan, call, stage, loop, "load what the steps before have not stored")
    count = positive(plan, call, "num_stages", num_stages, most=MOST_STAGES)
    mark = replace(stage.mark(loop), num_stages=count, flatten=bool(flatten))
    return marked(plan, stage, loop, mark)


def reverse(plan: Plan, call: Call, axis: object) -> Plan:
    """A loop runs from its last iteration to its first."""
    stage = looped_stage(plan, call, call.stage)
    loop = leaf(plan, call, stage, axis)
    mark = stage.mark(loop)
    name = labels(stage)[loop]
    if mark.kind not in (LoopKind.SERIAL, LoopKind.UNROLLED):
        grid = mark.kind is LoopKind.PROGRAM
        raise call.refuse(
            plan,
            f"{name} is {mark_text(mark)}, and its iterations run at once",
            axis=loop,
            hint=f"call s[{stage.name}].serial({name}), then bind it with descending=True"
            if grid
            else f"undo it with s[{stage.name}].serial({name}) first",
        )
    if mark.descending:
        raise call.refuse(
            plan,
            f"{name} is already {mark_text(mark)}",
            axis=loop,
            hint=f"undo it with s[{stage.name}].serial({name}) first",
        )
    require_no_steps(plan, call, stage, loop, "run backwards")
    require_any_order(plan, call, stage, loop)
    return marked(plan, stage, loop, replace(mark, descending=True))


def serial(plan: Plan, call: Call, axis: object) -> Plan:
    """A plain loop again; of a tensorized one, all loops of its intrinsic."""
    stage = looped_stage(plan, call, call.stage)
    loop = leaf(plan, call, stage, axis)
    together = stage.mark(loop).tensorized is not None
    after = marked(plan, stage, loop, PLAIN)
    for other in stage.leaf_axes if together else ():
        if stage.mark(other).tensorized is not None:
            after = marked(after, after.stage(stage.name), other, PLAIN)
    return settled(after, stage.name)


def dot(
    plan: Plan, call: Call, axis: object, precision: object, use: object, finite: object
) -> Plan:
    """How the products over a reduce axis are multiplied where they become a matrix product."""
    stage = looped_stage(plan, call, call.stage)
    loop = leaf(plan, call, stage, axis)
    if loop.kind is not AxisKind.REDUCE:
        raise call.refuse(
            plan,
            f"{labels(stage)[loop]} is a data axis; the precision is that of a sum of products",
            axis=loop,
            hint=f"name a reduce axis of {stage.name}",
        )
    chosen = Precision(choice(plan, call, "precision", precision, tuple(Precision)))
    for name, given in (("use", use), ("finite", finite)):
        if not isinstance(given, bool):
            raise call.refuse(
                plan,
                f"{name} is {kind_of(given)}",
                axis=loop,
                facts=[("allowed", "True, False")],
                hint=f"give True or False as {name}",
            )
    products = Products(chosen, use is True, finite is True)
    return marked(plan, stage, loop, replace(stage.mark(loop), products=products))


SILENT_PRAGMAS = (
    "unroll_explicit",
    "parallel_launch_point",
    "parallel_barrier_when_finish",
    "parallel_stride_pattern",
)


CHANGING_PRAGMAS = {"unroll": unroll, "vectorize": vectorize, "parallel": parallel}
PRAGMAS = (*CHANGING_PRAGMAS, "auto_unroll_max_step", *SILENT_PRAGMAS)


def pragma(plan: Plan, call: Call, axis: object, pragma_type: object, value: object) -> Plan:
    """A primitive under TVM's name for it, or nothing where TVM's remark has no meaning here."""
    others = ", or none: code of others comes by te.decl_tensor_intrin and tensorize"
    kind = choice(plan, call, "pragma", pragma_type, PRAGMAS, others)
    if kind in CHANGING_PRAGMAS:
        return CHANGING_PRAGMAS[kind](plan, call, axis)
    stage = looped_stage(plan, call, call.stage)
    loop = leaf(plan, call, stage, axis)
    if kind in SILENT_PRAGMAS:
        return plan
    steps = positive(plan, call, "pragma_value", value, least=0)
    return _unrolled_up_to(plan, call, stage, loop, steps)


def _unrolled_up_to(plan: Plan, call: Call, stage: StagePlan, loop: Axis, steps: int) -> Plan:
    """Plain loops from the innermost out to `loop`, while all together have at most `steps`."""
    order = stage.loop_order
    sizes = extents(stage)
    total = 1
    for axis in reversed(order[ranks(order)[loop] :]):
        mark = stage.mark(axis)
        if mark.kind is LoopKind.VECTORIZED:
            continue
        extent = constant(sizes[axis])
        total *= steps + 1 if extent is None else max(extent, 1)
        if total > steps or mark != PLAIN:
            break
        plan = unroll(plan, call, axis)
    return plan
