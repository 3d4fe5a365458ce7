"""Gradients are definitions like any other: built by default rules, and scheduled at random.

Every way to run them gives what central differences of the forward definition give, in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cases as drawn_cases
import drawn_stages
import every_kernel
import hypothesis.strategies as st
import nn_gradients
import numpy as np
import pytest
import scans
from choices import Choice
from drawn_schedules import schedules
from hypothesis import event, given, note, seed, settings
from numeric import differences, slopes
from scan_strategies import recurrences
from strategies import Case, computes

import tedsl as te
from tedsl.errors import LowerError
from tedsl.expr.numerics import Array
from tedsl.ir.interp import run
from tedsl.lower.pipeline import lower
from tedsl.reference.reference import evaluate
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.target import Target
from tedsl.tensor.printer import operations

nn = te.nn
PARTS = [0, pytest.param(1, marks=pytest.mark.slow)]


@dataclass
class Problem:
    """Gradients, values for what they read, and what they should be."""

    gradients: list[te.Tensor] = field(default_factory=list[te.Tensor])
    values: dict[str, Array] = field(default_factory=dict[str, Array])
    wanted: list[Array] = field(default_factory=list[Array])
    sizes: dict[str, int] = field(default_factory=dict[str, int])


def strided(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    """A strided convolution, written by hand."""
    k = te.reduce_axis((0, 3), name="k")
    return te.compute((4,), lambda i: te.sum(x[2 * i + k] * w[k], axis=k), name="y")


def pool(x: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, 3), name="k")
    return te.compute((3, 4), lambda i, j: te.max(x[i, j + k], axis=k), name="y")


def product(x: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, 5), name="k")
    return te.compute((3,), lambda i: te.prod(x[i, k], axis=k, where=k <= i + 2), name="y")


def attention(q: te.Tensor, k: te.Tensor, v: te.Tensor) -> te.Tensor:
    d = te.reduce_axis((0, q.shape[1]), name="d")
    low = te.const(-1e9, "float64")

    def score(i: te.Axis, j: te.Axis) -> te.Expr:
        return te.if_then_else(j <= i, te.sum(q[i, d] * k[j, d], axis=d), low)

    return nn.matmul(nn.softmax(te.compute((q.shape[0], k.shape[0]), score, name="s")), v)


def cumulative_product(x: te.Tensor) -> te.Tensor:
    state = te.placeholder(x.shape, "float64", name="S")
    first = te.compute((1, 3), lambda t, i: x[0, i], name="first")
    step = te.compute(x.shape, lambda t, i: state[t - 1, i] * x[t, i], name="U")
    (result,) = scans.listed(te.scan(first, step, state, name="H"))
    return result


def two_back(x: te.Tensor, a: te.Tensor) -> te.Tensor:
    """A recurrence of the second order, as Fibonacci's."""
    state = te.placeholder((6, 3), "float64", name="S")
    step = te.compute(
        (6, 3), lambda t, i: a[i] * state[t - 1, i] - state[t - 2, i] * state[t - 1, i], name="U"
    )
    (result,) = scans.listed(te.scan(x, step, state, name="H"))
    return result


def recurrent_cell(x: te.Tensor, w: te.Tensor, v: te.Tensor, h0: te.Tensor) -> te.Tensor:
    state = te.placeholder(x.shape, "float64", name="S")
    k, n = te.reduce_axis((0, 3), name="k"), te.reduce_axis((0, 3), name="n")
    fed = te.compute(x.shape, lambda t, b, i: te.sum(x[t, b, n] * v[n, i], axis=n), name="fed")
    mix = te.compute(
        x.shape, lambda t, b, i: te.sum(state[t - 1, b, k] * w[k, i], axis=k), name="mix"
    )
    step = te.compute(x.shape, lambda t, b, i: te.tanh(mix[t, b, i] + fed[t, b, i]), name="U")
    (h,) = scans.listed(te.scan(h0, step, state, [fed, w], name="h"))
    return te.compute(x.shape, lambda t, b, i: h[t, b, i] * h[t, b, i], name="y")


def two_states(x: te.Tensor, w: te.Tensor, start: te.Tensor) -> te.Tensor:
    h, c = (te.placeholder(x.shape, "float64", name=name) for name in "hc")
    k = te.reduce_axis((0, 3), name="k")
    mix = te.compute(x.shape, lambda t, i: te.sum(h[t - 1, k] * w[k, i], axis=k), name="mix")
    nc = te.compute(x.shape, lambda t, i: te.sigmoid(mix[t, i]) * c[t - 1, i] + x[t, i], name="nc")
    nh = te.compute(x.shape, lambda t, i: te.tanh(nc[t, i]) * te.sigmoid(mix[t, i]), name="nh")
    a, b = scans.listed(te.scan([start, start], [nh, nc], [h, c], name="cell"))
    return te.compute(x.shape, lambda t, i: a[t, i] + b[t, i] * a[t, i], name="y")


