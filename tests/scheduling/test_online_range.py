"""One pass over dependent reductions is accepted only where no intermediate value of it overflows
and the definition's does not; and what is accepted gives finite numbers for large elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.scheduling.algebra import numeric_check
from tedsl.tensor.tensor import Tensor

LENGTH = 6
Value = Callable[..., Any]


def chain(
    tag: Any, of: Value, value: Value, fold: Any = te.sum, where: Value | None = None
) -> tuple[te.Schedule, Tensor]:
    """r = tag(of(x, y)), l = fold(value(x, y, r))."""
    x = te.placeholder((2, LENGTH), name="X")
    y = te.placeholder((2, LENGTH), name="Y")
    k, q = (te.reduce_axis((0, LENGTH), name=name) for name in "kq")
    only: dict[str, Any] = {} if where is None else {"where": where(k)}
    r = te.compute((2,), lambda i: tag(of(x[i, k], y[i, k]), axis=k, **only), name="r")
    last = te.compute((2,), lambda i: fold(value(x[i, q], y[i, q], r[i]), axis=q), name="l")
    return te.create_schedule(last), last


def data() -> list[tuple[np.ndarray, np.ndarray]]:
    """Elements of +-100, +-1e4 and mixed sizes, in both orders."""
    found: list[tuple[np.ndarray, np.ndarray]] = []
    rng = np.random.default_rng(3)
    for size in (1.0, 100.0, 1e4):
        x = rng.choice([-size, size, size / 2, 0.0], (2, LENGTH)).astype(np.float32)
        y = rng.choice([-size, size, 1.0], (2, LENGTH)).astype(np.float32)
        x[0] = np.sort(x[0])
        found += [(x, y), (x[:, ::-1].copy(), y)]
    return found


ACCEPTED: dict[str, Any] = {
    "max": (te.max, lambda x, y: x, lambda x, y, r: te.exp(x - r)),
    "scaled": (te.max, lambda x, y: x, lambda x, y, r: te.exp((x - r) * 2.0) * x),
    "scaled before": (te.max, lambda x, y: x * 0.5, lambda x, y, r: te.exp2(x * 0.5 - r) * y),
    "min": (te.min, lambda x, y: x, lambda x, y, r: te.exp(r - x)),
    "up to the definition": (te.max, lambda x, y: x, lambda x, y, r: te.exp(r - x)),
    "min, up": (te.min, lambda x, y: x, lambda x, y, r: te.exp(x - r)),
    "two elements": (te.max, lambda x, y: x + y, lambda x, y, r: te.exp(x + y - r)),
    "negative rest": (te.max, lambda x, y: x, lambda x, y, r: te.exp(x - r - y * y)),
    "squares": (te.max, lambda x, y: x * x, lambda x, y, r: te.exp(x * x - r)),
    "max of exp": (te.max, lambda x, y: x, lambda x, y, r: te.exp(x - r), te.max),
    "constant apart": (te.max, lambda x, y: x, lambda x, y, r: te.exp(x - r + 3.0)),
    "entropy": (te.max, lambda x, y: x, lambda x, y, r: te.exp(x - r) * (x - r)),
    "variance": (te.sum, lambda x, y: x, lambda x, y, r: (x - r / 6.0) * (x - r / 6.0)),
}
REFUSED: dict[str, Any] = {
    "sum": (te.sum, lambda x, y: x, lambda x, y, r: te.exp(x - r)),
    "sum, other way": (te.sum, lambda x, y: x, lambda x, y, r: te.exp(r - x)),
    "sum, scaled": (te.sum, lambda x, y: x, lambda x, y, r: te.exp((x - r) * 2.0) * x),
    "mean": (te.sum, lambda x, y: x / 6.0, lambda x, y, r: te.exp(x - r)),
    "sum, largest": (te.sum, lambda x, y: x, lambda x, y, r: te.exp(x - r), te.max),
    "sum of squares": (te.sum, lambda x, y: x * x, lambda x, y, r: te.exp(x - r)),
    "exp2": (te.sum, lambda x, y: x, lambda x, y, r: te.exp2(x - r)),
    "power": (te.sum, lambda x, y: x, lambda x, y, r: te.power(3.0, x - r)),
    "expm1": (te.sum, lambda x, y: x, lambda x, y, r: te.expm1(x - r)),
    "other elements": (te.max, lambda x, y: y, lambda x, y, r: te.exp(x - r)),
    "more of the element": (te.max, lambda x, y: x, lambda x, y, r: te.exp(2.0 * x - r)),
    "elements left": (te.max, lambda x, y: x, lambda x, y, r: te.exp(x + y - r)),
    "positive rest": (te.max, lambda x, y: x, lambda x, y, r: te.exp(x - r + y * y)),
    "entropy": (te.sum, lambda x, y: x, lambda x, y, r: te.exp(x - r) * (x - r)),
}


def folded(s: te.Schedule, last: Tensor, how: str) -> te.Schedule:
    outer, _ = s[last].split(s[last].op.reduce_axis[0], 1 if how == "online" else 2)
    if how == "online":
        s[last].online(outer)
    elif how == "lazy":
        s[last].online(outer, rescale_threshold=4.0)
    else:
        s.split_online(last, outer)
    return s


@pytest.mark.parametrize("how", ["online", "split_online"])
@pytest.mark.parametrize("name", REFUSED)
def test_an_exponential_that_is_not_dominated_is_refused(name: str, how: str) -> None:
    s, last = chain(*REFUSED[name])
    before = str(s)
    with pytest.raises(te.ScheduleError, match=r"may overflow at a partial result of r") as caught:
        folded(s, last, how)
    assert caught.value.hint
    assert "residue" in str(caught.value) or "mixes" in str(caught.value)
    assert str(s).count("online") == before.count("online")


@pytest.mark.cpu
@pytest.mark.parametrize("how", ["online", "split_online", "lazy"])
@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_accepted_gives_finite_numbers(name: str, how: str) -> None:
    s, last = chain(*ACCEPTED[name])
    if how == "lazy" and name in ("entropy", "variance"):
        pytest.skip("a matrix repair does not lag")
    plain = te.build(te.create_schedule(last), target="cpu")
    both = "Y" in [stage.name for stage in s.stages]
    kernel = te.build(folded(s, last, how), target="cpu")
    for x, y in data():
        given = [x, y] if both else [x]
        with np.errstate(all="ignore"):
            want, got = plain(*given), kernel(*given)
        fine = np.isfinite(want)
        size = np.abs(x).max() ** 2 if name == "variance" else 1.0
        np.testing.assert_allclose(got[fine], want[fine], rtol=2e-5, atol=1e-6 * size)


def test_the_values_of_the_report() -> None:
    s, last = chain(*REFUSED["sum"])
    with pytest.raises(te.ScheduleError, match=r"r is a sum, which moves either way"):
        folded(s, last, "online")


def test_a_maximum_of_some_elements_bounds_no_others() -> None:
    tag, of, value = ACCEPTED["max"]
    s, last = chain(tag, of, value, where=lambda k: k < 3)
    with pytest.raises(te.ScheduleError, match=r"r is folded only where q < 3"):
        folded(s, last, "online")


def test_the_proof_says_what_bounds_the_exponential() -> None:
    s, last = chain(*ACCEPTED["max"])
    proof = s[last].proof()
    assert (
        "range      exp(X[i, q] - r): with r = element + r.ahead (r.ahead >= 0) it falls" in proof
    )
    assert "its factor in h is in (0, 1]" in proof
    assert "nothing overflows in" in proof and "1e4 and mixed" in proof


def test_the_maximum_of_a_pair_bounds_it(golden: Any) -> None:
    x = te.placeholder((2, LENGTH), name="X")
    k, q = (te.reduce_axis((0, LENGTH), name=name) for name in "kq")

    def first(a: Any, b: Any) -> Any:
        return te.select(a[1] >= b[1], a[0], b[0]), te.select(a[1] >= b[1], a[1], b[1])

    reducer = te.comm_reducer(first, lambda i, v: (te.const(0, i), te.min_value(v)), name="pair")
    found: Any = te.compute((2,), lambda i: reducer((k.astype("int32"), x[i, k]), axis=k), name="m")
    last = te.compute((2,), lambda i: te.sum(te.exp(x[i, q] - found[1][i]), axis=q), name="l")
    golden(te.create_schedule(last)[last].proof())


def test_tags_of_tags() -> None:
    """A maximum of what is relative to a maximum dominates it, but not what is not in it."""
    x = te.placeholder((2, LENGTH), name="X")
    y = te.placeholder((2, LENGTH), name="Y")
    ks = [te.reduce_axis((0, LENGTH), name=name) for name in "abc"]
    m = te.compute((2,), lambda i: te.max(x[i, ks[0]], axis=ks[0]), name="m")
    n = te.compute((2,), lambda i: te.max(y[i, ks[1]] - m[i], axis=ks[1]), name="n")
    q = ks[2]
    bounded = te.compute((2,), lambda i: te.sum(te.exp(y[i, q] - m[i] - n[i]), axis=q), name="l")
    s = te.create_schedule(bounded)
    s[bounded].online(q)
    free = te.compute((2,), lambda i: te.sum(te.exp(x[i, q] - n[i]), axis=q), name="l")
    s = te.create_schedule(free)
    with pytest.raises(te.ScheduleError, match=r"may overflow at a partial result of"):
        s[free].online(q)


def test_equal_chains_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the same definition over other tensors; another value makes another chain."""
    parts = (te.max, lambda x, y: x * 0.25, lambda x, y, r: te.exp(x * 0.25 - r) * y)
    s, last = chain(*parts)
    proof = s[last].proof()

    def again(*_: object) -> object:
        raise AssertionError("tried again")

    monkeypatch.setattr(numeric_check, "_adverse", again)
    s, last = chain(*parts)
    assert s[last].proof() == proof
    s, last = chain(*parts[:2], lambda x, y, r: te.exp(x * 0.25 - r) * y * y)
    with pytest.raises(AssertionError, match="tried again"):
        s[last].proof()


