"""Which kernels have inputs that are evicted last: those of rows that stream."""

from __future__ import annotations

import pytest

import tedsl as te
from tedsl.schedules import default_schedule, schedule_for

TARGET = "cuda:sm_90"


def evicted(s: te.Schedule) -> list[str]:
    """The inputs of which it is said."""
    return [
        line.split()[1].rstrip(":") for line in str(s).splitlines() if line.endswith("evicted last")
    ]


def norm(rows: int) -> te.Tensor:
    """Rows that are folded and stored, and a short input."""
    x = te.placeholder((rows, 8192), "bfloat16", name="x")
    return te.nn.rms_norm(x, te.placeholder((8192,), "bfloat16", name="w"))


def test_rows_that_stream():
    s = default_schedule(norm(16384), TARGET)
    assert evicted(s) == ["x"]
    assert "eviction_policy" in te.build(s, TARGET).source


@pytest.mark.parametrize("rows", [1, 128, 1024])
def test_what_fits_stays_as_it_is(rows: int):
    s = default_schedule(norm(rows), TARGET)
    assert not evicted(s)
    assert not [knob for knob in s.knobs if knob.name.endswith("evict_last")]


def test_a_chosen_kernel_says_it_of_all_that_it_moves():
    x = te.placeholder((16384, 8192), "float32", name="x")
    y = te.compute(x.shape, lambda i, j: x[i, j] + 1.0, name="y")
    assert not evicted(default_schedule(y, TARGET))
    s = schedule_for(y, TARGET, {"y.evict_last": "all"})
    assert evicted(s) == ["x"]
    source = te.build(s, TARGET).source
    assert source.count("eviction_policy") == 2


def test_what_a_product_reads_stays_as_it_is():
    a = te.placeholder((16384, 8192), "bfloat16", name="a")
    b = te.placeholder((8192, 8192), "bfloat16", name="b")
    rows = te.nn.softmax(a)
    s = default_schedule([rows, te.nn.matmul(a, b)], TARGET)
    assert not evicted(s)


def test_a_kernel_into_which_stages_are_inlined():
    """What such a kernel computes is another operation then, of the same stage."""
    x = te.placeholder((16384, 8192), "bfloat16", name="x")
    scale, shift = (te.placeholder((8192,), "bfloat16", name=name) for name in ("scale", "shift"))
    y = te.nn.layer_norm(x, scale, shift)
    for what, accesses in (("reads", 2), ("apart", 2), ("all", 3)):
        given = {"layer_norm.whole_row": False, "layer_norm.online": True}
        s = schedule_for(y, TARGET, {**given, "layer_norm.evict_last": what})
        assert evicted(s) == ["x"]
        assert te.build(s, TARGET).source.count("evict_last") == accesses
    assert "kernel layer_norm: bfloat16[16384, 8192], evicted last" in str(s)


def test_no_choice_is_idle():
    """What only reads has nothing to say of results."""
    x = te.placeholder((16384, 8192), "float32", name="x")
    i, j = te.reduce_axis((0, 16384), "i"), te.reduce_axis((0, 8192), "j")
    s = default_schedule(te.compute((), lambda: te.sum(x[i, j], axis=[i, j]), name="y"), TARGET)
    (knob,) = [knob for knob in s.knobs if knob.name.endswith("evict_last")]
    assert knob.choices == ("none", "reads")
    s = default_schedule(norm(16384), TARGET)
    (knob,) = [knob for knob in s.knobs if knob.name.endswith("evict_last")]
    assert knob.choices == ("none", "reads", "all", "apart")
