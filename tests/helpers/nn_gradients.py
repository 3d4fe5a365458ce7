"""Operators of te.nn whose gradients the tests compare with central differences, in float64.

Each is a function of float tensors of the given shapes; what is no float is made inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tedsl as te

nn = te.nn
Case = tuple[Callable[..., te.Tensor], list[tuple[int, ...]]]


def pattern(shape: Sequence[int], count: int, ignored: int | None = None) -> te.Tensor:
    """Integers in 0 .. count - 1 with repetitions; one of them, where `ignored` says, is -100."""

    def element(*i: te.Axis) -> te.Expr:
        place: te.Expr = te.const(0)
        for axis, extent in zip(i, shape, strict=True):
            place = place * extent + axis
        chosen = place * place * 3 % count
        return chosen if ignored is None else te.select(place == ignored, -100, chosen)

    return te.compute(tuple(shape), element, name="target")


def training(x: te.Tensor, w: te.Tensor, b: te.Tensor) -> te.Tensor:
    """The results of a batch norm in training, all in one."""
    y, mean, var = nn.batch_norm_training(x, w, b)
    return te.compute(x.shape, lambda n, c, i: y[n, c, i] + mean[c] * var[c], name="y")


def both(x: te.Tensor, r: te.Tensor, w: te.Tensor) -> te.Tensor:
    y, total = nn.add_rms_norm(x, r, w)
    return y * total


def table(x: te.Tensor, interleaved: bool) -> te.Tensor:
    cos, sin = nn.rope_tables(3, 4, dtype="float64")
    return nn.rope(x, cos, sin, interleaved)


def adam(p: te.Tensor, g: te.Tensor, m: te.Tensor, v: te.Tensor) -> te.Tensor:
    new, m, v = nn.adamw(p, g, m, v * v + 0.1, 3, lr=0.1)
    return new + m * v


def positive(x: te.Tensor) -> te.Tensor:
    return te.sigmoid(x) * 0.8 + 0.1


ACTIVATIONS: dict[str, Case] = {
    "sigmoid": (nn.sigmoid, [(3, 5)]),
    "tanh": (nn.tanh, [(3, 5)]),
    "relu6": (lambda x: nn.relu6(x * 5.0), [(3, 5)]),
    "leaky_relu": (nn.leaky_relu, [(3, 5)]),
    "elu": (lambda x: nn.elu(x, 0.7), [(3, 5)]),
    "selu": (nn.selu, [(3, 5)]),
    "softplus": (lambda x: nn.softplus(x, 2.0), [(3, 5)]),
    "mish": (nn.mish, [(3, 5)]),
    "hardsigmoid": (lambda x: nn.hardsigmoid(x * 3.0), [(3, 5)]),
    "hardswish": (lambda x: nn.hardswish(x * 3.0), [(3, 5)]),
    "glu": (nn.glu, [(3, 6)]),
    "glu_0": (lambda x: nn.glu(x, 0), [(4, 3)]),
    "swiglu": (nn.swiglu, [(3, 5), (3, 5)]),
}

LOSSES: dict[str, Case] = {
    "cross_entropy": (lambda x: nn.cross_entropy(x, pattern((5,), 4, 2)), [(5, 4)]),
    "cross_entropy_all": (
        lambda x, w: nn.cross_entropy(
            x, pattern((2, 3), 4, 1), w, reduction="none", label_smoothing=0.2
        ),
        [(2, 4, 3), (4,)],
    ),
    "cross_entropy_weighted": (
        lambda x, w: nn.cross_entropy(x, pattern((5,), 4, 0), positive(w), label_smoothing=0.1),
        [(5, 4), (4,)],
    ),
    "nll_loss": (lambda x, w: nn.nll_loss(x, pattern((5,), 4, 2), w), [(5, 4), (4,)]),
    "mse_loss": (nn.mse_loss, [(3, 5), (3, 5)]),
    "l1_loss": (lambda x, y: nn.l1_loss(x, y, "sum"), [(3, 5), (3, 5)]),
    "huber_loss": (lambda x, y: nn.huber_loss(x, y, "none", 0.8), [(3, 5), (3, 5)]),
    "smooth_l1_loss": (lambda x, y: nn.smooth_l1_loss(x, y, beta=0.8), [(3, 5), (3, 5)]),
    "bce_loss": (
        lambda x, y, w: nn.bce_loss(positive(x), positive(y), w),
        [(3, 5), (3, 5), (3, 5)],
    ),
    "bce_with_logits": (
        lambda x, y, w, p: nn.bce_with_logits(x, y, w, "sum", p),
        [(3, 5), (3, 5), (3, 5), (5,)],
    ),
    "kl_div": (lambda x, y: nn.kl_div(x, positive(y), "batchmean"), [(3, 5), (3, 5)]),
    "kl_div_log": (lambda x, y: nn.kl_div(x, y, log_target=True), [(3, 5), (3, 5)]),
}

NORMS: dict[str, Case] = {
    "batch_norm": (
        lambda x, m, v, w, b: nn.batch_norm(x, m, positive(v), w, b),
        [(2, 3, 4), (3,), (3,), (3,), (3,)],
    ),
    "batch_norm_training": (training, [(3, 2, 2), (2,), (2,)]),
    "group_norm": (lambda x, w, b: nn.group_norm(x, 2, w, b), [(2, 4, 3), (4,), (4,)]),
    "instance_norm": (nn.instance_norm, [(2, 2, 4), (2,), (2,)]),
    "add_rms_norm": (both, [(2, 5), (2, 5), (5,)]),
    "mean": (lambda x: nn.mean(x, (0, 2), keepdims=True), [(2, 3, 4)]),
    "var": (lambda x: nn.var(x, 1), [(2, 4, 3)]),
    "std": (lambda x: nn.std(x, correction=0), [(3, 4)]),
}

REST: dict[str, Case] = {
    "log_softmax": (lambda x: nn.log_softmax(x, 0), [(4, 3)]),
    "logsumexp": (lambda x: nn.logsumexp(x, 1), [(3, 4, 2)]),
    "logsumexp_kept": (lambda x: nn.logsumexp(x, keepdims=True), [(3, 4)]),
    "embedding": (lambda w: nn.embedding(pattern((2, 4), 5), w), [(5, 3)]),
    "cumsum": (lambda x: nn.cumsum(x, 0) * x, [(5, 3)]),
    "cumsum_reverse": (lambda x: nn.cumsum(x, exclusive=True, reverse=True), [(3, 5)]),
    "rope": (lambda x: table(x, False), [(2, 3, 4)]),
    "rope_interleaved": (lambda x: table(x, True), [(2, 3, 4)]),
    "dropout": (lambda x: nn.dropout(te.exp(x), 0.4, seed=7, offset=1), [(4, 9)]),
    "adamw": (adam, [(5,), (5,), (5,), (5,)]),
    "sgd": (
        lambda p, g, b: nn.sgd(p, g, b, lr=0.1, momentum=0.9, nesterov=True)[0],
        [(5,), (5,), (5,)],
    ),
}

CASES: dict[str, Case] = {**ACTIVATIONS, **LOSSES, **NORMS, **REST}
