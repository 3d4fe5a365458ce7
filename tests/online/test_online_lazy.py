"""Lazy repairs: numbers against float64 references, with thresholds that some rows reach and others
do not, and with tags that creep."""

from __future__ import annotations

from typing import Any

import numpy as np
import online_cases as cases
import pytest
from online_cases import Attention, fused
from online_numbers import TARGETS, close, expected, inputs_of, results

import tedsl as te
from tedsl.scheduling.plan.graph import tensors_read

pytestmark = pytest.mark.cpu
N, K = 5, 37
THRESHOLDS = (0.5, 8.0)
CHAINS = {
    "softmax": lambda: cases.softmax(N, K),
    "log_sum_exp": lambda: cases.log_sum_exp(N, K),
    "argmax_and_sum": lambda: cases.argmax_and_sum(N, K),
}


@pytest.mark.parametrize(("lanes", "threshold"), [(False, 8.0), (True, 0.5), (True, 8.0)])
@pytest.mark.parametrize("name", list(CHAINS))
def test_chains(name: str, lanes: bool, threshold: float) -> None:
    rows = CHAINS[name]()
    s = fused(rows, 8, lanes, rescale_threshold=threshold)
    assert len(te.lower(s, "cpu").funcs) == 1
    arrays = inputs_of(rows)
    close(s, arrays, expected(rows, arrays), 3e-6)


ATTENTION = {
    "plain": Attention(),
    "causal by where": Attention(causal="where"),
    "causal by select": Attention(causal="select"),
    "window": Attention(causal="where", window=7),
    "capped": Attention(cap=5.0),
    "grouped": Attention(heads=4, groups=2),
    "bfloat16 causal": Attention(dtype="bfloat16", causal="where"),
    "rows that see nothing": Attention(causal="where", empty=True),
    "rows that see nothing, by select": Attention(causal="select", empty=True),
}


@pytest.mark.parametrize("name", list(ATTENTION))
def test_attention(name: str) -> None:
    case, threshold = ATTENTION[name].but(scale=1.0), THRESHOLDS[list(ATTENTION).index(name) % 2]
    s = case.schedule(rescale_threshold=threshold)
    assert len(te.lower(s, "cpu").funcs) == 1
    arrays = case.arrays()
    bound = 2e-2 if case.dtype == "bfloat16" else 4e-6
    close(s, arrays, [case.reference(*arrays)], bound)


@pytest.mark.parametrize(
    ("name", "threshold"), [("plain", 8.0), ("causal by where", 0.5), ("causal by select", 8.0)]
)
def test_attention_of_large_scores(name: str, threshold: float) -> None:
    """Scores near 1e4 and -1e4."""
    case = ATTENTION[name].but(scale=1.0)
    arrays = case.arrays(50.0)
    scores = np.einsum("hid,hjd->hij", arrays[0], arrays[1])
    assert np.abs(scores).max() > 1e4
    s = case.schedule(rescale_threshold=threshold)
    close(s, arrays, [case.reference(*arrays)], 2e-2)


@pytest.mark.parametrize("step", [0.3, -0.3, 0.9])
@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_a_maximum_that_creeps(threshold: float, step: float) -> None:
    """Each tile raises the maximum by less than the threshold, for ever: by thousands at the end.

    The tag is compared with the reference, and not with itself before.
    """
    length = 4096
    rows = cases.log_sum_exp(2, length)
    x = (np.arange(length) * step + np.array([[0.0], [-5e3]])).astype(np.float32)
    s = fused(rows, 1, lanes=False, rescale_threshold=threshold)
    (want,) = expected(rows, [x])
    np.testing.assert_allclose(te.build(s, "cpu", cache=False)(x), want, rtol=1e-6)
    s = fused(rows, 64, rescale_threshold=threshold)
    close(s, [x], [want], 1e-6)


