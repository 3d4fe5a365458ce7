"""Scans without a schedule: the rules' schedules are legal and give the oracle's numbers."""

from __future__ import annotations

import numpy as np
import pytest
import scans
from lowering import agrees, placeholders, random_array

import tedsl as te
from tedsl.schedules import default_schedule


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
@pytest.mark.parametrize("name", list(scans.EXAMPLES))
def test_rules(name: str, target: str) -> None:
    s = default_schedule(scans.EXAMPLES[name](), target)
    assert agrees(s, targets=("cpu" if target == "cpu" else "triton-interpret",))


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
@pytest.mark.parametrize("size", [0, 1, 2, 70])
def test_symbolic_sizes(target: str, size: int) -> None:
    n, m = te.size_var("n"), te.size_var("m")
    where = "cpu" if target == "cpu" else "triton-interpret"
    for outs in (scans.running_sum(n, m), scans.oscillator(n, m)):
        s = default_schedule(outs, target)
        assert agrees(s, {n: 5, m: size}, targets=(where,))
        rows = max(size, 1) if outs[0].op.name == "total" else size
        assert agrees(s, {n: rows, m: 3}, targets=(where,))


@pytest.mark.parametrize("length", [1, 17, 600, None])
@pytest.mark.parametrize("start", [0.0, 1.0])
def test_sums_from_a_constant(start: float, length: int | None) -> None:
    """What the fold leaves to be done is a pointwise kernel with knobs of its own."""
    n = te.size_var("n")
    rows = n if length is None else length
    x, state = te.placeholder((rows,), name="x"), te.placeholder((rows,), name="S")
    first = te.compute((1,), lambda t: te.const(start, "float32"), name="first")
    update = te.compute((rows,), lambda t: state[t - 1] + x[t], name="U")
    s = default_schedule(te.scan(first, update, state, name="run"), "cuda:sm_90")
    assert agrees(s, {n: 33} if length is None else None, targets=("triton-interpret",))


@pytest.mark.cpu
@pytest.mark.parametrize("name", list(scans.EXAMPLES))
def test_built_for_the_cpu(name: str) -> None:
    built(scans.EXAMPLES[name](), "cpu")


@pytest.mark.ptxas
@pytest.mark.parametrize("name", list(scans.EXAMPLES))
def test_built_for_triton(name: str) -> None:
    built(scans.EXAMPLES[name](), "triton-interpret")


def built(outs: scans.Outputs, target: str) -> None:
    kernel = te.build(outs, target)
    rng = np.random.default_rng(5)
    inputs = placeholders(kernel.schedule)
    values = [random_array(tensor, {}, rng) for tensor in inputs]
    names = {buffer.name: value for buffer, value in zip(inputs, values, strict=True)}
    result = kernel(*(names[buffer.name] for buffer in kernel.signature.inputs))
    found = result if isinstance(result, tuple) else (result,)
    expected = te.evaluate(outs, dict(zip(inputs, values, strict=True)))
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("steps", "columns", "costly", "in_order"),
    [(792, 143360, True, True), (792, 143360, False, False), (8192, 512, True, False)],
)
def test_costly_steps_of_many_columns_run_in_order(
    steps: int, columns: int, costly: bool, in_order: bool
) -> None:
    x = te.placeholder((steps, columns), "float32", name="x")
    state = te.placeholder((steps, columns), "float32", name="state")

    def following(t: te.Axis, i: te.Axis) -> te.Expr:
        a, b = state[t - 1, i], x[t, i]
        if not costly:
            return a + b
        high, low = te.maximum(a, b), te.minimum(a, b)
        even = te.logical_and(high == low, te.isinf(high))
        return te.select(even, high, high + te.log1p(te.exp(low - high)))

    first = te.compute((1, columns), lambda _, i: x[0, i], name="first")
    step = te.compute((steps, columns), following, name="step")
    s = default_schedule(te.scan(first, step, state, name="total"), "cuda:sm_90")
    assert not s.fallbacks
    assert in_order == all("prefix" not in stage.name for stage in s.stages)


def sums(steps: int, columns: int | None = None) -> te.Tensor:
    """Running sums of one row, or down columns."""
    shape = (steps,) if columns is None else (steps, columns)
    x, state = te.placeholder(shape, name="x"), te.placeholder(shape, name="S")
    first = te.compute((1, *shape[1:]), lambda t, *i: x[(0, *i)], name="first")
    step = te.compute(shape, lambda t, *i: state[(t - 1, *i)] + x[(t, *i)], name="step")
    made = te.scan(first, step, state, name="run")
    assert isinstance(made, te.Tensor)
    return made


@pytest.mark.parametrize(
    ("steps", "columns", "kernels"),
    [(8192, None, 1), (7_602_176, None, 3), (100_000_000, None, 5), (3000, 2, 1), (1 << 20, 2, 3)],
)
def test_a_tile_holds_all_totals_where_it_can(
    steps: int, columns: int | None, kernels: int
) -> None:
    """Those of the blocks of 7.6 million steps, too; short rows count as parts of a long one."""
    s = default_schedule(sums(steps, columns), "cuda:sm_90")
    assert not s.fallbacks
    assert len(te.explain(s, target="cuda:sm_90").kernels) == kernels


def test_columns_of_few_programs_are_divided() -> None:
    """44 columns of 512 steps were one program, of 17 us by the model: 4 us."""
    s = default_schedule(sums(512, 44), "cuda:sm_90")
    (kernel,) = te.explain(s, target="cuda:sm_90").kernels
    assert kernel.seconds < 6e-6
