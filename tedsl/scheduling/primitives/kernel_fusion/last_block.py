"""Which stages the last programs of another kernel may compute (`compute_last`): what a program of
theirs reads there is stored by the programs that it waits for, and by no other.

    leader  grid (g, p):  P[e] = ...        position of e in the loop g:  F(e)
    stage   grid (g):     S = f(P[r(g, x)])
    legal   F(r(g, x)) = g for all x        the programs (g, 0), (g, 1), ... store all that S reads

Asked of the plan as it would be after a call, for all such stages, so that no primitive can take
from them what they need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from tedsl.errors import ScheduleError
from tedsl.expr.index_arith import ZERO, less, same_width, sub
from tedsl.expr.nodes import Axis, Compare, CompareOp, Expr, TensorRead
from tedsl.expr.printer import print_expr
from tedsl.expr.visit import reads, substitute
from tedsl.index.prove import counterexample, equal, prove
from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.kernels.tree import (
    computed_in,
    depth,
    finishers,
    followers,
    grid_loops,
    group_of,
    guests,
    root_of,
    sharing,
)
from tedsl.scheduling.plan import Plan, SharedLoops, StagePlan
from tedsl.scheduling.plan.graph import path_between
from tedsl.scheduling.plan.labels import labels, loops_text
from tedsl.scheduling.plan.links import special
from tedsl.scheduling.plan.relations import constant, reached
from tedsl.scheduling.plan.scan_structure import role, scan_of
from tedsl.scheduling.plan.unshare_axes import own_nests
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.kernel_fusion.horizontal import ordered
from tedsl.scheduling.primitives.stage_facts import Problem, place_text
from tedsl.scheduling.regions.infer import Bounds, infer_again
from tedsl.tensor.tensor import ComputeOp, Operation, ScanOp

_GRID = (LoopKind.PARALLEL, LoopKind.PROGRAM)


def last_problem(
    plan: Plan, before: Plan | None = None, called: str = ""
) -> tuple[StagePlan, Problem] | None:
    """The first stage that the last programs of its leader may not compute, and why; a circle of
    kernels is the problem of the stage `called`, or of another."""
    last = (stage for stage in special(plan) if stage.placement.of)
    found = [(stage, plan.stage(stage.placement.of)) for stage in last]
    # What is known of each pair alone comes first: without it leaders may stand in a circle.
    alone = [
        (s, _stage_problem(plan, s) or _leader_problem(plan, s, leader)) for s, leader in found
    ]
    together = (
        (s, _grid_problem(plan, s, leader) or _way_problem(plan, s, leader)) for s, leader in found
    )
    for stage, problem in chain(alone, together):
        if problem is not None:
            return stage, problem
    if not found:
        return None
    shown = own_nests(plan)
    bounds = infer_again(shown, _in_kernels_of(shown, [stage.name for stage, _ in found]))
    for stage, leader in found:
        tiles = _Tiles(shown, bounds, shown.stage(stage.name), shown.stage(leader.name))
        problem = tiles.extent_problem() or tiles.read_problem()
        if problem is not None:
            return stage, problem
    if ordered(plan):
        return None
    closing, leader = next((pair for pair in found if pair[0].name == called), found[-1])
    return closing, Problem(
        f"a kernel in between reads a result of {leader.name} and is read by {closing.name}, or by "
        "what runs in that kernel: one launch can neither come before nor after it",
        f"leave {closing.name} a kernel of its own, or compute what is in between inside it",
    )


def refuse_last(
    before: Plan, call: Call, after: Plan, stage: StagePlan, problem: Problem
) -> ScheduleError:
    """The error for a call after which the last programs of its leader could not compute
    `stage`."""
    leader = after.stage(stage.placement.of)
    facts = [("loops", f"{leader.name} {loops_text(leader)}; {stage.name} {loops_text(stage)}")]
    if call.primitive == "compute_last" and call.stage == stage.name:
        return call.refuse(before, problem.reason, facts=facts, hint=problem.hint)
    return call.refuse(
        before,
        f"{stage.name} is computed by the last programs of {leader.name}: {problem.reason}",
        facts=facts,
        hint=f"first call s[{stage.name}].compute_root(), and compute_last again afterwards",
    )


def _stage_problem(plan: Plan, stage: StagePlan) -> Problem | None:
    name = stage.name
    if scan_of(plan, stage.op) or isinstance(stage.op, ScanOp) or role(plan, stage.op) is not None:
        return Problem(
            f"{name} belongs to a scan, whose steps have an order of their own",
            "name a stage outside scans",
        )
    others = followers(plan, stage)
    if others:
        return Problem(
            f"{name} runs together with {others[0].name}",
            f"give {name} a nest of its own (compute_root)",
        )
    if stage.atomic:
        return Problem(
            f"{name} is atomic: its start is stored by a kernel before it",
            "keep its reduce loops serial, or make lanes of them with vectorize",
        )
    return None


def _leader_problem(plan: Plan, stage: StagePlan, leader: StagePlan) -> Problem | None:
    name = leader.name
    if name == stage.name:
        return Problem(f"{name} is the stage itself", f"name a stage that {name} reads")
    if not isinstance(leader.op, ComputeOp) or not leader.placement.at_root:
        what = place_text(leader) if isinstance(leader.op, ComputeOp) else "no loop nest"
        return Problem(f"{name} is {what}, and has no programs", "name a stage at root")
    scan = scan_of(plan, leader.op) or isinstance(leader.op, ScanOp)
    if scan or role(plan, leader.op) is not None:
        return Problem(
            f"{name} belongs to a scan, whose steps are launched one by one", "name another stage"
        )
    if isinstance(leader.placement, SharedLoops):
        other = leader.placement.leader
        return Problem(f"{name} runs together with {other}", f"name {other}, whose loops run")
    if leader.placement.of:
        return Problem(
            f"{name} itself is computed by the last programs of {leader.placement.of}, which end "
            "when they have done so",
            f"compute {stage.name} inside {name} with compute_at, or leave it a kernel of its own",
        )
    apart = [s for s in sharing(plan, leader) if depth(plan, s) < len(grid_loops(leader))]
    if apart:
        return Problem(
            f"{apart[0].name} runs in the kernel of {name} without sharing all loops of its grid: "
            "not every program feeds a tile",
            f"give {apart[0].name} a kernel of its own, or let it share the grid of {name}",
        )
    blocks = leader.placement.kernel.launch.num_ctas or 1
    if blocks > 1:
        return Problem(
            f"a program of {name} is {blocks} blocks, which do not end together",
            f"call s[{name}].launch(num_ctas=1)",
        )
    return None


def _grid_problem(plan: Plan, stage: StagePlan, leader: StagePlan) -> Problem | None:
    for each in (stage, leader):
        grid, known = grid_loops(each), labels(each)
        deeper = [a for a in each.loop_order[len(grid) :] if each.mark(a).kind in _GRID]
        if deeper:
            return Problem(
                f"{known[deeper[0]]} of {each.name} runs in parallel inside another loop: the "
                "programs are not the iterations of its outermost loops",
                f"reorder {known[deeper[0]]} to the outside",
            )
        between = [a for a in grid[:-1] if guests(plan, each, a)]
        if between:
            return Problem(
                f"{guests(plan, each, between[0])[0].name} is attached at "
                f"{known[between[0]]} of {each.name}, between loops of the grid",
                "attach it at the innermost loop of the grid",
            )
    tiles, programs = grid_loops(stage), grid_loops(leader)
    if len(tiles) < len(programs):
        return None
    if not programs:
        return Problem(
            f"no loop of {leader.name} is bound to the grid: one program computes all of it",
            f"bind the loop over the parts, or attach {leader.name} in {stage.name}",
        )
    return Problem(
        f"{stage.name} has {len(tiles)} loops in the grid and {leader.name} has "
        f"{len(programs)}, so none is left over the programs that feed one tile",
        f"bind one more loop of {leader.name}, inside the others, or compute {leader.name} inside "
        f"{stage.name} with compute_at",
    )


def _way_problem(plan: Plan, stage: StagePlan, leader: StagePlan) -> Problem | None:
    """Nothing in the kernel needs what its last programs compute."""
    inside = {each.name for each in group_of(plan, leader) if each.name != stage.name}
    members = [s for s in plan.stages if root_of(plan, s).name in inside]
    for member in members:
        path = path_between(plan, stage, member)
        if path:
            way = ", which reads ".join(reversed(path[:-1]))
            other = finishers(plan, leader)
            last = any(root_of(plan, member).name == each.name for each in other)
            how = "may run before it" if last else "has run by then"
            return Problem(
                f"{member.name} in the kernel of {leader.name} reads {way}, and {how}",
                f"leave {stage.name} or {root_of(plan, member).name} a kernel of its own",
            )
    return None


def _in_kernels_of(plan: Plan, names: list[str]) -> frozenset[str]:
    """The stages of all kernels that some stages and their leaders are in."""
    kernels = {each.name for name in names for each in group_of(plan, plan.stage(name))}
    return computed_in(plan, kernels)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The tiles of a stage over the programs of its leader, in a plan without inlined stages."""

    plan: Plan
    bounds: Bounds
    stage: StagePlan
    leader: StagePlan

    def extent_problem(self) -> Problem | None:
        """There are as many tiles as groups of programs, whatever the sizes."""
        facts = self.bounds[self.stage.name].facts
        mine, theirs = labels(self.stage), labels(self.leader)
        for axis, run in self.pairs():
            count = self.bounds[self.stage.name].extents[axis]
            programs = self.bounds[self.leader.name].extents[run]
            if not equal(count, programs, facts):
                return Problem(
                    f"{theirs[run]} of {self.leader.name} has {programs} iterations and "
                    f"{mine[axis]} of {self.stage.name} has {count}",
                    "split and bind both alike",
                )
        own = self.bounds[self.leader.name]
        for axis in grid_loops(self.leader)[len(self.pairs()) :]:
            some = less(ZERO, own.extents[axis])
            if not prove(some, own.facts):
                return Problem(
                    f"{theirs[axis]} of {self.leader.name} has {own.extents[axis]} iterations, "
                    f"which may be none: then no program computes {self.stage.name}",
                    "split by nparts=, or say that there are some with s.assume",
                )
        return None

    def pairs(self) -> list[tuple[Axis, Axis]]:
        """The grid loops of the stage, each with the leader's."""
        return list(zip(grid_loops(self.stage), grid_loops(self.leader), strict=False))

    def read_problem(self) -> Problem | None:
        """Each tile reads what its own programs store."""
        stored: dict[Operation, StagePlan] = {
            s.op: s for s in self.plan.stages if self._runs_in(s, (self.leader, *self._beside()))
        }
        others = self._elsewhere()
        found = False
        for reader in self.plan.stages:
            if not self._runs_in(reader, (self.stage,)) or not isinstance(reader.op, ComputeOp):
                continue
            for read in reads(*reader.op.bodies):
                writer = stored.get(read.tensor.op)
                if read.tensor.op in others:
                    return Problem(
                        f"{reader.name} reads {_text(read)}, which other programs of the kernel "
                        "compute, and they may not have come so far",
                        f"give {others[read.tensor.op].name} a kernel of its own",
                    )
                if writer is not None:
                    found = True
                    problem = self._problem_of(reader, read, writer)
                    if problem is not None:
                        return problem
        if found:
            return None
        return Problem(
            f"{self.stage.name} reads nothing that the kernel of {self.leader.name} stores",
            "name the stage whose results it waits for, or use compute_with",
        )

    def _beside(self) -> tuple[StagePlan, ...]:
        return sharing(self.plan, self.leader)

    def _elsewhere(self) -> dict[Operation, StagePlan]:
        """What programs of the kernel compute that do not feed a tile."""
        near = {self.leader.name, self.stage.name, *(each.name for each in self._beside())}
        kernel = group_of(self.plan, self.leader)
        roots = tuple(root for root in kernel if root.name not in near)
        return {s.op: s for s in self.plan.stages if self._runs_in(s, roots)}

    def _runs_in(self, stage: StagePlan, roots: tuple[StagePlan, ...]) -> bool:
        kernel = root_of(self.plan, stage).name
        return any(kernel == root.name for root in roots)

    def _problem_of(self, reader: StagePlan, read: TensorRead, writer: StagePlan) -> Problem | None:
        bounds = self.bounds[reader.name]
        index: Mapping[Expr, Expr] = {**bounds.index}
        places = [substitute(each, index) for each in read.indices]
        known = self._programs_of(writer, places)
        for number, (tile, run) in enumerate(self.pairs()):
            if constant(self.bounds[self.stage.name].extents[tile]) == 1:
                continue
            program = known.get(number)
            if program is not None and equal(program, tile, bounds.facts):
                continue
            mine, theirs = labels(self.stage)[tile], labels(self.leader)[run]
            reason = (
                f"{reader.name} reads {_text(read)} in the tile {mine} of {self.stage.name}, "
                f"which is not known to be stored by the programs of {theirs} = {mine} of "
                f"{self.leader.name}"
            )
            if program is not None:
                wanted = Compare(CompareOp.EQ, *same_width(program, tile))
                point = counterexample(wanted, bounds.facts)
                shown = ", ".join(f"{v.name} = {n}" for v, n in (point or {}).items())
                reason += f": they store it for {theirs} = {print_expr(program)}"
                reason += f" (counterexample: {shown})" if shown else ""
            return Problem(
                reason,
                f"split, reorder and bind {self.stage.name} and {self.leader.name} alike, so that "
                "a tile reads whole programs",
            )
        return None

    def _programs_of(self, writer: StagePlan, places: list[Expr]) -> dict[int, Expr]:
        """At which iterations of the leader's grid loops an element of a result is stored, where
        that is known."""
        own = writer
        roots = dict(zip(_axes(writer.op), places, strict=True))
        if writer.placement.axis is not None:
            own = root_of(self.plan, writer)
            roots = self._of_host(own, writer, roots)
        roots = {a: sub(v, a.domain.min) if a.domain else v for a, v in roots.items()}
        found = reached(own, roots)
        order = own.loop_order[: len(grid_loops(self.leader))]
        return {number: found[axis] for number, axis in enumerate(order) if axis in found}

    def _of_host(
        self, host: StagePlan, writer: StagePlan, roots: Mapping[Axis, Expr]
    ) -> dict[Axis, Expr]:
        """The point of a host's results at which a stage attached there stores an element: along
        axes that run alike in both."""
        inner, outer = self.bounds[writer.name], self.bounds[host.name]
        return {
            axis: value
            for axis in _axes(host.op)
            for own, value in roots.items()
            if equal(inner.index[own], outer.index[axis], inner.facts)
        }


def _axes(op: Operation) -> tuple[Axis, ...]:
    return op.axes if isinstance(op, ComputeOp) else ()


def _text(read: TensorRead) -> str:
    return f"{read.tensor.name}[{', '.join(map(print_expr, read.indices))}]"
