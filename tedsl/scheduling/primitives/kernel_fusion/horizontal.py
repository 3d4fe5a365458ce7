"""Which stages may run together: neither reads the other, and shared loops are the same loops.

Asked of the plan as it would be after a call, for all stages that run together, so that no
primitive can make another's loops differ.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tedsl.errors import ScheduleError
from tedsl.expr.index_arith import same_width
from tedsl.expr.nodes import Axis, AxisKind, Compare, CompareOp, Expr
from tedsl.index.facts import Facts
from tedsl.index.prove import counterexample, equal
from tedsl.ir.nodes import LoopKind
from tedsl.once import once
from tedsl.scheduling.invariants.affected import changed
from tedsl.scheduling.kernels.tree import (
    computed_in,
    depth,
    followers,
    guests,
    in_order,
    is_in_circle,
    levels,
    root_of,
    shared_loops,
    sharing,
)
from tedsl.scheduling.plan import At, Online, Own, Plan, SameGrid, SharedLoops, StagePlan
from tedsl.scheduling.plan.graph import path_between
from tedsl.scheduling.plan.labels import axis_text, labels, loops_text
from tedsl.scheduling.plan.links import (
    follower_names,
    in_plan_order,
    places,
    tensors_read,
)
from tedsl.scheduling.plan.relations import constant, ranks
from tedsl.scheduling.plan.scan_structure import role, scan_of
from tedsl.scheduling.plan.unshare_axes import own_nests
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.loops.legality import PLAIN, mark_text
from tedsl.scheduling.primitives.stage_facts import Problem, first_fold, place_text
from tedsl.scheduling.regions.infer import Bounds, infer_again
from tedsl.scheduling.regions.loop_bounds import pass_down
from tedsl.tensor.tensor import ComputeOp, Operation, ScanOp


@lru_cache(maxsize=4)
def join_problem(plan: Plan, before: Plan | None = None) -> tuple[StagePlan, Problem] | None:
    """The first stage that may not run together with its leader, and why, as far as the loops say.

    `extent_problem` is asked when every stage is at a legal place.

    Args:
        plan: what is judged.
        before: a plan in which all stages that run together may do so: groups of which nothing
            differs are not judged again.
    """
    again = None if before is None else _changed_groups(before, plan)
    joined = [
        (stage, plan.stage(stage.placement.leader))
        for stage in _joined(plan, None if again is None else again.leaders)
    ]
    differing = [
        (stage, leader)
        for stage, leader in joined
        if again is None or stage.name in again or leader.name in again
    ]
    for stage, leader in differing:
        problem = leader_problem(plan, stage, leader)
        if problem is not None:
            return stage, problem
    found = _group_problem(plan, joined)
    if found is not None:
        return found
    for stage, leader in differing:
        problem = _loop_problem(plan, stage, leader)
        if problem is not None:
            return stage, problem
    return None


def require_no_followers(
    plan: Plan, call: Call, stage: StagePlan, leader: StagePlan, axis: Axis | None
) -> None:
    """A stage whose loops others share is no part of another group."""
    others = followers(plan, stage)
    if not others:
        return
    names = ", ".join(each.name for each in others)
    near = sharing(plan, stage)
    if axis is not None or not (near and sharing(plan, leader)):
        raise call.refuse(
            plan,
            f"{names} already run together with {stage.name}",
            hint=f"name {stage.name} as the leader: s[{leader.name}].compute_with(s[{stage.name}], "
            "...)",
        )
    found = [each.name for each in near]
    alone = "; ".join(
        f"s[{name}].compute_root(), s[{name}].compute_with(s[{leader.name}])" for name in found
    )
    raise call.refuse(
        plan,
        f"{', '.join(found)} shares the loops of {stage.name}, and only the leader of a grid may "
        f"have such stages: here {leader.name}",
        hint=f"let each be a part of the grid by itself ({alone}, then {stage.name} likewise), or "
        "define them as results of one te.compute",
    )


def extent_problem(
    plan: Plan, called: str = "", before: Plan | None = None
) -> tuple[StagePlan, Problem] | None:
    """The first stage whose shared loops are not as long as the leader's; a circle of groups is the
    problem of the stage `called`, or of another.  `before` as for `join_problem`."""
    if not follower_names(plan):
        return None
    again = None if before is None else _changed_groups(before, plan)
    if again is None or not _at_root(plan):
        near = _joined(plan)
    else:
        # Loops at root are as long as their own definitions and relations say.
        near = _joined(plan, again.kernels)
        again = replace(again, kernels=again.stages)
    sharing = [
        stage
        for stage in near
        if isinstance(stage.placement, SharedLoops)
        if again is None or again.may_differ(plan, stage)
        if not _same_lengths(plan, stage)
    ]
    if sharing:
        shown = own_nests(plan)
        bounds = infer_again(shown, _in_kernels_of(shown, sharing))
        for stage in sharing:
            problem = _extent_problem(plan, stage, shown, bounds)
            if problem is not None:
                return stage, problem
    if _in_order_still(plan, again):
        return None
    joined = _joined(plan)
    closing = next((stage for stage in joined if stage.name == called), joined[-1])
    return closing, _cycle(closing)


def _joined(plan: Plan, leaders: Collection[str] | None = None) -> list[StagePlan]:
    """The stages that run together with a leader, or with one of `leaders`, in plan order."""
    groups = follower_names(plan)
    names = groups if leaders is None else (name for name in leaders if name in groups)
    return in_plan_order(plan, (each for name in names for each in groups[name]))


def _at_root(plan: Plan) -> bool:
    """True when all stages that run together with a leader do so at root."""
    followers = (name for names in follower_names(plan).values() for name in names)
    return not any(plan.stage(name).placement.host for name in followers)


def _in_order_still(plan: Plan, again: _Groups | None) -> bool:
    """Whether the groups of every level can run one after the other; with `again`, if they could
    before: a circle goes through a group of which something differs."""
    if again is None or not _at_root(plan):
        return ordered(plan)
    return again.same_order or not any(
        is_in_circle(plan, plan.stage(name)) for name in sorted(again.stages) if name
    )


def _same_lengths(plan: Plan, stage: StagePlan) -> bool:
    """True when the shared loops of a stage at root are as long as the leader's: constants."""
    leader = plan.stage(stage.placement.leader)
    if not stage.placement.at_root or not leader.placement.at_root:
        return False
    own, theirs = _lengths(stage), _lengths(leader)
    sizes = [(constant(own[a]), constant(theirs[b])) for a, b in shared_loops(plan, stage).items()]
    return all(mine is not None and mine == other for mine, other in sizes)


