"""Vector accesses stay inside local buffers and arrays, whatever the number of lanes: those past
the end of the tile are in no buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from guarded_code import guarded_code

import tedsl as te
from tedsl.dtypes import DType
from tedsl.expr.numerics import numpy_dtype

pytestmark = pytest.mark.cpu
Read = Callable[[Any, Any, Any, int], Any]
"""The element that lane `j` of `n` reads of a tensor, and of one of indices."""


def _within(index: Any, n: int) -> Any:
    return te.minimum(te.maximum(index, 0), n - 1)


READS: dict[str, Read] = {
    "forwards": lambda b, x, j, n: b[j],
    "backwards": lambda b, x, j, n: b[n - 1 - j],
    "backwards from later on": lambda b, x, j, n: b[2 * n - j],
    "every third": lambda b, x, j, n: b[3 * j],
    "every third backwards": lambda b, x, j, n: b[3 * (n - 1 - j)],
    "every second, shifted": lambda b, x, j, n: b[2 * j + 1],
    "one element": lambda b, x, j, n: b[n // 2],
    "gathered": lambda b, x, j, n: b[_within(x[j], n)],
    "gathered backwards": lambda b, x, j, n: b[_within(x[n - 1 - j], n) * 2],
    "the next, where there is one": lambda b, x, j, n: te.if_then_else(j + 1 < n, b[j + 1], b[0]),
    "the one before, backwards": lambda b, x, j, n: te.if_then_else(
        j < n - 1, b[n - 2 - j], b[n - 1]
    ),
}


def _values(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    found = np.random.default_rng(1).integers(0, 9, shape)
    return (found % 2 if dtype == "bool" else found).astype(numpy_dtype(DType(dtype)))


def _row(tensor: Any, i: Any) -> Any:
    """`tensor[i]`, to be indexed."""

    class Row:
        def __getitem__(self, j: Any) -> Any:
            return tensor[i, j]

    return Row()


def check_reads(dtype: str, n: int, index: str, local: bool) -> None:
    """All of `READS` of a buffer with `n` lanes, against NumPy, with every access checked."""
    long = 3 * n + 1
    a = te.placeholder((2, long), dtype, name="A")
    at = te.placeholder((n,), index, name="I")
    b = te.compute((2, long), lambda i, j: te.select(j >= 0, a[i, j], a[i, 0]), name="B")
    x = te.compute((n,), lambda j: at[j] + 1, name="X")
    reads = tuple(READS.values())
    c: Any = te.compute((2, n), lambda i, j: tuple(f(_row(b, i), x, j, n) for f in reads), name="C")
    s = te.create_schedule(c[0].op)
    i, j = c[0].op.axis
    s[c[0]].vectorize(j)
    if local:
        s[b].compute_at(s[c[0]], i)
        s[x].compute_at(s[c[0]], i)
    av = _values((2, long), dtype)
    xv = np.random.default_rng(2).integers(-1, n, n).astype(index)
    with guarded_code() as guard:
        got = te.build(s, target="cpu", cache=False)(av, xv)
    assert guard.checks
    picked = np.clip(xv.astype(int) + 1, 0, n - 1)
    k = np.arange(n)
    places = {
        "forwards": k,
        "backwards": n - 1 - k,
        "backwards from later on": 2 * n - k,
        "every third": 3 * k,
        "every third backwards": 3 * (n - 1 - k),
        "every second, shifted": 2 * k + 1,
        "one element": np.full(n, n // 2),
        "gathered": picked,
        "gathered backwards": picked[::-1] * 2,
        "the next, where there is one": np.where(k + 1 < n, k + 1, 0),
        "the one before, backwards": np.where(k < n - 1, n - 2 - k, n - 1),
    }
    for name, found in zip(READS, got, strict=True):
        np.testing.assert_array_equal(found, av[:, places[name]], err_msg=name)


@pytest.mark.parametrize("n", range(1, 18))
@pytest.mark.parametrize("local", [True, False], ids=["local", "array"])
def test_lanes_past_the_end_read_nothing(n: int, local: bool) -> None:
    check_reads("float32", n, "int32", local)


@pytest.mark.parametrize("dtype", [d.value for d in DType])
def test_lanes_past_the_end_read_nothing_of_any_dtype(dtype: str) -> None:
    check_reads(dtype, 5, "int64", True)
    check_reads(dtype, 13, "int32", True)


def test_narrow_lanes_read_indices_that_are_wider_than_their_slack() -> None:
    """64 lanes of int8 read int64 indices, of which a vector has 8."""
    check_reads("int8", 33, "int64", True)
    check_reads("int8", 65, "int64", True)


def test_a_local_buffer_read_backwards_by_default_rules() -> None:
    a = te.placeholder((3,), "float32", name="A")
    b = te.compute((4, 3), lambda i, j: te.exp(a[j]) + i, name="B")
    c = te.compute((4, 3), lambda i, j: b[i, 2 - j] * b[i, 2 - j], name="C")
    given = np.array([0, 1, 2], np.float32)
    with guarded_code():
        got = te.build(c, target="cpu", cache=False)(given)
    want = (np.exp(given[::-1])[None] + np.arange(4)[:, None]) ** 2
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("n", [3, 5, 7, 16, 17, 33])
def test_sums_of_local_rows_stay_inside(n: int) -> None:
    """Lanes that are reduced, forwards and backwards, masked and not."""
    a = te.placeholder((2, n), "float32", name="A")
    b = te.compute((2, n), lambda i, j: a[i, j] * 2.0, name="B")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute(
        (2,), lambda i: te.sum(b[i, n - 1 - k] * b[i, k], axis=k, where=k % 3 != 1), name="C"
    )
    s = te.create_schedule(c)
    s[b].compute_at(s[c], c.op.axis[0])
    s[c].vectorize(s[c].op.reduce_axis[0])
    av = _values((2, n), "float32")
    with guarded_code():
        got = te.build(s, target="cpu", cache=False)(av)
    kept = np.arange(n) % 3 != 1
    np.testing.assert_array_equal(got, (4 * av[:, ::-1] * av)[:, kept].sum(axis=1))


@pytest.mark.parametrize("factor", [16, 64])
def test_masked_updates_of_a_small_local_row_stay_inside(factor: int) -> None:
    """The tile is longer than the row; the lanes beyond it are masked, not read."""
    a = te.placeholder((2, 5, 9), "float32", name="A")
    k = te.reduce_axis((0, 9), name="k")
    b = te.compute((2, 5), lambda i, j: te.sum(a[i, j, k], axis=k), name="B")
    c = te.compute((2, 5), lambda i, j: b[i, 4 - j] + 1.0, name="C")
    s = te.create_schedule(c)
    s[b].compute_at(s[c], c.op.axis[0])
    outer, inner = s[b].split(s[b].op.axis[1], factor)
    s[b].reorder(outer, s[b].op.reduce_axis[0], inner)
    s[b].vectorize(inner)
    s[c].vectorize(c.op.axis[1])
    av = _values((2, 5, 9), "float32")
    with guarded_code():
        got = te.build(s, target="cpu", cache=False)(av)
    np.testing.assert_array_equal(got, av.sum(axis=2)[:, ::-1] + 1)


def test_the_check_finds_a_read_below_a_buffer() -> None:
    """The instrument itself: a load at -1 of four elements."""
    text = "\n".join(
        [
            "define void @tedsl_entry(ptr %args) {",
            "entry:",
            "  %mem1 = alloca [4 x float], align 64",
            "  %v2 = getelementptr inbounds float, ptr %mem1, i64 -1",
            "  %v3 = load <4 x float>, ptr %v2, align 4",
            "  ret void",
            "}",
            "",
        ]
    )
    with (
        pytest.raises(AssertionError, match=r"beside the buffer: %v3 = load .*16 bytes at %mem1"),
        guarded_code() as guard,
    ):
        guard.run(text)
