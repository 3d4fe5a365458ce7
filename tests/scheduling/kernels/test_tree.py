"""The kernels, phases and nests of a plan are those that the lowering makes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from unittest.mock import patch

import hypothesis.strategies as st
from drawn_schedules import schedules
from hypothesis import event, given, settings
from scan_strategies import recurrences
from strategies import computes, products

import tedsl as te
from tedsl.expr.nodes import Axis
from tedsl.ir.nodes import Accumulate, Finish, For, Func, HostCall, Meet, Module, Stmt, Store
from tedsl.ir.visit import sub_stmts, walk_stmts
from tedsl.lower import pipeline
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.kernels.complete import launched_scans
from tedsl.scheduling.kernels.tree import (
    Kernel,
    KernelTree,
    Nest,
    Phase,
    Sync,
    hosts,
    kernel_leader,
    kernel_tree,
    kernels_with,
    loops_around,
    root_of,
)
from tedsl.scheduling.plan import Online, Partitioned, Plan
from tedsl.scheduling.plan.relations import ranks
from tedsl.scheduling.plan.scan_structure import step_loop, stored_as
from tedsl.scheduling.regions.computed_indices import Needs, needs_of
from tedsl.scheduling.regions.infer import Bounds
from tedsl.target import Target
from tedsl.tensor.tensor import Tensor

BLOCKS = "cuda:sm_90"
Path = tuple[Axis, ...]


@dataclass
class Lowered:
    """The plan that nests are made of, what its bounds read, which scans are launched step by step,
    the tensors that are stored in place of others, and the nests."""

    plan: Plan
    needs: Needs
    launches: frozenset[str]
    aliases: Mapping[Tensor, Tensor]
    module: Module

    @property
    def tree(self) -> KernelTree:
        return kernel_tree(self.plan, self.needs)

    def owners(self) -> dict[str, str]:
        """The stage that each buffer is of, by its name; what several stages store is left out."""
        found: dict[str, str] = {}
        shared = {*self.aliases, *self.aliases.values()}
        pieces = [
            (s.name, s.placement.head, s.placement.tail)
            for s in self.plan.stages
            if isinstance(s.placement, Partitioned)
        ]
        left_out = {name for names in pieces for name in names}
        for stage in self.plan.stages:
            outputs = stage.op.outputs
            for tensor in outputs:
                buffer = stage.name if len(outputs) == 1 else f"{stage.name}_{tensor.index}"
                if buffer in found:
                    left_out |= {found[buffer], stage.name}
                if tensor not in shared:
                    found[buffer] = stage.name
        return {buffer: stage for buffer, stage in found.items() if stage not in left_out}


def lowered(s: Schedule, target: str) -> Lowered | None:
    """The schedule as nests; None when the target refuses it."""
    found: list[Lowered] = []
    real = pipeline.build_nests

    def noted(plan: Plan, bounds: Bounds, where: Target) -> Module:
        module = real(plan, bounds, where)
        launches = launched_scans(plan) if where.is_triton else frozenset[str]()
        found.append(Lowered(plan, needs_of(bounds), launches, stored_as(plan), module))
        return module

    with patch.object(pipeline, "build_nests", noted):
        try:
            pipeline.lower(s.plan, Target.parse(target), dump=lambda name, module: None)
        except te.LowerError as error:
            event(f"refused on {target}: {error}"[:60])
    return found[0] if found else None


def nests_of(phases: tuple[Phase, ...], around: Path = ()) -> Iterator[tuple[Nest, Path]]:
    """The nests of some phases with all that is inside them, and the loops around each and its
    own."""
    for nest in (nest for phase in phases for nest in phase.nests):
        yield nest, (*around, *nest.loops)
        for axis, inside in nest.inside.items():
            yield from nests_of(inside, (*around, *nest.loops[: ranks(nest.loops)[axis] + 1]))
        for shared in nest.sharing:
            yield from nests_of((Phase((shared,)),), around)


def written(func: Func) -> list[tuple[str, Path]]:
    """What a kernel stores or folds into, in order, and the loops around that."""

    def visit(stmt: Stmt, around: Path) -> Iterator[tuple[str, Path]]:
        match stmt:
            case Store():
                yield stmt.buffer.name, around
            case Accumulate():
                yield from ((buffer.name, around) for buffer in stmt.buffers)
            case HostCall():
                yield from ((buffer.name, around) for buffer in stmt.outputs)
            case For():
                around = (*around, stmt.axis)
            case _:
                pass
        for each in sub_stmts(stmt):
            yield from visit(each, around)

    return list(visit(func.body, ()))


def kernel_agrees(found: Lowered, kernel: Kernel, func: Func) -> None:
    """Which stages a kernel has, the loops of each, and how often programs wait."""
    owners = found.owners()
    places = {nest.stage.name: path for nest, path in nests_of(kernel.phases)}
    assert places.keys() == kernel.stages
    made = [(owners[name], around) for name, around in written(func) if name in owners]
    assert {name for name, _ in made} == kernel.stages.intersection(owners.values())
    beside, last = len(kernel.programs.nests) > 1, bool(kernel.last)
    for name, around in made:
        path = places[name]
        known = [ranks(path)[axis] for axis in around if axis in ranks(path)]
        assert known == sorted(known)
        copied = {axis.name for axis in path}  # loops over accumulators, to start and to store
        others = {a for a in around if a not in ranks(path) and a.name not in copied}
        in_grid = {axis.name for axis in kernel.grid} if last else set[str]()
        assert {axis.name for axis in others} <= in_grid | ({"program"} if beside else set())
    stmts = list(walk_stmts(func.body))
    assert sum(isinstance(stmt, Finish) for stmt in stmts) == len(kernel.last)
    inside = [p for nest, _ in nests_of(kernel.phases) for ps in nest.inside.values() for p in ps]
    waits = [phase for phase in inside if phase.sync is Sync.GRID_BARRIER]
    assert sum(isinstance(stmt, Meet) for stmt in stmts) == len(waits)
    levels = [nest.inside.values() for nest, _ in nests_of(kernel.phases)]
    for phases in (kernel.phases, *(each for level in levels for each in level)):
        assert in_order([owners.get(name, "") for name, _ in written(func)], phases)


def in_order(names: list[str], phases: tuple[Phase, ...]) -> bool:
    """Nests of one level run one after the other; what goes along with a loop starts before it."""
    own = [
        {each.stage.name for each, _ in nests_of((Phase((nest,)),))}
        for phase in phases
        for nest in phase.nests
        if not isinstance(nest.stage.placement, Online)
    ]
    numbers = [[n for n, name in enumerate(names) if name in each] for each in own]
    return all(a[-1] < b[0] for a, b in pairwise(filter(None, numbers)))


def steps_agree(found: Lowered, kernel: Kernel, names: list[str]) -> None:
    """The steps of a scan that are launched one by one are its nests, in their order."""
    steps = kernel.programs.nests[0].inside.get(step_loop(kernel.leader), ())
    nests = [nest for phase in steps for nest in phase.nests]
    parts = [name for name in names if name != kernel.leader.name]
    assert parts == [stage.name for nest in nests for stage in nest.stages]


def tree_agrees(found: Lowered) -> None:
    """The kernels of the tree are those of the module, in their order, and so is what is in them;
    one has several functions when it has versions, or is a scan that is launched by steps."""
    funcs = list(found.module.funcs)
    for kernel in found.tree.kernels:
        name = kernel.leader.name
        if name in found.launches:
            steps = []
            while funcs and funcs[0].name in kernel.stages:
                steps.append(funcs.pop(0).name)
            steps_agree(found, kernel, steps)
            continue
        same = [f for f in funcs if re.sub(r"\.v\d+$", "", f.name) == name]
        assert same and funcs[: len(same)] == same
        del funcs[: len(same)]
        for func in same:
            kernel_agrees(found, kernel, func)
    assert not funcs


@settings(max_examples=80)
@given(st.data())
def test_the_tree_is_what_lowering_makes(data: st.DataObject) -> None:
    kinds = [each.strategy() for each in (computes(externs=True), products(), recurrences())]
    case = data.draw(st.one_of(kinds), label="case")
    s = data.draw(schedules(case.outputs, 10).strategy(), label="schedule")
    for target in ("cpu", BLOCKS):
        found = lowered(s, target)
        if found is not None:
            tree_agrees(found)
            several = any(len(kernel.stages) > 1 for kernel in found.tree.kernels)
            event(f"{target}: {'several stages in a kernel' if several else 'a kernel each'}")


def scaled(x: te.Tensor, n: int) -> te.Tensor:
    return te.compute(x.shape, lambda i: x[i] * float(n), name=f"y{n}")


def rows() -> tuple[Schedule, list[te.Tensor]]:
    """Three stages over the same elements, in tiles over the grid."""
    x = te.placeholder((64,), name="X")
    made = [scaled(x, n) for n in range(3)]
    s = te.create_schedule(made)
    for tensor in made:
        outer, inner = s[tensor].split(s[tensor].op.axis[0], 8)
        s[tensor].vectorize(inner)
        s[tensor].bind(outer, "blockIdx.x")
    return s, made


def only(s: Schedule) -> Kernel:
    """The one kernel, which is as it is lowered."""
    found = lowered(s, BLOCKS)
    assert found is not None
    tree_agrees(found)
    (kernel,) = found.tree.kernels
    return kernel


def names(phase: Phase) -> list[list[str]]:
    return [[stage.name for stage in nest.stages] for nest in phase.nests]


def test_stages_that_share_loops_are_one_nest_and_others_stand_beside_it() -> None:
    s, _ = rows()
    s["y2"].compute_with(s["y0"], s["y0"].leaf_iter_vars[0])
    s["y1"].compute_with(s["y0"])
    kernel = only(s)
    assert kernel.leader.name == "y0" and kernel.grid == kernel.leader.loop_order[:1]
    assert names(kernel.programs) == [["y0", "y2"], ["y1"]]
    assert [stage.name for stage in kernel.roots] == ["y0", "y1", "y2"]
    first, second = kernel.programs.nests
    assert first.sharing[0].loops[0] is first.loops[0] is not second.loops[0]
    assert kernel_leader(s.plan, s["y1"].plan) is s["y0"].plan


def test_what_last_programs_compute_is_a_phase_behind_those_that_feed_a_tile() -> None:
    a = te.placeholder((32, 64), name="A")
    k = te.reduce_axis((0, 64), name="k")
    c = te.compute((32,), lambda i: te.sum(a[i, k], axis=k), name="C")
    s = te.create_schedule(c)
    p = s.rfactor(c, s[c].split(k, 16)[0])
    part, i = s[p].op.axis
    s[p].reorder(i, part)
    s[p].bind(i, "blockIdx.x")
    s[p].bind(part, "blockIdx.y")
    s[c].bind(s[c].op.axis[0], "blockIdx.x")
    s[c].compute_last(s[p])
    kernel = only(s)
    assert kernel.leader.name == p.name
    (last,) = kernel.last
    assert (last.sync, last.of, names(last)) == (Sync.LAST_BLOCK, p.name, [["C"]])
    assert last.over == kernel.grid[1:] and kernel.phases == (kernel.programs, last)


def test_programs_wait_once_between_the_phases_of_a_loop() -> None:
    a = te.placeholder((8, 60), name="A")
    k = te.reduce_axis((0, 60), name="k")
    m = te.compute((8,), lambda i: te.max(a[i, k], axis=k), name="M")
    d = te.compute((8, 60), lambda i, j: a[i, j] - m[i], name="D")
    s = te.create_schedule(d)
    r = s.rfactor(m, s[m].split(k, nparts=4)[0])
    p = s.cache_read(r, "local", [m])
    i, j = s[d].op.axis
    program, lane = s[d].split(j, nparts=4)
    s[d].reorder(program, i, lane)
    s[d].bind(program, "blockIdx.x")
    s[d].vectorize(lane)
    s[m].vectorize(s[m].op.reduce_axis[0])
    s[m].compute_at(s[d], i)
    s[p].compute_across(s[d], i, s[p].op.axis[0], program)
    s[r].compute_at(s[d], i)
    s[r].vectorize(s[r].op.reduce_axis[0])
    kernel = only(s)
    (before, behind) = kernel.programs.nests[0].inside[i]
    assert (before.sync, names(before)) == (Sync.NONE, [[r.name], [p.name]])
    assert (behind.sync, names(behind)) == (Sync.GRID_BARRIER, [["M"]])
    assert (behind.of, behind.over) == ("D", kernel.grid)


def test_an_inlined_stage_is_in_the_kernels_of_its_readers() -> None:
    x = te.placeholder((8,), name="X")
    b = te.compute((8,), lambda i: x[i] + 1.0, name="B")
    y = [scaled(b, n) for n in range(2)]
    s = te.create_schedule(y)
    s[b].compute_inline()
    assert [stage.name for stage in kernels_with(s.plan, s[b].plan)] == ["y0", "y1"]
    s["y1"].compute_with(s["y0"])
    assert [stage.name for stage in kernels_with(s.plan, s[b].plan)] == ["y0"]


def test_the_tree_is_made_once_for_a_plan() -> None:
    s, _ = rows()
    assert kernel_tree(s.plan) is kernel_tree(s.plan)


def test_stages_around_and_their_loops() -> None:
    x = te.placeholder((8, 8), name="X")
    a = te.compute((8, 8), lambda i, j: x[i, j] + 1.0, name="A")
    b = te.compute((8, 8), lambda i, j: a[i, j] * 2.0, name="B")
    c = te.compute((8, 8), lambda i, j: b[i, j] - 3.0, name="C")
    s = te.create_schedule(c)
    i, _ = s[c].op.axis
    s[b].compute_at(s[c], i)
    s[a].compute_at(s[b], s[b].op.axis[1])
    plan, inner = s.plan, s[a].plan
    assert [(host.name, axis) for host, axis in hosts(plan, inner)] == [
        ("B", s[b].op.axis[1]),
        ("C", i),
    ]
    assert loops_around(plan, inner) == (i, *s[b].op.axis)
    assert root_of(plan, inner) is s[c].plan
    assert only(s).stages == {"A", "B", "C"}
