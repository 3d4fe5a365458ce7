"""Computations for the rules: many shapes of loop nests, each with the odd extents of it.

A `RuleCase` makes its outputs anew at every call, so that a schedule of it meets fresh axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tedsl as te
from tedsl.expr.nodes import Expr, Var
from tedsl.expr.numerics import Array, numpy_dtype
from tedsl.expr.visit import walk
from tedsl.index.evaluate import evaluate_int
from tedsl.tensor.printer import operations
from tedsl.tensor.tensor import PlaceholderOp, Tensor

Outputs = Tensor | Sequence[Tensor]


@dataclass(frozen=True)
class RuleCase:
    """A computation: its name, what makes it, and values for its symbolic sizes."""

    name: str
    make: Callable[[], Outputs]
    sizes: dict[str, int] = field(default_factory=dict[str, int])

    def outputs(self) -> list[Tensor]:
        made = self.make()
        return [made] if isinstance(made, Tensor) else list(made)


def extent_value(extent: Expr, sizes: dict[Var, int]) -> int:
    known: dict[Expr, int] = {**sizes}
    return evaluate_int(extent, known)


def size_values(case: RuleCase, outputs: Sequence[Tensor]) -> dict[Var, int]:
    """The values of the sizes that the shapes of `outputs` and what they read use."""
    extents = [e for op in operations(outputs) for e in op.shape]
    return {v: case.sizes[v.name] for v in walk(*extents) if isinstance(v, Var)}


def random_inputs(outputs: Sequence[Tensor], sizes: dict[Var, int]) -> dict[Tensor, Array]:
    """Multiples of 1/8 around 0, small integers that may index, both values of a bool."""
    rng = np.random.default_rng(5)
    made: dict[Tensor, Array] = {}
    for op in operations(outputs):
        if not isinstance(op, PlaceholderOp):
            continue
        tensor = op.outputs[0]
        shape = tuple(extent_value(e, sizes) for e in op.shape)
        if tensor.dtype.is_float:
            data = rng.integers(-16, 17, shape) / 8
        else:
            data = rng.integers(0, 2 if tensor.dtype.is_bool else 5, shape)
        made[tensor] = np.asarray(data).astype(numpy_dtype(tensor.dtype))
    return made


def p(*shape: Any, dtype: str = "float32", name: str = "x") -> Tensor:
    return te.placeholder(shape, dtype, name=name)


def chain(*shape: Any, dtype: str = "float32") -> Tensor:
    x, y = p(*shape, dtype=dtype), p(*shape, dtype=dtype, name="y")
    z = te.maximum((x + y) * 2, 0)
    return te.sigmoid(z - 1) if z.dtype.is_float else z - 1


def same_row_twice(*shape: Any) -> Tensor:
    """A stage that two others read, one of them at the outputs."""
    x = p(*shape)
    e = te.exp(x)
    return te.sqrt(e + 1.0) * e


def broadcast(m: Any, n: Any, dtype: str = "float32") -> Tensor:
    x, w = p(m, n, dtype=dtype), p(n, dtype=dtype, name="w")
    column, one = p(m, 1, dtype=dtype, name="c"), p(1, 1, dtype=dtype, name="one")
    return te.maximum(x * w + column, one)


def fold(
    shape: Sequence[Any],
    axes: Sequence[int],
    how: Any = te.sum,
    dtype: str = "float32",
    where: bool = False,
) -> Tensor:
    """A reduction of some axes, with the others in their order."""
    x = p(*shape, dtype=dtype)
    folded = {d: te.reduce_axis((0, shape[d]), name=f"k{d}") for d in axes}
    kept = [d for d in range(len(shape)) if d not in folded]

    def body(*i: Any) -> Any:
        at = dict(zip(kept, i, strict=True)) | folded
        read = x(*(at[d] for d in range(len(shape))))
        test = {"where": (next(iter(folded.values())) % 3) != 1} if where else {}
        return how(read, axis=list(folded.values()), **test)

    return te.compute([shape[d] for d in kept], body, name="fold")


def scaled_fold(shape: Sequence[int], axes: Sequence[int]) -> Tensor:
    """A reduction with work before and after it."""
    x = p(*shape)
    squares = te.compute(shape, lambda *i: x(*i) * x(*i), name="squares")
    folded = {d: te.reduce_axis((0, shape[d]), name=f"k{d}") for d in axes}
    kept = [d for d in range(len(shape)) if d not in folded]

    def body(*i: Any) -> Any:
        at = dict(zip(kept, i, strict=True)) | folded
        return te.sum(squares(*(at[d] for d in range(len(shape)))), axis=list(folded.values()))

    total = te.compute([shape[d] for d in kept], body, name="total")
    return te.compute([shape[d] for d in kept], lambda *i: te.sqrt(total(*i) + 1.0), name="root")


def argmax(m: Any, n: Any, rows: bool = True) -> Any:
    x = p(m, n) if rows else p(n, m)
    k = te.reduce_axis((0, n), name="k")

    def combine(a: Any, b: Any) -> Any:
        first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
        return te.select(first, a[0], b[0]), te.select(first, a[1], b[1])

    largest = te.comm_reducer(
        combine, lambda *_: (te.min_value("float32"), te.const(2**31 - 1, "int32")), name="argmax"
    )

    def body(i: Any) -> Any:
        return largest((x[i, k] if rows else x[k, i], te.const(0, "int32") + k), axis=k)

    return te.compute((m,), body, name="best")


def welford(m: int, n: int) -> Any:
    x = p(m, n)
    k = te.reduce_axis((0, n), name="k")
    zero, one = te.const(0.0, "float32"), te.const(1.0, "float32")

    def combine(a: Any, b: Any) -> Any:
        count = a[2] + b[2]
        safe = te.maximum(count, one)
        step = b[0] - a[0]
        mean = a[0] + step * (b[2] / safe)
        return mean, a[1] + b[1] + step * step * (a[2] * b[2] / safe), count

    moments = te.comm_reducer(combine, lambda *_: (zero, zero, zero), name="moments")
    return te.compute((m,), lambda i: moments((x[i, k], zero, one), axis=k), name="moments")


def nested(m: Any, n: int) -> Tensor:
    x = p(m, n)
    k = te.reduce_axis((0, n), name="k")
    return te.compute(
        (m, n), lambda i, j: x[i, j] / (te.sum(te.abs(x[i, k]), axis=k) + 1.0), name="share"
    )


def rows_of_rows(b: int, m: int, n: int) -> Tensor:
    """A reduction of the results of another."""
    x = p(b, m, n)
    k, r = te.reduce_axis((0, n), name="k"), te.reduce_axis((0, m), name="r")
    inner = te.compute((b, m), lambda i, j: te.max(x[i, j, k], axis=k), name="inner")
    return te.compute((b,), lambda i: te.sum(inner[i, r], axis=r), name="outer")


def softmax(*shape: Any, axis: int = -1, dtype: str = "float32") -> Tensor:
    return te.nn.softmax(p(*shape, dtype=dtype), axis=axis)


def layer_norm(*shape: Any, dtype: str = "float32") -> Tensor:
    n = shape[-1]
    w, b = p(n, dtype=dtype, name="w"), p(n, dtype=dtype, name="b")
    return te.nn.layer_norm(p(*shape, dtype=dtype), w, b)


def rms_norm(*shape: Any, dtype: str = "float32") -> Tensor:
    return te.nn.rms_norm(p(*shape, dtype=dtype), p(shape[-1], dtype=dtype, name="w"))


def matmul(m: Any, n: Any, k: Any, dtype: str = "float32") -> Tensor:
    return te.nn.matmul(p(m, k, dtype=dtype, name="a"), p(k, n, dtype=dtype, name="b"))


def product(a: Tensor, b: Tensor, name: str) -> Tensor:
    """a @ b, in float32."""
    (m, k), (_, n) = a.shape, b.shape
    fold = te.reduce_axis((0, k), name="k")
    return te.compute(
        (m, n),
        lambda i, j: te.sum(a[i, fold].astype("float32") * b[fold, j].astype("float32"), axis=fold),
        name=name,
    )


def gated(m: Any, n: Any, k: Any, dtype: str = "bfloat16") -> list[Tensor]:
    """silu(a @ g) * (a @ u): two products of one operand."""
    a = te.placeholder((m, k), dtype, name="a")
    gate, up = (product(a, te.placeholder((k, n), dtype, name=x), f"{x}p") for x in "gu")
    return [
        te.compute(
            (m, n),
            lambda i, j: (gate[i, j] * te.sigmoid(gate[i, j]) * up[i, j]).astype(dtype),
            name="out",
        )
    ]


def batched(b: Any, m: Any, n: Any, k: Any) -> Tensor:
    return te.nn.matmul(p(b, m, k, name="a"), p(b, k, n, name="b"))


def shared_right(b: int, m: int, n: int, k: int) -> Tensor:
    return te.nn.matmul(p(b, m, k, name="a"), p(k, n, name="b"))


def transposed_operands(m: int, n: int, k: int) -> Tensor:
    a, b = p(k, m, name="a"), p(n, k, name="b")
    r = te.reduce_axis((0, k), name="k")
    return te.compute((m, n), lambda i, j: te.sum(a[r, i] * b[j, r], axis=r), name="product")


def column_major_result(m: int, n: int, k: int) -> Tensor:
    """The rows of the result are the columns of the second operand."""
    a, b = p(m, k, name="a"), p(k, n, name="b")
    r = te.reduce_axis((0, k), name="k")
    return te.compute((n, m), lambda j, i: te.sum(a[i, r] * b[r, j], axis=r), name="product")


def two_folded(m: int, n: int, k: int, q: int) -> Tensor:
    a, b = p(m, k, q, name="a"), p(k, q, n, name="b")
    r, t = te.reduce_axis((0, k), name="r"), te.reduce_axis((0, q), name="t")
    return te.compute(
        (m, n), lambda i, j: te.sum(a[i, r, t] * b[r, t, j], axis=[r, t]), name="product"
    )


def linear(m: Any, n: int, k: int, dtype: str = "float32") -> Tensor:
    x, w, b = p(m, k, dtype=dtype), p(n, k, dtype=dtype, name="w"), p(n, dtype=dtype, name="b")
    return te.nn.gelu(te.nn.linear(x, w, b), approximate="tanh")


def mlp(m: Any, n: int, hidden: int) -> Tensor:
    x = p(m, n)
    w1, b1 = p(hidden, n, name="w1"), p(hidden, name="b1")
    w2, b2 = p(n, hidden, name="w2"), p(n, name="b2")
    up = te.nn.gelu(te.nn.linear(x, w1, b1, name="up"), approximate="tanh")
    down = te.nn.linear(up, w2, b2, name="down")
    return te.nn.layer_norm(down + x, p(n, name="g"), p(n, name="h"))


def products(m: int, k: int, n: int, q: int) -> Tensor:
    first = te.nn.matmul(p(m, k, name="a"), p(k, n, name="b"), name="first")
    return te.nn.matmul(first, p(n, q, name="c"), name="second")


def normalised_product(m: int, n: int, k: int) -> Tensor:
    """A contraction whose rows are then reduced."""
    return te.nn.softmax(te.nn.matmul(p(m, k, name="a"), p(k, n, name="b")))


def product_of_sums(m: int, n: int, k: int) -> Tensor:
    """A contraction of something computed."""
    a, b, c = p(m, k, name="a"), p(m, k, name="b"), p(k, n, name="c")
    return te.nn.matmul(te.exp(a) + b, c)


def embedding(rows: Any, n: int, vocabulary: int) -> Tensor:
    table, ids = p(vocabulary, n, name="table"), p(rows, dtype="int32", name="ids")
    return te.compute((rows, n), lambda i, j: table[ids[i], j], name="embedded")


def gathered_rows(rows: int, n: int) -> Tensor:
    table, ids = p(5, n, name="table"), p(rows, dtype="int32", name="ids")
    return te.nn.softmax(te.compute((rows, n), lambda i, j: table[ids[i], j], name="embedded"))


def stencil(m: int, n: int) -> Tensor:
    x = p(m + 2, n + 2)
    across = te.compute(
        (m + 2, n), lambda i, j: (x[i, j] + x[i, j + 1] + x[i, j + 2]) / 3.0, name="across"
    )
    return te.compute(
        (m, n),
        lambda i, j: (across[i, j] + across[i + 1, j] + across[i + 2, j]) / 3.0,
        name="down",
    )


def heavy_rows(m: int, n: int) -> Tensor:
    """A window over rows of something that costs more than to be computed at every read."""
    x = p(m + 2, n + 2)
    rows = te.compute(
        (m + 2, n), lambda i, j: te.tanh(x[i, j] + x[i, j + 1] * x[i, j + 2]), name="rows"
    )
    return te.compute((m, n), lambda i, j: rows[i, j] + rows[i + 1, j] + rows[i + 2, j], name="out")


def heavy_stencil(n: int) -> Tensor:
    x = p(n + 2)
    e = te.compute((n + 2,), lambda i: te.exp(te.tanh(x[i])), name="e")
    return te.compute((n,), lambda i: e[i] + e[i + 1] + e[i + 2], name="out")


def window(m: int, n: int, r: int) -> Tensor:
    """A small contraction over a sliding window."""
    x, w = p(m + r - 1, n + r - 1), p(r, r, name="w")
    a, b = te.reduce_axis((0, r), name="a"), te.reduce_axis((0, r), name="b")
    return te.compute(
        (m, n), lambda i, j: te.sum(x[i + a, j + b] * w[a, b], axis=[a, b]), name="window"
    )


def channels(n: int, c: int, o: int, size: int, r: int) -> Tensor:
    """Windows over many channels."""
    x, w = p(n, c, size + r - 1, size + r - 1), p(o, c, r, r, name="w")
    q = te.reduce_axis((0, c), name="q")
    a, b = te.reduce_axis((0, r), name="a"), te.reduce_axis((0, r), name="b")
    return te.compute(
        (n, o, size, size),
        lambda i, f, y, z: te.sum(x[i, q, y + a, z + b] * w[f, q, a, b], axis=[q, a, b]),
        name="windows",
    )


def images(
    n: Any,
    size: Any,
    c: int,
    o: int,
    dtype: str = "float32",
    layout: Any = "channels_last",
    **how: Any,
) -> Tensor:
    """Windows over padded images of many channels, and work on each element of the result."""
    last = layout == "channels_last"
    x = p(n, size, size, c, dtype=dtype) if last else p(n, c, size, size, dtype=dtype)
    inside = c // how.get("groups", 1)
    w = p(3, 3, inside, o, dtype=dtype, name="w") if last else p(o, inside, 3, 3, name="w")
    windows = te.nn.conv2d(x, w, padding=1, layout=layout, **how)
    if not last:
        return windows
    scale, shift = p(o, name="scale"), p(o, name="shift")
    return te.cast(te.maximum(te.cast(windows, "float32") * scale + shift, 0), dtype)


def sincos(*shape: int) -> Any:
    x = p(*shape)
    return te.compute(shape, lambda *i: (te.sin(x(*i)), te.cos(x(*i))), name="sincos")


def several(m: int, n: int) -> Sequence[Tensor]:
    """Outputs of different ranks, one of which another reads."""
    x = p(m, n)
    k = te.reduce_axis((0, n), name="k")
    total = te.compute((m,), lambda i: te.sum(x[i, k], axis=k), name="total")
    doubled = te.compute((m, n), lambda i, j: x[i, j] * 2.0, name="doubled")
    return [
        total,
        doubled,
        te.compute((m, n), lambda i, j: doubled[i, j] / (total[i] * total[i] + 1.0), name="q"),
    ]


def transpose_add(m: Any, n: Any) -> Tensor:
    x, y = p(m, n), p(n, m, name="y")
    return te.compute((m, n), lambda i, j: x[i, j] + y[j, i], name="sum")


def permuted(a: int, b: int, c: int, d: int) -> Tensor:
    x = p(a, b, c, d)
    return te.compute((d, b, a, c), lambda i, j, k, m: x[k, j, m, i], name="permuted")


def casts(m: int, n: int) -> Tensor:
    x = p(m, n, dtype="int8")
    return te.cast(te.cast(x, "float32") * 0.5, "float16")


def stored(m: int, n: int, dtype: str) -> Tensor:
    """Numbers of 8 bits, and what is computed of them."""
    x, y = p(m, n, dtype=dtype), p(m, n, name="y")
    kept = te.compute((m, n), lambda i, j: (x[i, j] + y[i, j]).astype(dtype), name="kept")
    return te.compute((m, n), lambda i, j: te.select(i < j, x[i, j], kept[i, j]), name="stored")


def two_between_rows(m: Any, n: Any) -> Tensor:
    """Found by drawing: two results of each element between folds of a row."""
    x = p(m, n)
    k, last = te.reduce_axis((0, x.shape[1]), name="k"), te.reduce_axis((0, x.shape[1]), name="l")
    apart = te.compute((m, n), lambda i, j: x[i, j] - te.max(x[i, k], axis=k), name="apart")
    two: Any = te.compute(
        (m, n), lambda i, j: (apart[i, j] * 2.0, 1.0 / (te.abs(apart[i, j]) + 1.0)), name="two"
    )
    return te.compute(
        (m, n), lambda i, j: two[1][i, j] - te.max(two[1][i, last], axis=last), name="end"
    )


def quantize(m: int, n: int, dtype: str, of: str = "float32") -> list[Tensor]:
    return list(te.nn.quantize(p(m, n, dtype=of), dtype))


def scaled(m: int, n: int, k: int, dtype: str) -> Tensor:
    a, b = p(m, k, dtype=dtype, name="a"), p(n, k, dtype=dtype, name="b")
    return te.nn.scaled_matmul(a, b, p(m, name="sa"), p(n, name="sb"), dtype="float32")


def mask(m: int, n: int) -> Tensor:
    x, y = p(m, n, dtype="bool"), p(m, n, dtype="bool", name="y")
    return te.compute((m, n), lambda i, j: (x[i, j] & ~y[i, j]) | (i % 3 == 0), name="mask")


def outer(m: Any, n: Any) -> Tensor:
    x, y = p(m), p(n, name="y")
    return te.compute((m, n), lambda i, j: x[i] * y[j], name="outer")


def constant(m: int, n: int) -> Tensor:
    return te.compute((m, n), lambda i, j: i * 10 + j, name="table")


def scalars() -> Tensor:
    x, y = p(), p(name="y")
    return te.exp(x) + y


def normalise_by_total(n: Any) -> Tensor:
    """Every element against the sum of them all."""
    x = p(n)
    k = te.reduce_axis((0, n), name="k")
    total = te.compute((), lambda: te.sum(te.abs(x[k]), axis=k), name="total")
    return te.compute((n,), lambda i: x[i] / (total() + 1.0), name="share")


def centred_columns(m: int, n: int) -> Tensor:
    """Every element against the mean of its column."""
    x = p(m, n)
    k = te.reduce_axis((0, m), name="k")
    total = te.compute((n,), lambda j: te.sum(x[k, j], axis=k), name="total")
    return te.compute((m, n), lambda i, j: x[i, j] - total[j] / float(max(m, 1)), name="centred")


def slopes_of_rows(m: int, n: int, dtype: str = "float32") -> Sequence[Tensor]:
    """Something for each element that takes a sum over its row, and two sums over columns of the
    same matrices: what the backward pass of a normalised row is made of."""
    wide = "float32"
    d, x, w = p(m, n, dtype=dtype, name="d"), p(m, n, dtype=dtype), p(n, dtype=dtype, name="w")
    scale = p(m, name="scale")
    k, i0, i1 = te.reduce_axis((0, n)), te.reduce_axis((0, m)), te.reduce_axis((0, m))

    def part(i: Any, j: Any) -> Any:
        return d[i, j].astype(wide) * w[j].astype(wide)

    total = te.compute(
        (m,), lambda i: te.sum(part(i, k) * x[i, k].astype(wide), axis=k), name="total"
    )
    slope = te.compute(
        (m, n),
        lambda i, j: (part(i, j) - x[i, j].astype(wide) * total[i] * 0.125).astype(dtype),
        name="slope",
    )
    sums = te.compute(
        (n,),
        lambda j: te.sum(d[i0, j].astype(wide) * x[i0, j].astype(wide) * scale[i0], axis=i0),
        name="sums",
    )
    scaled = te.compute((n,), lambda j: sums[j].astype(dtype), name="scaled")
    shifts = te.compute((n,), lambda j: te.sum(d[i1, j].astype(wide), axis=i1), name="shifts")
    return [slope, scaled, shifts]


def loss_and_slope(m: int, n: int, dtype: str = "float32") -> Sequence[Tensor]:
    """A number for each row from its largest element and a sum, and with both something for each
    element."""
    x, picked = p(m, n, dtype=dtype), p(m, dtype=dtype, name="picked")
    k, r = te.reduce_axis((0, n)), te.reduce_axis((0, n))
    wide = "float32"
    top = te.compute((m,), lambda i: te.max(x[i, k].astype(wide), axis=k), name="top")
    total = te.compute(
        (m,), lambda i: te.sum(te.exp(x[i, r].astype(wide) - top[i]), axis=r), name="total"
    )
    level = te.compute((m,), lambda i: top[i] + te.log(total[i]), name="level")
    loss = te.compute((m,), lambda i: level[i] - picked[i].astype(wide), name="loss")
    slope = te.compute(
        (m, n), lambda i, j: te.exp(x[i, j].astype(wide) - level[i]).astype(dtype), name="slope"
    )
    return [loss, slope]


def mean_of_all(m: int, n: int, dtype: str = "float32") -> Tensor:
    """The mean of the squares of a matrix."""
    x = p(m, n, dtype=dtype)
    i, j = te.reduce_axis((0, m)), te.reduce_axis((0, n))
    total = te.compute(
        (),
        lambda: te.sum(x[i, j].astype("float32") * x[i, j].astype("float32"), axis=[i, j]),
        name="total",
    )
    return te.compute((), lambda: total() / float(max(m * n, 1)), name="mean")
