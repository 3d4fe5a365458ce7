"""Passes over plans: what each leaves, what holds after it, and that schedules are printed as they
run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from drawn_schedules import schedules
from hypothesis import event, given, settings
from lowering import after_passes, agrees
from rule_shapes import SHAPES
from scan_strategies import recurrences
from strategies import computes, products

import tedsl as te
from tedsl.errors import BackendError, InternalError
from tedsl.ir.nodes import LoopKind
from tedsl.lower import pipeline
from tedsl.lower.pipeline import (
    BLOCK_PASSES,
    CPU_PASSES,
    MODULE_PASSES,
    PLAN_PASSES,
    PlanPass,
    lower,
)
from tedsl.schedules import schedule_for
from tedsl.scheduling.plan import At, Inlined, LastBlock, Mark, Plan, SameGrid, StagePlan
from tedsl.target import Target

Golden = Callable[..., None]
TARGETS = [pytest.param("cpu", id="cpu"), pytest.param("cuda:sm_90", id="gpu")]


def staged_parts() -> te.Schedule:
    """Parts of rows of any length, combined atomically, from a staged copy of what is read."""
    n = te.size_var("n")
    A = te.placeholder((32, n), "float16", name="A")
    k = te.reduce_axis((0, n), name="k")
    B = te.compute((32, n), lambda i, j: A[i, j] * 2.0, name="B")
    C = te.compute((32,), lambda i: te.sum(B[i, k].astype("float32"), axis=k), name="C")
    s = te.create_schedule(C)
    s[B].compute_inline()
    ko, ki = s[C].split(k, 64)
    s[C].reorder(ko, C.op.axis[0], ki)
    s[C].atomic()
    s[C].bind(ko, "blockIdx.x")
    s[C].vectorize(ki)
    s[C].vectorize(C.op.axis[0])
    copy = s.cache_read(A, "shared", [B])
    s[copy].compute_at(s[C], ko)
    return s


def changed(seen: dict[str, str]) -> str:
    """The nests before the first pass, and after each that changed them."""
    names = [step.name for step in PLAN_PASSES if step.name in seen]
    texts = [f"{names[0]}\n\n{seen[names[0]]}"]
    for before, after in pairwise(names):
        same = seen[before] == seen[after]
        texts.append(f"{after}\n\n{'(unchanged)' if same else seen[after]}")
    return "\n\n".join(texts) + "\n"


@pytest.mark.parametrize("target", TARGETS)
def test_the_nests_after_each_pass(target: str, golden: Golden) -> None:
    golden(changed(after_passes(staged_parts(), target)))


@pytest.mark.parametrize("target", TARGETS)
def test_a_recurrence_after_each_pass(target: str, golden: Golden) -> None:
    m = te.placeholder((16, 64), name="X")
    state = te.placeholder((16, 64), name="S")
    init = te.compute((1, 64), lambda t, i: m[0, i], name="init")
    update = te.compute((16, 64), lambda t, i: state[t - 1, i] + m[t, i], name="update")
    scan = te.scan(init, update, state, name="scan")
    assert isinstance(scan, te.Tensor)
    s = te.create_schedule([scan, init])
    outer, _ = s[update].split(update.op.axis[1], 32)
    s[update].bind(outer, "blockIdx.x")
    s[scan].env_threads("blockIdx.x")
    golden(changed(after_passes(s, target)))


@pytest.mark.parametrize("target", TARGETS)
def test_each_pass_is_told_in_order(target: str) -> None:
    blocks = target != "cpu"
    plans = [step.name for step in PLAN_PASSES if step.blocks in (None, blocks)]
    steps = [step.name for step in (BLOCK_PASSES if blocks else CPU_PASSES)]
    steps += MODULE_PASSES if blocks else []
    assert list(after_passes(staged_parts(), target)) == [*plans, "build_nests", *steps]
    assert len({step.name for step in PLAN_PASSES}) == len(PLAN_PASSES)
    assert all(step.run.__doc__ for step in PLAN_PASSES)


def test_what_the_passes_make_computes_the_same() -> None:
    s = staged_parts()
    assert agrees(s, {s.size("n"): 200})


def kernels(text: str) -> dict[str, str]:
    """The nests of a printed tree, by the first line of each."""
    parts = text.split("\nkernel ")[1:]
    return {part.partition("\n")[0]: part for part in parts}


@pytest.mark.uncompiled("looked at; test_rules_compiled.py compiles the same")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SHAPES)
def test_a_schedule_is_printed_as_it_runs(name: str, target: str) -> None:
    s = schedule_for(SHAPES[name](), target)
    seen = after_passes(s, target)
    shown, run = kernels(str(s)), kernels(seen["complete"])
    assert shown == run


@settings(max_examples=25)
@given(st.data())
def test_a_drawn_schedule_is_printed_as_it_runs(data: st.DataObject) -> None:
    kinds = [each.strategy() for each in (computes(externs=True), products(), recurrences())]
    case = data.draw(st.one_of(kinds), label="case")
    s = data.draw(schedules(case.outputs, 10).strategy(), label="schedule")
    for target in map(Target.parse, ("cpu", "cuda:sm_90")):
        seen: dict[str, str] = {}
        try:
            lower(s.plan, target, dump=lambda name, left, seen=seen: seen.update({name: str(left)}))
        except te.LowerError as error:
            event(f"refused on {target}: {error}"[:60])
        shown = str(s.copy(target=target))  # of what is refused, too
        if "complete" in seen:
            added = seen["separate_inits"] != seen["separate_axes"]
            assert added or kernels(shown) == kernels(seen["complete"])


def test_without_a_target_a_schedule_shows_what_was_said() -> None:
    A = te.placeholder((64, 32), name="A")
    B = te.compute((64, 32), lambda i, j: A[i, j] + 1.0, name="B")
    C = te.compute((64, 32), lambda i, j: B[i, j] * 2.0, name="C")
    texts: dict[str | None, str] = {}
    for target in (None, "cpu", "cuda:sm_90"):
        s = te.create_schedule(C, target=target)
        outer, inner = s[C].split(C.op.axis[0], 8)
        s[C].parallel(outer)
        s[C].vectorize(inner)
        s[B].compute_at(s[C], outer)
        texts[target] = str(s)
    assert texts[None] == texts["cpu"]
    assert "for i.outer in 0..8  (parallel)" in texts[None]
    assert "(block)" not in texts[None]
    on_gpu = texts["cuda:sm_90"]
    assert "for i.outer in 0..8  (bound to blockIdx.x)" in on_gpu
    assert "for j in 0..32  (block)" in on_gpu
    assert "for i.inner in 0..8  (vectorized)" in on_gpu, "what was said is told from what follows"


def test_a_kernel_shows_its_schedule_as_it_was_built() -> None:
    A = te.placeholder((64,), name="A")
    B = te.compute((64,), lambda i: A[i] + 1.0, name="B")
    s = te.create_schedule(B, target="cuda")
    outer, _ = s[B].split(B.op.axis[0], 8)
    s[B].bind(outer, "blockIdx.x")
    kernel = te.build(s, "cpu")
    assert kernel.schedule.target == "cpu"
    assert "for i.outer in 0..8  (parallel)" in str(kernel.schedule)
    assert "for i.outer in 0..8  (bound to blockIdx.x)" in str(s)


def test_a_target_that_there_is_not() -> None:
    with pytest.raises(BackendError, match=r"unknown target 'gpu'(.|\n)*allowed"):
        te.create_schedule(te.placeholder((4,), name="A") + 1.0, target="gpu")


# --- what a pass may not leave


def last(plan: Plan) -> StagePlan:
    return plan.stages[-1]


def foreign_mark(plan: Plan) -> Plan:
    mark = {plan.stages[-2].root_axes[0]: Mark(LoopKind.UNROLLED)}
    return plan.with_stage(replace(last(plan), marks=mark))


def lost_loop(plan: Plan) -> Plan:
    return plan.with_stage(replace(last(plan), leaf_axes=last(plan).leaf_axes[1:]))


def placed_nowhere(plan: Plan) -> Plan:
    place = At(last(plan).name, plan.stages[-2].leaf_axes[0])
    return plan.with_stage(replace(plan.stages[-2], placement=place))


def placed_in_none(plan: Plan) -> Plan:
    return plan.with_stage(replace(last(plan), placement=SameGrid("nothing")))


def inlined_again(plan: Plan) -> Plan:
    return plan.with_stage(replace(plan.stages[-2], placement=Inlined()))


def out_of_order(plan: Plan) -> Plan:
    return replace(plan, stages=(*plan.stages[:-2], *reversed(plan.stages[-2:])))


def without_output(plan: Plan) -> Plan:
    return replace(plan, stages=plan.stages[:-1])


def in_a_circle(plan: Plan) -> Plan:
    """What the last programs compute, of programs that it does not read from."""
    return plan.with_stage(replace(plan.stages[-2], placement=LastBlock(last(plan).name)))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (foreign_mark, "C has a mark of no loop of it"),
        (lost_loop, "the loops of C are not what its relations make of its axes"),
        (placed_nowhere, "B is placed at i, which is no loop of C"),
        (placed_in_none, "C names the stage nothing, and there is none"),
        (inlined_again, "B is inlined"),
        (out_of_order, "C reads B, which comes after it"),
        (without_output, "no stage computes the output C"),
        (in_a_circle, "LAST_BLOCK"),
    ],
)
def test_a_pass_that_leaves_no_plan_is_noticed(
    spoil: Callable[[Plan], Plan], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = te.placeholder((8,), name="A")
    B = te.compute((8,), lambda i: A[i] + 1.0, name="B")
    C = te.compute((8,), lambda j: B[j] * 2.0, name="C")
    s = te.create_schedule(C)
    broken = PlanPass("spoil", lambda plan, _: spoil(plan))
    monkeypatch.setattr(pipeline, "PLAN_PASSES", (*PLAN_PASSES[:3], broken))
    with pytest.raises(InternalError, match=f"the plan after spoil: {words}"):
        lower(s.plan, Target.parse("cpu"), check=True)
