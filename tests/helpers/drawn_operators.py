"""Operators of `te.nn` of drawn sizes, and gradients of them, for `drawn_definitions`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from nn_calls import calls
from nn_gradients import CASES

import tedsl as te
from tedsl.tensor.printer import operations
from tedsl.tensor.scan_body import within_scans
from tedsl.tensor.tensor import PlaceholderOp, Tensor

nn: Any = te.nn
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64, 65, 128)
WIDE = (1, 7, 33, 257, 1000, 4096, 10000)


def _p(*shape: Any, dtype: str = "float32", name: str = "x") -> Tensor:
    return te.placeholder(shape, dtype, name=name)


def _rows(r: random.Random, dtype: str) -> Any:
    m, n = r.choice(SIZES), r.choice(WIDE)
    x, w, b = _p(m, n, dtype=dtype), _p(n, dtype=dtype, name="w"), _p(n, dtype=dtype, name="b")
    made: tuple[Callable[[], Any], ...] = (
        lambda: nn.softmax(x, axis=r.choice((0, 1))),
        lambda: nn.log_softmax(x),
        lambda: nn.logsumexp(x, 1),
        lambda: nn.layer_norm(x, w, b),
        lambda: nn.rms_norm(x, w),
        lambda: nn.var(x, r.choice((0, 1))),
        lambda: nn.argmax(x, axis=r.choice((0, 1))),
        lambda: nn.cumsum(x, 0),
        lambda: nn.cross_entropy(x, _p(m, dtype="int32", name="t")) if n >= 5 else nn.softmax(x),
    )
    return r.choice(made)()


def _products(r: random.Random, dtype: str) -> Any:
    m, n, k = (r.choice((*SIZES, 256, 300)) for _ in range(3))
    x, w, b = _p(m, k, dtype=dtype), _p(n, k, dtype=dtype, name="w"), _p(n, dtype=dtype, name="b")
    made: tuple[Callable[[], Any], ...] = (
        lambda: nn.linear(x, w, b),
        lambda: nn.gelu(nn.linear(x, w, b)),
        lambda: nn.softmax(nn.linear(x, w, b)),
        lambda: nn.layer_norm(nn.linear(x, w), _p(n, dtype=dtype, name="g"), b),
        lambda: nn.matmul(_p(3, m, k, dtype=dtype), _p(3, k, n, dtype=dtype, name="v")),
        lambda: nn.matmul(nn.linear(x, w), _p(n, 33, dtype=dtype, name="v")),
        lambda: nn.swiglu(nn.linear(x, w), nn.linear(x, _p(n, k, dtype=dtype, name="u"))),
    )
    return r.choice(made)()


def _attention(r: random.Random, dtype: str) -> Any:
    b, h, d = r.choice((1, 2)), r.choice((1, 3)), r.choice((4, 8, 16, 32, 40, 64))
    m, n = r.choice((1, 7, 16, 33, 64, 100)), r.choice((7, 33, 64, 100, 130))
    q = _p(b, h, m, d, dtype=dtype, name="q")
    k, v = (_p(b, h, n, d, dtype=dtype, name=name) for name in "kv")
    return nn.attention(q, k, v, causal=r.random() < 0.5) if m <= n else nn.attention(q, k, v)


def _images(r: random.Random, dtype: str) -> Any:
    n, c, f = r.choice((1, 2)), r.choice((2, 4, 16)), r.choice((2, 6, 16, 33))
    h, w, taps = r.choice((5, 7, 14)), r.choice((5, 8, 15)), r.choice((1, 2, 3))
    x, k = _p(n, h, w, c, dtype=dtype), _p(taps, taps, c, f, dtype=dtype, name="k")
    stride = r.choice((1, 2))
    made: tuple[Callable[[], Any], ...] = (
        lambda: nn.conv2d(x, k, stride=stride, padding=taps // 2),
        lambda: nn.conv_transpose2d(x, k, stride=stride),
        lambda: nn.relu(nn.conv2d(x, k)),
        lambda: nn.max_pool2d(x, r.choice((2, 3))),
        lambda: nn.avg_pool2d(x, 2, stride=stride),
        lambda: nn.adaptive_avg_pool2d(x, r.choice((1, 2, 3))),
    )
    return r.choice(made)()


SCALARS = {"philox"}
"""Operators of scalars: they make no tensor."""


def operator(r: random.Random) -> list[Tensor]:
    """An operator: of drawn sizes, or one of all that there are as the tests call it."""
    dtype = r.choice(("float32", "float32", "float32", "float16", "bfloat16"))
    kind = r.random()
    if kind < 0.25:
        known = calls()
        name = r.choice(sorted(known.keys() - SCALARS))
        return listed(getattr(nn, name)(**known[name]))
    makers = (_rows, _products, _attention, _images)
    return listed(r.choice(makers)(r, dtype))


def gradient(r: random.Random) -> list[Tensor]:
    """Derivatives of an operator by all of its float inputs."""
    if r.random() < 0.6:
        operation, shapes = CASES[r.choice(sorted(CASES))]
        inputs = [_p(*shape, dtype="float64", name=f"x{n}") for n, shape in enumerate(shapes)]
        made = listed(operation(*inputs))[0]
    else:
        makers = (_rows, _products, _attention, _images)
        made = listed(r.choice(makers)(r, "float32"))[0]
        inputs = [t for t in _inputs(made) if t.dtype.is_float]
    if not made.dtype.is_float or not inputs:
        return [made]
    head = te.placeholder(made.shape, made.dtype.value, name="head")
    some = r.sample(inputs, r.randint(1, len(inputs)))
    return te.gradient(made, some, head)


def _inputs(tensor: Tensor) -> list[Tensor]:
    ops = operations([tensor])
    steps = within_scans(ops)  # states are placeholders, too
    given = [op for op in ops if isinstance(op, PlaceholderOp) and op not in steps]
    return [op.outputs[0] for op in given]


def listed(made: Any) -> list[Tensor]:
    """One or several results, and lists of them, as a list."""
    if isinstance(made, te.Tensor):
        return [made]
    return [tensor for each in made for tensor in listed(each)]