@pytest.mark.parametrize("split", [False, True])
def test_partial_sums_are_rounded_to_no_float_of_a_smaller_range(split: bool) -> None:
    """Sums of large elements and then of their negatives, in parts of which none is in the range of
    float16; the sum of all is."""
    x = te.placeholder((2, 4096), "float16", name="X")
    k, q = (te.reduce_axis((0, 4096), name=name) for name in "kq")
    r = te.compute((2,), lambda i: te.sum(x[i, k].astype("float32"), axis=k), name="r")
    near = te.compute(
        (2, 4096),
        lambda i, j: (x[i, j].astype("float32") - r[i].astype("float16")).astype("float16"),
        name="near",
    )
    last = te.compute((2,), lambda i: te.sum(near[i, q].astype("float32"), axis=q), name="l")
    s = te.create_schedule(last)
    s[near].compute_inline()
    outer, _ = s[last].split(s[last].op.reduce_axis[0], factor=1024)
    if split:
        s.split_online(last, outer, casts=True)
    else:
        s[last].online(outer, casts=True)
    given = np.full((2, 4096), 250.0, np.float16)
    given[:, 2048:] = -250.0
    given[1, :3] = 1.0
    exact = given.astype(np.float64)
    want = (exact - exact.sum(1, keepdims=True)).sum(1)
    found = te.build(s, target="cpu")(given)
    partial = 250.0 * 4096 * 4096  # what cancels
    assert np.allclose(found, want, rtol=1e-3, atol=1e-6 * partial), f"{found} {want}"
