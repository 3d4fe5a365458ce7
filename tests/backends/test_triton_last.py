"""What the last programs of a kernel do: the memory that they count in, and in which order a device
sees what they store and load."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.backends.triton.launch.launch_plan import Plan, Step, packed, picker
from tedsl.backends.triton.launch.semaphores import MAX_STREAMS, Counters


class Cleared:
    """Cleared memory, numbered."""

    made = 0

    def __init__(self) -> None:
        Cleared.made += 1
        self.number = Cleared.made

    def data_ptr(self) -> int:
        return 0x1000 * self.number


def counters(capturing: list[bool]) -> Counters:
    Cleared.made = 0
    return Counters(Cleared, lambda: capturing[0])


def test_each_stream_counts_in_memory_of_its_own() -> None:
    found = counters([False])
    first, second = found.on(7), found.on(8)
    assert first is not second
    assert (found.on(7), found.on(8)) == (first, second)
    for stream in range(100, 100 + MAX_STREAMS):
        found.on(stream)
    assert found.on(7) is not first, "old streams are forgotten"


def test_a_graph_counts_in_memory_that_nothing_else_uses() -> None:
    capturing = [False]
    found = counters(capturing)
    eager = found.on(7)
    before = Cleared.made
    capturing[0] = True
    captured = found.on(7)
    assert Cleared.made == before, "cleared before the capture, not by each replay"
    again = found.on(7)
    assert Cleared.made == before + 1
    capturing[0] = False
    assert found.on(7) is eager
    capturing[0] = True
    other = found.on(9)
    assert len({eager, captured, again, other}) == 4


def test_counters_follow_the_workspaces() -> None:
    launched: list[Any] = []

    def enter(stream: int, args: Any) -> None:
        launched.append((stream, *args))

    spaces, _ = packed([((4,), "f32", 4)])
    counts, _ = packed([((3,), "i32", 4), ((1,), "i32", 4)])
    kernel = Step(enter, picker((0, 1, 2, 3, 4)), [40])
    count = counters([False]).on
    plan = Plan([(1, [kernel])], spaces, lambda: SimpleNamespace(data_ptr=lambda: 64), (), counts,
                count)  # fmt: skip
    plan.run(9, [8], ())
    plan.run(9, [8], ())
    assert launched == [(9, 8, 64, 0x2000, 0x2100, 40)] * 2
    alone = Plan([(1, [Step(enter, picker((0, 1)), [])])], (), Cleared, (), counts, count)
    alone.run(9, [8], ())
    assert launched[-1] == (9, 8, 0x2000)


def sum_of_parts(n: int = 4096, count: int = 8) -> te.Schedule:
    A = te.placeholder((n,), name="A")
    k = te.reduce_axis((0, n), name="k")
    C = te.compute((), lambda: te.sum(A[k], axis=k), name="C")
    s = te.create_schedule(C)
    P = s.rfactor(C, s[C].split(k, nparts=count)[0])
    s[P].bind(s[P].op.axis[0], "blockIdx.x")
    s[P].vectorize(s[P].op.reduce_axis[0])
    s[C].vectorize(s[C].op.reduce_axis[0])
    s[C].compute_last(P)
    return s


OPERATORS: dict[str, Callable[[int, int], int]] = {
    "setp.eq": operator.eq,
    "setp.lt": operator.lt,
    "and": operator.and_,
    "shr": operator.rshift,
}


def register(text: str, name: str, thread: int) -> int:
    """The value of a register of PTX that depends on the number of the thread alone."""
    if name == "%tid.x" or not name.startswith("%"):
        return thread if name == "%tid.x" else int(name)
    ((word, given),) = re.findall(rf"([a-z.]+)\.\w+\s+{name}, (.+?);", text)
    values = [register(text, each, thread) for each in given.split(", ")]
    return values[0] if word == "mov" else OPERATORS[word](*values)


@pytest.mark.ptxas
@pytest.mark.uncompiled("compiled here")
@pytest.mark.parametrize("arch, warps", [("sm_80", 4), ("sm_90", 1), ("sm_90", 8), ("sm_100", 4)])
def test_one_thread_counts_between_two_barriers(arch: str, warps: int) -> None:
    """Stores of all threads, a barrier, the count, a barrier, loads of all threads."""
    s = sum_of_parts()
    s["C.rf"].launch(num_warps=warps)
    text = te.build(s, f"cuda:{arch}").asm
    order = re.findall(r"(st\.global|bar\.sync|atom\.[\w.:]+|ld\.global)", text)
    (place,) = [n for n, op in enumerate(order) if op.startswith("atom")]
    assert order[place] == "atom.global.gpu.acq_rel.add.u32"
    assert "st.global" in order[:place] and "ld.global" in order[place:]
    assert "bar.sync" in order[order.index("st.global") : place]
    after = order[place + 1 :]
    assert "bar.sync" in after[: after.index("ld.global")]
    (guard,) = re.findall(r"@(%p\d+) atom", text)
    assert [t for t in range(32 * warps) if register(text, guard, t)] == [0]


def test_what_programs_pass_on_is_not_left_to_the_copy_engine() -> None:
    """Its stores are in flight when the program counts itself."""
    A = te.placeholder((64, 128), "float32", name="A")
    P = te.compute((64, 128), lambda i, j: A[i, j] * 2.0, name="P")
    D = te.compute((64,), lambda i: P[i, 0] + P[i, 127], name="D")

    def source(last: bool) -> str:
        s = te.create_schedule(D)
        staged = s.cache_write(P, "shared")
        io, jo, ii, ji = s[P].tile(*s[P].op.axis, 32, 32)
        s[P].bind(io, "blockIdx.x")
        s[P].bind(jo, "blockIdx.y")
        s[P].vectorize(ii)
        s[P].vectorize(ji)
        s[staged].compute_at(s[P], jo)
        to, ti = s[D].split(s[D].op.axis[0], 32)
        s[D].bind(to, "blockIdx.x")
        s[D].vectorize(ti)
        if last:
            s[D].compute_last(P)
        return te.build(s, "triton-interpret").source

    assert "P_desc.store" in source(last=False)
    text = source(last=True)
    assert "P_desc" not in text
    assert "by plain stores: programs pass it on to one another" in text


@pytest.mark.cpu
def test_on_the_cpu_the_parts_are_folded_after_all_of_them() -> None:
    a = np.random.default_rng(3).standard_normal(4096).astype(np.float32)
    kernel = te.build(sum_of_parts(), "cpu")
    np.testing.assert_allclose(kernel(a), a.astype(np.float64).sum(), rtol=1e-4)
