"""Register tiles of products on the CPU where rows or columns are in groups, strided, or few, and
where what is folded is long; and memory that is written to its end."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tedsl as te
from tedsl.schedules import default_schedule

pytestmark = pytest.mark.cpu


def built(tensor: te.Tensor, *arrays: np.ndarray) -> tuple[str, np.ndarray]:
    """The default schedule as Python, and what its kernel computes."""
    kernel = te.build(tensor, target="cpu")
    return kernel.schedule.as_python(), np.asarray(kernel(*arrays))


def image(*shape: int) -> np.ndarray:
    """Small whole numbers, whose sums are exact."""
    return np.random.default_rng(len(shape)).integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize(("groups", "tall"), [(4, 6), (2, 8), (6, 8), (8, 6)])
def test_no_group_ends_inside_a_tile(groups: int, tall: int) -> None:
    x = te.placeholder((1, 48, 9, 40), "float32", name="x")
    w = te.placeholder((48, 48 // groups, 3, 3), "float32", name="w")
    y = te.nn.conv2d(x, w, groups=groups, layout="channels_first")
    given = image(1, 48, 9, 40), image(48, 48 // groups, 3, 3)
    text, found = built(y, *given)
    assert f"split(c, factor={tall})" in text
    each = 48 // groups
    for g in range(groups):
        part = slice(g * each, (g + 1) * each)
        windows = np.lib.stride_tricks.sliding_window_view(given[0][:, part], (3, 3), (2, 3))
        expected = np.einsum("bcyxrs,ocrs->boyx", windows, given[1][part])
        np.testing.assert_array_equal(found[:, part], expected)


def test_a_strided_operand_is_packed_by_its_remainder() -> None:
    x = te.placeholder((1, 16, 41, 81), "float32", name="x")
    w = te.placeholder((32, 16, 3, 3), "float32", name="w")
    y = te.nn.conv2d(x, w, stride=2, layout="channels_first")
    given = image(1, 16, 41, 81), image(32, 16, 3, 3)
    text, found = built(y, *given)
    assert "transform_layout" in text
    windows = np.lib.stride_tricks.sliding_window_view(given[0], (3, 3), (2, 3))[:, :, ::2, ::2]
    np.testing.assert_array_equal(found, np.einsum("bcyxrs,ocrs->boyx", windows, given[1]))


def product(m: int, n: int, k: int, turned: bool = False) -> te.Tensor:
    """A product, of a right operand that is stored transposed where it is `turned`."""
    a = te.placeholder((m, k), "float32", name="a")
    b = te.placeholder((n, k) if turned else (k, n), "float32", name="b")
    j = te.reduce_axis((0, k), name="k")
    return te.compute(
        (m, n), lambda i, c: te.sum(a[i, j] * (b[c, j] if turned else b[j, c]), axis=j), name="c"
    )


def test_a_long_fold_is_split_into_parts() -> None:
    text, found = built(product(24, 20, 40000), image(24, 40000), image(40000, 20))
    assert "rfactor" in text
    np.testing.assert_array_equal(found, image(24, 40000) @ image(40000, 20))
    assert "rfactor" not in built(product(24, 20, 400), image(24, 400), image(400, 20))[0]


def test_the_longer_side_is_vectorised() -> None:
    a = te.placeholder((300, 512), "float32", name="a")
    b = te.placeholder((300, 2), "float32", name="b")
    j = te.reduce_axis((0, 300), name="k")
    y = te.compute((512, 2), lambda i, c: te.sum(a[j, i] * b[j, c], axis=j), name="y")
    text, found = built(y, image(300, 512), image(300, 2))
    assert re.search(r"split\(i, factor=(64|96|128|256)\)", text)
    np.testing.assert_array_equal(found, image(300, 512).T @ image(300, 2))


def test_the_last_panel_is_written_to_its_end() -> None:
    module = te.lower(default_schedule(product(48, 36, 80, turned=True), "cpu"), target="cpu")
    stores = [line for line in str(module).splitlines() if re.search(r"b\.local\S*\[.*\] = ", line)]
    assert stores
    assert not [line for line in stores if re.search(r" if .*ax0\S* < ", line)]


def test_an_epilogue_is_no_region_of_another_kernel() -> None:
    y = product(64, 48, 32)
    z = te.compute((64, 48), lambda i, j: te.exp(y[i, j] * 0.001), name="z")
    out = te.compute((64, 48), lambda i, j: z[i, j] * te.minimum(z[i, j] + 3.0, 6.0), name="out")
    text, found = built(out, image(64, 32), image(32, 48))
    assert re.search(r"s\[\"c(\.local)?\"\]\.compute_at", text)
    middle = np.exp((image(64, 32) @ image(32, 48)) * np.float32(0.001))
    np.testing.assert_allclose(found, middle * np.minimum(middle + 3, 6), rtol=1e-5)