@once
def _lengths(stage: StagePlan) -> Mapping[Axis, Expr]:
    """How long the loops of a stage run that computes all of its definition."""
    known = {a: a.domain.extent for a in stage.root_axes if a.domain is not None}
    for relation in stage.relations:
        pass_down(relation, known, Facts())
    return known


def leader_problem(plan: Plan, stage: StagePlan, leader: StagePlan) -> Problem | None:
    if leader.name == stage.name:
        return Problem(f"{stage.name} is the stage itself", "name another stage")
    if not isinstance(leader.op, ComputeOp) or leader.placement.inlined:
        what = "an input" if not isinstance(leader.op, ComputeOp) else "inlined"
        return Problem(f"{leader.name} is {what} and has no loops", "name a stage that has loops")
    for each in (stage, leader):
        scan = scan_of(plan, each.op)
        if scan is not None or isinstance(each.op, ScanOp) or role(plan, each.op) is not None:
            what = "a scan" if isinstance(each.op, ScanOp) else "a part of a scan"
            return Problem(
                f"{each.name} is {what}, whose steps have an order of their own",
                "name stages outside scans",
            )
    if leader.placement.leader:
        other = leader.placement.leader
        if isinstance(leader.placement, SameGrid) and isinstance(stage.placement, SharedLoops):
            return Problem(
                f"{leader.name} is a part of the grid of {other}, and such a part is one stage: "
                "none shares its loops",
                f"let {stage.name} be a part by itself, s[{stage.name}].compute_with(s[{other}]), "
                f"or define {stage.name} and {leader.name} as results of one te.compute",
            )
        return Problem(
            f"{leader.name} itself runs together with {other}", f"name {other}, whose loops run"
        )
    if not _same_place(stage, leader):
        return Problem(
            f"{stage.name} is {place_text(stage)} and {leader.name} is {place_text(leader)}",
            "compute both at root, or at one loop of one stage",
        )
    place = stage.placement
    if isinstance(place, SharedLoops) and place.down_to not in ranks(leader.leaf_axes):
        return Problem(
            f"{leader.name} has no loop any more that {stage.name} shares",
            f"call s[{stage.name}].compute_root() or compute_at before changing the loops of "
            f"{leader.name}, and compute_with after",
        )
    return None


