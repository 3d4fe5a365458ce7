"""Scans of every form that the tests run: in one kernel, step by step, of one state and of two."""

from __future__ import annotations

from collections.abc import Callable

import tedsl as te
from tedsl.tensor.tensor import Tensor

Outputs = list[Tensor]


def listed(result: Tensor | list[Tensor]) -> Outputs:
    """The results of a scan as a list."""
    return [result] if isinstance(result, Tensor) else result


def running_sum(rows: te.Expr | int = 9, columns: te.Expr | int = 5) -> Outputs:
    """Each column summed from the top: every column by itself."""
    x, s = (te.placeholder((rows, columns), name=name) for name in ("X", "S"))
    first = te.compute((1, columns), lambda t, i: x[0, i], name="first")
    step = te.compute((rows, columns), lambda t, i: s[t - 1, i] + x[t, i], name="U")
    return listed(te.scan(first, step, s, [x], name="total"))


def line_sum(rows: te.Expr | int = 11) -> Outputs:
    """A vector summed from its start: steps of one element."""
    x, s = te.placeholder((rows,), name="X"), te.placeholder((rows,), name="S")
    first = te.compute((1,), lambda t: x[0], name="first")
    step = te.compute((rows,), lambda t: s[t - 1] + x[t], name="U")
    return listed(te.scan(first, step, s, name="total"))


def fibonacci(rows: te.Expr | int = 12) -> Outputs:
    """Two rows back, integers."""
    x, s = te.placeholder((2, 3), "int32", name="X"), te.placeholder((rows, 3), "int32", name="S")
    two = te.compute((2, 3), lambda t, i: x[t, i] + 1, name="two")
    step = te.compute((rows, 3), lambda t, i: s[t - 1, i] + s[t - 2, i], name="U")
    return listed(te.scan(two, step, s, name="fib"))


def oscillator(rows: te.Expr | int = 7, columns: te.Expr | int = 33) -> Outputs:
    """Two states that need each other, with a stage between."""
    start = te.placeholder((2, columns), name="start")
    x, v = (te.placeholder((rows, columns), name=name) for name in ("x", "v"))
    x0 = te.compute((1, columns), lambda t, i: start[0, i], name="x0")
    v0 = te.compute((1, columns), lambda t, i: start[1, i], name="v0")
    force = te.compute((rows, columns), lambda t, i: -0.5 * x[t - 1, i], name="force")
    nv = te.compute((rows, columns), lambda t, i: 0.9 * v[t - 1, i] + 0.1 * force[t, i], name="nv")
    nx = te.compute((rows, columns), lambda t, i: x[t - 1, i] + 0.1 * nv[t, i], name="nx")
    return listed(te.scan([x0, v0], [nx, nv], [x, v], name="swing"))


def recurrent(
    steps: te.Expr | int = 5, batch: int = 3, width: int = 7, factor: float = 1.0
) -> Outputs:
    """h[t] = tanh(h[t - 1] (factor W) + inputs[t]): a product in each step, stages before and
    after.  With W of normal numbers and a factor of `0.5 / width**0.5` errors shrink from step to
    step; with 1 they grow, and 17 steps of 33 columns tell nothing of a kernel any more."""
    shape = (steps, batch, width)
    x, s = te.placeholder(shape, name="X"), te.placeholder(shape, name="S")
    w = te.placeholder((width, width), name="W")
    k = te.reduce_axis((0, width), name="k")
    half = te.compute(shape, lambda t, b, i: x[t, b, i] * 0.5, name="half")
    zero = te.compute((1, batch, width), lambda t, b, i: 0.0, name="zero")
    weight = (lambda i: w[k, i]) if factor == 1.0 else (lambda i: w[k, i] * factor)
    mix = te.compute(shape, lambda t, b, i: te.sum(s[t - 1, b, k] * weight(i), axis=k), name="mix")
    step = te.compute(shape, lambda t, b, i: te.tanh(mix[t, b, i] + half[t, b, i]), name="U")
    (h,) = listed(te.scan(zero, step, s, [half, w], name="h"))
    return [te.compute(shape, lambda t, b, i: h[t, b, i] * 2.0, name="after")]


