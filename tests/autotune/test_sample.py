"""Elements of a large output without the rest: equal to those of the whole, by the same oracle."""

import numpy as np
import pytest

import tedsl as te
from tedsl.checking.random_inputs import make_inputs
from tedsl.checking.sampled_outputs import affordable, evaluate_samples, sample_points, sample_work
from tedsl.reference.reference import evaluate
from tedsl.tensor.tensor import Tensor
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload


def softmax() -> Tensor:
    return te.nn.softmax(te.placeholder((33, 65), "float32", name="x"))


def chained_matmul() -> Tensor:
    a, b, c = (te.placeholder((17, 17), "float32", name=n) for n in "abc")
    return te.nn.matmul(te.nn.matmul(a, b), c)


def layer_norm() -> Tensor:
    x = te.placeholder((12, 40), "float16", name="x")
    w, b = (te.placeholder((40,), "float16", name=n) for n in "wb")
    return te.nn.layer_norm(x, w, b)


def guarded_window() -> Tensor:
    x = te.placeholder((50,), "float32", name="x")
    y = te.compute((50,), lambda i: x[i] * 2.0, name="y")
    r = te.reduce_axis((-2, 3), name="r")
    inside = lambda i: te.all(i + r >= 0, i + r < 50)  # noqa: E731
    return te.compute((50,), lambda i: te.sum(te.if_then_else(inside(i), y[i + r], 0.0), axis=r))


def gather() -> Tensor:
    table = te.placeholder((9, 16), "float32", name="table")
    rows = te.placeholder((30,), "int32", name="rows")
    double = te.compute((9, 16), lambda i, j: table[i, j] * 2.0, name="double")
    return te.compute((30, 16), lambda i, j: double[rows[i], j] + 1.0, name="out")


@pytest.mark.parametrize(
    "make", [softmax, chained_matmul, layer_norm, guarded_window, gather], ids=lambda f: f.__name__
)
def test_samples_equal_the_whole(make):
    output = make()
    size = Extents(Workload.of(output), {})
    inputs = make_inputs(size, 3, "random")
    (whole,) = evaluate([output], inputs, precise=True)
    points = sample_points(size.shape(output), 40, 1)
    found = evaluate_samples(size, inputs, output, points)
    wide = np.asarray(whole)[tuple(points)].astype(np.float64)
    np.testing.assert_allclose(found.astype(np.float64), wide, rtol=2e-6, atol=1e-6)


def test_samples_cost_less_than_the_whole():
    x = te.placeholder((100000, 1000), "float32", name="x")
    output = te.nn.softmax(x)
    size = Extents(Workload.of(output), {})
    assert sample_work(size, output, 16) < 16 * 1000 * 8
    assert affordable(size, output, 200_000) == 64
    assert affordable(size, output, 10) == 0


def test_points_hold_the_corners():
    points = sample_points((7, 1, 33), 64, 0)
    assert [int(at[0]) for at in points] == [0, 0, 0]
    assert [int(at[-1]) for at in points] == [6, 0, 32]
    assert all(
        at.min() >= 0 and at.max() < extent for at, extent in zip(points, (7, 1, 33), strict=True)
    )
