"""What is too narrow for asynchronous copies is loaded an iteration ahead."""

from __future__ import annotations

import pytest
from lowering import after_passes, agrees

import tedsl as te

TARGET = "cuda:sm_90"


def sums(
    columns: int, dtype: str, tile: int = 256, twice: bool = False, plain: bool = False
) -> te.Schedule:
    """Sums of a function of rows by pieces of `tile` columns, which reads them `twice`, or is no
    function: `plain`."""
    x = te.placeholder((8, columns), dtype, name="x")
    k = te.reduce_axis((0, columns), name="k")

    def element(i: te.Expr) -> te.Expr:
        value = x[i, k].astype("float32")
        if not plain:
            value = te.tanh(value) * (value if twice else 2.0) + 1.0
        return te.sum(value, axis=k)

    total = te.compute((8,), element, name="total")
    s = te.create_schedule(total)
    _, inner = s[total].split(k, factor=tile)
    s[total].vectorize(inner)
    s[total].bind(s[total].op.axis[0], "blockIdx.x")
    s[total].launch(num_warps=4)
    return s


def text(s: te.Schedule) -> str:
    """The program that runs."""
    return after_passes(s, TARGET)["fetch_ahead"]


@pytest.mark.parametrize(("columns", "tile"), [(2047, 256), (4095, 512)])
def test_rows_that_begin_at_no_word_are_loaded_ahead(columns: int, tile: int) -> None:
    s = sums(columns, "float16", tile)
    assert "x_next" in text(s)
    assert agrees(s, targets=("triton-interpret",), bound=1e-2)


def test_what_two_reads_share_is_loaded_once() -> None:
    s = sums(2047, "float16", twice=True)
    assert text(s).count("alloc x_next") == 1
    assert agrees(s, targets=("triton-interpret",), bound=1e-2)


@pytest.mark.parametrize(
    ("columns", "dtype", "tile"),
    [
        (2047, "float32", 256),  # a word each
        (2048, "float16", 256),  # whole vectors
        (2047, "float16", 4096),  # too many for the registers, in one iteration
        (511, "float16", 256),  # too few iterations
    ],
)
def test_other_loads_are_not(columns: int, dtype: str, tile: int) -> None:
    assert "_next" not in text(sums(columns, dtype, tile))


def test_loops_that_are_unrolled_are_not() -> None:
    assert "_next" not in text(sums(2047, "float16", plain=True))
