"""An attached stage of a constant size is on the stack or in registers, any other in memory; of
clamped neighbours a constant size is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lowering import agrees

import tedsl as te
from tedsl.expr.nodes import Axis, Var
from tedsl.index.facts import Facts
from tedsl.schedules import default_schedule
from tedsl.scheduling.regions.span import greatest_difference
from tedsl.tensor.tensor import Tensor

SIZES = (0, 1, 2, 5, 8, 17)


def neighbours(read: Callable[..., Any]) -> tuple[te.Schedule, Tensor, Tensor, Any]:
    n = te.size_var("n")
    a = te.placeholder((n, 3), name="A")
    b = te.compute((n, 3), lambda i, j: a[i, j] * 2.0, name="B")
    c = te.compute((n, 3), lambda i, j: read(b, i, j, n), name="C")
    return te.create_schedule(c), b, c, n


CLAMPED: dict[str, Callable[..., Any]] = {
    "after": lambda b, i, j, n: b[i, j] + b[te.minimum(i + 1, n - 1), j],
    "both sides": lambda b, i, j, n: b[te.maximum(i - 1, 0), j] + b[te.minimum(i + 1, n - 1), j],
    "all three": lambda b, i, j, n: (
        b[te.maximum(i - 1, 0), j] + b[i, j] + b[te.minimum(i + 2, n - 1), j]
    ),
    "clamped twice": lambda b, i, j, n: (
        b[te.minimum(te.maximum(i - 1, 0), n - 1), j]
        + b[te.minimum(te.maximum(i + 1, 0), n - 1), j]
    ),
    "backwards": lambda b, i, j, n: b[n - 1 - i, j] + b[te.maximum(n - 2 - i, 0), j],
}


@pytest.mark.parametrize("tile", [0, 4])
@pytest.mark.parametrize("name", CLAMPED)
def test_clamped_neighbours_have_a_constant_size(name: str, tile: int) -> None:
    s, b, c, n = neighbours(CLAMPED[name])
    loop = s[c].op.axis[0]
    if tile:
        loop, _ = s[c].split(loop, tile)
    s[b].compute_at(s[c], loop)
    for size in SIZES:
        assert agrees(s, {n: size}, targets=("cpu",))


@pytest.mark.cpu
def test_clamped_neighbours_build() -> None:
    s, b, c, _ = neighbours(CLAMPED["after"])
    s[b].compute_at(s[c], s[c].op.axis[0])
    x = np.random.default_rng(0).standard_normal((9, 3)).astype("f4")
    want = 2 * x + 2 * np.concatenate([x[1:], x[-1:]])
    np.testing.assert_allclose(te.build(s, target="cpu")(x), want, rtol=1e-6)


def chain() -> tuple[te.Schedule, Tensor, Tensor]:
    n = te.size_var("n")
    a = te.placeholder((4, n), name="A")
    b = te.compute((4, n), lambda i, j: a[i, j] + 1.0, name="B")
    c = te.compute((4, n), lambda i, j: b[i, j] * 2.0, name="C")
    return te.create_schedule(c), b, c


BOTH = ("cpu", "triton-interpret")


@pytest.mark.parametrize("bound", [False, True])
def test_a_region_of_unknown_size_is_in_memory(bound: bool) -> None:
    s, b, c = chain()
    i, j = s[c].op.axis
    assert [axis.name for _, axis in s[b].legal_places()] == ["i", "j"]
    s[b].compute_at(s[c], i)
    if bound:
        s[c].bind(i, "blockIdx.x")
        s[c].vectorize(s[c].split(j, 8)[1])
    n = b.shape[1]
    assert isinstance(n, Var)
    for size in SIZES:
        assert agrees(s, {n: size}, targets=BOTH)


def test_a_later_call_may_take_the_size_away() -> None:
    n = te.size_var("n")
    a = te.placeholder((n, n), name="A")
    b = te.compute((n, n), lambda i, j: a[i, j] + 1.0, name="B")
    c = te.compute((n, n), lambda i, j: b[i, j] * 2.0 + b[n - 1 - i, j], name="C")
    s = te.create_schedule(c)
    i, j = s[c].op.axis
    s[b].compute_at(s[c], j)
    s[c].reorder(j, i)
    for size in SIZES:
        assert agrees(s, {n: size}, targets=BOTH)


def test_reductions_of_unknown_length_inside_each_other() -> None:
    """Rows of a product that a product reads, each in a loop of the next."""
    n = te.size_var("n")
    a = te.placeholder((n, n), name="A")
    k, r = te.reduce_axis((0, n), name="k"), te.reduce_axis((0, n), name="r")
    b = te.compute((n, n), lambda i, j: te.sum(a[i, k] * a[k, j], axis=k), name="B")
    c = te.compute((n, n), lambda i, j: te.sum(b[i, r] * a[r, j], axis=r), name="C")
    s = te.create_schedule(c)
    cached = s.cache_write(c, "local")
    s[cached].compute_at(s[c], s[c].op.axis[0])
    s[b].compute_at(s[cached], s[cached].op.axis[0])
    for size in SIZES:
        assert agrees(s, {n: size}, targets=BOTH)


def test_rules_attach_what_has_a_constant_size() -> None:
    """Rows of unknown length stay kernels or are computed again: no rule passes them on in the
    memory of a program."""
    for target in ("cpu", "cuda:sm_90"):
        s, _, c = chain()
        module = te.lower(default_schedule(c, target), target=target)
        assert not any(buffer.private for func in module.funcs for buffer in func.params)
    s, b, c = chain()
    s.in_registers = True
    with pytest.raises(te.ScheduleError, match=r"dimension 1 of the region of B .* \(of n elem"):
        s[b].compute_at(s[c], s[c].op.axis[0])
    assert s[b].plan.placement.at_root


@pytest.mark.cpu
def test_what_is_stored_outside_is_a_window() -> None:
    """Without rolling_buffer too, where all of it has no constant size."""
    n = te.size_var("n")
    a = te.placeholder((n + 2,), name="A")
    b = te.compute((n + 2,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((n,), lambda i: b[i] + b[i + 2], name="C")
    s = te.create_schedule(c)
    s[b].compute_at(s[c], s[c].op.axis[0])
    s[b].store_root()
    kernel = te.build(s, target="cpu")
    for size in SIZES:
        x = np.arange(size + 2, dtype=np.float32)
        np.testing.assert_allclose(kernel(x, n=size), x[:-2] + x[2:] + 2)


def test_the_greatest_difference_of_clamps() -> None:
    n, i = te.size_var("n"), Axis("i")
    facts = Facts.EMPTY.assume(n >= 0).with_axis(i, 0, n)
    after = te.minimum(i + 1, n - 1)
    assert greatest_difference(after, i, facts) == 1
    assert greatest_difference(te.maximum(i, after) + 1, te.minimum(i, after), facts) == 2
    assert greatest_difference(i, te.maximum(i - 3, 0), facts) == 3
    assert greatest_difference(n, i, facts) is None


def test_loops_inside_a_pipelined_one_of_unknown_extent_stay_loops() -> None:
    """On a GPU they would be sides of a tile, whose sizes are known when it is built."""
    s, _, c = chain()
    i, _ = s[c].op.axis
    s["B"].compute_inline()
    s[c].pipeline(i, 2)
    lines = str(te.lower(s, target="cuda:sm_90", check=True)).splitlines()
    loops = [line.split()[3] for line in lines if line.split()[:1] == ["for"]]
    assert loops == ["0..4:", "0..n:"], lines
