"""Which programs start first where rows differ in length: groups of heads, a row of each."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from attentions import attention, gradients
from rule_cases import RuleCase
from rule_checks import compiled, interpreted

import tedsl as te
from tedsl import target
from tedsl.backends.triton.compile.offline import compile_offline
from tedsl.backends.triton.emit.module import emit
from tedsl.devices import H200
from tedsl.errors import ScheduleError
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.schedules.gpu.gemm import tile_order
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.target import Target
from tedsl.tensor.tensor import Tensor

Golden = Callable[..., None]
B = "bfloat16"
SMALL = {"out.bm": 32, "out.bk": 32}


def causal(heads: int, rows: int, depth: int, dtype: str = B) -> Tensor:
    return attention(heads, rows, rows, depth, dtype, True, finite=True).result


def grouped(batch: Any, heads: int, groups: int, rows: int, depth: int, dtype: str = B) -> Tensor:
    """Causal attention in which some heads share their keys and values."""
    q = te.placeholder((batch, heads, rows, depth), dtype, name="q")
    k, v = (te.placeholder((batch, groups, rows, depth), dtype, name=name) for name in "kv")
    return te.nn.attention(q, k, v, causal=True, name="out")


def chosen(s: Schedule) -> dict[str, object]:
    return {k.name: k.chosen for k in s.knobs if k.name.endswith(".together")}


def offered(s: Schedule, name: str) -> tuple[object, ...]:
    return next((k.choices for k in s.knobs if k.name == name), ())


DEFAULTS: dict[str, tuple[Callable[[], Tensor], int]] = {
    "all fit": (lambda: causal(32, 2048, 64), 32),
    "many heads": (lambda: causal(256, 2048, 64), 32),
    "long rows": (lambda: causal(32, 8192, 128), 4),
    "longer rows": (lambda: causal(32, 16384, 64), 4),
    "one head is too large": (lambda: causal(4, 1 << 17, 64), 1),
    "no power of two": (lambda: causal(24, 8192, 128), 6),
    "a prime": (lambda: causal(31, 8192, 128), 1),
    "shared keys": (lambda: grouped(4, 32, 8, 8192, 128), 16),
    "groups of batches": (lambda: grouped(4, 8, 2, 4096, 64), 32),
    "wider numbers": (lambda: causal(32, 8192, 64, "float32"), 4),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_group_has_its_operands_in_the_cache(name: str) -> None:
    make, expected = DEFAULTS[name]
    assert chosen(schedule_for(make(), "cuda")) == {"out.together": expected}


def windowed(heads: int, rows: int, depth: int) -> Tensor:
    q, k, v = (te.placeholder((heads, rows, depth), B, name=name) for name in "qkv")
    return te.nn.attention(q, k, v, window=(1023, 0), name="out")


def capped(heads: int, rows: int, depth: int) -> Tensor:
    q, k, v = (te.placeholder((heads, rows, depth), B, name=name) for name in "qkv")
    return te.nn.attention(q, k, v, causal=True, cap=50.0, name="out")


def few_keys(heads: int, rows: int, depth: int) -> Tensor:
    q = te.placeholder((1, heads, rows, depth), B, name="q")
    k, v = (te.placeholder((1, heads // 4, rows, depth), B, name=name) for name in "kv")
    return te.nn.attention(q, k, v, causal=True, name="out")


TILES: dict[str, tuple[Callable[[], Tensor], tuple[int, ...]]] = {
    "many long rows": (lambda: causal(64, 4096, 128), (64, 128, 3, 1)),
    "fewer columns": (lambda: causal(32, 2048, 64), (64, 128, 4, 1)),
    "rows of one length": (lambda: attention(64, 4096, 4096, 128, B).result, (64, 128, 3, 1)),
    "room for one turn more": (lambda: attention(64, 4096, 4096, 64, B).result, (64, 128, 3, 2)),
    "much work between": (lambda: capped(64, 4096, 128), (64, 128, 3, 1)),
    "two bounds": (lambda: windowed(64, 4096, 128), (64, 64, 0, 3)),
    "few tiles": (lambda: causal(8, 2048, 64), (64, 64, 0, 3)),
    "shared keys of one batch": (lambda: few_keys(64, 4096, 64), (64, 128, 4, 1)),
    "many columns": (lambda: causal(64, 4096, 256), (128, 128, 0, 2)),
}


@pytest.mark.parametrize("name", TILES)
def test_several_programs_have_long_pieces_or_one_has_large_tiles(name: str) -> None:
    make, expected = TILES[name]
    s = schedule_for(make(), "cuda")
    knobs = {k.name: k.chosen for k in s.knobs}
    assert tuple(knobs[f"out.{n}"] for n in ("bm", "bk", "occupancy", "stages")) == expected
    older = {k.name: k.chosen for k in schedule_for(make(), "cuda:sm_80").knobs}
    assert older["out.occupancy"] == 0


def test_each_kernel_of_the_gradients_has_its_own_groups() -> None:
    """dK and dV share a kernel, and so its order."""
    s = schedule_for(gradients(32, 4096, 4096, 128, B, causal=True), "cuda")
    assert chosen(s) == {"dq.together": 8, "dk.together": 8}
    s = schedule_for(gradients(32, 4096, 4096, 128, B), "cuda")
    assert chosen(s) == {"dq.together": 1, "dk.together": 1}


def test_rows_of_one_length_stay_head_by_head() -> None:
    s = schedule_for(attention(32, 2048, 2048, 64, B).result, "cuda")
    assert chosen(s) == {"out.together": 1}


def test_one_head_has_no_order() -> None:
    assert chosen(schedule_for(causal(1, 2048, 64), "cuda")) == {}


def test_groups_are_whole() -> None:
    """None of 5 in 12 heads, nor of 6 in batches of 4; what does not fit is refused."""
    assert offered(schedule_for(causal(12, 2048, 64), "cuda"), "out.together") == (1, 4, 12)
    choices = offered(schedule_for(grouped(6, 4, 2, 16384, 64), "cuda"), "out.together")
    assert choices == (1, 4, 8, 12, 24)
    with pytest.raises(ScheduleError, match=r"out\.together.*5"):
        schedule_for(causal(12, 2048, 64), "cuda", {"out.together": 5})


def test_any_number_of_heads_is_one_after_another_unless_told() -> None:
    s = schedule_for(grouped(te.size_var("b"), 8, 2, 2048, 64), "cuda")
    assert chosen(s) == {"out.together": 1}
    assert offered(s, "out.together") == (tile_order.ALL, 1, 4, 8)


def late(heads: int, rows: int, group: int, each: int, tile: int = 64) -> float:
    """How many times later than work without gaps a kernel ends whose programs go, longest first,
    to the first free one of `each` places on every processor."""
    places = [0.0] * (H200.sms * each)
    work = 0
    for _ in range(0, heads, group):
        for row in range(rows // tile, 0, -1):
            for _ in range(group):
                heapq.heappushpop(places, places[0] + 1 + row)
                work += 1 + row
    return max(places) * len(places) / work


@pytest.mark.parametrize(
    ("heads", "rows", "depth", "each"),
    [(256, 2048, 64, 4), (128, 2048, 128, 2), (32, 8192, 128, 2), (64, 8192, 64, 4)],
)
def test_groups_end_with_short_tiles(heads: int, rows: int, depth: int, each: int) -> None:
    s = schedule_for(causal(heads, rows, depth), "cuda")
    group = int(str(chosen(s)["out.together"]))
    assert late(heads, rows, group, each) < 1.02
    assert late(heads, rows, 1, each) > 1.04


CASES: dict[str, tuple[RuleCase, Mapping[str, object], tuple[int, ...]]] = {
    "heads": (RuleCase("heads", lambda: causal(8, 70, 32, "float32")), SMALL, (1, 4, 8)),
    "shared keys": (
        RuleCase("shared", lambda: grouped(2, 4, 2, 64, 16, "float32")),
        {"out.bm": 16, "out.bk": 32},
        (1, 4, 8),
    ),
    "any number": (
        RuleCase("any", lambda: grouped(te.size_var("b"), 4, 2, 40, 16, "float32"), {"b": 3}),
        {"out.bm": 16, "out.bk": 16},
        (tile_order.ALL, 1, 4),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_order_gives_the_same_result(name: str) -> None:
    """In the interpreter of the loop IR, and in Triton's."""
    case, sizes, groups = CASES[name]
    for group in groups:
        for descending in (True, False):
            decisions = {**sizes, "out.together": group, "out.descending": descending}
            s = interpreted(case, "cuda", decisions)
            assert chosen(s) == {"out.together": group}
        compiled(case, "triton-interpret", {**sizes, "out.together": group})


