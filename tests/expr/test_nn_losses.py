"""Losses against formulas in numpy and against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nn_values import DTYPES, Inputs, agrees, needs_torch, torch

import tedsl as te

nn = te.nn
UNKNOWN: Any = "average"
REDUCTIONS: tuple[Any, ...] = ("none", "mean", "sum")


def log_softmax(x: Any, axis: int) -> Any:
    return x - np.logaddexp.reduce(x, axis, keepdims=True)


def reduced(loss: Any, reduction: str) -> Any:
    return {"none": lambda: loss, "mean": loss.mean, "sum": loss.sum}[reduction]()


# Classes ----------------------------------------------------------------------------------------


def of_classes(
    logs: Any, target: Any, weight: Any, ignored: int, reduction: str, smoothing: float
) -> Any:
    """The loss from log-probabilities, one target after the other."""
    logs = np.moveaxis(logs, min(logs.ndim - 1, 1), -1)
    count = logs.shape[-1]
    losses, weights = np.zeros(target.shape), np.zeros(target.shape)
    for place in np.ndindex(*target.shape):
        chosen = int(target[place])
        if chosen != ignored:
            weights[place] = weight[chosen]
            hard = -weight[chosen] * logs[place][chosen]
            whole = -(weight * logs[place]).sum()
            losses[place] = (1 - smoothing) * hard + smoothing / count * whole
    if reduction == "mean":
        return losses.sum() / weights.sum()
    return losses.sum() if reduction == "sum" else losses


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(5,), (6, 5), (2, 5, 3), (2, 5, 2, 3)])
def test_cross_entropy(
    shape: tuple[int, ...], smoothing: float, reduction: Any, dtype: str
) -> None:
    given = Inputs(dtype)
    x = given.normal(*shape, scale=2.0)
    classes = 5
    weight = given.uniform(classes, low=0.5, high=2.0)
    target = given.integers(classes, *shape[:1][: len(shape) - 1], *shape[2:])
    t = given.values[target]
    if t.ndim:
        t.flat[1] = 3
    ignored = 3 if t.ndim else -100
    logs = log_softmax(given.wide(x), min(len(shape) - 1, 1))
    made = nn.cross_entropy(
        x, target, weight, ignored, reduction=reduction, label_smoothing=smoothing
    )
    w = given.wide(weight)
    given.check(made, of_classes(logs, t, w, ignored, reduction, smoothing))
    plain = nn.cross_entropy(x, target, reduction=reduction, label_smoothing=smoothing)
    given.check(plain, of_classes(logs, t, np.ones(classes), -100, reduction, smoothing))
    if not smoothing:
        likely = nn.nll_loss(x, target, weight, ignored, reduction)
        given.check(likely, of_classes(given.wide(x), t, w, ignored, reduction, 0.0))


def test_extreme_logits() -> None:
    given = Inputs()
    x = given.given(np.array([[1e4, -1e4], [-1e4, -1e4], [1e4, 1e4 + 2], [0, -np.inf]], "f4"))
    target = given.given(np.array([1, 0, 0, 0]), "t")
    wanted = [2e4, np.log(2), np.log1p(np.exp(2.0)), 0]
    given.check(nn.cross_entropy(x, target, reduction="none"), np.array(wanted))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
def test_dtypes_of_targets(dtype: str) -> None:
    """uint8 holds no -100, and so ignores nothing; what it does hold can be ignored."""
    given = Inputs()
    x, target = given.normal(7, 5), given.integers(5, 7, dtype=dtype)
    logs, t = log_softmax(given.wide(x), 1), given.values[target]
    one = np.ones(5)
    given.check(nn.cross_entropy(x, target), of_classes(logs, t, one, -100, "mean", 0))
    four = nn.cross_entropy(x, target, ignore_index=4)
    given.check(four, of_classes(logs, t, one, 4, "mean", 0))


def test_all_targets_ignored() -> None:
    given = Inputs()
    x, target = given.normal(3, 4), given.given(np.full(3, -100), "t")
    for smoothing in (0.0, 0.1):
        options: dict[str, Any] = {"label_smoothing": smoothing}
        assert np.isnan(given.found(nn.cross_entropy(x, target, **options)))
        assert given.found(nn.cross_entropy(x, target, reduction="sum", **options)) == 0
        assert not given.found(nn.cross_entropy(x, target, reduction="none", **options)).any()


def test_no_targets_and_one_class() -> None:
    given = Inputs()
    none, target = given.normal(0, 4), given.integers(4, 0)
    assert np.isnan(given.found(nn.cross_entropy(none, target)))
    assert given.found(nn.cross_entropy(none, target, reduction="sum")) == 0
    assert given.found(nn.cross_entropy(none, target, reduction="none")).shape == (0,)
    one, zeros = given.normal(3, 1), given.integers(1, 3)
    assert given.found(nn.cross_entropy(one, zeros)) == 0


def test_many_targets_are_counted_exactly() -> None:
    """In float32, 1 + 1 + ... ends at 2^24; a float16 mean holds more than 65504 terms."""
    given = Inputs("float16")
    x = given.given(np.zeros((100_000, 2), "f2"))
    given.check(nn.cross_entropy(x, given.integers(2, 100_000)), np.log(2))


def test_gradients_of_what_is_ignored() -> None:
    given = Inputs()
    x, target = given.normal(4, 3), given.given(np.array([0, -100, 2, -100]), "t")
    weight = given.given(np.array([1.0, np.inf, 1.0], "f4"), "w")
    for made in (nn.cross_entropy(x, target), nn.nll_loss(x, target, weight)):
        head = te.placeholder((), name="h")
        (by_x,) = te.gradient(made, [x], head)
        (found,) = te.evaluate(by_x, {**given.values, head: np.ones((), "f4")})
        assert not found[[1, 3]].any()
        assert np.isfinite(found).all() and found[[0, 2]].any(1).all()


@pytest.mark.cpu
def test_a_kernel_of_symbolic_sizes() -> None:
    n = te.var("n")
    x, t = te.placeholder((n, 6), name="x"), te.placeholder((n,), "int32", name="t")
    kernel = te.build(nn.cross_entropy(x, t), target="cpu", cache=False)
    random = np.random.default_rng(1)
    for size in (1, 9):
        values: dict[str, Any] = {"x": random.standard_normal((size, 6)).astype("f4")}
        values["t"] = random.integers(0, 6, size).astype("i4")
        values["t"][1::3] = -100
        found: Any = kernel(*(values[buffer.name] for buffer in kernel.module.inputs))
        logs = log_softmax(values["x"].astype("f8"), 1)
        wanted = of_classes(logs, values["t"], np.ones(6), -100, "mean", 0)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.cpu
def test_a_kernel_in_tritons_interpreter() -> None:
    given = Inputs()
    x, target = given.normal(9, 6), given.integers(6, 9)
    agrees("triton-interpret", nn.cross_entropy(x, target, ignore_index=2), given)


@pytest.mark.cpu
def test_a_kernel_with_all_options() -> None:
    given = Inputs()
    x, target = given.normal(3, 5, 4), given.integers(5, 3, 4)
    weight = given.uniform(5, low=0.1)
    made = nn.cross_entropy(x, target, weight, ignore_index=2, label_smoothing=0.1)
    agrees("cpu", made, given)


@needs_torch
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(5,), (6, 5), (2, 5, 3)])
def test_classes_against_torch(shape: tuple[int, ...], reduction: Any) -> None:
    f = torch.nn.functional
    given = Inputs()
    x, weight = given.normal(*shape), given.uniform(5)
    target = given.integers(5, *shape[:1][: len(shape) - 1], *shape[2:])
    arguments: list[Any] = [given.torch(each) for each in (x, target)]
    w = given.torch(weight)
    for smoothing in (0.0, 0.2):
        options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
        for ignored in (-100, 3):
            wanted = f.cross_entropy(*arguments, w, ignore_index=ignored, **options).numpy()
            given.check(nn.cross_entropy(x, target, weight, ignored, **options), wanted)
            wanted = f.cross_entropy(*arguments, ignore_index=ignored, **options).numpy()
            made = nn.cross_entropy(x, target, ignore_index=ignored, **options)
            given.check(made, wanted)
    wanted = f.nll_loss(*arguments, w, ignore_index=1, reduction=reduction).numpy()
    given.check(nn.nll_loss(x, target, weight, 1, reduction), wanted)


# Elements ---------------------------------------------------------------------------------------


def kl(x: Any, y: Any) -> Any:
    return np.where(y == 0, 0, y * (np.log(np.where(y == 0, 1, y)) - x))


def huber(d: Any, delta: float) -> Any:
    return np.where(abs(d) <= delta, d * d / 2, delta * (abs(d) - delta / 2))


def logistic(x: Any, y: Any, p: Any = 1.0) -> Any:
    return (1 - y) * x + (1 + (p - 1) * y) * np.logaddexp(0, -x)


PAIRS: dict[str, tuple[Callable[..., te.Tensor], Callable[[Any, Any], Any]]] = {
    "mse_loss": (nn.mse_loss, lambda x, y: (x - y) ** 2),
    "l1_loss": (nn.l1_loss, lambda x, y: abs(x - y)),
    "huber_loss": (nn.huber_loss, lambda x, y: huber(x - y, 1.0)),
    "huber_loss_3": (
        lambda x, y, reduction: nn.huber_loss(x, y, reduction, delta=0.3),
        lambda x, y: huber(x - y, 0.3),
    ),
    "smooth_l1_loss": (
        lambda x, y, reduction: nn.smooth_l1_loss(x, y, reduction, beta=0.3),
        lambda x, y: huber(x - y, 0.3) / 0.3,
    ),
    "smooth_l1_loss_0": (
        lambda x, y, reduction: nn.smooth_l1_loss(x, y, reduction, beta=0.0),
        lambda x, y: abs(x - y),
    ),
    "bce_with_logits": (
        lambda x, y, reduction: nn.bce_with_logits(x, y, reduction=reduction),
        logistic,
    ),
    "kl_div": (nn.kl_div, kl),
    "kl_div_log": (
        lambda x, y, reduction: nn.kl_div(x, y, reduction, log_target=True),
        lambda x, y: np.exp(y) * (y - x),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name: str, reduction: str, dtype: str) -> None:
    function, formula = PAIRS[name]
    for shape in ((4, 7), (1, 1), ()):
        given = Inputs(dtype)
        x, y = given.normal(*shape), given.uniform(*shape)
        wanted = reduced(np.asarray(formula(given.wide(x), given.wide(y))), reduction)
        given.check(function(x, y, reduction=reduction), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_probabilities_and_weights(reduction: Any, dtype: str) -> None:
    given = Inputs(dtype)
    p, y = given.uniform(4, 7, low=0.05, high=0.95), given.uniform(4, 7)
    x, w, positive = given.normal(4, 7), given.uniform(4, 7), given.uniform(7, low=0.5, high=3.0)
    a, b, c = given.wide(p), given.wide(y), given.wide(w)
    wanted = -(b * np.log(a) + (1 - b) * np.log1p(-a))
    given.check(nn.bce_loss(p, y, reduction=reduction), reduced(wanted, reduction))
    given.check(nn.bce_loss(p, y, w, reduction), reduced(wanted * c, reduction))
    wanted = logistic(given.wide(x), b, given.wide(positive)) * c
    given.check(nn.bce_with_logits(x, y, w, reduction, positive), reduced(wanted, reduction))
    if dtype == "float64":
        batch = nn.kl_div(x, y, "batchmean")
        given.check(batch, kl(given.wide(x), b).sum() / 4)


def test_extreme_values() -> None:
    given = Inputs()
    x = given.given(np.array([1e4, -1e4, 1e4, -1e4, 0], "f4"))
    y = given.given(np.array([1, 0, 0, 1, 0.5], "f4"), "y")
    given.check(nn.bce_with_logits(x, y, reduction="none"), np.array([0, 0, 1e4, 1e4, np.log(2)]))
    p = given.given(np.array([1, 0, 0, 1], "f4"), "p")
    q = given.given(np.array([1, 0, 1, 0], "f4"), "q")
    given.check(nn.bce_loss(p, q, reduction="none"), np.array([0, 0, 100.0, 100.0]))
    d = given.given(np.array([1e4, -1e4, 0, 1, -1], "f4"), "d")
    zero = given.given(np.zeros(5, "f4"), "z")
    wanted = np.array([9999.5, 9999.5, 0, 0.5, 0.5])
    given.check(nn.huber_loss(d, zero, "none"), wanted)
    given.check(nn.smooth_l1_loss(d, zero, "none"), wanted)


def test_slope_of_a_logit_at_zero() -> None:
    x, y, h = (te.placeholder((2,), "float64", name=name) for name in "xyh")
    (by_x,) = te.gradient(nn.bce_with_logits(x, y, reduction="none"), [x], h)
    at = {x: np.zeros(2), y: np.array([0.0, 1.0]), h: np.ones(2)}
    np.testing.assert_allclose(te.evaluate(by_x, at)[0], [0.5, -0.5], rtol=1e-12)


def test_nothing_to_average() -> None:
    given = Inputs()
    x, y = given.normal(0, 3), given.uniform(0, 3)
    for function, _ in PAIRS.values():
        assert np.isnan(given.found(function(x, y, reduction="mean")))
        assert given.found(function(x, y, reduction="sum")) == 0


@pytest.mark.cpu
def test_kernels_of_pairs() -> None:
    given = Inputs()
    x, y = given.normal(6, 5), given.uniform(6, 5)
    agrees("cpu", nn.bce_with_logits(x, y, reduction="sum"), given)
    agrees("cpu", nn.huber_loss(x, y, delta=0.4), given)


@needs_torch
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_pairs_against_torch(reduction: Any) -> None:
    f = torch.nn.functional
    given = Inputs()
    x, y, p, w = given.normal(6, 5), given.uniform(6, 5), given.uniform(5), given.uniform(6, 5)
    a, b, c, d = (given.torch(each) for each in (x, y, p, w))
    r: dict[str, Any] = {"reduction": reduction}
    pairs = [
        (nn.mse_loss(x, y, **r), f.mse_loss(a, b, **r)),
        (nn.l1_loss(x, y, **r), f.l1_loss(a, b, **r)),
        (nn.huber_loss(x, y, delta=0.7, **r), f.huber_loss(a, b, delta=0.7, **r)),
        (nn.smooth_l1_loss(x, y, beta=0.7, **r), f.smooth_l1_loss(a, b, beta=0.7, **r)),
        (nn.bce_loss(y, w, x, **r), f.binary_cross_entropy(b, d, a, **r)),
        (
            nn.bce_with_logits(x, y, w, reduction, p),
            f.binary_cross_entropy_with_logits(a, b, d, pos_weight=c, **r),
        ),
        (nn.kl_div(x, y, "batchmean"), f.kl_div(a, b, reduction="batchmean")),
    ]
    if reduction != "mean":  # of which PyTorch warns
        pairs.append((nn.kl_div(x, y, **r), f.kl_div(a, b, **r)))
        both = nn.kl_div(x, y, log_target=True, **r), f.kl_div(a, b, log_target=True, **r)
        pairs.append(both)
    for ours, theirs in pairs:
        given.check(ours, theirs.numpy())


X = te.placeholder((4, 9), name="x")
TARGET = te.placeholder((4,), "int32", name="t")
SHORT = te.placeholder((3,), "int32", name="short")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.cross_entropy(X, SHORT), r"short has the shape \[3\], not \[4\]"),
        (lambda: nn.cross_entropy(X, X), r"cross_entropy: x is float32, not an integer"),
        (lambda: nn.cross_entropy(TARGET, TARGET), r"t is int32, not a float"),
        (lambda: nn.cross_entropy(X, TARGET, X), r"x has the shape \[4, 9\], not \[9\]"),
        (lambda: nn.cross_entropy(X, TARGET, TARGET), r"t is int32, not a float"),
        (
            lambda: nn.cross_entropy(X, TARGET, label_smoothing=1.5),
            r"label_smoothing is 1\.5[\s\S]*0\.0 \.\. 1\.0",
        ),
        (
            lambda: nn.nll_loss(X, TARGET, reduction=UNKNOWN),
            r'reduction is \'average\'[\s\S]*"none", "mean", "sum"',
        ),
        (lambda: nn.mse_loss(X, SHORT), r"mse_loss: short is int32, not a float"),
        (lambda: nn.mse_loss(X, te.placeholder((9,), name="v")), r"v has .* not \[4, 9\]"),
        (lambda: nn.l1_loss(X, X, UNKNOWN), r"l1_loss: reduction is 'average'"),
        (lambda: nn.huber_loss(X, X, delta=0), r"huber_loss: delta is 0[\s\S]*above 0"),
        (lambda: nn.smooth_l1_loss(X, X, beta=-1), r"smooth_l1_loss: beta is -1"),
        (lambda: nn.kl_div(X, X, UNKNOWN), r"kl_div: reduction is [\s\S]*batchmean"),
        (
            lambda: nn.bce_with_logits(X, X, pos_weight=te.placeholder((4,), name="p")),
            r"p has the shape \[4\], not \[9\]",
        ),
    ],
)
def test_refusals(call: Callable[[], te.Tensor], message: str) -> None:
    with pytest.raises(te.ExprError, match=message):
        call()