def _same_place(a: StagePlan, b: StagePlan) -> bool:
    """True when both are at root, or at one loop (axes are compared as objects)."""
    return a.placement.at_root is b.placement.at_root and a.placement.axis is b.placement.axis


def _group_problem(
    plan: Plan, joined: Sequence[tuple[StagePlan, StagePlan]]
) -> tuple[StagePlan, Problem] | None:
    """A stage of a group that needs the result of another of it (of a leader or of a follower)."""
    groups: dict[str, dict[str, StagePlan]] = {}
    for stage, leader in joined:
        groups.setdefault(leader.name, {leader.name: leader})[stage.name] = stage
    for members in groups.values():
        way = _way_between(plan, members)
        if way is not None:
            start, end = way
            path = path_between(plan, start, end)
            reads = ", which reads ".join(reversed(path[:-1]))
            # One of the two follows; what goes along with a stage is where that stage is.
            host = members.get(start.name) or members.get(start.placement.host, end)
            return end if end.placement.leader else host, Problem(
                f"{end.name} reads {reads}: the one needs the other finished",
                f"compute {path[0]} inside {path[1]} with compute_at",
            )
    return None


def _way_between(
    plan: Plan, members: Mapping[str, StagePlan]
) -> tuple[StagePlan, StagePlan] | None:
    """Two of `members`, of which the second needs the first (or what goes along with it)."""
    for guest in (guest for member in members.values() for guest in guests(plan, member)):
        if not isinstance(guest.placement, Online):
            continue
        for end in members.values():
            if end.name != guest.placement.host and path_between(plan, guest, end):
                return guest, end
    needs: dict[Operation, StagePlan] = {}
    numbers = sorted(places(plan).by_name[name] for name in members)
    for stage in plan.stages[numbers[0] : numbers[-1] + 1]:
        below = (needs.get(tensor.op) for tensor in tensors_read(stage.op))
        start = next((each for each in below if each is not None), None)
        if stage.name in members:
            if start is not None:
                return start, stage
            needs[stage.op] = stage
        elif start is not None:
            needs[stage.op] = start
    return None


