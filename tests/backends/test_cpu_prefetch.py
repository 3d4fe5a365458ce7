"""Pipelined loops on the CPU: what is prefetched, how far ahead, and that numbers stay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from aarch64 import assembly, believing
from hypothesis import given, settings
from hypothesis import strategies as st

import tedsl as te
from tedsl import processor as detection
from tedsl.backends.cpu.emit import module as codegen
from tedsl.backends.cpu.emit.affine import Poly
from tedsl.backends.cpu.emit.prefetch import LINE, Box, fresh, places, together
from tedsl.dtypes import DType
from tedsl.expr.nodes import Const
from tedsl.ir.nodes import Buffer

pytestmark = pytest.mark.cpu
CALL = "call void @llvm.prefetch.p0(ptr "


def text_of(s: te.Schedule) -> str:
    return codegen.emit_module(te.lower(s, "cpu"))


def prefetches(text: str) -> int:
    return text.count(CALL)


def moved(text: str) -> list[int]:
    """The constant distances, in bytes, by which pointers of prefetches are moved."""
    found = re.findall(r"(%v\d+) = getelementptr i8, ptr %v\d+, i64 (-?\d+)\n", text)
    asked = set(re.findall(r"llvm\.prefetch\.p0\(ptr (%v\d+),", text))
    return [int(by) for name, by in found if name in asked]


def rows(n: int = 64, width: int = 64, dtype: str = "float32", stages: int = 3) -> te.Schedule:
    """Sums of rows, each row one iteration of a pipelined loop."""
    a = te.placeholder((n, width), dtype, name="A")
    b = te.compute((n, width), lambda i, j: a[i, j] * 2, name="B")
    s = te.create_schedule(b)
    i, j = b.op.axis
    s[b].vectorize(j)
    s[b].pipeline(i, num_stages=stages)
    return s


@pytest.mark.parametrize(("stages", "lines"), [(1, 0), (2, 4), (3, 4), (5, 4)])
def test_a_row_is_asked_for_line_by_line(stages: int, lines: int) -> None:
    """64 floats are 4 lines; the rows follow each other, so each line's far end is named."""
    text = text_of(rows(stages=stages))
    assert prefetches(text) == lines
    assert moved(text) == [60, 124, 188, 252][:lines]
    if lines:
        assert text.count(f"i64 {(stages - 1) * 256}\n") == 1
        assert text.count("i32 0, i32 3, i32 1)") == lines  # read, keep in all levels, data
        assert "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)" in text


def test_no_claim_is_made_of_what_is_ahead() -> None:
    lines = text_of(rows()).splitlines()
    at = {line.split(" = ")[0].strip(): line for line in lines if " = " in line}
    for line in lines:
        if CALL in line:
            name = line.split(CALL)[1].split(",")[0]
            while name in at and "getelementptr" in at[name]:
                assert "inbounds" not in at[name] and "nuw" not in at[name]
                name = at[name].split("ptr ")[1].split(",")[0]


def test_a_loop_no_longer_than_the_distance_asks_for_nothing() -> None:
    assert prefetches(text_of(rows(n=4, stages=5))) == 0
    assert prefetches(text_of(rows(n=5, stages=5))) == 4


def test_machine_code() -> None:
    kernel = te.build(rows(), "cpu", cache=False)
    if not detection.machine().is_x86:
        pytest.skip("not an x86 processor")
    found = kernel.asm.count("prefetcht0")
    assert found and found % 4 == 0  # LLVM may unroll the loop
    assert "prefetch" not in te.build(rows(stages=1), "cpu", cache=False).asm


@pytest.fixture
def neon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """LLVM with the AArch64 target, and a backend that believes it runs there."""
    with believing(monkeypatch) as binding:
        yield binding


def test_machine_code_of_aarch64(neon: Any) -> None:
    text = assembly(neon, text_of(rows()))
    assert "prfm" in text and text.count("prfm\tpldl1keep") % 4 == 0
    assert "prfm" not in assembly(neon, text_of(rows(stages=1)))


def test_elements_that_share_a_line_ask_once() -> None:
    """16 floats to a line: every 16th iteration asks, for what the last of them looks ahead to."""
    a = te.placeholder((640,), name="A")
    b = te.compute((640,), lambda i: a[i] + 1.0, name="B")
    s = te.create_schedule(b)
    s[b].pipeline(b.op.axis[0], num_stages=3)
    text = text_of(s)
    assert prefetches(text) == 1
    assert re.search(r"= and i64 %i\d+, 15\n", text)
    assert f"i64 {(2 + 15) * 4}\n" in text


def test_three_element_steps_cannot_be_told_apart() -> None:
    a = te.placeholder((600,), name="A")
    b = te.compute((200,), lambda i: a[i * 3] + 1.0, name="B")
    s = te.create_schedule(b)
    s[b].pipeline(b.op.axis[0], num_stages=3)
    text = text_of(s)
    assert prefetches(text) == 1
    assert not re.search(r"= and i64 %i\d+", text)


def test_a_stencil_asks_for_the_row_that_no_iteration_has_read() -> None:
    a = te.placeholder((66, 66), name="A")
    b = te.compute(
        (64, 64),
        lambda i, j: a[i, j] + a[i + 1, j] + a[i + 2, j + 1] + a[i + 2, j + 2] + a[i, j + 2],
        name="B",
    )
    s = te.create_schedule(b)
    i, j = b.op.axis
    s[b].vectorize(j)
    s[b].pipeline(i, num_stages=2)
    assert prefetches(text_of(s)) == 5  # of 66 floats, those of row i + 3 alone


