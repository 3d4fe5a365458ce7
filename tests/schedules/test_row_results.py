"""Results that a kernel of rows reads, or computes on its way: by one kernel, and right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.expr.numerics import numpy_dtype
from tedsl.schedules import schedule_for

Made = list[te.Tensor]
Numbers = np.ndarray[Any, np.dtype[Any]]


def rows_of(*shape: int) -> tuple[te.Tensor, te.Tensor, te.Axis]:
    x, y = te.placeholder(shape, name="x"), te.placeholder(shape, name="y")
    return x, y, te.reduce_axis((0, shape[-1]), "k")


def moments(z: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
    """The means of rows, and the sums of squared differences from them."""
    (n, m), k = z.shape, te.reduce_axis((0, z.shape[1]), "k")
    h = te.reduce_axis((0, m), "h")
    total = te.compute((n,), lambda i: te.sum(z[i, k], axis=k), name="total")
    mean = te.compute((n,), lambda i: total[i] / float(int(m)), name="mean")
    off = te.compute(
        (n,), lambda i: te.sum((z[i, h] - mean[i]) * (z[i, h] - mean[i]), h), name="off"
    )
    return mean, off


def residual(n: int, m: int) -> Made:
    x, y, _ = rows_of(n, m)
    z = te.compute((n, m), lambda i, j: x[i, j] + y[i, j], name="z")
    mean, off = moments(z)
    normed = te.compute(
        (n, m), lambda i, j: (z[i, j] - mean[i]) * te.rsqrt(off[i] + 1.0), name="normed"
    )
    return [z, normed]


def turned(n: int, m: int) -> Made:
    """The rows of one result are the columns of what lies in memory before it."""
    x, y = te.placeholder((n, 5, m), name="x"), te.placeholder((5, n, m), name="y")
    k = te.reduce_axis((0, m), "k")
    z = te.compute((n, 5, m), lambda i, g, j: x[i, g, j] + y[g, i, j], name="z")
    top = te.compute((n, 5), lambda i, g: te.max(z[i, g, k], axis=k), name="top")
    return [z, te.compute((5, n, m), lambda g, i, j: z[i, g, j] - top[i, g], name="below")]


def kept_statistics(n: int, m: int) -> Made:
    x, y, _ = rows_of(n, m)
    mean, off = moments(x)
    scale = te.compute((n, 1), lambda i, _: te.rsqrt(off[i] + 1.0), name="scale")
    shown = te.compute((n,), lambda i: scale[i, 0] * 2.0, name="shown")
    normed = te.compute(
        (n, m), lambda i, j: (x[i, j] - mean[i]) * scale[i, 0] * y[i, j], name="normed"
    )
    return [normed, mean, scale, shown]


def followed(n: int, m: int) -> Made:
    x, y, k = rows_of(n, m)
    top = te.compute((n,), lambda i: te.max(x[i, k], axis=k), name="top")
    low = te.compute((n, m), lambda i, j: x[i, j] - top[i], name="low")
    return [low, te.compute((n, m), lambda i, j: te.exp(low[i, j]) + y[i, j], name="high")]


def folded(n: int, m: int) -> Made:
    """Two folds of rows that a third kernel reads, of all rows."""
    x, _, k = rows_of(n, m)
    h, r = te.reduce_axis((0, m), "h"), te.reduce_axis((0, n), "r")
    top = te.compute((n,), lambda i: te.max(x[i, k], axis=k), name="top")
    total = te.compute((n,), lambda i: te.sum(te.exp(x[i, h] - top[i]), axis=h), name="total")
    lost = te.compute((), lambda: te.sum(te.log(total[r]) + top[r] - x[r, 0], axis=r), name="lost")
    return [lost]


def split(n: int, m: int) -> Made:
    """Statistics that a matrix reads whose rows are parts of theirs."""
    x, y, _ = rows_of(n, m)
    mean, off = moments(x)
    normed = te.compute(
        (8 * n, m),
        lambda i, j: (x[i // 8, j] - mean[i // 8]) * off[i // 8] + y[i // 8, j],
        "normed",
    )
    return [normed]


def columns(n: int, m: int) -> Made:
    """Statistics of columns, that several results are computed from."""
    x = te.placeholder((n, m), name="x")
    k, h = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "h")
    total = te.compute((m,), lambda j: te.sum(x[k, j], axis=k), name="total")
    mean = te.compute((m,), lambda j: total[j] / float(n), name="mean")
    off = te.compute((m,), lambda j: te.sum((x[h, j] - mean[j]) * (x[h, j] - mean[j]), h), "off")
    shown = te.compute((m,), lambda j: mean[j] * 0.9 + off[j], name="shown")
    return [te.compute((n, m), lambda i, j: (x[i, j] - mean[j]) * off[j], name="normed"), shown]


def of_products(n: int, m: int) -> Made:
    """Statistics of rows of a product, rounded as it is stored."""
    a, b = te.placeholder((n, 16), "float16", name="a"), te.placeholder((16, m), "float16", "b")
    k = te.reduce_axis((0, 16), "k")
    product = te.compute(
        (n, m),
        lambda i, j: te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), axis=k),
        name="product",
    )
    stored = te.compute((n, m), lambda i, j: product[i, j].astype("float16"), name="stored")
    wide = te.compute((n, m), lambda i, j: stored[i, j].astype("float32"), name="wide")
    mean, off = moments(wide)
    return [te.compute((n, m), lambda i, j: (wide[i, j] - mean[i]) * off[i], name="normed")]


def middle(n: int, m: int) -> Made:
    """Moments along an axis in the middle, of so few neighbours that half of a tile is idle."""
    x = te.placeholder((n, m, 35), name="x")
    k, h = te.reduce_axis((0, m), "k"), te.reduce_axis((0, m), "h")
    total = te.compute((n, 35), lambda i, j: te.sum(x[i, k, j], axis=k), name="total")
    off = te.compute(
        (n, 35),
        lambda i, j: te.sum(
            (x[i, h, j] - total[i, j] / float(m)) * (x[i, h, j] - total[i, j] / float(m)), axis=h
        ),
        name="off",
    )
    return [te.compute((n, 35), lambda i, j: te.sqrt(off[i, j]), name="spread")]


def read_by_columns(n: int, m: int) -> Made:
    """Statistics of rows that a matrix reads, and sums of columns of what is computed of them."""
    x, y, k = rows_of(n, m)
    r, q = te.reduce_axis((0, n), "r"), te.reduce_axis((0, n), "q")
    mean, off = moments(x)
    both = te.compute((n,), lambda i: te.sum(x[i, k] * y[i, k], axis=k), name="both")
    slope = te.compute(
        (n, m), lambda i, j: y[i, j] * off[i] - (x[i, j] - mean[i]) * both[i], name="slope"
    )
    first = te.compute((), lambda: te.sum(both[r] - mean[r] * off[r], axis=r), name="first")
    return [slope, first, te.compute((), lambda: te.sum(both[q], axis=q), name="second")]


CASES: list[tuple[Callable[[int, int], Made], int, int, list[str]]] = [
    (residual, 300, 96, ["normed"]),
    (residual, 140, 1000, ["normed"]),
    (turned, 60, 72, ["below"]),
    (kept_statistics, 300, 96, ["normed"]),
    (kept_statistics, 12, 40_000, ["off.rf", "mean", "normed"]),
    (followed, 300, 96, ["low"]),
    (folded, 300, 96, ["total", "lost"]),
    (read_by_columns, 3000, 96, ["slope", "first", "second"]),
    (columns, 9000, 70, ["total.local.rf", "total", "off.local.rf", "off", "normed", "shown"]),
    (columns, 130, 40, ["total", "off", "normed"]),
    (split, 12, 40_000, ["off.rf", "normed"]),
    (of_products, 12, 40_000, ["stored", "off.rf", "normed"]),
    (middle, 40, 600, ["spread"]),
]


@pytest.mark.parametrize(("made", "n", "m", "names"), CASES)
def test_what_a_kernel_of_rows_has_it_stores(
    made: Callable[[int, int], Made], n: int, m: int, names: list[str]
) -> None:
    s = schedule_for(made(n, m), "cuda:sm_90")
    shown = str(s).splitlines()
    assert [line.split()[1].rstrip(":") for line in shown if line.startswith("kernel ")] == names
    assert not s.fallbacks


@pytest.mark.parametrize(("made", "n", "m", "names"), CASES)
def test_it_is_right(made: Callable[[int, int], Made], n: int, m: int, names: list[str]) -> None:
    outputs = made(n, min(m, 20_000))
    s = schedule_for(outputs, "cuda:sm_90")
    run = te.build(te.replay(outputs, s.trace), "triton-interpret")
    reference = te.build(te.create_schedule(outputs), "cpu")
    rng = np.random.default_rng(0)
    given = [
        rng.standard_normal(each.shape, np.float32).astype(numpy_dtype(each.dtype))
        for each in run.signature.inputs
    ]
    by_name = dict(zip((str(each.name) for each in run.signature.inputs), given, strict=True))
    wanted = reference(*(by_name[str(each.name)] for each in reference.signature.inputs))
    found = run(*given)
    both = (found, wanted) if isinstance(found, tuple) else ((found,), (wanted,))
    for ours, theirs in zip(*both, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4 * np.abs(theirs).max())


def test_few_results_beside_long_rows_are_a_knob() -> None:
    outputs = kept_statistics(300, 96)
    usual = schedule_for(outputs, "cuda:sm_90")
    knobs = {each.name for each in usual.knobs if each.name.endswith(".in_rows")}
    assert knobs == {"mean.in_rows", "scale.in_rows", "shown.in_rows"}
    apart = schedule_for(outputs, "cuda:sm_90", dict.fromkeys(knobs, False))
    assert sum(line.startswith("kernel ") for line in str(apart).splitlines()) > 1


def test_rows_that_no_program_holds_keep_matrices_apart() -> None:
    s = schedule_for(residual(300, 100_000), "cuda:sm_90")
    assert "kernel z:" in str(s)


def test_moments_of_columns_are_folded_in_one_pass() -> None:
    s = schedule_for(middle(40, 600), "cuda:sm_90")
    assert "online" in {step.primitive for step in s.trace.steps}
    assert "total: float32[1, 32], local" in str(s)
    apart = schedule_for(middle(40, 600), "cuda:sm_90", {"spread.online": False})
    assert "online" not in {step.primitive for step in apart.trace.steps}


def test_several_kernels_take_what_they_need_of_rows_at_once() -> None:
    """One changes the readers of what another would take."""
    torch, front = pytest.importorskip("torch"), pytest.importorskip("tedsl.torch")

    def slopes(x: Any, y: Any, scale: Any, shift: Any) -> Any:
        norm = torch.nn.functional.layer_norm
        _, back = torch.func.vjp(lambda *given: norm(given[0], (77,), *given[1:]), x, scale, shift)
        return back(y)

    shapes = ((8, 1766, 77), (8, 1766, 77), (77,), (77,))
    given = [torch.empty(shape, device="meta") for shape in shapes]
    with torch.no_grad():
        outputs = front.trace(slopes, *given).outputs
    for place in ("inline", "root"):
        s = schedule_for(outputs, "cuda:sm_90", {"rsqrt.place": place})
        te.lower(s, "cuda:sm_90")
    assert sum(line.startswith("kernel ") for line in str(s).splitlines()) == 3


def test_what_follows_a_row_waits_for_what_the_row_stores() -> None:
    """It reads a result of the row, too, which is stored beside the kernel."""
    x = te.placeholder((512, 300), name="x")
    w = te.placeholder((300,), name="w")
    k = te.reduce_axis((0, 300), name="k")
    most = te.compute((512,), lambda i: te.max(x[i, k], axis=k), name="most")
    moved = te.compute((512, 300), lambda i, j: te.abs(w[j] + most[i]), name="moved")
    left = te.compute((512, 300), lambda i, j: most[i] - moved[i, j], name="left")
    h = te.reduce_axis((0, 300), name="h")
    total = te.compute((512,), lambda i: te.sum(most[i] + w[h], axis=h), name="total")
    s = te.schedule_for([total, left, moved], "cuda:sm_90")
    assert not s.fallbacks
    te.lower(s, "cuda:sm_90")