def _loop_problem(plan: Plan, stage: StagePlan, leader: StagePlan) -> Problem | None:
    """The loops correspond, and running them as the leader does is no race."""
    count = depth(plan, stage)
    if count == 0:
        return None
    mine, theirs = stage.loop_order, leader.loop_order
    own, known = labels(stage), labels(leader)
    loops = f"{leader.name} {loops_text(leader)}, {stage.name} {loops_text(stage)}"
    if len(mine) < count:
        return Problem(
            f"{stage.name} has {len(mine)} loops, {count} are to be shared ({loops})",
            "name an outer loop",
        )
    for axis, run in zip(mine[:count], theirs[:count], strict=True):
        mark = leader.mark(run)
        if LoopKind.VECTORIZED in (mark.kind, stage.mark(axis).kind):
            lane = known[run] if mark.kind is LoopKind.VECTORIZED else own[axis]
            return Problem(
                f"{lane} is vectorized, and lanes are inside all loops",
                "name a loop outside it: each stage keeps lanes of its own",
            )
        if stage.mark(axis) != PLAIN:
            return Problem(
                f"{stage.name}.{own[axis]} is run by {leader.name}, and how is said there",
                f"call it for {known[run]} of s[{leader.name}]",
            )
        if axis.kind is AxisKind.REDUCE and mark.descending and mark.kind is not LoopKind.PROGRAM:
            return Problem(
                f"{known[run]} of {leader.name} is {mark_text(mark)}, and {stage.name} folds over "
                f"{own[axis]} in its order",
                f"name a loop outside it, or undo the mark with s[{leader.name}].serial",
            )
        if axis.kind is AxisKind.REDUCE and mark.kind in (LoopKind.PARALLEL, LoopKind.PROGRAM):
            return Problem(
                f"{known[run]} of {leader.name} is {mark_text(mark)}, and its iterations would "
                f"write the same elements of {stage.name}, which reduces over {own[axis]}",
                f"name a loop outside it, or undo the mark with s[{leader.name}].serial",
            )
        if guests(plan, stage, axis):
            return Problem(
                f"{guests(plan, stage, axis)[0].name} is attached at {stage.name}.{own[axis]}, "
                f"which {leader.name} runs",
                f"attach it at {known[run]} of {leader.name}",
            )
    deeper = [a for a in theirs[count:] if leader.mark(a).kind is LoopKind.PROGRAM]
    deeper += [a for a in mine[count:] if stage.mark(a).kind is LoopKind.PROGRAM]
    if deeper:
        return Problem(
            f"{deeper[0].name} is bound to the grid inside the shared loops: nothing runs between "
            "the loops of the grid",
            "share the loops down to the innermost that is bound, or undo the binding",
        )
    return _online_problem(plan, stage, leader, count)


def _online_problem(plan: Plan, stage: StagePlan, leader: StagePlan, count: int) -> Problem | None:
    for each in (stage, leader):
        if first_fold(each) < count and any(
            isinstance(g.placement, Online) for g in guests(plan, each)
        ):
            return Problem(
                f"other stages go along with the reduction {each.name}, whose loop would be shared",
                "name a loop outside the reduction",
            )
    return None


def _in_kernels_of(plan: Plan, joined: Sequence[StagePlan]) -> frozenset[str]:
    """The stages of all kernels that some stages and their leaders are in."""
    names = {name for stage in joined for name in (stage.name, stage.placement.leader)}
    kernels = {root_of(plan, plan.stage(name)).name for name in names}
    return computed_in(plan, kernels)


def _extent_problem(plan: Plan, stage: StagePlan, shown: Plan, bounds: Bounds) -> Problem | None:
    """Shared loops have the same number of iterations, whatever the sizes; `shown` is the plan as
    it is lowered, with its bounds."""
    own, leader = shown.stage(stage.name), shown.stage(stage.placement.leader)
    facts = bounds[own.name].facts
    pairs = shared_loops(shown, own)
    for place, (axis, run) in enumerate(pairs.items()):
        mine, theirs = bounds[own.name].extents[axis], bounds[leader.name].extents[run]
        if equal(mine, theirs, facts):
            continue
        point = counterexample(Compare(CompareOp.EQ, *same_width(mine, theirs)), facts)
        sizes = ", ".join(f"{v.name} = {n}" for v, n in (point or {}).items())
        first, second = labels(stage)[stage.loop_order[place]], _label(plan, leader.name, place)
        return Problem(
            f"{leader.name}.{second} has {theirs} iterations and {stage.name}.{first} has {mine}"
            + (f" (for {sizes})" if sizes else ""),
            "split both alike, name an outer loop, or give no axis: then both run in one grid",
        )
    return None


def _label(plan: Plan, name: str, place: int) -> str:
    stage = plan.stage(name)
    return labels(stage)[stage.loop_order[place]]


