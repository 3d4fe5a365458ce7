"""Rules that choose by registers: float32 attention in parts of the head dimension, its gradient
from stored scores, and products whose elements are copied one by one in tiles of few rows."""

from __future__ import annotations

import pytest
from model_cases import HOPPER, attention

import tedsl as te
from tedsl.backends.triton.compile.offline import compile_offline
from tedsl.backends.triton.emit.module import emit
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for

pytestmark = pytest.mark.uncompiled("compiled here, for one device")


@pytest.mark.ptxas
@pytest.mark.parametrize("depth", [80, 128])
def test_float32_attention_of_wide_heads_does_not_spill(depth: int) -> None:
    """More than a few registers: the parts of Q are read again for each piece of the keys."""
    schedule = schedule_for(attention(8, 1770, depth, dtype="float32"), HOPPER)
    (info,) = compile_offline(emit(lower(schedule.plan, HOPPER), HOPPER), "sm_90")
    if info.stack is None:
        pytest.skip("the wheel has no cuobjdump")
    assert info.stack <= 64
    assert info.shared <= 227 << 10


def test_other_types_are_multiplied_whole() -> None:
    schedule = schedule_for(attention(8, 1770, 128), HOPPER)
    assert not [knob for knob in schedule.knobs if knob.name.endswith(".part")]


def tall(columns: int) -> te.Tensor:
    k = te.reduce_axis((0, 1 << 18), name="k")
    a = te.placeholder((1 << 18, 70), name="a")
    b = te.placeholder((1 << 18, columns), name="b")
    return te.compute((70, columns), lambda i, j: te.sum(a[k, i] * b[k, j], axis=k), name="c")


@pytest.mark.parametrize(("columns", "few"), [(79, True), (80, False)])
def test_elements_copied_one_by_one_have_tiles_of_few_rows(columns: int, few: bool) -> None:
    """Odd rows: a warp would copy 32 columns to one bank of shared memory."""
    schedule = schedule_for(tall(columns), HOPPER)
    (rows,) = (int(str(knob.chosen)) for knob in schedule.knobs if knob.name.endswith("rf.bm"))
    assert (rows < 64) == few


def layer(x: te.Tensor) -> te.Tensor:
    k, w = te.reduce_axis((0, 127), name="k"), te.placeholder((127, 127), name="w")
    made = te.compute((64, 127), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="mm")
    return te.compute((64, 127), lambda i, j: te.tanh(made[i, j]), name="mm")


def test_stages_of_one_name_are_told_apart() -> None:
    """A kernel is looked at alone, where its stages have other names than in the graph."""
    x = te.placeholder((64, 127), name="x")
    assert schedule_for(layer(layer(layer(x))), HOPPER).knobs
