"""Bytes that are counted exactly: equal to what the IR interpreter accesses, one by one."""

from __future__ import annotations

import pytest
from exact_against_interpreter import Comparison, compare

import tedsl as te
from tedsl.cost.exact_bytes import Counted, exact_bytes
from tedsl.cost.sampled_indices import Values
from tedsl.expr.nodes import Expr


def counted(s: te.Schedule, target: str = "cpu", **sizes: int) -> dict[str, Counted]:
    """Of all kernels of a schedule, by buffer."""
    module = te.lower(s, target)
    values: dict[Expr, Values] = {var: sizes[var.name] for var in module.sizes}
    return {
        buffer.name: found
        for func in module.funcs
        for buffer, found in exact_bytes(func, values).items()
    }


def check(begin: int, end: int) -> None:
    into = Comparison()
    schedules = 0
    for seed in range(begin, end):
        kind = ("schedules", "rules")[seed % 2]
        schedules += any([compare(kind, seed, t, into) for t in ("cpu", "cuda:sm_90")])
    assert not into.wrong, "\n".join(into.wrong)
    assert schedules > 0.9 * (end - begin)
    exact = sum(into.equal[name] for name in ("loads", "stores", "read", "written"))
    # One definition in ten is scattered: data decide what it touches.
    assert exact > 0.85 * sum(into.equal.values()), into.equal


def test_equal_to_the_interpreter_on_drawn_schedules() -> None:
    check(0, 12)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_equal_to_the_interpreter_on_500_drawn_schedules(part: int) -> None:
    check(25 * part, 25 * (part + 1))


def test_tails_are_counted() -> None:
    x = te.placeholder((512, 512), name="x")
    y = te.compute((512, 512), lambda i, j: x[i, j] * 2, name="y")
    s = te.create_schedule(y)
    _, inner = s[y].split(s[y].op.axis[0], factor=6)
    s[y].vectorize(inner)
    whole = 4 * 512 * 512
    assert counted(s) == {
        "x": Counted(loads=whole, read=whole), "y": Counted(stores=whole, written=whole)
    }  # fmt: skip


def test_a_product_reads_each_factor_many_times_and_once() -> None:
    n = 48
    a, b = (te.placeholder((n, n), name=name) for name in "ab")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    s = te.create_schedule(c)
    s[c].tile(*s[c].op.axis, 7, 5)
    found = counted(s)
    assert found["a"] == found["b"] == Counted(loads=4 * n**3, read=4 * n * n)
    assert found["c"].written == 4 * n * n


def test_large_loops_are_counted_without_going_through_them() -> None:
    n = te.size_var("n")
    x = te.placeholder((n, 1 << 20), name="x")
    y = te.compute((n, 1 << 20), lambda i, j: x[i, j] + 1, name="y")
    found = counted(te.create_schedule(y), n=1 << 20)
    assert found["x"].loads == found["y"].stores == 4 << 40


def test_what_data_decide_is_said_so() -> None:
    table, ids = te.placeholder((100, 8), name="table"), te.placeholder((5,), "int32", name="ids")
    y = te.compute((5, 8), lambda i, j: table[ids[i], j], name="y")
    found = counted(te.create_schedule(y))
    assert found["table"].loads == 4 * 40 and found["table"].read is None
    assert found["ids"].read == 4 * 5 and found["y"].written == 4 * 40
    z = te.compute((5,), lambda i: te.if_then_else(ids[i] > 3, table[ids[i], i], 0.0), name="z")
    assert not counted(te.create_schedule(z))["table"].exact
