"""Tiles of the last wave: several programs fold each of them, in the launch of the others, where
that is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import rule_checks
from lowering import same_in_any_order
from rule_cases import RuleCase

import tedsl as te
from tedsl import target
from tedsl.backends.triton.compile.offline import CompiledInfo, compile_offline
from tedsl.backends.triton.emit.module import emit
from tedsl.devices import H200
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.schedules.gpu.gemm import cost_model
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.target import Target
from tedsl.tensor.tensor import Tensor
from tedsl.view.graph import kernel_of, place_of

CUDA = Target.parse("cuda:sm_90")
SMALL = {"y.bm": 16, "y.bn": 16, "y.bk": 16}


def summed(a: Tensor, b: Tensor, name: str) -> Tensor:
    k = te.reduce_axis((0, a.shape[1]), "k")

    def of(i: te.Axis, j: te.Axis) -> te.Expr:
        return te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), axis=k)

    return te.compute((a.shape[0], b.shape[1]), of, name=name)


def product(m: int, n: int, depth: int, element: str = "bfloat16") -> Tensor:
    a = te.placeholder((m, depth), element, name="a")
    b = te.placeholder((depth, n), element, name="b")
    bias = te.placeholder((n,), element, name="bias")
    z = summed(a, b, "z")
    return te.compute((m, n), lambda i, j: te.relu(z[i, j] + bias[j]).astype(element), name="y")


def gated(m: int, n: int, depth: int) -> Tensor:
    a = te.placeholder((m, depth), "bfloat16", name="a")
    b, c = (te.placeholder((depth, n), "bfloat16", name=name) for name in "bc")
    u, v = summed(a, b, "u"), summed(a, c, "v")
    return te.compute(
        (m, n), lambda i, j: (u[i, j] * te.sigmoid(u[i, j]) * v[i, j]).astype("bfloat16"), name="y"
    )


def normed(m: int, n: int, depth: int) -> Tensor:
    x = te.placeholder((m, depth), "bfloat16", name="x")
    b = te.placeholder((depth, n), "bfloat16", name="b")
    k = te.reduce_axis((0, depth), "r")
    w = te.compute((m,), lambda i: te.sum(x[i, k].astype("float32") ** 2, axis=k), name="w")

    def scaled(i: te.Axis, j: te.Axis) -> te.Expr:
        return (x[i, j] * te.rsqrt(w[i] / float(depth) + 1e-5)).astype("bfloat16")

    z = summed(te.compute((m, depth), scaled, name="a"), b, "z")
    return te.compute((m, n), lambda i, j: z[i, j].astype("bfloat16"), name="y")


def choices(s: Schedule) -> tuple[object, ...]:
    return next((knob.choices for knob in s.knobs if knob.name.endswith(".tail")), ())


@pytest.fixture
def few_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of them, on which parts cost nothing but their time, so that small products have waves
    whose last one is worth dividing."""
    monkeypatch.setattr(target, "gpu_of", lambda arch: replace(H200, sms=4))
    monkeypatch.setattr(cost_model, "MERGE", 0)
    for speed in ("STORED", "CACHED", "MEMORY", "ALONE", "MERGED"):
        monkeypatch.setattr(cost_model, speed, 1e9)


# --- the choice


def test_whole_tiles_where_parts_would_hardly_be_quicker() -> None:
    """On an H200 0.0334 ms in two parts, 0.0327 without."""
    s = schedule_for([product(1000, 3000, 2000)], CUDA, {"y.bm": 128, "y.bn": 128})
    assert choices(s) == (1, 2)
    assert not [stage.name for stage in s.stages if "tail" in stage.name]


def test_the_tile_is_chosen_with_its_tail() -> None:
    """On an H200 0.253 ms, for 0.264 without a tail and 0.276 by tiles of 128x128, of which the
    last wave is fuller."""
    s = schedule_for([product(2048, 11008, 4096)], CUDA, {})
    chosen = {knob.name: knob.chosen for knob in s.knobs}
    assert (chosen["y.bm"], chosen["y.bn"]) == (128, 256)
    assert chosen["y.tail"] in (3, 4)
    assert [stage.name for stage in s.stages if "tail" in stage.name]


@pytest.mark.parametrize(
    "make",
    [
        lambda: product(1000, 3000, 2000),  # 96 tiles: there is no wave before the last
        lambda: product(1024, 4224, 4096),  # two whole waves
        lambda: product(1000, 3000, 200),  # parts of one step
        lambda: product(1000, te.size_var("n"), 2000),  # type: ignore[arg-type]
    ],
)
def test_nothing_to_choose(make: Callable[[], Tensor]) -> None:
    assert choices(schedule_for([make()], CUDA)) == ()


def test_the_model_knows_the_last_wave() -> None:
    p = cost_model.Product(H200, 1, 2048, 11008, 4096)
    sides = (False, True)
    cuts = {cut.down: (cut.at, cut.tiles) for cut in cost_model.tails(p, 128, 256, sides)}
    assert cuts == {False: (41 * 256, 32), True: (15 * 128, 43)}
    assert [cut.down for cut in cost_model.tails(p, 128, 256, [True])] == [True]
    whole = cost_model.clocks(p, 128, 256)
    assert cost_model.with_tail(p, 128, 256, 32, 4) < 0.97 * whole
    least = cost_model.with_tail(p, 128, 256, 32, 4)
    assert least < cost_model.with_tail(p, 128, 256, 32, 6), "a wave of parts more"
    full = cost_model.Product(H200, 1, 1024, 4224, 4096)
    assert not list(cost_model.tails(full, 128, 128, sides))