CASES: dict[str, tuple[Callable[..., te.Tensor], list[tuple[int, ...]]]] = {
    "relu": (nn.relu, [(3, 5)]),
    "gelu": (nn.gelu, [(3, 5)]),
    "gelu_tanh": (lambda x: nn.gelu(x, "tanh"), [(7,)]),
    "silu": (nn.silu, [(7,)]),
    "softmax": (nn.softmax, [(3, 7)]),
    "matmul": (nn.matmul, [(3, 5), (5, 2)]),
    "matmul_batched": (nn.matmul, [(2, 3, 5), (2, 5, 1)]),
    "linear": (nn.linear, [(2, 3, 5), (4, 5), (4,)]),
    "layer_norm": (nn.layer_norm, [(3, 7), (7,), (7,)]),
    "rms_norm": (nn.rms_norm, [(3, 7), (7,)]),
    "attention": (attention, [(3, 2), (3, 2), (3, 2)]),
    "conv2d": (
        lambda x, w, b: nn.conv2d(x, w, b, (2, 1), padding=1),
        [(1, 4, 3, 2), (3, 2, 2, 2), (2,)],
    ),
    "conv2d_grouped": (
        lambda x, w: nn.conv2d(x, w, dilation=2, groups=2, layout="channels_first"),
        [(1, 2, 3, 4), (2, 1, 2, 2)],
    ),
    "conv_transpose2d": (
        lambda x, w: nn.conv_transpose2d(x, w, None, (2, 1), (1, 0)),
        [(1, 2, 3, 2), (3, 2, 2, 1)],
    ),
    "max_pool2d": (lambda x: nn.max_pool2d(x, 3, 2, 1), [(1, 5, 4, 2)]),
    "avg_pool2d": (lambda x: nn.avg_pool2d(x, 2, 2, 1, True, False), [(1, 4, 3, 2)]),
    "adaptive_avg_pool1d": (lambda x: nn.adaptive_avg_pool1d(x, 3), [(2, 5, 2)]),
    "grouped_attention": (
        lambda q, k, v, b: nn.attention(q, k, v, causal=True, cap=2.0, bias=b),
        [(2, 2, 2), (1, 3, 2), (1, 3, 2), (3,)],
    ),
    "strided": (strided, [(9,), (3,)]),
    "pool": (pool, [(3, 6)]),
    "product": (product, [(3, 5)]),
    "cumulative_product": (cumulative_product, [(5, 3)]),
    "two_back": (two_back, [(2, 3), (3,)]),
    "recurrent_cell": (recurrent_cell, [(4, 2, 3), (3, 3), (3, 3), (1, 2, 3)]),
    "two_states": (two_states, [(4, 3), (3, 3), (1, 3)]),
}
OPERATORS = nn_gradients.CASES


# Of many loops each, and of one written-once core: a few draws do.
LONG = (
    "conv2d",
    "conv2d_grouped",
    "conv_transpose2d",
    "max_pool2d",
    "avg_pool2d",
    "adaptive_avg_pool1d",
    "grouped_attention",
)
SCANS = ("cumulative_product", "two_back", "recurrent_cell", "two_states")


def problem(name: str) -> Problem:
    """The gradients of one case by all its arguments, and their right values."""
    function, shapes = (CASES | OPERATORS)[name]
    random = np.random.default_rng(3)
    inputs: dict[te.Tensor, Any] = {
        te.placeholder(shape, "float64", name=f"x{n}"): random.standard_normal(shape)
        for n, shape in enumerate(shapes)
    }
    output = function(*inputs)
    head = te.placeholder(output.shape, "float64", name="head")
    weights = random.standard_normal(tuple(int(str(extent)) for extent in output.shape))
    made = Problem(te.gradient(output, list(inputs), head))
    made.values = {tensor.name: value for tensor, value in inputs.items()} | {"head": weights}
    made.wanted = [differences(output, tensor, inputs, weights) for tensor in inputs]
    return made


def compare(problem: Problem, found: list[Any], how: str) -> None:
    for tensor, got, want in zip(problem.gradients, found, problem.wanted, strict=True):
        message = f"{how}: {tensor.name}"
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6, err_msg=message)


def interpreted(problem: Problem, schedule: Schedule, target: str) -> list[Any] | None:
    try:
        module = lower(schedule.plan, Target.parse(target), check=True)
    except LowerError as error:
        assert error.hint, f"a refusal without advice: {error}"
        event(f"lower for {target}: refused")
        return None
    arrays = {buffer: problem.values[buffer.name] for buffer in module.inputs}
    result = run(module, arrays, {var: problem.sizes[var.name] for var in module.sizes})
    return [result[buffer] for buffer in module.outputs]


def compiled(problem: Problem, what: Schedule | list[te.Tensor], target: str) -> list[Any]:
    kernel = te.build(what, target=target, cache=False)
    made: Any = kernel(*(problem.values[b.name] for b in kernel.module.inputs))
    return list(made) if isinstance(made, tuple) else [made]


@pytest.mark.cpu
@pytest.mark.parametrize("name", CASES)
def test_default_rules(name: str) -> None:
    case = problem(name)
    compare(case, compiled(case, case.gradients, "cpu"), "cpu")


@pytest.mark.parametrize("name", [*("softmax", "matmul", "strided", "layer_norm", "pool"), *SCANS])
def test_default_rules_for_triton(name: str) -> None:
    case = problem(name)
    compare(case, compiled(case, case.gradients, "triton-interpret"), "triton-interpret")


