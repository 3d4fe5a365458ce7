"""Products with a side too short for tensor cores."""

from __future__ import annotations

import numpy as np
import pytest
from lowering import after_passes, agrees

import tedsl as te

TARGET = "cuda:sm_90"


def product(
    m: int, n: int, k: int, step: int, dtype: str = "float16", scope: str = "local"
) -> te.Schedule:
    """A product in tiles of 64 by 64 at most, with an epilogue."""
    a, b = te.placeholder((m, k), dtype, name="a"), te.placeholder((k, n), dtype, name="b")
    r = te.reduce_axis((0, k), name="r")
    wide = "float32"
    c = te.compute(
        (m, n), lambda i, j: te.sum(a[i, r].astype(wide) * b[r, j].astype(wide), axis=r), name="c"
    )
    d = te.compute((m, n), lambda i, j: te.maximum(c[i, j], 0.0), name="d")
    s = te.create_schedule(d)
    held = c if scope == "local" else s.cache_read(c, scope, [d])
    i, j = s[d].op.axis
    io, ii = s[d].split(i, factor=min(m, 64))
    jo, ji = s[d].split(j, factor=min(n, 64))
    s[d].reorder(io, jo, ii, ji)
    grid = s[d].fuse(io, jo)
    s[d].bind(grid, "blockIdx.x")
    s[d].vectorize(ii)
    s[d].vectorize(ji)
    if held is not c:
        s[held].compute_at(s[d], grid)
    s[c].compute_at(s[d], grid)
    _, ri = s[c].split(s[c].op.reduce_axis[0], factor=step)
    s[c].vectorize(ri)
    return s


@pytest.mark.parametrize(
    ("shape", "padded"),
    [
        ((64, 3, 64), True),
        ((5, 128, 64), True),
        ((70, 6, 40), True),
        ((64, 1, 64), False),  # a matrix and a vector
        ((8, 8, 64), False),  # nothing is long enough as it is
    ],
)
def test_a_short_side_is_padded(shape: tuple[int, int, int], padded: bool) -> None:
    s = product(*shape, step=32)
    assert ("dot(" in after_passes(s, TARGET)["find_dots"]) is padded
    assert agrees(s, targets=("triton-interpret",), bound=1e-2)


@pytest.mark.parametrize("step", [4, 8])
def test_a_short_step_is_padded(step: int) -> None:
    s = product(64, 32, 24, step)
    assert "r.inner:16" in after_passes(s, TARGET)["find_dots"]
    assert agrees(s, targets=("triton-interpret",), bound=1e-2)


def test_float32_is_padded_where_tensor_cores_multiply_it() -> None:
    s = product(64, 3, 64, 32, "float32")
    assert "dot(" not in after_passes(s, TARGET)["find_dots"]
    inner = [axis for axis in s["c"].leaf_iter_vars if axis.name.endswith("inner")][-1]
    s["c"].dot(inner, precision="tf32x3")
    assert "dot(" in after_passes(s, TARGET)["find_dots"]


def test_a_tile_that_others_load_grows_with_the_product() -> None:
    s = product(64, 4, 64, 32, scope="shared")
    text = after_passes(s, TARGET)["find_dots"]
    assert "shared float32[64, 16]" in text and "dot(" in text
    assert agrees(s, targets=("triton-interpret",), bound=1e-2)


def test_infinite_numbers_beside_the_padding_do_no_harm() -> None:
    s = product(64, 3, 64, 32)
    a, b = np.ones((64, 64), "float16"), np.ones((64, 3), "float16")
    a[3], b[:, 1] = np.inf, np.nan
    got = te.build(s, "triton-interpret")(a, b)
    want = np.maximum(a.astype("float32") @ b.astype("float32"), 0)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("dtype", "k"), [("float16", 8), ("bfloat16", 5), ("int8", 16)])
def test_copies_of_operands_are_padded(dtype: str, k: int) -> None:
    """By default rules, operands of a K step are copied first: the copies grow with the step."""
    a, b = te.placeholder((256, k), dtype, name="a"), te.placeholder((k, 256), dtype, name="b")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((256, 256), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="c")
    d = te.compute((256, 256), lambda i, j: te.maximum(c[i, j], 0), name="d")
    s = te.schedule_for(d, TARGET)
    assert ".shared" in str(s)
    assert "dot(" in after_passes(s, TARGET)["find_dots"]
    assert agrees(s, targets=("triton-interpret",), bound=1e-2)