@pytest.mark.parametrize("group", [1, 4, 8])
def test_gradients_in_every_order(group: int) -> None:
    case = RuleCase("gradients", lambda: gradients(8, 64, 64, 32, causal=True))
    decisions: dict[str, object] = {"dq.within": True, "dk.within": True}
    decisions |= {f"{name}.{knob}": 32 for name in ("dq", "dk") for knob in ("bm", "bk")}
    decisions |= {f"{name}.together": group for name in ("dq", "dk")}
    interpreted(case, "cuda", decisions)
    compiled(case, "triton-interpret", decisions)


def test_blocks_of_a_batch_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group of the default, where it parts the heads: two of six."""
    here = replace(H200, l2=2 * 2 * 2 * 70 * 32 * 4)
    monkeypatch.setattr(target, "gpu_of", lambda arch: here)
    case = RuleCase("parted", lambda: causal(6, 70, 32, "float32"))
    assert chosen(interpreted(case, "cuda", SMALL)) == {"out.together": 2}
    compiled(case, "triton-interpret", SMALL)


def test_pages_and_lengths_are_scheduled_as_before() -> None:
    q = te.placeholder((2, 4, 3, 16), name="q")
    k, v = (te.placeholder((5, 8, 2, 16), name=f"{name}_pages") for name in "kv")
    table, lengths = te.placeholder((2, 4), "int32", name="t"), te.placeholder((2,), "int32", "n")

    def made() -> Tensor:
        return te.nn.paged_attention(q, k, v, table, lengths)

    interpreted(RuleCase("paged", made), "cuda")


@pytest.mark.parametrize("group", [1, 4, 32])
def test_the_order_in_print(group: int, golden: Golden) -> None:
    target = Target.parse("cuda:sm_90")
    s = schedule_for(causal(32, 8192, 128), target, {"out.together": group})
    golden(s.as_python(), "schedule")
    golden(emit(lower(s.plan, target, check=True), target).source, "triton")


@pytest.mark.ptxas
@pytest.mark.parametrize("backward", [False, True])
def test_groups_compile_for_hopper(backward: bool) -> None:
    """By descriptors and on the multipliers, as in the order without groups."""
    target = Target.parse("cuda:sm_90")
    sizes = (32, 4096, 4096, 128)
    tensors: Tensor | list[Tensor] = gradients(*sizes, B, causal=True)
    if not backward:
        tensors = attention(*sizes, B, causal=True, finite=True).result
    s = schedule_for(tensors, target)
    assert set(chosen(s).values()) == {8}
    for info in compile_offline(emit(lower(s.plan, target), target), "sm_90"):
        assert "wgmma.mma_async" in info.ptx
        assert "cp.async.bulk.tensor" in info.ptx
        assert info.stack is None or info.stack <= 128  # dk in steps of 64: 6% faster for all that
