"""Which kernels have inputs that are evicted last: those of rows that stream."""

from __future__ import annotations

import re

import pytest
from rule_cases import RuleCase
from rule_checks import interpreted

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
    s = schedule_for(norm(16384), TARGET, {"rms_norm.whole_row": False})
    (knob,) = [knob for knob in s.knobs if knob.name.endswith("evict_last")]
    assert knob.choices == ("none", "reads", "all", "apart", "until_read")


# Rows in pieces that are read again -----------------------------------------------------------


def knobs(s: te.Schedule) -> dict[str, object]:
    """What is chosen, by the end of the knob's name."""
    return {knob.name.rpartition(".")[2]: knob.chosen for knob in s.knobs}


def shares(rows: int, columns: int) -> te.Tensor:
    """Rows of parts of a whole, in 16 bits."""
    return te.nn.softmax(te.placeholder((rows, columns), "bfloat16", name="x"))


def test_long_rows_are_read_backwards_the_second_time():
    """Until they are read for the last time they are evicted last, results first."""
    s = default_schedule(shares(8192, 128256), TARGET)
    assert (knobs(s)["backwards"], knobs(s)["evict_last"]) == (True, "until_read")
    assert "input x: bfloat16[8192, 128256], evicted last, then first" in str(s)
    source = te.build(s, TARGET).source
    first, _, second = source.partition("# softmax\n")
    assert first.count("evict_last") == first.count("tl.load(") == 2
    assert second.count("evict_first") == second.count("tl.load(") + second.count("tl.store(") == 4
    assert "j_outer * -8192" in second.replace("i1_outer", "j_outer")
    tail, loop = (re.search(pattern, second) for pattern in (r"122880", r"for \w+ in tl.range"))
    assert tail is not None and loop is not None and tail.start() < loop.start()


def test_short_rows_in_pieces_are_offered_it():
    given = {"rms_norm.whole_row": False}
    s = schedule_for(norm(16384), TARGET, given)
    assert (knobs(s)["backwards"], knobs(s)["evict_last"]) == (False, "reads")
    s = schedule_for(norm(16384), TARGET, {**given, "rms_norm.backwards": True})
    assert (knobs(s)["backwards"], knobs(s)["evict_last"]) == (True, "until_read")
    s = schedule_for(norm(16384), TARGET, {**given, "rms_norm.evict_last": "until_read"})
    assert "x: bfloat16[16384, 8192], evicted last, then first" in str(s)
    assert "backwards" not in str(s)


@pytest.mark.parametrize("columns", [32768, 32760])
def test_from_which_length_on(columns: int):
    s = schedule_for(shares(16384, columns), TARGET, {"softmax.whole_row": False})
    assert knobs(s)["backwards"] is (columns == 32768)


def test_rows_that_are_read_once_are_not_asked():
    x = te.placeholder((8192, 128256), "bfloat16", name="x")
    k = te.reduce_axis((0, 128256), name="k")
    top = te.compute((8192,), lambda i: te.max(x[i, k], axis=k), name="top")
    other = te.placeholder((8192, 128256), "bfloat16", name="y")
    apart = te.compute(x.shape, lambda i, j: other[i, j] - top[i], name="apart")
    whole = default_schedule(norm(16384), TARGET)
    one_piece = schedule_for(
        norm(16384), TARGET, {"rms_norm.whole_row": False, "rms_norm.block": 8192}
    )
    for s in (default_schedule(top, TARGET), default_schedule(apart, TARGET), whole, one_piece):
        assert "backwards" not in knobs(s)
        assert "until_read" not in str([knob.choices for knob in s.knobs])


@pytest.mark.parametrize("columns", [1500, 2048, 1541])
@pytest.mark.parametrize("online", [True, False])
def test_numbers_of_rows_that_are_read_backwards(columns: int, online: bool):
    case = RuleCase("shares", lambda: shares(5, columns))
    given = {"whole_row": False, "online": online, "backwards": True, "block": 512, "stages": 2}
    s = interpreted(case, "cuda", {f"softmax.{name}": value for name, value in given.items()})
    assert "backwards" in str(s)
