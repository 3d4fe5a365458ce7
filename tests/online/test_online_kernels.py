"""Dependent reductions in one kernel: numbers against float64 references, on sizes that no tile
divides."""

from __future__ import annotations

from typing import Any

import numpy as np
import online_cases as cases
import pytest
from online_cases import Attention, fused
from online_numbers import TARGETS, close, expected, inputs_of, results

import tedsl as te
from tedsl.ir.interp import run
from tedsl.scheduling.plan.graph import tensors_read

pytestmark = pytest.mark.cpu
N, K = 5, 37


CHAINS = {
    "softmax": lambda: cases.softmax(N, K),
    "log_sum_exp": lambda: cases.log_sum_exp(N, K),
    "rms_matvec": lambda: cases.normalised_product(N, K),
    "rms_matmul": lambda: cases.normalised_product(N, K, 7),
    "scaled_by_largest": lambda: cases.scaled_by_largest(N, K),
    "entropy": lambda: cases.entropy(N, K),
    "argmax_and_sum": lambda: cases.argmax_and_sum(N, K),
    "variance": lambda: cases.variance(N, K),
    "layer_norm": lambda: cases.layer_norm(N, K),
}


@pytest.mark.parametrize("lanes", [False, True])
@pytest.mark.parametrize("name", list(CHAINS))
def test_a_chain_is_one_kernel(name: str, lanes: bool) -> None:
    rows = CHAINS[name]()
    s = fused(rows, 8, lanes)
    assert len(te.lower(s, "cpu").funcs) == 1
    arrays = inputs_of(rows)
    close(s, arrays, expected(rows, arrays), 3e-6)


@pytest.mark.parametrize("name", list(CHAINS))
def test_a_chain_in_parts(name: str) -> None:
    """`split_online`: the parts, and what merges them."""
    rows = CHAINS[name]()
    s = te.create_schedule(list(rows.outputs))
    outer, _ = s[rows.last].split(rows.k, factor=8)
    s.split_online(rows.last, outer)
    arrays = inputs_of(rows)
    close(s, arrays, expected(rows, arrays), 3e-6)


def test_softmax_reads_its_rows_twice() -> None:
    """Once for the maximum and the sum, once for the result."""
    rows = cases.softmax(N, K)
    kernel = te.build(fused(rows, 8), "cpu", cache=False)
    (func,) = kernel.module.funcs
    loops = [line.strip() for line in str(func).splitlines() if "for k" in line or "for j" in line]
    assert len([line for line in loops if "k.outer" in line or line.startswith("for j")]) == 2


ATTENTION = {
    "plain": Attention(),
    "causal by where": Attention(causal="where"),
    "causal by select": Attention(causal="select"),
    "window": Attention(causal="where", window=7),
    "capped": Attention(cap=5.0),
    "biased": Attention(biased=True),
    "grouped": Attention(heads=4, groups=2),
    "bfloat16": Attention(dtype="bfloat16"),
    "bfloat16 causal": Attention(dtype="bfloat16", causal="where"),
    "rows that see nothing": Attention(causal="where", empty=True),
    "rows that see nothing, by select": Attention(causal="select", empty=True),
}


@pytest.mark.parametrize("name", list(ATTENTION))
def test_attention_is_one_kernel(name: str) -> None:
    case = ATTENTION[name]
    s = case.schedule()
    assert len(s.trace) <= 30
    assert len(te.lower(s, "cpu").funcs) == 1
    arrays = case.arrays()
    bound = 2e-2 if case.dtype == "bfloat16" else 2e-6
    close(s, arrays, [case.reference(*arrays)], bound)


@pytest.mark.parametrize("name", ["plain", "causal by where", "causal by select", "biased"])
def test_attention_of_large_scores(name: str) -> None:
    """Scores near 1e4 and -1e4."""
    case = ATTENTION[name].but(scale=1.0)
    arrays = case.arrays(50.0)
    scores = np.einsum("hid,hjd->hij", arrays[0], arrays[1])
    assert np.abs(scores).max() > 1e4
    close(case.schedule(), arrays, [case.reference(*arrays)], 2e-2)


def test_attention_and_its_sums() -> None:
    """The log-sum-exp next to the result, from the same loop."""
    case = Attention(with_sums=True)
    g = case.tensors()
    s = case.scheduled(g)
    arrays = case.arrays()
    t = np.einsum("hid,hjd->hij", *(a.astype(np.float64) for a in arrays[:2])) * case.scale
    sums = np.log(np.exp(t).sum(-1))
    close(s, arrays, [case.reference(*arrays), sums], 2e-6)


def test_results_as_outputs() -> None:
    """m and l are asked for besides what is made of them."""
    rows = cases.log_sum_exp(N, K)
    total = rows.last
    m = next(t for t in tensors_read(total.op) if t.name == "m")
    s = te.create_schedule([rows.outputs[0], m, total])
    outer, _ = s[total].split(rows.k, factor=8)
    s[total].online(outer)
    (x,) = arrays = inputs_of(rows)
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True)).sum(1)
    close(s, arrays, [np.log(powers) + x.max(1), x.max(1), powers], 2e-6)


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("name", ["softmax", "log_sum_exp", "rms_matvec"])
def test_any_length(name: str, parts: bool) -> None:
    """One kernel for every length of the reduction, and for every number of rows."""
    n, length = te.size_var("n"), te.size_var("length")
    made = {
        "softmax": cases.softmax,
        "log_sum_exp": cases.log_sum_exp,
        "rms_matvec": cases.normalised_product,
    }
    rows = made[name](n, length)
    s = te.create_schedule(list(rows.outputs))
    outer, _ = s[rows.last].split(rows.k, 8)
    if parts:
        s.split_online(rows.last, outer)
    else:
        if name == "rms_matvec":
            s["H"].compute_inline()
        s[rows.last].online(outer)
    kernels = {target: te.build(s, target=target, cache=False) for target in TARGETS}
    rng = np.random.default_rng(2)
    for count in (0, 1, 3):
        for size in (0, 1, 7, 8, 17):
            if size == 0 and name != "softmax":
                continue  # of nothing: -inf, and 0 / 0
            x = rng.standard_normal((count, size)).astype(np.float32)
            arrays = [x, rng.standard_normal(size).astype(np.float32)][: len(rows.inputs)]
            want = expected(rows, arrays)[0] if x.size else np.zeros(x.shape[: 2 - len(arrays)])
            for target, kernel in kernels.items():
                got: Any = kernel(*arrays)
                if x.size:
                    np.testing.assert_allclose(got, want, atol=1e-5, err_msg=target)
                else:
                    assert got.size == 0