def test_tags_that_are_outputs_stay_exact() -> None:
    """The maximum to the last bit, sums and results as without lag but for rounding."""
    rows = cases.log_sum_exp(N, K)
    total = rows.last
    m = next(t for t in tensors_read(total.op) if t.name == "m")
    s = te.create_schedule([rows.outputs[0], m, total])
    outer, _ = s[total].split(rows.k, factor=8)
    s[total].online(outer, rescale_threshold=8.0)
    (x,) = arrays = inputs_of(rows)
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True)).sum(1)
    close(s, arrays, [np.log(powers) + x.max(1), x.max(1), powers], 2e-6)
    for found in results(s, arrays).values():
        np.testing.assert_array_equal(found[1], x.max(1))


def test_attention_and_its_sums() -> None:
    case = Attention(with_sums=True)
    g = case.tensors()
    s = case.scheduled(g, rescale_threshold=4.0)
    arrays = case.arrays()
    t = np.einsum("hid,hjd->hij", *(a.astype(np.float64) for a in arrays[:2])) * case.scale
    close(s, arrays, [case.reference(*arrays), np.log(np.exp(t).sum(-1))], 2e-6)


def test_parts_may_lag() -> None:
    rows = cases.softmax(N, K)
    s = te.create_schedule(list(rows.outputs))
    outer, _ = s[rows.last].split(rows.k, nparts=2)
    part: Any = s.split_online(rows.last, outer)
    axis, _ = s[part].split(s[part].op.reduce_axis[0], 4)
    s[part].online(axis, rescale_threshold=2.0)
    arrays = inputs_of(rows)
    close(s, arrays, expected(rows, arrays), 3e-6)


def lowest(n: int, length: int) -> tuple[Any, Any, Any]:
    X = te.placeholder((n, length), name="X")
    k, j = cases.axis(length), cases.axis(length)
    low = te.compute((n,), lambda i: te.min(X[i, k], axis=k), name="low")
    T = te.compute((n,), lambda i: te.sum(te.exp2((low[i] - X[i, j]) * 0.5), axis=j), name="T")
    return X, low, T


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_a_minimum(threshold: float) -> None:
    """The reference stays above."""
    _, low, T = lowest(N, K)
    s = te.create_schedule([T, low])
    outer, inner = s[T].split(T.op.reduce_axis[0], 8)
    s[T].online(outer, rescale_threshold=threshold)
    s[T].vectorize(inner)
    rng = np.random.default_rng(4)
    x = (rng.standard_normal((N, K)) * 9 - np.arange(K)).astype(np.float32)
    wide = x.astype(np.float64)
    close(s, [x], [np.exp2((wide.min(1, keepdims=True) - wide) / 2).sum(1), x.min(1)], 3e-6)


def test_any_length() -> None:
    """No iteration at all: the reference and the tag are where they start."""
    n, length = te.size_var("n"), te.size_var("length")
    rows = cases.softmax(n, length)
    s = te.create_schedule(list(rows.outputs))
    outer, _ = s[rows.last].split(rows.k, 8)
    s[rows.last].online(outer, rescale_threshold=1.0)
    kernels = {target: te.build(s, target=target, cache=False) for target in TARGETS}
    rng = np.random.default_rng(2)
    for count in (0, 1, 3):
        for size in (0, 1, 7, 8, 17):
            x = rng.standard_normal((count, size)).astype(np.float32) * 4
            want = expected(rows, [x])[0] if x.size else np.zeros(x.shape)
            for target, kernel in kernels.items():
                np.testing.assert_allclose(kernel(x), want, atol=1e-5, err_msg=target)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_where_it_is(bad: float) -> None:
    """Infinities and NaN give in their row what they give without lag."""
    rows = cases.log_sum_exp(N, K)
    (x,) = inputs_of(rows)
    x[1, 20] = bad
    eager = results(fused(rows, 8), [x])
    lazy = results(fused(cases.log_sum_exp(N, K), 8, rescale_threshold=1.0), [x])
    for how, found in eager.items():
        np.testing.assert_allclose(lazy[how][0], found[0], rtol=1e-6, err_msg=how)
