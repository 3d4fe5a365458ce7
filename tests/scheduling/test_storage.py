"""store_at, store_root, rolling_buffer: windows that slide, where they may be, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lowering import after_passes, agrees
from refusals import refused

import tedsl as te
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.plan import Kept

Golden = Callable[..., None]


def blur(n: int = 34, taps: int = 3) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    a = te.placeholder((n, 20), name="A")
    b = te.compute((n, 20), lambda i, j: a[i, j] * 2.0, name="B")
    c = te.compute(
        (n - taps + 1, 20),
        lambda i, j: sum((b[i + t, j] for t in range(1, taps)), b[i, j]),
        name="C",
    )
    return a, b, c


def rows(taps: int = 3, factor: int = 8) -> tuple[Schedule, Any, Any, Any, Any]:
    """C in strips of rows, B computed for each row."""
    _, b, c = blur(taps=taps)
    s = te.create_schedule(c)
    outer, inner = s[c].split(s[c].op.axis[0], factor)
    s[b].compute_at(s[c], inner)
    return s, b, c, outer, inner


def test_each_iteration_computes_what_is_new(golden: Golden) -> None:
    s, b, c, outer, _ = rows()
    s[c].parallel(outer)
    s[b].store_at(s[c], outer)
    golden(f"{s}\n\n{after_passes(s, 'cpu')['simplify']}")
    assert agrees(s, targets=("cpu",))
    assert s.explain()["B"].factor == pytest.approx(4 * 10 / 34, rel=0.01)


def test_a_window_is_folded(golden: Golden) -> None:
    s, b, c, outer, _ = rows()
    s[b].store_at(s[c], outer)
    s[b].rolling_buffer()
    text = after_passes(s, "cpu")["simplify"]
    assert "alloc B: local float32[3, 20]" in text
    golden(f"{s}\n\n{text}")
    assert agrees(s, targets=("cpu",))


def test_outside_all_loops() -> None:
    s, b, _, _, _ = rows()
    s[b].store_root()
    assert "alloc B: local float32[34, 20]" in after_passes(s, "cpu")["simplify"]
    assert agrees(s, targets=("cpu",))


@pytest.mark.cpu
@pytest.mark.parametrize("rolling", [False, True])
@pytest.mark.parametrize(("taps", "factor"), [(2, 8), (3, 5), (4, 31), (3, 1)])
def test_machine_code(taps: int, factor: int, rolling: bool) -> None:
    s, b, c, outer, _ = rows(taps, factor)
    s[b].store_at(s[c], outer)
    if rolling and factor > 1:
        s[b].rolling_buffer()
    s[c].vectorize(s[c].op.axis[1])
    s[b].vectorize(s[b].op.axis[1])
    a = np.random.default_rng(1).standard_normal((34, 20)).astype(np.float32)
    want = sum(2 * a[t : 35 - taps + t] for t in range(taps))
    np.testing.assert_allclose(
        te.build(s, target="cpu", cache=False)(a), want, rtol=1e-5, atol=1e-5
    )


def test_a_reduction_slides() -> None:
    a = te.placeholder((18, 7), name="A")
    k = te.reduce_axis((0, 7), name="k")
    b = te.compute((18,), lambda i: te.sum(a[i, k], axis=k), name="B")
    c = te.compute((16,), lambda i: b[i] * b[i + 2], name="C")
    s = te.create_schedule(c)
    s[b].compute_at(s[c], s[c].op.axis[0])
    s[b].store_root()
    s[b].rolling_buffer()
    assert "alloc B: local float32[3]" in after_passes(s, "cpu")["simplify"]
    assert agrees(s, targets=("cpu",))


def test_two_stages_slide() -> None:
    a = te.placeholder((20,), name="A")
    b = te.compute((20,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((18,), lambda i: b[i] + b[i + 2], name="C")
    d = te.compute((16,), lambda i: c[i] * c[i + 2], name="D")
    s = te.create_schedule(d)
    for t in (c, b):
        s[t].compute_at(s[d], s[d].op.axis[0])
        s[t].store_root()
    assert agrees(s, targets=("cpu",))


@pytest.mark.parametrize(
    "read",
    [
        lambda b, i: b[30 - i] + b[31 - i],
        lambda b, i: b[i // 2] + b[i],
        lambda b, i: b[i * 2 % 32],
        lambda b, i: b[i] + b[31],
    ],
)
def test_regions_that_do_not_slide_are_computed_whole(read: Any) -> None:
    a = te.placeholder((32,), name="A")
    b = te.compute((32,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((16,), lambda i: read(b, i), name="C")
    s = te.create_schedule(c)
    s[b].compute_at(s[c], s[c].op.axis[0])
    s[b].store_root()
    assert agrees(s, targets=("cpu",))
    with refused(s, "the storage of B cannot be folded", "store_at without rolling_buffer"):
        s[b].rolling_buffer()


def test_a_step_of_two() -> None:
    a = te.placeholder((34,), name="A")
    b = te.compute((34,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((15,), lambda i: b[2 * i] + b[2 * i + 4], name="C")
    s = te.create_schedule(c)
    s[b].compute_at(s[c], s[c].op.axis[0])
    s[b].store_root()
    s[b].rolling_buffer()
    assert "select(i == 0, 5, 2)" in str(s)
    assert agrees(s, targets=("cpu",))


def test_inner_loops_between_repeat_the_new_part() -> None:
    s, b, c, outer, _ = rows()
    s[b].compute_at(s[c], s[c].op.axis[1])
    s[b].store_at(s[c], outer)
    assert agrees(s, targets=("cpu",))


@pytest.mark.parametrize("size", [0, 1, 19])
def test_runtime_sizes(size: int) -> None:
    n = te.size_var("n")
    a = te.placeholder((n + 2,), name="A")
    b = te.compute((n + 2,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((n,), lambda i: b[i] + b[i + 2], name="C")
    s = te.create_schedule(c)
    s[b].compute_at(s[c], s[c].op.axis[0])
    s[b].store_root()
    s[b].rolling_buffer()
    module = after_passes(s, "cpu")["simplify"]
    assert "alloc B: local float32[3]" in module
    x = np.arange(size + 2, dtype=np.float32)
    np.testing.assert_allclose(
        te.build(s, target="cpu", cache=False)(x, n=size), x[:-2] + x[2:] + 2
    )


def test_loops_between_run_one_after_the_other() -> None:
    s, b, c, outer, inner = rows()
    s[c].parallel(outer)
    with refused(s, "C.i.outer", "is parallel", "which is a race", "store B inside C.i.outer"):
        s[b].store_root()
    s[b].store_at(s[c], outer)
    with refused(s, "B is stored at C.i.outer", "is parallel", "which is a race"):
        s[c].parallel(inner)
    with refused(s, "no loop around B", "name one of the loops around B"):
        s[b].store_at(s[c], s[c].op.axis[1])
    with refused(s, "B is stored at C.i.outer", "no loop around B"):
        s[c].reorder(inner, outer)


def test_a_stage_that_is_not_attached() -> None:
    _, b, c = blur()
    s = te.create_schedule(c)
    with refused(s, "B is not computed inside a loop", "s[B].compute_at first"):
        s[b].store_root()
    with refused(s, "B is not computed inside a loop", "s[B].compute_at first"):
        s[b].rolling_buffer()


def test_a_window_without_a_place_is_outside_of_its_loop() -> None:
    s, b, c, outer, inner = rows()
    s[b].rolling_buffer()
    kept = s[b].plan.placement.kept
    assert kept is not None and kept.rolling and kept.axis is outer
    assert agrees(s, targets=("cpu",))
    s[b].compute_at(s[c], outer)
    s[b].rolling_buffer()
    assert s[b].plan.placement.kept == Kept(None, rolling=True)
    del inner


def test_compute_at_takes_it_back() -> None:
    s, b, c, outer, inner = rows()
    s[b].store_at(s[c], outer)
    s[b].compute_at(s[c], inner)
    assert s[b].plan.placement.kept is None


def test_what_is_read_in_part_is_kept_in_memory() -> None:
    s, b, c, outer, _ = rows()
    s[c].bind(outer, "blockIdx.x")
    s[b].store_at(s[c], outer)
    module = te.lower(s, target="cuda:sm_90")
    assert [buffer.name for buffer in module.workspaces if buffer.private] == ["B_memory"]
    assert agrees(s)


def test_a_part_that_is_rounded_up_stays_in_what_is_stored() -> None:
    a = te.placeholder((17,), name="A")
    b = te.compute((17,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((51,), lambda i: b[i // 3], name="C")
    s = te.create_schedule(c)
    outer, rest = s[c].split(s[c].op.axis[0], 16)
    middle, _ = s[c].split(rest, 8)
    s[c].bind(outer, "blockIdx.x")
    s[b].compute_at(s[c], middle)
    s[b].store_at(s[c], outer)
    assert agrees(s)