def tiled(dtype: str = "float32", size: int = 50) -> te.Schedule:
    """A product of matrices in tiles, pipelined over its long axis, with tails everywhere."""
    a = te.placeholder((size, size), dtype, name="A")
    b = te.placeholder((size, size), dtype, name="B")
    k = te.reduce_axis((0, size), name="k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    s = te.create_schedule(c)
    io, jo, ii, ji = s[c].tile(*c.op.axis, 8, 32)
    ko, ki = s[c].split(k, 16)
    s[c].reorder(io, jo, ko, ki, ii, ji)
    s[c].vectorize(ii)
    s[c].vectorize(ji)
    s[c].pipeline(ko, num_stages=3)
    return s


def test_numbers_stay() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 8, (50, 50)).astype("float32") for _ in range(2))
    kernel = te.build(tiled(), "cpu", cache=False)
    assert "prefetch" in kernel.source or detection.machine().is_x86
    np.testing.assert_array_equal(kernel(a, b), a @ b)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 17, 100])
def test_sizes_that_are_known_at_the_call(n: int) -> None:
    """Rows of a length that is not known: the distance is made of it, and computed without nsw."""
    m, width = te.var("m"), te.var("w")
    a = te.placeholder((m, width), name="A")
    b = te.compute((m,), lambda i: a[i, 0] + a[i, width - 1], name="B")
    s = te.create_schedule(b)
    s[b].pipeline(b.op.axis[0], num_stages=3)
    text = text_of(s)
    assert prefetches(text) >= 2
    assert re.search(r"= mul i64 %\w+, 8\n", text)
    x = np.arange(n * 5, dtype="float32").reshape(n, 5)
    kernel = te.build(s, "cpu", cache=False)
    np.testing.assert_array_equal(kernel(x), x[:, 0] + x[:, -1])


def test_what_is_not_affine_is_left_alone() -> None:
    """The index is fetched ahead; what it leads to is not, and no memory is read to find out."""
    idx = te.placeholder((640,), "int32", name="I")
    a = te.placeholder((100,), name="A")
    b = te.compute((640,), lambda i: a[te.clip(idx[i], 0, 99)], name="B")
    s = te.create_schedule(b)
    s[b].pipeline(b.op.axis[0], num_stages=3)
    text = text_of(s)
    assert prefetches(text) == 1
    divided = te.compute((640,), lambda i: a[i // 7], name="D")
    s = te.create_schedule(divided)
    s[divided].pipeline(divided.op.axis[0], num_stages=3)
    assert prefetches(text_of(s)) == 0


def test_more_than_caches_hold_is_left_alone() -> None:
    def whole(width: int) -> te.Schedule:
        a = te.placeholder((64, width), name="A")
        k = te.reduce_axis((0, width), name="k")
        b = te.compute((64,), lambda i: te.sum(a[i, k], axis=k), name="B")
        s = te.create_schedule(b)
        s[b].pipeline(b.op.axis[0], num_stages=2)
        return s

    assert prefetches(text_of(whole(1 << 15))) == 2  # a loop over lines, and the last of them
    assert prefetches(text_of(whole(1 << 16))) == 0


def test_prefetch_and_double_buffer_of_tvm() -> None:
    a = te.placeholder((64, 64), name="A")
    b = te.compute((64, 64), lambda i, j: a[i, j] + 1.0, name="B")
    c = te.compute((64, 64), lambda i, j: b[i, j] * 2.0, name="C")
    s = te.create_schedule(c)
    s[b].compute_at(s[c], c.op.axis[0])
    s[b].double_buffer()
    assert prefetches(text_of(s)) == 4
    s = te.create_schedule(b)
    s[b].prefetch(a, b.op.axis[0], 4)
    assert f"i64 {4 * 256}\n" in text_of(s)
    x = np.arange(64 * 64, dtype="float32").reshape(64, 64)
    np.testing.assert_array_equal(te.build(s, "cpu", cache=False)(x), x + 1)


def test_explain_says_what_happens() -> None:
    text = str(tiled().explain())
    assert "C.k.outer in 3 stages" in text
    assert "cpu     prefetches what is read 2 iterations later (prefetcht0, prfm)" in text
    assert "triton  tl.range(num_stages=3)" in text
    assert str(rows(stages=1).explain()).endswith("B.i in 1 stage: nothing is loaded ahead")


def poly(value: int) -> Poly:
    return {(): value} if value else {}


@given(
    run=st.integers(1, 200),
    step=st.integers(-200, 200).filter(bool),
    base=st.integers(0, 15),
    ahead=st.integers(1, 5),
    dtype=st.sampled_from([DType.int8, DType.bfloat16, DType.float32, DType.float64]),
)
@settings(max_examples=300, deadline=None)
def test_every_line_is_asked_for_in_time(
    run: int, step: int, base: int, ahead: int, dtype: DType
) -> None:
    """Wherever the buffer begins: what iteration t reads was asked for at t - ahead or before."""
    buffer = Buffer("A", dtype, (Const(1, DType.int32),))
    size, trips = dtype.nbytes, 400
    box = Box(buffer, poly(0), poly(step), run, ())
    asks = fresh(box)
    first = asks.start.get((), 0)
    asked: dict[int, list[int]] = {}
    sharing = together(asks)
    for t in range(0, trips, sharing):
        for place in places(asks):
            element = base + first + (t + ahead + sharing - 1) * step + place
            asked.setdefault(element * size // LINE, []).append(t)
    warm = ahead + 2 * sharing + run // abs(step) + 2 * LINE // (abs(step) * size) + 2
    for t in range(warm, trips):
        for e in (0, run // 2, run - 1):
            line = (base + t * step + e) * size // LINE
            assert any(at <= t - ahead for at in asked.get(line, [])), (t, e)
    if abs(step) <= run and (sharing > 1 or abs(step) * size >= LINE):
        assert max(map(len, asked.values())) <= 2  # once, or twice where a line is shared
