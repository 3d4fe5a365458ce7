"""te.gradient: printed forms, and values against central differences in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import nn_gradients
import numpy as np
import pytest
from numeric import check

import tedsl as te
from tedsl.expr.nodes import UnaryOp
from tedsl.expr.numerics import numpy_dtype
from tedsl.gradient.rules import FLAT, RULES
from tedsl.tensor.printer import operations, print_graph
from tedsl.tensor.tensor import Operation

nn = te.nn


def inputs(*shapes: tuple[int, ...], low: float = -np.inf) -> dict[te.Tensor, Any]:
    """Placeholders `x0`, `x1`, ... and float64 values, above `low`."""
    random = np.random.default_rng(len(shapes) + 7)
    given: dict[te.Tensor, Any] = {}
    for n, shape in enumerate(shapes):
        values = random.standard_normal(shape)
        if np.isfinite(low):
            values = np.abs(values) + low
        given[te.placeholder(shape, "float64", name=f"x{n}")] = values
    return given


def agree(f: Callable[..., te.Tensor], *shapes: tuple[int, ...], low: float = -np.inf) -> None:
    """The gradients of `f` by all its arguments are those found numerically."""
    given = inputs(*shapes, low=low)
    check(f(*given), given, list(given))


def printed(f: Callable[..., te.Tensor], *shapes: Any) -> str:
    """The graph of the gradients, for a head `h`."""
    given = [te.placeholder(shape, name=f"x{n}") for n, shape in enumerate(shapes)]
    output = f(*given)
    return print_graph(te.gradient(output, given, te.placeholder(output.shape, name="h")))


# te.nn ------------------------------------------------------------------------------------------

OPERATORS: dict[str, tuple[Callable[..., te.Tensor], list[tuple[int, ...]]]] = {
    "relu": (nn.relu, [(3, 5)]),
    "gelu": (nn.gelu, [(3, 5)]),
    "gelu_tanh": (lambda x: nn.gelu(x, "tanh"), [(3, 5)]),
    "silu": (nn.silu, [(7,)]),
    "softmax": (nn.softmax, [(3, 7)]),
    "softmax_0": (lambda x: nn.softmax(x, axis=0), [(3, 2, 2)]),
    "matmul": (nn.matmul, [(3, 5), (5, 2)]),
    "matmul_batched": (nn.matmul, [(2, 3, 5), (2, 5, 1)]),
    "matmul_shared": (nn.matmul, [(2, 3, 5), (5, 2)]),
    "linear": (nn.linear, [(2, 3, 5), (4, 5), (4,)]),
    "layer_norm": (nn.layer_norm, [(2, 3, 5), (5,), (5,)]),
    "layer_norm_plain": (nn.layer_norm, [(3, 7)]),
    "rms_norm": (nn.rms_norm, [(3, 7), (7,)]),
    "conv1d": (lambda x, w: nn.conv1d(x, w, stride=2, padding=1), [(1, 6, 2), (3, 2, 2)]),
    "conv2d": (lambda x, w, b: nn.conv2d(x, w, b, padding=1), [(1, 4, 3, 2), (3, 2, 2, 2), (2,)]),
    "conv2d_dilated": (
        lambda x, w: nn.conv2d(x, w, None, (2, 1), "valid", (1, 2), layout="channels_first"),
        [(2, 2, 5, 4), (1, 2, 2, 2)],
    ),
    "conv2d_grouped": (
        lambda x, w: nn.conv2d(x, w, padding="same", groups=2),
        [(1, 3, 3, 4), (2, 2, 2, 2)],
    ),
    "conv2d_depthwise": (
        lambda x, w: nn.conv2d(x, w, stride=2, padding=1, groups=3),
        [(1, 4, 4, 3), (3, 3, 1, 3)],
    ),
    "conv3d": (lambda x, w: nn.conv3d(x, w, padding=(1, 0, 0)), [(1, 2, 2, 3, 1), (2, 2, 2, 1, 1)]),
    "conv_transpose1d": (
        lambda x, w: nn.conv_transpose1d(x, w, None, 2, 1, 1, dilation=2),
        [(1, 3, 2), (3, 2, 2)],
    ),
    "conv_transpose2d": (
        lambda x, w, b: nn.conv_transpose2d(x, w, b, (2, 1), (1, 0), groups=2),
        [(1, 2, 3, 2), (3, 2, 2, 1), (2,)],
    ),
    "conv_transpose3d": (
        lambda x, w: nn.conv_transpose3d(x, w, stride=(1, 2, 1), layout="channels_first"),
        [(1, 1, 1, 2, 2), (1, 1, 2, 2, 1)],
    ),
    "max_pool1d": (lambda x: nn.max_pool1d(x, 2, 1, 1, 2, True), [(2, 5, 2)]),
    "max_pool2d": (lambda x: nn.max_pool2d(x, 3, 2, 1), [(1, 5, 4, 2)]),
    "max_pool3d": (lambda x: nn.max_pool3d(x, 2, layout="channels_first"), [(1, 1, 2, 4, 2)]),
    "avg_pool1d": (lambda x: nn.avg_pool1d(x, 3, 2, 1, True), [(2, 6, 2)]),
    "avg_pool2d": (lambda x: nn.avg_pool2d(x, 2, 2, 1, True, False), [(1, 4, 3, 2)]),
    "avg_pool3d": (lambda x: nn.avg_pool3d(x, (1, 2, 2)), [(1, 2, 2, 4, 1)]),
    "adaptive_avg_pool1d": (lambda x: nn.adaptive_avg_pool1d(x, 3), [(2, 5, 2)]),
    "adaptive_avg_pool2d": (lambda x: nn.adaptive_avg_pool2d(x, (2, 1)), [(1, 3, 4, 2)]),
    "adaptive_max_pool2d": (lambda x: nn.adaptive_max_pool2d(x, (3, 2)), [(1, 4, 3, 2)]),
    "attention": (nn.attention, [(2, 2, 3, 2), (2, 2, 4, 2), (2, 2, 4, 3)]),
    "attention_grouped": (
        lambda q, k, v: nn.attention(q, k, v, causal=True, cap=2.0),
        [(2, 4, 2), (1, 3, 2), (1, 3, 2)],
    ),
    "attention_biased": (
        lambda q, k, v, b, s: nn.attention(q, k, v, bias=b, slopes=s, window=(1, 0)),
        [(2, 3, 2), (2, 4, 2), (2, 4, 2), (3, 1), (2,)],
    ),
    **nn_gradients.CASES,
}


def test_paged_attention() -> None:
    given = inputs((2, 2, 2, 2), (4, 2, 1, 2), (4, 2, 1, 3))
    random = np.random.default_rng(1)
    table, lengths = (te.placeholder(s, "int32", name=n) for s, n in (((2, 2), "t"), ((2,), "l")))
    values = {**given, table: random.permutation(4).reshape(2, 2).astype("i4")}
    values[lengths] = np.array([3, 2], "i4")
    q, k, v = given
    check(nn.paged_attention(q, k, v, table, lengths), values, [q, k, v])


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    function, shapes = OPERATORS[name]
    agree(function, *shapes)


def attention(q: te.Tensor, k: te.Tensor, v: te.Tensor) -> te.Tensor:
    """Causal attention over one head."""
    d = te.reduce_axis((0, q.shape[1]), name="d")
    low = te.const(-1e9, q.dtype)

    def score(i: te.Axis, j: te.Axis) -> te.Expr:
        return te.if_then_else(j <= i, te.sum(q[i, d] * k[j, d], axis=d) * 0.5, low)

    scores = te.compute((q.shape[0], k.shape[0]), score, name="scores")
    return nn.matmul(nn.softmax(scores), v, name="attention")


def test_attention() -> None:
    agree(attention, (5, 3), (5, 3), (5, 2))


# Scalars ----------------------------------------------------------------------------------------

NEAR_ZERO = ("exp", "exp2", "expm1", "tanh", "sigmoid", "erf", "sin", "cos", "tan", "atan")
MORE = ("sinh", "cosh", "asinh", "abs", "negative", "floor", "ceil", "round", "trunc", "sign")
POSITIVE = ("log", "log2", "log10", "log1p", "sqrt", "rsqrt")


@pytest.mark.parametrize("name", [*NEAR_ZERO, *MORE, *POSITIVE])
def test_functions(name: str) -> None:
    agree(getattr(te, name), (9,), low=0.3 if name in POSITIVE else -np.inf)


@pytest.mark.parametrize("name", ["asin", "acos", "atanh"])
def test_functions_on_the_unit_interval(name: str) -> None:
    agree(lambda x: getattr(te, name)(te.tanh(x) * 0.9), (9,))


def test_acosh() -> None:
    agree(lambda x: te.acosh(x + 1.0), (9,), low=0.1)


def test_every_function_has_a_rule() -> None:
    assert set(UnaryOp) == FLAT | set(RULES) | {UnaryOp.BITS}  # a rule for pairs of it
    assert not FLAT & set(RULES)


PAIRS: dict[str, tuple[Any, float]] = {
    "add": (te.add, -np.inf),
    "subtract": (te.subtract, -np.inf),
    "multiply": (te.multiply, -np.inf),
    "divide": (te.divide, 0.5),
    "power": (te.power, 0.5),
    "atan2": (te.atan2, -np.inf),
    "maximum": (te.maximum, -np.inf),
    "minimum": (te.minimum, -np.inf),
    "floormod": (te.floormod, 0.4),
    "truncmod": (te.truncmod, 0.4),
}


@pytest.mark.parametrize("name", PAIRS)
def test_broadcast_pairs(name: str) -> None:
    function, low = PAIRS[name]
    agree(function, (4, 5), (1, 5), low=low)
    agree(function, (5,), (2, 1, 5), low=low)


def values_of(output: te.Tensor, at: dict[te.Tensor, Any]) -> list[Any]:
    """The derivatives of the sum of `output`, by each tensor in `at`."""
    ones = te.placeholder(output.shape, output.dtype, name="ones")
    (value,) = te.evaluate(output, at)
    found = te.evaluate(te.gradient(output, list(at), ones), {**at, ones: np.ones_like(value)})
    return [each.tolist() for each in found]


def test_powers_of_zero() -> None:
    x, y = (te.placeholder((3,), "float64", name=name) for name in "xy")
    at = {x: np.array([0.0, 0.0, 2.0]), y: np.array([0.0, 2.0, 0.0])}
    assert values_of(te.power(x, y), at) == [[0, 0, 0], [0, 0, np.log(2.0)]]


def test_ties() -> None:
    x, y = (te.placeholder((2,), "float64", name=name) for name in "xy")
    at = {x: np.array([0.0, 1.0]), y: np.array([0.0, 1.0])}
    for function in (te.maximum, te.minimum):
        assert values_of(function(x, y), at) == [[1, 1], [0, 0]]
    here = {x: at[x]}
    assert values_of(nn.relu(x), here) == [[0, 1]]
    assert values_of(te.maximum(0.0, x), here) == [[0, 1]]
    assert values_of(te.abs(x), here) == [[0, 1]]
    assert values_of(te.clip(x, 0.0, 1.0), here) == [[0, 0]]
    z = te.placeholder((1, 2), "float64", name="z")
    for fold in (te.max, te.min):
        assert values_of(folded(z, fold), {z: np.array([[3.0, 3.0]])}) == [[[1, 0]]]


def folded(x: te.Tensor, fold: Any) -> te.Tensor:
    """`fold` of each row."""
    k = te.reduce_axis((0, x.shape[1]), name="k")
    return te.compute((x.shape[0],), lambda i: fold(x[i, k], axis=k), name="y")


def test_the_side_not_chosen_gives_nothing() -> None:
    x = te.placeholder((3,), "float64", name="x")
    at = {x: np.array([-1.0, 0.0, 2.0])}
    safe = te.compute((3,), lambda i: te.select(x[i] > 0, te.log(x[i]), 0.0), name="y")
    assert values_of(safe, at) == [[0, 0, 0.5]]
    largest = te.compute((3,), lambda i: te.max(te.sqrt(x[i]), te.const(1.0, "float64")))
    assert np.isfinite(values_of(largest, {x: np.array([0.0, 0.5, 1.0])})).all()


def test_parts_shared_by_choices() -> None:
    def body(x: te.Tensor) -> te.Tensor:
        def element(i: te.Axis) -> te.Expr:
            y = te.if_then_else(i > 0, te.exp(x[te.max(i - 1, 0)]), 2.0)
            for _ in range(20):
                y = te.select(y > 1.0, y * 0.7, te.max(y * 1.2, y + 0.1))
            both = te.if_then_else(i > 2, y * x[i - 2], 0.0)
            return both + te.if_then_else(i > 1, y + x[i - 2], y * 3.0)

        return te.compute((7,), element, name="y")

    agree(body, (7,))


def test_guarded_reads_stay_guarded() -> None:
    def body(x: te.Tensor) -> te.Tensor:
        return te.compute(
            (9,),
            lambda i: (
                te.if_then_else(i >= 2, te.exp(x[i - 2]), 0.0)
                + te.if_then_else(i < 5, x[i + 4] * x[i], x[i] / 3.0)
            ),
            name="y",
        )

    agree(body, (9,))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_accumulate_wide(dtype: str) -> None:
    x = te.placeholder((2, 4000), dtype, name="x")
    h = te.placeholder((2, 4000), dtype, name="h")
    w = te.placeholder((2,), dtype, name="w")
    y = te.compute((2, 4000), lambda i, j: x[i, j] * w[i], name="y")
    (by_w,) = te.gradient(y, [w], h)
    assert by_w.dtype == dtype
    kind = numpy_dtype(te.DType(dtype))
    given = {x: np.full((2, 4000), 0.01, kind), h: np.ones((2, 4000), kind)}
    (found,) = te.evaluate(by_w, given)
    np.testing.assert_allclose(found.astype("f8"), 40.0, rtol=0.01)
    text = print_graph(te.gradient(nn.matmul(x, te.placeholder((4000, 3), dtype, name="b")), [x]))
    assert "float32" in text


def test_casts() -> None:
    x = te.placeholder((4,), "float32", name="x")
    wide = te.compute((4,), lambda i: te.exp(x[i].astype("float64")), name="y")
    assert te.gradient(wide, [x])[0].dtype == "float32"
    whole = te.compute((4,), lambda i: x[i].astype("int32").astype("float32") * x[i], name="y")
    at = {x: np.array([1.5, -2.5, 0.25, 3.0], "f4")}
    assert values_of(whole, at) == [[1, -2, 0, 3]]


# Reductions -------------------------------------------------------------------------------------

FOLDS: dict[str, Any] = {"sum": te.sum, "prod": te.prod, "max": te.max, "min": te.min}


@pytest.mark.parametrize("name", FOLDS)
def test_reductions(name: str) -> None:
    fold = FOLDS[name]

    def plain(x: te.Tensor) -> te.Tensor:
        k, m = te.reduce_axis((1, 5), name="k"), te.reduce_axis((0, 2), name="m")
        return te.compute((3,), lambda i: fold(x[i, k, m] * 2.0, axis=[k, m]), name="y")

    def some(x: te.Tensor, start: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, 5), name="k")
        return te.compute(
            (3,),
            lambda i: fold(x[i, k], axis=k, where=(k + i) % 3 != 1, init=start[i]),
            name="y",
        )

    agree(plain, (3, 5, 2))
    agree(some, (3, 5), (3,))


def test_nothing_to_reduce() -> None:
    x = te.placeholder((2, 3), "float64", name="x")

    def second_row(fold: Any) -> te.Tensor:
        k = te.reduce_axis((0, 3), name="k")
        return te.compute((2,), lambda i: fold(x[i, k], axis=k, where=i > 0), name="y")

    for fold in FOLDS.values():
        at = {x: np.array([[1.0, 2, 3], [3, 2, 1]])}
        assert values_of(second_row(fold), at)[0][0] == [0, 0, 0]


def test_products_with_zeros() -> None:
    given = inputs((4, 4))
    (x,) = given
    given[x][1, 2] = given[x][2, 0] = given[x][2, 3] = 0.0
    product = folded(x, te.prod)
    check(product, given, [x])
    ones = te.placeholder((4,), "float64", name="ones")
    (first,) = te.gradient(product, [x], ones)
    check(first, {**given, ones: np.ones(4)}, [x])


def test_own_reducers() -> None:
    def log_sum_exp(x: te.Tensor) -> te.Tensor:
        def combine(a: Any, b: Any) -> Any:
            top = te.max(a[0], b[0])
            return top, a[1] * te.exp(a[0] - top) + b[1] * te.exp(b[0] - top)

        reducer = te.comm_reducer(
            combine, lambda t, u: (te.min_value(t), te.const(0, u)), name="lse"
        )
        k = te.reduce_axis((0, 5), name="k")
        one = te.const(1.0, "float64")
        top, total = te.compute((3,), lambda i: reducer((x[i, k], one), axis=k), name="r")
        return te.compute((3,), lambda i: top[i] + te.log(total[i]), name="y")

    def largest(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        """The value of y where x is largest, plus x there; with a start."""

        def combine(a: Any, b: Any) -> Any:
            first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[2] < b[2]))
            return tuple(te.select(first, u, v) for u, v in zip(a, b, strict=True))

        def identity(t: te.DType, u: te.DType, i: te.DType) -> Any:
            return te.min_value(t), te.const(0, u), te.max_value(i)

        reducer = te.comm_reducer(combine, identity, name="pick")
        k = te.reduce_axis((0, 5), name="k")
        start = (y[0, 0], y[0, 1], te.const(-1))
        made = te.compute(
            (3,), lambda i: reducer((x[i, k], y[i, k], k), axis=k, init=start), name="r"
        )
        return te.compute((3,), lambda i: made[0][i] * 3.0 + te.exp(made[1][i]), name="z")

    agree(log_sum_exp, (3, 5))
    agree(largest, (3, 5), (3, 5))


def test_axes_that_only_repeat_are_counted() -> None:
    """Found by drawing: equal terms along one axis were counted once beside a sum over another."""

    def repeated(x: te.Tensor) -> te.Tensor:
        wide = te.compute((2, 5, 3), lambda i, j, k: te.select(x[k] > 0, x[k], 0.5), name="wide")
        m = te.reduce_axis((0, 5), name="m")
        total = te.compute((2, 3), lambda i, k: te.sum(wide[i, m, k], axis=m), name="total")
        return te.compute((2, 3), lambda i, k: total[i, k] * 2.0, name="y")

    def only_repeated(x: te.Tensor) -> te.Tensor:
        return te.compute((2, 5, 3), lambda i, j, k: te.tanh(x[k]), name="y")

    agree(repeated, (3,), low=0.2)
    agree(only_repeated, (3,))
    x = te.placeholder((3,), "float64", name="x")
    (by_x,) = te.gradient(only_repeated(x), [x])
    assert by_x.ndim == 4


# Heads, Jacobians, graphs -----------------------------------------------------------------------


def test_jacobians() -> None:
    given = inputs((2, 3), (3, 2))
    x, w = given
    output = nn.softmax(nn.matmul(x, w), name="y")
    jacobians = te.gradient(output, [x, w])
    assert [str(list(each.shape)) for each in jacobians] == ["[2, 2, 2, 3]", "[2, 2, 3, 2]"]
    identity = te.placeholder((2, 2, 2, 2), "float64", name="one")
    same = te.gradient(output, [x, w], identity)
    one = np.eye(4).reshape(2, 2, 2, 2)
    found = te.evaluate([*jacobians, *same], {**given, identity: one})
    for n in range(2):
        np.testing.assert_allclose(found[n], found[n + 2], atol=1e-12)


def test_a_head_may_have_more_dimensions() -> None:
    given = inputs((3, 4), (5, 3, 4))
    x, head = given
    (by_x,) = te.gradient(te.exp(x), [x], head)
    (found,) = te.evaluate(by_x, given)
    np.testing.assert_allclose(found, given[head] * np.exp(given[x]))


def test_the_gradient_of_a_number() -> None:
    x = te.placeholder((4,), "float64", name="x")
    k = te.reduce_axis((0, 4), name="k")
    loss = te.compute((), lambda: te.sum(x[k] * x[k], axis=k), name="loss")
    (by_x,) = te.gradient(loss, x)
    assert str(by_x.op).startswith("d_loss_d_x[k] = x[k] * float64(2.0)")


def test_by_definitions_on_the_way() -> None:
    given = inputs((3, 4))
    (x,) = given
    middle = te.compute((3, 4), lambda i, j: te.sin(x[i, j]), name="middle")
    top = te.compute((3, 4), lambda i, j: middle[i, j] * middle[i, j] + x[i, j], name="top")
    by_middle, by_x, by_top = te.gradient(top, [middle, x, top], middle)
    found = te.evaluate([by_middle, by_x, by_top], given)
    sine, cosine = np.sin(given[x]), np.cos(given[x])
    for got, want in zip(found, (2 * sine**2, sine * (2 * sine * cosine + 1), sine), strict=True):
        np.testing.assert_allclose(got, want)


def test_what_has_no_influence_gets_zeros() -> None:
    x, other = te.placeholder((3,), name="x"), te.placeholder((2, 2), name="other")
    step = te.compute((3,), lambda i: te.floor(x[i]), name="step")
    by_other, by_x = te.gradient(step, [other, x])
    assert "= 0.0  # float32[3, 2, 2]" in str(by_other.op)
    assert "= 0.0  # float32[3, 3]" in str(by_x.op)


def test_twenty_stages_stay_twenty() -> None:
    def stage(a: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, 7), name="k")

        def element(i: te.Axis, j: te.Axis) -> te.Expr:
            return te.tanh(a[i, j]) * a[4 - i, j] + te.sum(a[i, k] * a[i, j], axis=k)

        return te.compute((5, 7), element, name="s")

    def chain(stages: int) -> tuple[te.Tensor, te.Tensor]:
        x = last = te.placeholder((5, 7), "float64", name="x")
        for _ in range(stages):
            last = stage(last)
        return x, last

    counts: list[int] = []
    for stages in (5, 10, 20):
        x, last = chain(stages)
        counts.append(len(operations(te.gradient(last, [x], last))))
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])


@pytest.mark.parametrize(
    "name", ["softmax", "gelu", "layer_norm_plain", "matmul", "rms_norm", "log_softmax", "softplus"]
)
def test_second_derivatives(name: str) -> None:
    function, shapes = OPERATORS[name]
    given = inputs(*shapes)
    output = function(*given)
    (value,) = te.evaluate(output, given)
    head = te.placeholder(output.shape, "float64", name="h")
    given[head] = np.random.default_rng(1).standard_normal(value.shape)
    tensors = list(given)
    for first in te.gradient(output, tensors[:-1], head):
        check(first, given, tensors, tolerance=1e-5)


FLAT_X = te.placeholder((3,), name="x")


def nested(depth: int) -> Callable[[te.Tensor], te.Tensor]:
    """One body with `depth` functions in one another."""

    def element(value: te.Expr) -> te.Expr:
        for _ in range(depth):
            value = te.sigmoid(value) * 1.5
        return value

    return lambda x: te.compute(x.shape, lambda i: element(x[i]), name="y")


def test_deep_bodies() -> None:
    agree(nested(25), (3,))
    agree(nested(45), (3,))
    with pytest.raises(te.ExprError, match=r"d_y_d_x' is nested 3\d\d deep[\s\S]*several computes"):
        te.gradient(nested(80)(FLAT_X), [FLAT_X])


# What is generated ------------------------------------------------------------------------------


def test_matmul_gives_matmuls() -> None:
    text = printed(nn.matmul, (5, 7), (7, 3))
    assert "d_matmul_d_x0[i0, k] = sum(i1)(h[i0, i1] * x1[k, i1])" in text
    assert "d_matmul_d_x1[k, i1] = sum(i0)(h[i0, i1] * x0[i0, k])" in text
    assert text.count("sum(") == 2


def test_relu_gives_one_choice() -> None:
    assert printed(nn.relu, (5,)).endswith(
        "d_relu_d_x0[i0] = select(x0[i0] > 0.0, h[i0], 0.0)  # float32[5]"
    )


def test_nothing_needless(golden: Callable[[str], None]) -> None:
    texts = [printed(OPERATORS[name][0], *OPERATORS[name][1]) for name in ("gelu", "layer_norm")]
    golden("\n\n".join(texts))


# Refusals ---------------------------------------------------------------------------------------

X, WHOLE = te.placeholder((3, 4), name="x"), te.placeholder((3,), "int32", name="i")
Y = te.exp(X)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: te.gradient(Y, [WHOLE]), r"i is int32, and only floats[\s\S]*astype"),
        (lambda: te.gradient(te.add(WHOLE, 1), [X]), r"add is int32, and only floats"),
        (lambda: te.gradient(Y, [X], WHOLE), r"i is int32"),
        (lambda: te.gradient(Y, [X], te.placeholder((4, 3), name="h")), r"head h .*\[4, 3\]"),
        (lambda: te.gradient(Y, [X], te.placeholder((4,), name="h")), r"the last dimensions"),
    ],
)
def test_refusals(call: Callable[[], object], message: str) -> None:
    with pytest.raises(te.ExprError, match=message):
        call()


@dataclass(frozen=True, eq=False, repr=False)
class OtherOp(Operation):
    """A kind of operation that te.gradient has never seen."""

    name: str = "other"
    shape: tuple[te.Expr, ...] = (te.const(3),)

    @property
    def outputs(self) -> tuple[te.Tensor, ...]:
        return (te.Tensor(self),)

    @property
    def output_dtypes(self) -> tuple[te.DType, ...]:
        return (te.DType.float32,)


def test_other_kinds_of_operations() -> None:
    made = te.Tensor(OtherOp())
    total = te.compute((3,), lambda i: made[i] + X[i, 0], name="total")
    with pytest.raises(te.ExprError, match=r"other is a OtherOp[\s\S]*head="):
        te.gradient(total, [X])
