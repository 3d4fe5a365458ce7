"""Products on the CPU whose operands or results lie far apart in memory."""

from __future__ import annotations

import numpy as np
import pytest
import rule_cases as c

import tedsl as te
from tedsl import target
from tedsl.devices import CpuDevice
from tedsl.schedules import schedule_for
from tedsl.tensor.tensor import Tensor

KIB = 1024


def across(rows: int, columns: int, deep: int) -> Tensor:
    """Both operands in the order of K."""
    a, b = c.p(deep, rows, name="a"), c.p(deep, columns, name="b")
    k = te.reduce_axis((0, deep), name="k")
    return te.compute((rows, columns), lambda i, j: te.sum(a[k, i] * b[k, j], axis=k), name="y")


def batch_last(batch: int, rows: int, columns: int, deep: int) -> Tensor:
    """Results of which those of a batch are neighbours."""
    a, b = c.p(batch, deep, rows, name="a"), c.p(batch, deep, columns, name="b")
    k = te.reduce_axis((0, deep), name="k")
    y = te.compute(
        (batch, rows, columns), lambda q, i, j: te.sum(a[q, k, i] * b[q, k, j], axis=k), name="y"
    )
    return te.compute((rows, columns, batch), lambda i, j, q: te.tanh(y[q, i, j]), name="z")


@pytest.mark.cpu
@pytest.mark.parametrize("shape", [(40, 33, 301), (7, 100, 2000), (130, 40, 1030), (64, 24, 65)])
def test_products_across_agree(shape: tuple[int, int, int]) -> None:
    a, b = (np.random.default_rng(n).normal(size=(shape[2], shape[n])) for n in (0, 1))
    a, b = a.astype("float32"), b.astype("float32")
    np.testing.assert_allclose(te.build(across(*shape), "cpu")(a, b), a.T @ b, atol=2e-3)


@pytest.mark.cpu
@pytest.mark.parametrize(
    "shape", [(32, 40, 33, 61), (5, 13, 70, 16), (2, 9, 8, 700), (17, 5, 3, 4)]
)
def test_results_that_are_neighbours_across_a_batch_agree(shape: tuple[int, int, int, int]) -> None:
    batch, rows, columns, deep = shape
    a = np.random.default_rng(0).normal(size=(batch, deep, rows)).astype("float32")
    b = np.random.default_rng(1).normal(size=(batch, deep, columns)).astype("float32")
    wanted = np.tanh(np.einsum("qki,qkj->ijq", a, b))
    np.testing.assert_allclose(te.build(batch_last(*shape), "cpu")(a, b), wanted, atol=1e-4)


def test_a_batch_is_stored_a_vector_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many products as a vector has lanes, or as the cache holds panels of."""
    for l2, block in ((1024 * KIB, 16), (64 * KIB, 4)):
        here = CpuDevice("test", 8, 512, 32, l2=l2)
        monkeypatch.setattr(target, "cpu_here", lambda here=here: here)
        text = str(schedule_for(batch_last(32, 40, 32, 64), "cpu"))
        assert f"y: float32[{block}, " in text
        assert f"in 0..{block}  (vectorized)" in text


def test_only_what_caches_do_not_foresee_is_fetched_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "cpu_here", lambda: CpuDevice("test", 8, 512, 32))
    assert "pipelined" in str(schedule_for(across(300, 300, 200), "cpu"))
    assert "pipelined" not in str(schedule_for(across(16, 300, 200), "cpu"))  # the next line
    assert "pipelined" not in str(schedule_for(across(300, 300, 12), "cpu"))  # over at once
    a, b = c.p(300, 200, name="a"), c.p(200, 300, name="b")
    k = te.reduce_axis((0, 200), name="k")
    y = te.compute((300, 300), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="y")
    assert "pipelined" not in str(schedule_for(y, "cpu"))


@pytest.mark.parametrize(
    ("shape", "l2", "parts"),
    [
        ((128, 128, 8192), 2048, 5),  # rows that are read once for each panel of columns
        ((128, 128, 8192), 65536, 1),  # all stay there
        ((8, 32, 8192), 2048, 1),  # one tile: nothing is read again
        ((2048, 2048, 2048), 2048, 1),  # the results of parts would be more than what is read
    ],
)
def test_a_fold_is_in_parts_whose_operands_stay_in_the_cache(
    shape: tuple[int, int, int], l2: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = CpuDevice("test", 1, 512, 32, l2=l2 * KIB)
    monkeypatch.setattr(target, "cpu_here", lambda: here)
    knobs = {knob.name: knob.chosen for knob in schedule_for(across(*shape), "cpu").knobs}
    found = knobs.get("y.parts", 1)
    assert isinstance(found, int) and (parts == 1) == (found == 1) and found >= parts


@pytest.mark.parametrize(("columns", "wide"), [(40, 40), (48, 48), (64, 32), (159, 32)])
def test_tiles_do_not_end_far_past_the_row(
    columns: int, wide: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "cpu_here", lambda: CpuDevice("test", 1, 512, 32))
    knobs = {knob.name: knob.chosen for knob in schedule_for(across(96, columns, 64), "cpu").knobs}
    assert knobs["y.columns"] == wide