def check_schedules(case: Problem, name: str, examples: int, share: int = 3) -> None:
    """Drawn schedules of the gradients of a case, interpreted and on the CPU; ptxas takes one in
    `share`, and none where that is 0."""

    count = itertools.count()

    @seed(len(name))
    @settings(max_examples=examples)
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        schedule = data.draw(schedules(case.gradients).strategy(), label="schedule")
        note(f"{schedule.as_python()}\n{schedule}")
        for target in ("cpu", "triton-interpret"):
            found = interpreted(case, schedule, target)
            if found is None:
                continue
            compare(case, found, f"interpreted for {target}")
            if target == "cpu":
                compare(case, compiled(case, schedule, target), target)
        if share:
            every_kernel.compile_one_in(share, next(count))

    draw()


def many() -> int:
    return max(5, settings().max_examples // 8)


@pytest.mark.cpu
@pytest.mark.parametrize("name", [name for name in CASES if name not in LONG])
def test_drawn_schedules(name: str) -> None:
    check_schedules(problem(name), name, many())


@pytest.mark.cpu
@pytest.mark.uncompiled("the loops of the cases above, in more dimensions")
@pytest.mark.parametrize("name", LONG)
def test_drawn_schedules_of_many_loops(name: str) -> None:
    check_schedules(problem(name), name, max(2, settings().max_examples // 40), share=0)


@pytest.mark.cpu
@pytest.mark.uncompiled("hundreds of kernels, of the kinds that the other tests compile")
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    """By default rules, and under the simplest schedule and another one."""
    case = problem(name)
    compare(case, compiled(case, case.gradients, "cpu"), "cpu")
    check_schedules(case, name, 2, share=0)


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_under_many_schedules(name: str) -> None:
    check_schedules(problem(name), name, many())


@pytest.mark.cpu
def test_second_derivatives_run() -> None:
    x = te.placeholder((3, 5), "float64", name="x")
    h = te.placeholder((3, 5), "float64", name="h")
    (first,) = te.gradient(nn.softmax(x), [x], h)
    second = te.gradient(first, [x, h], x)
    random = np.random.default_rng(1)
    values: dict[str, Any] = {n: random.standard_normal((3, 5)) for n in "xh"}
    kernel = te.build(second, target="cpu", cache=False)
    found: Any = kernel(*(values[buffer.name] for buffer in kernel.module.inputs))
    want = evaluate(second, {x: values["x"], h: values["h"]})
    for got, right in zip(found, want, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-12)


def away_from_kinks(case: Case) -> dict[te.Tensor, Any]:
    """The inputs of a case, with floats moved so that no two are equal."""
    random = np.random.default_rng(case.number)
    return {
        tensor: array + random.uniform(0.01, 0.05, array.shape) if tensor.dtype.is_float else array
        for tensor, array in case.inputs.items()
    }


def check_drawn(data: st.DataObject, cases: Choice) -> None:
    """A drawn computation: its gradients along a random direction, and under a drawn schedule."""
    case = data.draw(cases.strategy(), label="case")
    output = case.outputs[0]
    if not output.dtype.is_float:
        return
    inputs = away_from_kinks(case)
    wrt = [tensor for tensor in inputs if tensor.dtype.is_float]
    (value,) = evaluate(output, inputs, case.sizes)
    random = np.random.default_rng(1)
    weights = random.standard_normal(value.shape)
    head = te.placeholder(output.shape, "float64", name="head")
    made = te.gradient(output, wrt, head)
    given = {**inputs, head: weights}
    found = evaluate(made, given, case.sizes)
    # What is rounded to 8 bits moves by steps, and its derivative is that of the identity.
    stored = any(t.dtype.is_float8 for op in operations([output]) for t in op.outputs)
    for tensor, got in () if stored else zip(wrt, found, strict=True):
        direction = random.standard_normal(got.shape)
        first, second = slopes(output, tensor, inputs, weights, direction, case.sizes)
        size = max(1.0, abs(first), float(np.abs(got * direction).sum()))
        if abs(first - second) < 1e-5 * size:
            assert abs(first - float((got * direction).sum())) < 3e-5 * size, tensor.name
    schedule = data.draw(schedules(made).strategy(), label="schedule")
    note(f"{schedule.as_python()}\n{schedule}")
    sizes = {var.name: size for var, size in case.sizes.items()}
    values = {tensor.name: array for tensor, array in given.items()}
    again = interpreted(Problem(made, values, found, sizes), schedule, "cpu")
    for got, want in zip(again or [], found, strict=bool(again)):
        np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("shard", PARTS)
def test_drawn_computations(shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn_cases, "DTYPES", ("float64",))
    monkeypatch.setitem(drawn_stages.NARROW, "float", ("float64",))

    @seed(shard)
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        check_drawn(data, computes())

    draw()


@pytest.mark.parametrize("shard", PARTS)
def test_drawn_scans(shard: int) -> None:
    @seed(shard)
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        check_drawn(data, recurrences(("float64",)))

    draw()