# --- what is made of it


CASES: dict[str, tuple[Callable[[], Tensor], dict[str, object]]] = {
    "columns": (lambda: product(40, 33, 136), {}),
    "one column of tiles": (lambda: product(20, 70, 136), {}),
    "tall": (lambda: product(67, 20, 130), {}),
    "stored by the copy engine": (lambda: product(33, 40, 136), {"y.descriptor_store": True}),
    "programs that stay": (lambda: product(40, 100, 136), {"y.resident": 1}),
    "turned": (lambda: product(300, 100, 136), {"y.bm": 128, "y.bn": 64, "y.turned": True}),
    "fetched by the threads": (lambda: product(40, 33, 136), {"y.descriptors": False}),
    "two products in a loop": (lambda: gated(33, 40, 136), {}),
    "two loops": (lambda: gated(33, 40, 136), {"y.one_loop": False}),
    "after a norm": (lambda: normed(33, 40, 136), {}),
}


@pytest.mark.usefixtures("few_processors")
@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str) -> None:
    make, decisions = CASES[name]
    wanted = {**SMALL, **decisions}
    known = {knob.name for knob in schedule_for([make()], CUDA, wanted).knobs}
    assert set(wanted) <= known
    s = rule_checks.interpreted(RuleCase(name, make), "cuda:sm_90", {**wanted, "y.tail": 2})
    assert {knob.name for knob in s.knobs} <= known, "the names of knobs are those without"
    assert [stage.name for stage in s.stages if stage.name == "y.tail"]
    kernels = [func.name for func in lower(s.plan, CUDA).funcs]
    assert len(kernels) == (2 if name == "after a norm" else 1)
    assert same_in_any_order(s)


@pytest.mark.usefixtures("few_processors")
def test_another_kernel_reads_the_result() -> None:
    """The second product reads what the pieces of the first have stored, in rows of 130 bytes."""

    def make() -> list[Tensor]:
        y = product(20, 65, 136)
        c = te.placeholder((65, 40), "bfloat16", name="c")
        return [summed(y, c, "v")]

    s = rule_checks.interpreted(RuleCase("two", make), "cuda:sm_90", {**SMALL, "y.tail": 2})
    assert [func.name for func in lower(s.plan, CUDA).funcs] == ["z.tail.rf", "v"]
    found = te.explain(s, "cuda:sm_90")
    assert [(pair.first, pair.second) for pair in found.pairs] == [("y", "v.local")]
    assert place_of(s.plan, s["y"].plan)[1] == "stored by y.head and y.tail"
    assert kernel_of(s.plan, s["y"].plan) is None


@pytest.mark.usefixtures("few_processors")
def test_source(golden: Any) -> None:
    s = schedule_for([product(40, 40, 144)], CUDA, {**SMALL, "y.tail": 2})
    golden(f"{s}\n\n{emit(lower(s.plan, CUDA), CUDA).source}")


@pytest.mark.cpu
@pytest.mark.usefixtures("few_processors")
def test_as_triton_runs_it() -> None:
    """The text, in Triton's interpreter."""
    case = RuleCase("product", lambda: product(40, 33, 136))
    rule_checks.compiled(case, "triton-interpret", {**SMALL, "y.tail": 2})
    case = RuleCase("gated", lambda: gated(33, 40, 136))
    rule_checks.compiled(case, "triton-interpret", {**SMALL, "y.tail": 2})


def compiled(make: Callable[[], Tensor], decisions: dict[str, object]) -> CompiledInfo:
    s = schedule_for([make()], CUDA, decisions)
    *_, info = compile_offline(emit(lower(s.plan, CUDA), CUDA), "sm_90")
    return info


@pytest.mark.ptxas
@pytest.mark.parametrize(
    "make, decisions, parts",
    [
        (lambda: product(1000, 3000, 2000), {"y.bm": 128, "y.bn": 128}, 2),
        (lambda: product(2048, 11008, 4096), {"y.bm": 128, "y.bn": 256, "y.resident": 1}, 4),
        (lambda: gated(1000, 5000, 2000), {}, 2),
    ],
)
def test_both_bodies_share_what_one_has(
    make: Callable[[], Tensor], decisions: dict[str, object], parts: int
) -> None:
    """As much shared memory as without a tail, no spills, all operands by the copy engine, and as
    many programs on a processor."""
    before = compiled(make, {**decisions, "y.tail": 1})
    after = compiled(make, {**decisions, "y.tail": parts})
    assert after.shared <= before.shared
    assert after.stack == 0
    assert after.ptx.count("wgmma.mma_async") == 2 * before.ptx.count("wgmma.mma_async")
    assert after.ptx.count("atom.global.gpu.acq_rel.add.u32") == 1
    assert after.registers is not None and before.registers is not None
    threads, room = 32 * after.num_warps, (227 << 10) // before.shared
    assert min(room, 65536 // (after.registers * threads)) == room
