"""What schedules that raised when they were made, or went on for ever, were made smaller to."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

import tedsl as te
from tedsl.backends.triton.emit.module import emit
from tedsl.ir.interp import run
from tedsl.reference.reference import evaluate
from tedsl.schedules import schedule_for

Arrays = dict[te.Tensor, np.ndarray]


def _agrees(s: te.Schedule, data: Arrays, sizes: dict[te.Var, int] | None = None) -> None:
    """As the definitions say, in loops and in programs of tiles, of which there is a text."""
    want = evaluate(s.outputs, data, sizes or {})
    for target in ("cpu", "triton-interpret"):
        module = te.lower(s, target, check=True)
        by_name = {tensor.name: array for tensor, array in data.items()}
        given = {buffer: by_name[buffer.name] for buffer in module.inputs}
        found = run(module, given, sizes or {})
        for got, wanted in zip(found.values(), want, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90")


@pytest.mark.parametrize("again", ["inline", "root"])
@pytest.mark.parametrize("order", list(permutations("ypt")), ids="".join)
def test_kernels_run_together_where_no_third_stands_between(order: str, again: str) -> None:
    """The maximum of a row is stored by the kernel of `t`, which reads `p`, whichever of the three
    is scheduled first: `y`, which reads the maximum, is in no kernel with `p`."""
    x, b = (te.placeholder((4, 56), name=name) for name in "xb")
    k = te.reduce_axis((0, 56), name="k")
    m = te.compute((4,), lambda i: te.max(x[i, k], axis=k), name="m")
    y = te.compute((4, 56), lambda i, j: b[i, j] + m[i], name="y")
    p = te.compute((4, 56), lambda i, j: te.exp(b[j // 14, j] * b[i, j]), name="p")
    k = te.reduce_axis((0, 56), name="k")
    t = te.compute((4,), lambda i: te.sum(te.exp(x[i, k] - m[i]) * p[i, k], axis=k), name="t")
    outputs = [{"y": y, "p": p, "t": t}[name] for name in order]
    s = schedule_for(outputs, "cuda:sm_90", {"m.again.place": again})
    assert "with m: float32[4]" in str(s), "stored by the kernel of t"
    rng = np.random.default_rng(1)
    _agrees(s, {tensor: rng.normal(size=(4, 56)).astype("f4") for tensor in (x, b)})


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("online", [False, True])
def test_rows_of_one_column_are_those_of_what_is_stored_beside(columns: int, online: bool) -> None:
    """A loop fused with one of a single turn is that loop: the results of rows that both read are
    of one row then, where rows are taken by persistent programs."""
    n = te.size_var("n", "int32")
    x, w = te.placeholder((n, 56), name="x"), te.placeholder((56, columns), name="w")
    folds = [te.reduce_axis((0, 56), name="k") for _ in range(3)]
    a, b, c = folds
    q = te.compute((n,), lambda i: te.sum(x[i, a] * x[i, a], axis=a), name="q")
    y = te.compute((n, columns), lambda i, j: te.sum(x[i, b] * q[i] * w[b, j], axis=b), name="y")
    z = te.compute((n,), lambda i: te.max(x[i, c] * q[i], axis=c), name="z")
    decisions = {"y.whole_row": False, "y.online": online, "y.resident": 1}
    s = schedule_for([y, z], "cuda:sm_90", decisions if columns == 1 else {})
    rng = np.random.default_rng(1)
    data = {x: rng.integers(-2, 3, (140, 56)), w: rng.integers(-2, 3, (56, columns))}
    _agrees(s, {tensor: array.astype("f4") for tensor, array in data.items()}, {n: 140})


@pytest.mark.parametrize("how", ["split", "fused", "as it is"])
def test_cached_loops_are_skewed_along_what_is_split(how: str) -> None:
    """Where a loop of the definition starts is then told by the loops that the other became."""
    x = te.placeholder((3, 8, 4), "int32", name="x")
    y = te.compute((3, 8, 4), lambda i, j, k: x[i, j, k] * 2 + 1, name="y")
    s = te.create_schedule(y)
    i, j, k = y.op.axis
    if how == "split":
        s[y].split(j, factor=3)
    elif how == "fused":
        s[y].fuse(j, k)
    s[y].skew(i, j, step=2, modulus=5)
    s.cache_write(y, "local")
    _agrees(s, {x: np.arange(96, dtype="i4").reshape(3, 8, 4)})


def test_a_reduction_of_one_loop_along_with_one_of_two() -> None:
    """There is nothing to be flattened in the first, and the chain is refused."""
    x = te.placeholder((4, 6, 8), name="x")
    k, h = te.reduce_axis((0, 6), name="k"), te.reduce_axis((0, 8), name="h")
    y = te.compute((4,), lambda i: te.sum(x[i, k, h], axis=[k, h]), name="y")
    k = te.reduce_axis((0, 4), name="k")
    z = te.compute((1,), lambda i: te.sum(y[k], axis=k), name="z")
    s = te.create_schedule(z)
    outer, _ = s[y].split(y.op.reduce_axis[0], nparts=2)
    with pytest.raises(te.ScheduleError, match=r"y.*a chain shares exactly one"):
        s.split_online(s[y], outer, along=[s[z]])
    _agrees(s, {x: np.arange(192, dtype="f4").reshape(4, 6, 8)})


def test_stages_in_each_other_are_refused_where_others_read_them() -> None:
    """What they read is judged by the loops around its readers, which have no end."""
    x = te.placeholder((4, 8), name="x")
    a = te.compute((4, 8), lambda i, j: x[i, j] * 2.0, name="a")
    u = te.compute((4, 8), lambda i, j: a[i, j] + 1.0, name="u")
    v = te.compute((4, 8), lambda i, j: u[i, j] + 1.0, name="v")
    y = te.compute((4, 8), lambda i, j: v[i, j] + 3.0, name="y")
    s = te.create_schedule(y)
    s[v].compute_at(s[y], y.op.axis[0])
    s[u].compute_at(s[v], v.op.axis[0])
    s[a].compute_at(s[y], y.op.axis[0])
    with pytest.raises(te.ScheduleError, match="v is itself computed inside u"):
        s[v].compute_at(s[u], u.op.axis[0])
    _agrees(s, {x: np.arange(32, dtype="f4").reshape(4, 8)})
