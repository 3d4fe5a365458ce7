"""Sizes and domains that are counted in 64 bits, beside those in 32: whatever is computed over
them and however their loops are split and joined, operands have one width."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import every_kernel
import numpy as np
import pytest
from refusals import refused

import tedsl as te
from tedsl.errors import InternalError, TedslError

Make = Callable[[Any, Any], te.Tensor]
Step = Callable[[te.Schedule, Any, Any], object]

EXTENTS: dict[str, Callable[[str], Any]] = {
    "n": lambda name: te.size_var(name),
    "n64": lambda name: te.size_var(name, "int64"),
    "12": lambda name: 12,
    "c64": lambda name: te.const(200000, "int64"),
    "one64": lambda name: te.const(1, "int64"),
    "2^31": lambda name: 2**31,
    "2^40": lambda name: 2**40,
}
PAIRS = [
    *[(a, b) for a, b in itertools.product(("n", "n64", "12", "c64"), repeat=2) if "64" in a + b],
    *[("12", "2^40"), ("2^40", "12"), ("n", "2^31"), ("2^31", "one64"), ("one64", "n")],
]


def a_of(a: Any, b: Any) -> Any:
    return te.placeholder((a, b), "float32", name="A")


def pointwise(a: Any, b: Any) -> te.Tensor:
    x = a_of(a, b)
    return te.compute((a, b), lambda i, j: x[i, j] + (i + j).astype("float32"), name="B")


def backwards(a: Any, b: Any) -> te.Tensor:
    x = a_of(a, b)
    return te.compute((a, b), lambda i, j: x[a - 1 - i, b - 1 - j], name="B")


def guarded(a: Any, b: Any) -> te.Tensor:
    x = a_of(a, b)

    def body(i: Any, j: Any) -> Any:
        return te.if_then_else(te.all(i >= 1, j < b - 1), x[i - 1, j + 1], 0.0)

    return te.compute((a, b), body, name="B")


def row_sums(a: Any, b: Any) -> te.Tensor:
    x, k = a_of(a, b), te.reduce_axis((0, b), name="k")
    return te.compute((a,), lambda i: te.sum(x[i, k], axis=k, where=k <= i + 3), name="B")


def whole_sum(a: Any, b: Any) -> te.Tensor:
    x, k = a_of(a, b), te.reduce_axis((0, b), name="k")
    q = te.reduce_axis((0, a), name="q")
    return te.compute((), lambda: te.sum(x[q, k], axis=(q, k)), name="B")


def total_of(x: Any, k: Any) -> te.Tensor:
    return te.compute((), lambda: te.sum(x[k], axis=k), name="B")


def chain(a: Any, b: Any) -> te.Tensor:
    x = a_of(a, b)
    t = te.compute((a, b), lambda i, j: x[i, j] * 2.0, name="T")
    return te.compute((a, b), lambda i, j: t[i, j] + 1.0, name="B")


def rows(a: Any, b: Any) -> te.Tensor:
    return te.nn.softmax(a_of(a, b))


def _like(stage: Any, axis: Any) -> Any:
    return stage.fuse(*[a for a in stage.leaf_iter_vars if a.kind is axis.kind])


def _partial(s: te.Schedule, stage: Any, axis: Any) -> object:
    return s.rfactor(stage.op.output(0), axis)


STEPS: dict[str, Step] = {
    "nothing": lambda s, t, x: None,
    "split": lambda s, t, x: t.split(t.split(x, 64)[1], nparts=4),
    "split by 64 bits": lambda s, t, x: t.split(x, te.const(5, "int64")),
    "split by a size": lambda s, t, x: t.split(x, te.max(1, s.size("n") // 3)),
    "lanes": lambda s, t, x: t.vectorize(t.split(x, 8)[1]),
    "fused": lambda s, t, x: _like(t, x),
    "fused and split": lambda s, t, x: t.vectorize(t.split(_like(t, x), 8)[1]),
    "partial, outer": lambda s, t, x: _partial(s, t, t.split(x, 6)[0]),
    "partial, inner": lambda s, t, x: _partial(s, t, t.split(x, 6)[1]),
    "partial, parts": lambda s, t, x: _partial(s, t, t.split(x, nparts=6)[0]),
    "partial, fused": lambda s, t, x: _partial(s, t, t.split(_like(t, x), 7)[1]),
    "skewed": lambda s, t, x: t.skew(t.op.axis[1], t.op.axis[0], 3, 5),
    "attached": lambda s, t, x: s.stages[1].compute_at(t, t.split(x, 4)[0]),
    "divided": lambda s, t, x: s.divide(t.op.output(0), x, 4),
    "in parts": lambda s, t, x: s.split_online(t.op.output(0), t.split(x, 8)[0]),
}
MAKES: list[Make] = [pointwise, backwards, guarded, row_sums, whole_sum, chain, rows]


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_operands_have_one_width(a: str, b: str) -> None:
    """Lowered for both backends and checked between the passes; ptxas takes one in four."""
    every = list(itertools.product(MAKES, STEPS, range(2)))
    accepted = 0
    drawn = random.Random(f"{a} {b}").sample(every, 40)
    for number, (make, step, which) in enumerate(drawn):
        s = te.create_schedule(make(EXTENTS[a]("n"), EXTENTS[b]("m")))
        stage: Any = s[s.outputs[0]]
        axes = [*stage.op.axis, *stage.op.reduce_axis]
        try:
            STEPS[step](s, stage, axes[which % len(axes)])
        except InternalError:
            raise
        except (TedslError, IndexError):  # a step that this computation does not have
            continue
        for target in ("cpu", "cuda:sm_90"):
            try:
                te.lower(s, target=target, check=True)
            except te.LowerError:
                continue
            accepted += 1
        every_kernel.compile_one_in(4, number)
    assert accepted > 10


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90", "triton-interpret"])
def test_default_rules_over_wide_sizes(make: Make, target: str) -> None:
    for number, (a, b) in enumerate(PAIRS, MAKES.index(make)):
        te.lower(make(EXTENTS[a]("n"), EXTENTS[b]("m")), target=target, check=True)
        every_kernel.compile_one_in(3, number)


@pytest.mark.cpu
@pytest.mark.parametrize("step", [step for step in STEPS if step != "skewed"])
def test_sums_over_64_bit_sizes_are_right(step: str) -> None:
    given = np.arange(1000, dtype=np.float32)
    for extent in (te.size_var("n", "int64"), te.const(1000, "int64")):
        x = te.placeholder((extent,), "float32", name="A")
        k = te.reduce_axis((0, extent), name="k")
        s = te.create_schedule(total_of(x, k))
        stage: Any = s[s.outputs[0]]
        try:
            STEPS[step](s, stage, stage.op.reduce_axis[0])
        except (TedslError, IndexError) as error:
            assert not isinstance(error, InternalError)
            continue
        assert te.build(s, target="cpu")(given) == given.sum()


@pytest.mark.cpu
def test_a_sum_over_a_64_bit_size_by_default_rules() -> None:
    n = te.size_var("n", "int64")
    x, k = te.placeholder((n,), "float32", name="A"), te.reduce_axis((0, n), name="k")
    kernel = te.build(total_of(x, k), target="cpu")
    for size in (0, 1, 100, 200001):
        assert kernel(np.ones(size, np.float32)) == size


def test_a_sum_over_2_to_the_31_elements() -> None:
    x = te.placeholder((2**31,), "float32", name="A")
    k = te.reduce_axis((0, 2**31), name="k")
    total = te.compute((), lambda: te.sum(x[k], axis=k), name="B")
    for target in ("cpu", "cuda:sm_90", "triton-interpret"):
        module = te.lower(total, target=target, check=True)
        assert "A[k.outer * int64(" in str(module)


FAR: dict[str, Callable[[Any, Any], object]] = {
    "factors": lambda stage, i: [i := stage.split(i, factor=f)[0] for f in (2048, 1 << 20, 8)],
    "parts": lambda stage, i: stage.split(stage.split(i, nparts=1 << 20)[1], nparts=1 << 20),
    "of parts": lambda stage, i: stage.split(stage.split(i, nparts=1 << 20)[1], factor=1 << 20),
}


@pytest.mark.cpu
@pytest.mark.parametrize("way", FAR)
def test_steps_of_loops_beyond_32_bits(way: str) -> None:
    """What splits go in, one inside the other, is counted as sizes of the definition are not."""
    n = te.size_var("n")
    x = te.placeholder((n,), "int32", name="A")
    y = te.compute((n,), lambda i: x[i] + i, name="B")
    s = te.create_schedule(y)
    FAR[way](s[y], y.op.axis[0])
    for target in ("cpu", "cuda:sm_90", "triton-interpret"):
        te.lower(s, target, check=True)
    te.build(s, "cuda:sm_90")
    for size in (1, 100, 5000) if way == "factors" else ():  # others have more loops than elements
        given = np.arange(size, dtype=np.int32)
        np.testing.assert_array_equal(te.build(s, "cpu")(given), given * 2)


def test_a_loop_of_multiples_beyond_32_bits() -> None:
    n = te.size_var("n")
    y = te.compute((n, 12), lambda i, j: i + j, name="B")
    s = te.create_schedule(y)
    i, j = y.op.axis
    parts = s[y].split(i, nparts=1 << 30)
    s[y].fuse(s[y].fuse(*parts), j)
    for target in ("cpu", "cuda:sm_90", "triton-interpret"):
        te.lower(s, target, check=True)


def test_steps_of_loops_beyond_64_bits() -> None:
    n = te.size_var("n")
    y = te.compute((n,), lambda i: i + 1, name="B")
    s = te.create_schedule(y)
    i = y.op.axis[0]
    for _ in range(2):
        i, _ = s[y].split(i, 1 << 30)
    with refused(s, "would go in steps of 9223372036854775808", "at most 2**62"):
        s[y].split(i, 8)


@pytest.mark.cpu
def test_wide_loops_keep_their_vector_accesses() -> None:
    """A place that wider loops count is no gather."""
    a, b = te.size_var("n", "int64"), 16
    x = te.placeholder((a, b), "float32", name="A")
    y = te.compute((a, b), lambda i, j: x[i, j] + 1.0, name="B")
    s = te.create_schedule(y)
    stage = s[y]
    stage.vectorize(stage.split(stage.fuse(*y.op.axis), 16)[1])
    kernel = te.build(s, target="cpu")
    assert "gather" not in kernel.source and "scatter" not in kernel.source
    given = np.arange(80, dtype=np.float32).reshape(5, 16)
    np.testing.assert_array_equal(kernel(given), given + 1)


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_products_of_small_64_bit_sizes_have_64_bits(target: str) -> None:
    """Triton takes a size for 32 bits wide where the number of a call is."""
    n, m = te.size_var("n", "int64"), te.size_var("m", "int64")
    x = te.placeholder((n, m), "float32", name="A")
    b = te.compute((n, m), lambda i, j: x[i, j] + (i * m * m * m * m + j).astype("float32"))
    kernel = te.build(te.create_schedule(b), target=target, cache=False)
    for rows, columns in ((3, 2000), (1, 1)):
        a = np.ones((rows, columns), np.float32)
        i, j = np.indices(a.shape).astype(np.int64)
        np.testing.assert_array_equal(kernel(a), a + (i * columns**4 + j).astype(np.float32))