def test_large_values_by_matrix_repair() -> None:
    """4096 values near 1e4: the variance follows a mean in float32, and the naive form is lost."""
    rng = np.random.default_rng(1)
    x = (1e4 + rng.standard_normal((3, 4096))).astype(np.float32)
    want = x.astype(np.float64).var(1)
    naive = (x * x).mean(1) - x.mean(1) ** 2
    assert np.abs(naive - want).max() > 1
    s = fused(cases.variance(3, 4096), 64)
    s["S"].vectorize(s["S"].op.reduce_axis[0])  # else the sum rounds 4096 times
    for found in results(s, [x]).values():
        np.testing.assert_allclose(found[0], want, rtol=1e-6)


@pytest.mark.parametrize("form", ["float64", "shift"])
@pytest.mark.parametrize("factor", [16, 512])
def test_layer_norm_of_large_values(form: str, factor: int) -> None:
    """Within 1e-5 of float64 when the mean is better than float32 near 1e4: in float64, or of the
    differences to the first element.  In float32 alone the mean is off by half a unit of 1e-3."""
    rng = np.random.default_rng(1)
    x = (1e4 + rng.standard_normal((3, 4096))).astype(np.float32)
    rows = cases.layer_norm(3, 4096, shift=form == "shift", dtype=form if form != "shift" else "")
    (want,) = expected(rows, [x])
    s = fused(rows, factor)
    for target in TARGETS:
        np.testing.assert_allclose(te.build(s, target=target, cache=False)(x), want, atol=1e-5)
    plain = te.build(fused(cases.layer_norm(3, 4096), factor), "cpu", cache=False)(x)
    assert 1e-5 < np.abs(plain - want).max() < 2e-2


@pytest.mark.parametrize("lanes", [False, True])
@pytest.mark.parametrize("threshold", [None, 0.25])
@pytest.mark.parametrize("name", ["m", "m.ref", "T"])
def test_loops_beyond_the_rows(name: str, threshold: float | None, lanes: bool) -> None:
    """Each of the chain in 2 * 2 loops over its 3 rows: none starts, keeps or repairs a fourth."""
    a = te.placeholder((3, 17), "float32", name="a")
    w = te.placeholder((17,), "float32", name="w")
    k, j = te.reduce_axis((0, 17), name="k"), te.reduce_axis((0, 17), name="j")
    m = te.compute((3,), lambda i: te.max(a[i, k], axis=k), name="m")
    t = te.compute((3,), lambda i: te.sum(te.exp(a[i, j] - m[i]) * w[j], axis=j), name="T")
    s = te.create_schedule([t, m])
    s[t].online(j, rescale_threshold=threshold)
    if name == "m.ref" and threshold is None:
        pytest.skip("nothing lags")
    outer, inner = s[name].split(s[name].op.axis[0], nparts=2)
    s[t].reorder(j, *((outer, inner) if name == "T" else s[t].op.axis))
    if lanes:
        s[name].vectorize(inner)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) * 3 for shape in ((3, 17), (17,))]
    x, y = (each.astype(np.float64) for each in arrays)
    want = [(np.exp(x - x.max(1)[:, None]) * y).sum(1), x.max(1)]
    module = te.lower(s, "cpu", check=True)
    found = run(module, dict(zip(module.inputs, arrays, strict=True)))
    for buffer, made, wanted in zip(
        module.outputs, te.build(s, "cpu", cache=False)(*arrays), want, strict=True
    ):
        np.testing.assert_allclose(found[buffer], wanted, rtol=0, atol=2e-6)
        np.testing.assert_allclose(made, wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("lazy", [False, True])
def test_sums_in_memory_are_repaired_within_their_bounds(lazy: bool) -> None:
    """The loop over terms is outside those over results, whose last part is shorter."""
    n = te.size_var("n")
    x, k, h = te.placeholder((n, K), name="x"), te.reduce_axis((0, K)), te.reduce_axis((0, K))
    most = te.compute((n,), lambda i: te.max(x[i, k], axis=k), name="most")
    total = te.compute((n,), lambda i: te.sum(te.exp(x[i, h] - most[i]), axis=h), name="total")
    s = te.create_schedule(total)
    outer, inner = s[total].split(total.op.axis[0], nparts=3)
    s[total].reorder(h, outer, inner)
    s[total].online(h, rescale_threshold=8 if lazy else None)
    value = np.random.default_rng(1).standard_normal((7, K)).astype("float32")
    wanted = np.exp(value - value.max(1, keepdims=True)).sum(1)
    for target in TARGETS:
        np.testing.assert_allclose(te.build(s, target, cache=False)(value), wanted, rtol=1e-5)
