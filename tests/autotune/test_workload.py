"""A computation as JSON and back: same numbers, same hash, whatever things are called."""

import json

import numpy as np
import pytest
import scans

import tedsl as te
from tedsl.dtypes import DType
from tedsl.errors import TuneError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Expr, Reduce, Reducer, Var
from tedsl.tensor.axis import reduce_axis, var
from tedsl.tensor.compute import compute, placeholder
from tedsl.tensor.tensor import ScanOp, Tensor
from tedsl.workload.workload import Workload


def total(dtype: DType = DType.float32) -> Reducer:
    left, right = Var("lhs", dtype), Var("rhs", dtype)
    return Reducer("sum", (left,), (right,), (build.add(left, right),), (build.const(0, dtype),))


def matmul(
    m: Expr | int = 8, n: int = 6, k: int = 4, names: tuple[str, ...] = ("A", "B", "C", "i")
) -> Tensor:
    a = placeholder((m, k), "float32", name=names[0])
    b = placeholder((k, n), "float32", name=names[1])
    axis = reduce_axis((0, k), name=names[3])
    body = lambda i, j: Reduce(total(), (a[i, axis] * b[axis, j],), (axis,))  # noqa: E731
    return compute((m, n), body, name=names[2])


def test_round_trip_keeps_graph_and_names():
    first = Workload.of(matmul())
    second = Workload.from_json(first.to_json())
    assert second.to_json() == first.to_json()
    assert second.hash == first.hash
    assert [op.name for op in second.operations] == ["A", "B", "C"]
    assert second.outputs[0] is not first.outputs[0]
    assert json.loads(second.sizes) == [[8, 4], [4, 6], [8, 6]]
    assert json.loads(second.dtypes) == ["float32"] * 3


def test_a_scan_and_its_states():
    outs = scans.oscillator()
    first = Workload.of(outs)
    second = Workload.from_json(first.to_json())
    assert second.to_json() == first.to_json()
    assert [op.name for op in second.placeholders] == ["start"]
    scan = second.outputs[0].op
    assert isinstance(scan, ScanOp)
    assert [state.name for state in scan.states] == ["x", "v"]
    assert Workload.of(scans.oscillator(rows=8)).hash != first.hash
    start = np.ones((2, 33), np.float32)
    (given,) = (op.outputs[0] for op in second.placeholders)
    (there,) = (op.outputs[0] for op in first.placeholders)
    for a, b in zip(
        te.evaluate(outs, {there: start}),
        te.evaluate(second.outputs, {given: start}),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_hash_ignores_names():
    assert Workload.of(matmul()).hash == Workload.of(matmul(names=("x", "y", "z", "r"))).hash


def test_hash_sees_sizes_and_family_does_not():
    small, large = Workload.of(matmul()), Workload.of(matmul(80, 60, 40))
    assert small.hash != large.hash
    assert small.family == large.family
    assert small.family != Workload.of(matmul(80, 80, 40)).family


def test_hash_sees_dtypes_operators_and_constants():
    a = placeholder((8,), "float32", name="a")
    h = placeholder((8,), "float16", name="a")
    graphs = [
        compute((8,), lambda i: a[i] + 1.0),
        compute((8,), lambda i: a[i] * 1.0000001),
        compute((8,), lambda i: a[i] + 2.0),
        compute((8,), lambda i: h[i] + 1.0),
        compute((8,), lambda i: a[7 - i] + 1.0),
    ]
    assert len({Workload.of(g).hash for g in graphs}) == len(graphs)


def test_shared_and_repeated_subexpressions_hash_alike():
    a = placeholder((8,), "float32", name="a")

    def shared(i: Axis) -> Expr:
        x = a[i] + 1.0
        return x * x

    first = Workload.of(compute((8,), shared))
    second = Workload.of(compute((8,), lambda i: (a[i] + 1.0) * (a[i] + 1.0)))
    assert first.hash == second.hash


def test_reducer_operator_survives():
    again = Workload.from_json(Workload.of(matmul()).to_json())
    body = again.computes[0].bodies[0]
    assert isinstance(body, Reduce)
    assert body.reducer.operator == "+"
    assert body.axes[0] is again.computes[0].reduce_axes[0]


def test_several_outputs_of_several_operations():
    a = placeholder((4, 5), "float32", name="a")
    two = compute((4, 5), lambda i, j: (a[i, j] + 1.0, a[i, j] > 0.0), name="two")
    last = compute((4, 5), lambda i, j: two[0][i, j] * 2.0, name="last")
    first = Workload.of([last, two[1]])
    again = Workload.from_json(first.to_json())
    assert again.to_json() == first.to_json()
    assert [t.name for t in again.outputs] == ["last", "two.v1"]
    assert json.loads(again.dtypes) == ["float32", "float32", "bool"]


def test_symbolic_sizes():
    n = var("rows")
    first = Workload.of(matmul(m=n))
    again = Workload.from_json(first.to_json())
    assert again.to_json() == first.to_json()
    assert [v.name for v in again.variables] == ["rows"]
    assert json.loads(first.sizes) == [["n0", 4], [4, 6], ["n0", 6]]
    assert first.hash == Workload.of(matmul(m=var("batch"))).hash


def test_special_floats():
    a = placeholder((4,), "float64", name="a")
    constants = [float("inf"), -0.0, 0.1, float("nan")]
    body = lambda i: sum((build.const(c, "float64") * a[i] for c in constants), a[i])  # noqa: E731
    first = Workload.of(compute((4,), body))
    assert Workload.from_json(first.to_json()).to_json() == first.to_json()


def test_what_is_no_workload_is_refused():
    with pytest.raises(TuneError, match="no workload"):
        Workload.from_json("{}")
    with pytest.raises(TuneError, match="no tensor"):
        Workload.of([])
    good = json.loads(Workload.of(matmul()).to_json())
    good["graph"]["format"] = 99
    with pytest.raises(TuneError, match="format 99"):
        Workload.from_json(json.dumps(good))
