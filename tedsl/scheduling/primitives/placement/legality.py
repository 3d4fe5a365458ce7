"""Where a stage may be computed.

A stage at a loop of another is legal when that loop encloses every reader, is not (inside) a
vectorized loop and not between the loops of the grid.  The rule is asked of the plan as it would be
after a call, for every attached stage, so that no primitive can make the place of another stage
illegal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

from tedsl.errors import Fact, ScheduleError
from tedsl.expr.nodes import Axis, AxisKind
from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.invariants.affected import affected
from tedsl.scheduling.invariants.lane_counts import all_lanes_constant, has_runtime_sizes
from tedsl.scheduling.invariants.table import all_hold
from tedsl.scheduling.kernels.tree import (
    exported,
    guests,
    has_own_launch,
    hosts,
    root_of,
    shared_loops,
)
from tedsl.scheduling.plan import At, Inlined, Online, Plan, StagePlan
from tedsl.scheduling.plan.graph import (
    extern_readers,
    finish_readers,
    is_output,
    is_reduction,
    loop_readers,
    whole_of,
)
from tedsl.scheduling.plan.inline import too_large
from tedsl.scheduling.plan.labels import axis_text, labels, loops_text
from tedsl.scheduling.plan.links import places, tensors_of_init
from tedsl.scheduling.plan.relations import ranks
from tedsl.scheduling.plan.scan_structure import role, scan_stages
from tedsl.scheduling.plan.thread_loops import attached, is_unplaced
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.marks.atomic import inside_problem
from tedsl.scheduling.primitives.scans.legality import scan_problem
from tedsl.scheduling.primitives.stage_facts import Problem, first_fold
from tedsl.scheduling.regions.infer import has_circle
from tedsl.tensor.tensor import ComputeOp, ExternOp, ScanOp


def nest(plan: Plan, stage: StagePlan) -> dict[str, Axis] | None:
    """The loops of other stages around `stage`: stage name -> innermost enclosing axis.  None for a
    cycle.
    """
    around: dict[str, Axis] = {}
    for host, axis in hosts(plan, stage):
        if host.name in around or host.name == stage.name:
            return None
        around[host.name] = axis
    return around


def _is_inside_itself(plan: Plan, stage: StagePlan) -> bool:
    return nest(plan, stage) is None and any(
        host is stage for host, _ in islice(hosts(plan, stage), len(plan.stages))
    )


def place_problem(plan: Plan, stage: StagePlan) -> Problem | None:
    """What is wrong with the place where `stage` is attached; None when it is legal."""
    axis = stage.placement.axis
    if axis is not None and nest(plan, stage) is None:
        host = stage.placement.host
        return Problem(
            f"{host} is itself computed inside {stage.name}",
            f"first move {host} out of {stage.name}",
        )
    own = scan_problem(plan, stage) or inside_problem(stage)
    if own is not None:
        return Problem(*own)
    if axis is None:
        return None
    target = plan.stage(stage.placement.host)
    return (
        _target_problem(plan, stage, target, axis)
        or _kernel_problem(plan, stage)
        or (
            _online_problem(plan, stage, target, axis)
            if isinstance(stage.placement, Online)
            else None
        )
        or _reader_problem(plan, stage, target, axis)
    )


def _online_problem(plan: Plan, stage: StagePlan, target: StagePlan, axis: Axis) -> Problem | None:
    """What goes along with a reduction does so once: only serial reduce loops around the place."""
    known, order = labels(target), target.loop_order
    first = first_fold(target)
    for outer in order[first : ranks(order)[axis] + 1]:
        kind = target.mark(outer).kind
        if outer.kind is AxisKind.DATA:
            return Problem(
                f"the data loop {known[outer]} of {target.name} stands outside {known[axis]} and "
                f"inside a reduce loop: {stage.name} would be folded once for each of its values",
                f"reorder {known[outer]} inside {known[axis]}, or outside all reduce loops",
            )
        if kind not in (LoopKind.SERIAL, LoopKind.UNROLLED):
            return Problem(
                f"{target.name}.{known[outer]} is {kind.value}, and results of one iteration are "
                "repaired in the next",
                f"leave {known[outer]} serial; s.split_online runs parts in parallel",
            )
    for tensor in tensors_of_init(stage.op):
        if plan.stage_of(tensor.op).placement.axis is not None:
            return Problem(
                f"{stage.name} starts from {tensor.op.name}, which is computed in its own loops",
                f"leave {tensor.op.name} at root",
            )
    late = _readers_after(plan, stage, target)
    kernel = root_of(plan, target)
    if target is not kernel and exported(plan, stage):
        return Problem(
            f"{stage.name} is also stored for the caller or for other kernels, and {target.name} "
            "computes only what is read of it where it is attached",
            f"leave {target.name} at root",
        )
    place = {each.name: n for n, each in enumerate(plan.stages)}
    for reader in late:
        root = root_of(plan, reader)
        first = reader if root is kernel else root
        if place[first.name] < place[target.name]:
            return Problem(
                f"{reader.name} reads {stage.name} and runs before {target.name} is complete",
                f"let {reader.name} read {target.name} too, or inline it",
            )
    return None


def _readers_after(plan: Plan, stage: StagePlan, target: StagePlan) -> list[StagePlan]:
    """The readers of an online stage outside the loop that it goes along with."""
    rank = ranks(target.loop_order)

    def inside(reader: StagePlan) -> bool:
        own = (nest(plan, reader) or {}).get(target.name)
        place = stage.placement.axis
        return own is not None and place is not None and rank[own] >= rank[place]

    return [r for r in loop_readers(plan, stage.op) if r.name != target.name and not inside(r)]


def _target_problem(plan: Plan, stage: StagePlan, target: StagePlan, axis: Axis) -> Problem | None:
    known = labels(target)
    if target.placement.inlined:
        return Problem(
            f"{target.name} is inlined and has no loops of its own",
            f"attach {stage.name} to a stage that reads {target.name}",
        )
    run = shared_loops(plan, target).get(axis)
    if run is not None:
        return Problem(
            f"{target.name}.{known[axis]} is run by {axis_text(plan, run)} (compute_with)",
            f"attach {stage.name} at {axis_text(plan, run)}",
        )
    if target.mark(axis).kind is LoopKind.VECTORIZED:
        return Problem(
            f"{target.name}.{known[axis]} is vectorized: its lanes run at once, "
            "nothing can be computed inside it",
            f"attach {stage.name} at a loop of {target.name} that is not vectorized",
        )
    at = ranks(target.loop_order)[axis]
    for inner in target.loop_order[at + 1 :]:
        if target.mark(inner).kind is LoopKind.PROGRAM:
            return Problem(
                f"{target.name}.{known[axis]} is outside {known[inner]}, which is bound to the "
                "grid: nothing runs between the loops of the grid",
                f"attach {stage.name} at {known[inner]} or at a loop inside it",
            )
    return None


def _kernel_problem(plan: Plan, stage: StagePlan) -> Problem | None:
    if has_own_launch(plan, stage):
        return None
    known = labels(stage)
    for axis in stage.leaf_axes:
        if stage.mark(axis).kind is LoopKind.PROGRAM:
            return Problem(
                f"{stage.name}.{known[axis]} is bound to the grid, "
                "and only a kernel of its own has a grid",
                f"undo it with s[{stage.name}].serial({known[axis]}) first",
            )
    kernel = stage.placement.kernel
    if kernel.said:
        return Problem(
            f"{stage.name} has {kernel.said}, and only a kernel of its own has them",
            f"call {kernel.primitive} on the stage that {stage.name} is computed in",
        )
    return None


def _reader_problem(plan: Plan, stage: StagePlan, target: StagePlan, axis: Axis) -> Problem | None:
    readers = loop_readers(plan, stage.op)
    rank = ranks(target.loop_order)
    at = rank[axis]
    where = f"{target.name}.{labels(target)[axis]}"

    def inside(reader: StagePlan) -> bool:
        if reader.name == target.name:
            return True
        around = nest(plan, reader)
        own = None if around is None else around.get(target.name)
        if own is not None:
            return rank[own] >= at
        if _in_shared_loop(plan, reader, around or {}, target, axis):
            return True
        elsewhere = root_of(plan, reader) is not root_of(plan, target)
        if stage.placement.program is not None:
            return elsewhere  # in memory, all of it: see `grid_barrier`
        return isinstance(stage.placement, Online) and (elsewhere or _beside(plan, reader, target))

    if not readers and not is_output(plan, stage.op) and role(plan, stage.op) is None:
        return Problem(
            f"nothing reads {stage.name}: what read it was rewritten, and now computes it itself",
            f"leave {stage.name} inlined",
        )
    outside = [reader for reader in readers if not inside(reader)]
    if outside and len(outside) == len(readers):
        who = ", ".join(reader.name for reader in outside)
        return Problem(
            f"nothing inside the loop {where} reads {stage.name}; it is read by {who}",
            f"attach {stage.name} at a loop of {outside[0].name}",
            outsiders=True,
        )
    if outside:
        name, also = outside[0].name, ", ".join(r.name for r in outside)
        op = outside[0].op
        simple = not is_reduction(op) and not is_output(plan, op) and op.num_outputs == 1
        inline = " or inline it," if simple else ""
        return Problem(
            f"{stage.name} is also read by {also}, which "
            f"{'runs' if len(outside) == 1 else 'run'} outside the loop {where}",
            f"leave {stage.name} at root, or first attach {name} inside {target.name}{inline} so "
            "that one loop encloses all readers",
            outsiders=True,
        )
    return _fold_problem(plan, stage, target, axis)


def _fold_problem(plan: Plan, stage: StagePlan, target: StagePlan, axis: Axis) -> Problem | None:
    """What a reduction starts from is read before its reduce loops, its `finish` after them."""
    at = ranks(target.loop_order)[axis]
    ends = () if isinstance(stage.placement, Online) else finish_readers(plan, stage.op)
    starts = loop_readers(plan, stage.op, starts=True)
    for word, when, readers in (("init", "before", starts), ("finish", "after", ends)):
        for reader in readers:
            if reader is not target and not _shares(plan, reader, target, axis):
                continue
            for outer in reader.loop_order[: at + 1]:
                if outer.kind is AxisKind.REDUCE:
                    return Problem(
                        f"the {word} of {reader.name} reads {stage.name} {when} the reduce loop "
                        f"{labels(reader)[outer]}, which encloses the attach point",
                        f"attach {stage.name} at a loop outside {labels(reader)[outer]}",
                    )
    return None


def _shares(plan: Plan, stage: StagePlan, leader: StagePlan, axis: Axis) -> bool:
    """True when `stage` runs in the loop `axis` of `leader`."""
    led = stage.placement.leader == leader.name
    return led and axis in frozenset(shared_loops(plan, stage).values())


def _in_shared_loop(
    plan: Plan, reader: StagePlan, around: Mapping[str, Axis], leader: StagePlan, axis: Axis
) -> bool:
    """True when `reader`, or a stage around it, runs in the loop `axis` of `leader`."""
    if _shares(plan, reader, leader, axis):
        return True
    for name, inner in around.items():
        host = plan.stage(name)
        if not _shares(plan, host, leader, axis):
            continue
        rank = ranks(host.loop_order)
        shared = shared_loops(plan, host)
        if any(run is axis and rank[inner] >= rank[own] for own, run in shared.items()):
            return True
    return False


def _beside(plan: Plan, reader: StagePlan, host: StagePlan) -> bool:
    """True when `reader` runs inside the loop that `host` is attached at."""
    if host.placement.axis is None:
        return False
    if reader.name == host.placement.host:
        return True
    outer = plan.stage(host.placement.host)
    own = (nest(plan, reader) or {}).get(outer.name)
    rank = ranks(outer.loop_order)
    return own is not None and rank[own] >= rank[host.placement.axis]


def first_problem(plan: Plan, before: Plan | None = None) -> tuple[StagePlan, Problem] | None:
    """The first attached stage whose place is illegal.

    Args:
        plan: what is judged.
        before: a plan whose places are all legal: what is the same there is not judged again.
    """
    fixed = bool(scan_stages(plan))  # what belongs to a scan may not even be at root anywhere
    again = None if before is None or fixed else affected(before, plan)
    judged = plan.stages if again is None else again
    # Before all others, which are judged by loops around their readers.
    inside_themselves = [stage for stage in judged if _is_inside_itself(plan, stage)]
    for stage in (*inside_themselves, *judged):
        if stage.placement.at_root and not fixed:
            continue
        problem = place_problem(plan, stage)
        if problem is not None:
            return stage, problem
    return None


def readers_text(plan: Plan, stage: StagePlan) -> str:
    """`C with loops [i, j, k]; D with loops [i, j] inside C.i`."""
    rows: list[str] = []
    for reader in loop_readers(plan, stage.op):
        place = reader.placement.axis
        inside = "" if place is None else f" at {axis_text(plan, place)}"
        if isinstance(reader.op, ExternOp):
            rows.append(f"the extern {reader.name}")
            continue
        rows.append(f"{reader.name}{inside} with loops {loops_text(reader)}")
    return "; ".join(rows)


def legal_attach_points(plan: Plan, name: str) -> tuple[tuple[str, Axis], ...]:
    """Every (stage, axis) at which the stage `name` may be attached now, readers in plan order,
    loops outer first.
    """
    stage = plan.stage(name)
    if not isinstance(stage.op, ComputeOp) or is_output(plan, stage.op):
        return ()
    if stage.placement.head or whole_of(plan, name) or isinstance(stage.placement, Online):
        return ()
    if extern_readers(plan, stage.op):
        return ()
    found: list[tuple[str, Axis]] = []
    fixed = not has_runtime_sizes(plan)
    for target in _around_readers(plan, stage):
        if target.name == name or target.placement.inlined or target.placement.head:
            continue
        for axis in target.leaf_axes:
            place = At(target.name, axis, kernel=stage.placement.kernel)
            moved = attached(plan, replace(stage, placement=place))
            if (
                place_problem(moved, moved.stage(name)) is None
                and first_problem(moved, plan) is None
                and all_hold(moved)
                and (fixed or all_lanes_constant(moved))
            ):
                found.append((target.name, axis))
    return tuple(found)


def _around_readers(plan: Plan, stage: StagePlan) -> tuple[StagePlan, ...]:
    """The stages in one of whose loops all readers of a stage may be, in plan order: those around
    a reader, the reader itself, and the leaders of all of them; a copy without a place is where its
    readers are."""
    readers = loop_readers(plan, stage.op)
    if not readers or scan_stages(plan):
        return plan.stages
    names: set[str] = set()
    waiting = [readers[0]]
    while waiting:
        each = waiting.pop()
        if each.name not in names:
            names.add(each.name)
            around = (each.placement.host, each.placement.leader)
            waiting += [plan.stage(other) for other in around if other]
            waiting += loop_readers(plan, each.op)[:1] if is_unplaced(plan, each) else ()
    numbers = places(plan).by_name
    return tuple(plan.stage_at(n) for n in sorted(numbers[each] for each in names))


def can_inline(plan: Plan, stage: StagePlan) -> bool:
    """True when `compute_inline` would be accepted."""
    return (
        isinstance(stage.op, ComputeOp)
        and not is_output(plan, stage.op)
        and not is_reduction(stage.op)
        and stage.op.num_outputs == 1
        and not guests(plan, stage)
        and not isinstance(stage.op, ScanOp)
        and role(plan, stage.op) is None
        and not extern_readers(plan, stage.op)
        and not stage.placement.head
        and whole_of(plan, stage.name) is None
        and too_large(plan.with_stage(replace(stage, placement=Inlined()))) is None
    )


def require_not_read_whole(plan: Plan, call: Call, stage: StagePlan) -> None:
    """No extern reads the stage: its function needs the whole tensor in memory, as defined."""
    outside = extern_readers(plan, stage.op)
    if outside:
        name = outside[0].name
        raise call.refuse(
            plan,
            f"the extern {name} reads {stage.name}, and its function takes it whole, from memory",
            facts=[("legal", "root"), ("readers", lambda: readers_text(plan, stage))],
            hint=f"leave {stage.name} as it is; for the other readers, s.cache_read({stage.name}, "
            '"global", readers) makes a stage of their own',
        )


def places_text(plan: Plan, name: str) -> str:
    """The legal places of a stage: `root, inline, C.i, C.j`."""
    inline = ["inline"] if can_inline(plan, plan.stage(name)) else []
    points = [axis_text(plan, axis) for _, axis in legal_attach_points(plan, name)]
    return ", ".join(["root", *inline, *points])


def require_places(before: Plan, call: Call, after: Plan) -> None:
    """After the call every attached stage must still be at a legal place."""
    found = first_problem(after, before)
    if found is None:
        return
    stage, problem = found
    raise _misplaced(before, call, after, stage, problem)


def _misplaced(
    before: Plan, call: Call, after: Plan, stage: StagePlan, problem: Problem
) -> ScheduleError:
    own = stage.name == call.stage
    facts: list[Fact] = []
    if problem.outsiders:
        facts.append(("readers", lambda: readers_text(after, stage)))
    if own and call.primitive == "compute_at":
        facts.append(("legal", lambda: places_text(before, stage.name)))
        return call.refuse(
            before, problem.reason, axis=stage.placement.axis, facts=facts, hint=problem.hint
        )
    place = stage.placement.axis
    if stage.placement.axis is None:
        return call.refuse(before, problem.reason, facts=facts, hint=problem.hint)
    where = "" if place is None else axis_text(after, place)
    if isinstance(stage.placement, Online):
        if call.primitive == "online":
            return call.refuse(before, problem.reason, axis=place, facts=facts, hint=problem.hint)
        return call.refuse(
            before,
            f"{stage.name} goes along with the loop {where} (online), and could no longer: "
            f"{problem.reason}",
            axis=place,
            facts=facts,
            hint=problem.hint,
        )
    facts.append(("legal", lambda: _places_after(after, stage.name)))
    return call.refuse(
        before,
        f"{stage.name} is attached at {where}, and would no longer be at a legal place: "
        f"{problem.reason}",
        axis=place,
        facts=facts,
        hint=f"first move {stage.name} (compute_root or compute_at another loop)",
    )


def _places_after(after: Plan, name: str) -> str:
    if has_circle(after):
        return "after the call: nowhere, as stages would wait for each other"
    return f"after the call: {places_text(after, name)}"
