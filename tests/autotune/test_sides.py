"""Which elements may differ because a rounding fell on the other side of a step, and which not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.autotune.measure.guarded_buffers import POISON
from tedsl.checking.random_inputs import Array, make_inputs
from tedsl.checking.rounding_flips import RUN, Sides, longest_run
from tedsl.checking.tolerance import Bound, Tolerance, has_steps, mismatch
from tedsl.reference.reference import evaluate
from tedsl.tensor.tensor import Tensor
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload

N = 256
Define = Callable[[Tensor, Tensor], Tensor]


def product() -> tuple[Tensor, Tensor, Tensor]:
    a = te.placeholder((N, 64), name="a")
    b = te.placeholder((64, N), name="b")
    return a, b, te.nn.matmul(a, b)


def leaky(h: Tensor) -> Tensor:
    return te.nn.leaky_relu(h)


def where_positive(h: Tensor) -> Tensor:
    return te.compute((N, N), lambda i, j: te.select(h[i, j] > 0.0, 1.0, -2.0), name="w")


def quantised(h: Tensor) -> Tensor:
    return te.compute((N, N), lambda i, j: te.round(h[i, j] * 9.0).astype("int8"), name="q")


def floored(h: Tensor) -> Tensor:
    return te.compute((N, N), lambda i, j: te.floor(h[i, j] * 2.0), name="f")


def compared(h: Tensor) -> Tensor:
    return te.compute((N, N), lambda i, j: te.exp(h[i, j]) > 1.5, name="c")


def looked_up(h: Tensor) -> Tensor:
    size = te.compute((N, N), lambda i, j: te.minimum(te.abs(h[i, j]), 60.0), name="size")
    table = te.compute((64,), lambda i: te.exp(i.astype("float32") / 16.0), name="table")
    return te.compute((N, N), lambda i, j: table[size[i, j].astype("int32")], name="l")


STEPPED = [leaky, where_positive, quantised, floored, compared, looked_up]


class Case:
    """A product and what is made of it, with its reference."""

    def __init__(self, define: Callable[[Tensor], Tensor]) -> None:
        self.a, self.b, self.h = product()
        self.out = define(self.h)
        self.size = Extents(Workload.of(self.out), {})
        made = make_inputs(self.size, 5, "random")
        names = {t.name: array for t, array in made.items()}
        tensors = [op.outputs[0] for op in self.size.workload.placeholders]
        self.inputs = {t: names[t.name] for t in tensors}
        self.output = self.size.workload.outputs[0]
        (want,) = evaluate([self.output], self.inputs, {}, precise=True)
        self.want: Array = np.asarray(want)
        self.tolerance = Tolerance.of(self.size, self.output)
        self.sides = Sides(self.size, self.output, lambda: self.inputs)

    def wrong(self, got: Array) -> str | None:
        return mismatch(got, self.want, self.tolerance, "y", self.sides)


@pytest.mark.parametrize("define", STEPPED)
@pytest.mark.parametrize("count", [100, 7, 4, 1])
def test_a_tail_that_was_not_written_is_wrong(define: Callable[[Tensor], Tensor], count: int):
    case = Case(define)
    assert has_steps(case.size)
    assert case.wrong(case.want.copy()) is None
    poison = np.full(case.want.nbytes, POISON, np.uint8).view(case.want.dtype)
    for fill in (poison[-count:], np.roll(case.want.reshape(-1), 1000)[-count:]):
        got = case.want.copy()
        got.reshape(-1)[-count:] = fill
        if (got.view(np.uint8) != case.want.view(np.uint8)).any():
            text = case.wrong(got)
            assert text is not None, fill
            assert text.startswith("y[255, ")


@pytest.mark.parametrize("value", [1e30, np.nan, 0.5, -1.0])
def test_what_no_side_of_a_step_gives_is_wrong_in_one_element(value: float):
    case = Case(floored)
    got = case.want.copy()
    got[17, 3] = value if got[17, 3] != value else value + 2
    assert str(case.wrong(got)).startswith("y[17, 3] is ")


@pytest.mark.parametrize("define", [where_positive, quantised, floored, compared, looked_up])
def test_what_another_order_of_additions_gives_is_right(define: Callable[[Tensor], Tensor]):
    case = Case(define)
    flipped = 0
    for seed in range(30):
        order = np.random.default_rng(seed).permutation(64)
        inputs = {
            t: np.ascontiguousarray(x[:, order] if t.name == "a" else x[order])
            for t, x in case.inputs.items()
        }
        made = np.zeros((N, N), np.float32)
        for k in range(64):
            a, b = (inputs[t] for t in inputs)
            made += a[:, k : k + 1] * b[k : k + 1]
        got = follow(define, made)
        flipped += int((got != case.want).sum())
        assert case.wrong(got) is None
    assert flipped or define is not quantised


def follow(define: Callable[[Tensor], Tensor], made: Array) -> Array:
    """What `define` makes of a product that is known."""
    h = te.placeholder((N, N), name="h")
    (found,) = evaluate([define(h)], {h: made}, {})
    return np.asarray(found)


def test_an_element_at_a_step_may_be_what_either_side_gives_and_nothing_else():
    x = te.placeholder((64,), name="x")
    h = te.compute((64,), lambda i: te.exp(x[i]) - 1.0, name="h")
    out = te.compute((64,), lambda i: te.select(h[i] > 0.0, 5, -3), name="out")
    size = Extents(Workload.of(out), {})
    given = np.linspace(-1, 1, 64, dtype=np.float32)
    given[20] = 1e-9
    op = size.workload.placeholders[0]
    inputs = {op.outputs[0]: given}
    target = size.workload.outputs[0]
    (want,) = evaluate([target], inputs, {}, precise=True)
    sides = Sides(size, target, lambda: inputs)
    tolerance = Tolerance.of(size, target)
    for value, right in ((5, True), (-3, True), (1, False), (-1, False)):
        got = np.asarray(want).copy()
        got[20] = value
        assert (mismatch(got, want, tolerance, "y", sides) is None) is right, value
        got = np.asarray(want).copy()
        got[40] = value
        assert (mismatch(got, want, tolerance, "y", sides) is None) is (value == 5)


def test_a_run_of_neighbours_is_a_part_that_was_left_out():
    x = te.placeholder((64, 64), name="x")
    h = te.compute((64, 64), lambda i, j: te.exp(x[i, j]) - 1.0, name="h")
    out = te.compute((64, 64), lambda i, j: te.select(h[i, j] > 0.0, 5, -3), name="out")
    size = Extents(Workload.of(out), {})
    given = np.full((64, 64), 1e-9, np.float32)
    inputs = {size.workload.placeholders[0].outputs[0]: given}
    target = size.workload.outputs[0]
    (want,) = evaluate([target], inputs, {}, precise=True)
    sides = Sides(size, target, lambda: inputs)
    bound = Bound(0.0, 0.0, 0.0, 100)
    other = 5 if np.asarray(want)[0, 0] == -3 else -3
    for count, right in ((RUN, True), (RUN + 1, False)):
        places = np.arange(100, 100 + count)
        values = np.full(count, other, np.int32)
        assert (sides.unexcused(places, values, bound) is None) is right
    assert longest_run(np.array([1, 5, 6, 7, 9])) == (1, 3)


def test_below_a_sum_any_term_may_flip_and_no_more():
    def counted(h: Tensor) -> Tensor:
        j = te.reduce_axis((0, N), name="j")
        return te.compute(
            (N,), lambda i: te.sum(te.select(h[i, j] > 0.0, 1, 0), axis=j), name="count"
        )

    case = Case(counted)
    got = case.want.copy()
    got[-1] += 5
    assert case.wrong(got) is not None
    margins: Any = np.abs(np.matmul(*(x.astype(np.float64) for x in case.inputs.values())))
    row = int(np.argmin(margins.min(axis=1)))
    if margins[row].min() < 1e-6:
        got = case.want.copy()
        got[row] += 1 if got[row] < N else -1
        assert case.wrong(got) is None