@dataclass(frozen=True, slots=True)
class _Groups:
    """Of which groups of stages that run together something differs from an earlier plan.

    `stages` are those that differ and those around them, `leaders` the leaders of groups that they
    lead or belong to, and `kernels` those in whose kernels they are; with `same_order` no stage
    reads others or is in another group than before, or at another place but in the loops of its
    readers.
    """

    stages: frozenset[str]
    leaders: frozenset[str]
    kernels: frozenset[str]
    same_order: bool

    def __contains__(self, name: str) -> bool:
        return name in self.stages

    def may_differ(self, plan: Plan, stage: StagePlan) -> bool:
        """True when loops that a stage shares may have other lengths than before."""
        return (
            stage.name in self.kernels
            or stage.placement.leader in self.kernels
            or not (stage.placement.at_root or self.kernels.isdisjoint(_kernels(plan, stage)))
        )


@lru_cache(maxsize=4)
def _changed_groups(before: Plan, after: Plan) -> _Groups | None:
    """What of groups differs; None when stages read others than before: all are judged then."""
    found = changed(before, after)
    if found is None or found[1] or len(before.stages) != len(after.stages):
        return None
    stages, kernels = set[str](), set[str]()
    same, followed = True, follower_names(before)
    for number in found[0]:
        name = after.stage_at(number).name
        for plan in (before, after):
            stage = plan.stage(name)
            kernels |= _kernels(plan, stage)
            stages |= {name, stage.placement.host}
        old, new = before.stage(name).placement, after.stage(name).placement
        # What goes into the loops of all that read it needs nothing that was not needed there.
        inside = isinstance(old, Own) and isinstance(new, At) and name not in followed
        same = same and (old is new or inside)
    leaders = {*stages, *kernels}
    return _Groups(frozenset(stages), frozenset(leaders), frozenset(kernels), same)


def _kernels(plan: Plan, stage: StagePlan) -> set[str]:
    """The stages at root in whose loops or launches a stage is, whether it may be there or not."""
    found = {stage.name}
    waiting = [stage]
    while waiting:
        each = waiting.pop()
        place = each.placement
        for name in (place.host, place.leader, place.of):
            if name and name not in found:
                found.add(name)
                waiting.append(plan.stage(name))
    return found


@lru_cache(maxsize=4)
def ordered(plan: Plan) -> bool:
    """Whether the groups of every level can run one after the other."""
    shown = own_nests(plan)
    return all(in_order(shown, level) is not None for level in levels(shown))


def _cycle(stage: StagePlan) -> Problem:
    return Problem(
        f"another group reads a result of {stage.name} or {stage.placement.leader} and is read "
        "by the other of them, so neither can run first",
        "split one of the groups",
    )


def together_problem(
    plan: Plan, before: Plan | None = None, called: str = ""
) -> tuple[StagePlan, Problem] | None:
    """The first stage that may not run together with its leader, and why.  Requires: legal
    places."""
    return join_problem(plan, before) or extent_problem(plan, called, before)


def refuse_join(
    before: Plan, call: Call, after: Plan, stage: StagePlan, problem: Problem
) -> ScheduleError:
    """The error for a call after which `stage` could not run with its leader."""
    leader = stage.placement.leader
    facts = [
        ("loops", f"{leader} {loops_text(after.stage(leader))}; {stage.name} {loops_text(stage)}")
    ]
    if call.primitive == "compute_with" and call.stage == stage.name:
        return call.refuse(before, problem.reason, facts=facts, hint=problem.hint)
    place = stage.placement
    shared = isinstance(place, SharedLoops)
    where = f" down to {axis_text(before, place.down_to)}" if shared else ""
    return call.refuse(
        before,
        f"{stage.name} runs together with {leader}{where}: {problem.reason}",
        facts=facts,
        hint=f"first call s[{stage.name}].compute_root() or compute_at, and compute_with again "
        "afterwards",
    )
