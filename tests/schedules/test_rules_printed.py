"""What each rule decides, and the program that comes of it, as text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rule_shapes import SHAPES

from tedsl import target
from tedsl.backends.triton.emit.module import emit
from tedsl.devices import CpuDevice
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.target import Target

Golden = Callable[..., None]


@pytest.mark.parametrize("name", SHAPES)
def test_on_the_cpu(name: str, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "cpu_here", lambda: CpuDevice("test", 8, 512, 32))
    golden(str(schedule_for(SHAPES[name](), "cpu")))


@pytest.mark.parametrize("name", SHAPES)
def test_on_the_gpu(name: str, golden: Golden) -> None:
    hopper = Target.parse("cuda:sm_90")
    schedule = schedule_for(SHAPES[name](), hopper)
    golden(str(schedule), "schedule")
    golden(emit(lower(schedule.plan, hopper, check=True), hopper).source, "triton")


@pytest.mark.parametrize(
    ("bits", "registers", "tile"), [(512, 32, (12, 32)), (256, 16, (6, 16)), (128, 32, (12, 8))]
)
def test_register_tiles_follow_the_machine(
    bits: int, registers: int, tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = CpuDevice("test", 8, bits, registers)
    monkeypatch.setattr(target, "cpu_here", lambda: here)
    knobs = {k.name: k.chosen for k in schedule_for(SHAPES["exact_contraction"](), "cpu").knobs}
    assert (knobs["matmul.rows"], knobs["matmul.columns"]) == tile
