"""Zeros where rows of copies end, in place of masks where they are read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from lowering import after_passes, agrees

import tedsl as te

TARGET = "cuda:sm_90"
Made = Callable[[te.Tensor, te.Tensor, te.Tensor], te.Tensor]


def read(a: te.Tensor, m: int, n: int, k: int) -> tuple[te.Tensor, te.Tensor]:
    """A product with the transpose of `a`."""
    b = te.placeholder((k, n), "float16", name="b")
    r = te.reduce_axis((0, k), name="r")
    wide = "float32"
    c = te.compute(
        (m, n), lambda i, j: te.sum(a[i, r].astype(wide) * b[r, j].astype(wide), axis=r), name="c"
    )
    return b, c


def scheduled(k: int, tile: int = 32, extent: int = 64, warm: bool = False) -> te.Schedule:
    """A product of which both operands are copied to rows that begin aligned.

    Args:
        k: elements of a row.
        tile: lanes of the copies along a row.
        extent: of the step of the product.
        warm: the copy is of e to the power of the operand, which is 1 where nothing is read.
    """
    a = te.placeholder((64, k), "float16", name="a")
    x = te.compute(a.shape, lambda i, r: te.exp(a[i, r]), name="x") if warm else a
    b, c = read(x, 64, 64, k)
    s = te.create_schedule(c)
    copies = [x if warm else s.cache_read(a, "global", [c]), s.cache_read(b, "global", [c])]
    for copy, row in zip(copies, (1, 0), strict=True):
        if row == 0:
            s[copy].transform_layout(lambda r, j: (j, r))
        i, r = s[copy].op.axis
        s[copy].storage_align(i, 16, 0)
        io, ii = s[copy].split(i, factor=16)
        ro, ri = s[copy].split(r, factor=tile)
        s[copy].reorder(io, ro, ii, ri)
        s[copy].bind(s[copy].fuse(io, ro), "blockIdx.x")
        s[copy].vectorize(ii)
        s[copy].vectorize(ri)
    i, j = s[c].op.axis
    local = s.cache_write(c, "local")
    io, ii = s[c].split(i, factor=64)
    jo, ji = s[c].split(j, factor=64)
    s[c].reorder(io, jo, ii, ji)
    grid = s[c].fuse(io, jo)
    s[c].bind(grid, "blockIdx.x")
    s[c].vectorize(ii)
    s[c].vectorize(ji)
    s[local].compute_at(s[c], grid)
    _, ri = s[local].split(s[local].op.reduce_axis[0], factor=extent)
    s[local].vectorize(ri)
    return s


def last_text(s: te.Schedule) -> str:
    return after_passes(s, TARGET)["fill_padding"]


def products(s: te.Schedule) -> str:
    """The lines of the product."""
    return "\n".join(line for line in last_text(s).splitlines() if "dot(" in line)


@pytest.mark.parametrize(
    ("k", "tile", "extent", "warm"),
    [
        (18, 32, 32, False),  # lanes of a tile beyond the row
        (18, 32, 32, True),  # what would be 1 there is made 0
        (50, 16, 32, False),  # tiles, of which one begins in the row and ends beyond it
    ],
)
def test_a_product_reads_zeros_without_masks(k: int, tile: int, extent: int, warm: bool) -> None:
    s = scheduled(k, tile, extent, warm)
    assert "] if " not in last_text(s), "rows are written to their end"
    assert "<" not in products(s) and "select" not in products(s)
    assert agrees(s, targets=("triton-interpret",), bound=1e-2)


def test_a_mask_ends_where_a_row_does() -> None:
    s = scheduled(45, 64, 64)
    assert products(s).count("r.inner < 48") == 2
    assert agrees(s, targets=("triton-interpret",), bound=1e-2)


def test_tiles_that_end_with_what_a_row_holds_keep_masks() -> None:
    s = scheduled(18, tile=9)
    assert products(s).count("r.inner < 18") == 2
    assert agrees(s, targets=("triton-interpret",), bound=1e-2)


def test_infinite_operands_meet_no_zeros_of_rows() -> None:
    s = scheduled(18)
    kernel = te.build(s, target="triton-interpret")
    a, b = np.full((64, 18), np.inf, np.float16), np.ones((18, 64), np.float16)
    assert np.isposinf(kernel(a, b)).all()


def test_a_convolution_of_odd_channels_loads_vectors() -> None:
    image = te.placeholder((1, 18, 130, 130), "float16", name="image")
    weights = te.placeholder((16, 18, 3, 3), "float16", name="weights")
    out = te.nn.conv2d(image, weights, layout="channels_first")
    text = after_passes(te.schedule_for(out, TARGET), TARGET)["fill_padding"]
    line = next(line for line in text.splitlines() if "dot(" in line)
    assert "c.inner <" not in line