def gated(steps: te.Expr | int = 4, width: int = 5) -> Outputs:
    """An LSTM cell: four gates from one product, two states."""
    wide = (steps, 4, width)
    x = te.placeholder(wide, name="X")
    w = te.placeholder((4, width, width), name="W")
    h, c = (te.placeholder((steps, width), name=name) for name in ("H", "C"))
    k = te.reduce_axis((0, width), name="k")
    mixed = te.compute(wide, lambda t, g, i: te.sum(h[t - 1, k] * w[g, k, i], axis=k), name="mixed")
    gates = te.compute(wide, lambda t, g, i: mixed[t, g, i] + x[t, g, i], name="gates")
    nc = te.compute(
        (steps, width),
        lambda t, i: (
            te.sigmoid(gates[t, 0, i]) * c[t - 1, i]
            + te.sigmoid(gates[t, 1, i]) * te.tanh(gates[t, 2, i])
        ),
        name="nc",
    )
    nh = te.compute(
        (steps, width), lambda t, i: te.sigmoid(gates[t, 3, i]) * te.tanh(nc[t, i]), name="nh"
    )
    zero = te.compute((1, width), lambda t, i: 0.0, name="zero")
    one = te.compute((1, width), lambda t, i: 1.0, name="one")
    return listed(te.scan([zero, one], [nh, nc], [h, c], name="cell"))


def smoothed(rows: te.Expr | int = 6, columns: te.Expr | int = 8) -> Outputs:
    """Each element from its neighbours one step before: no column by itself."""
    x, s = te.placeholder((1, columns), name="X"), te.placeholder((rows, columns), name="S")
    step = te.compute(
        (rows, columns),
        lambda t, i: (
            0.25 * te.if_then_else(i > 0, s[t - 1, te.max(i - 1, 0)], 0.0)
            + 0.5 * s[t - 1, i]
            + 0.25 * te.if_then_else(i < columns - 1, s[t - 1, te.min(i + 1, columns - 1)], 0.0)
        ),
        name="U",
    )
    return listed(te.scan(x, step, s, name="smooth"))


def window(rows: te.Expr | int = 9, columns: te.Expr | int = 4) -> Outputs:
    """A weighted sum of the three rows before: a reduction over the steps."""
    x, s = te.placeholder((3, columns), name="X"), te.placeholder((rows, columns), name="S")
    w = te.placeholder((3,), name="W")
    k = te.reduce_axis((0, 3), name="k")
    first = te.compute((3, columns), lambda t, i: x[t, i], name="first")
    step = te.compute(
        (rows, columns), lambda t, i: te.sum(w[k] * s[t - 1 - k, i], axis=k), name="U"
    )
    return listed(te.scan(first, step, s, name="filtered"))


def blurred(steps: te.Expr | int = 4) -> Outputs:
    """Four dimensions within a step, each element by itself."""
    shape = (steps, 2, 3, 2, 5)
    x, s = te.placeholder(shape, name="X"), te.placeholder(shape, name="S")
    first = te.compute((1, *shape[1:]), lambda *i: x[i], name="first")
    step = te.compute(
        shape, lambda t, a, b, c, d: 0.5 * s[t - 1, a, b, c, d] + 0.5 * x[t, a, b, c, d], name="U"
    )
    return listed(te.scan(first, step, s, name="blurred"))


EXAMPLES: dict[str, Callable[[], Outputs]] = {
    "running_sum": running_sum,
    "line_sum": line_sum,
    "fibonacci": fibonacci,
    "oscillator": oscillator,
    "recurrent": recurrent,
    "gated": gated,
    "smoothed": smoothed,
    "window": window,
    "blurred": blurred,
}
