"""te.gradient inverts index maps: what is left to sum over, and that it is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numeric import check

import tedsl as te
from tedsl.tensor.printer import print_graph


def conv(stride: int, dilation: int = 1) -> Callable[..., te.Tensor]:
    """A convolution of a row written by hand."""

    def function(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        taps, length = int(str(w.shape[0])), int(str(x.shape[0]))
        k = te.reduce_axis((0, taps), name="k")
        count = (length - dilation * (taps - 1) - 1) // stride + 1

        def element(i: te.Axis) -> te.Expr:
            return te.sum(x[stride * i + dilation * k] * w[k], axis=k)

        return te.compute((count,), element, name="y")

    return function


def conv2d(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    """Strided, padded convolution of images."""
    c, a, b = (te.reduce_axis((0, n), name=v) for n, v in ((2, "c"), (3, "a"), (2, "b")))

    def element(n: te.Axis, o: te.Axis, i: te.Axis, j: te.Axis) -> te.Expr:
        row = 2 * i + a - 1
        inside = te.all(row >= 0, row < 5)
        padded = te.if_then_else(inside, x[n, c, row, j + b], te.const(0, x.dtype))
        return te.sum(padded * w[o, c, a, b], axis=[c, a, b])

    return te.compute((1, 3, 3, 3), element, name="y")


def pool(x: te.Tensor) -> te.Tensor:
    k, m = te.reduce_axis((0, 3), name="k"), te.reduce_axis((0, 2), name="m")
    return te.compute((3, 4), lambda i, j: te.max(x[2 * i + k, j + m], axis=[k, m]), name="y")


def mapped(shape: tuple[int, ...], index: Callable[..., Any]) -> Callable[..., te.Tensor]:
    """`y[i] = exp(x[index(i)]) * i0`."""

    def function(x: te.Tensor) -> te.Tensor:
        def element(*i: te.Axis) -> te.Expr:
            place = index(*i)
            read = x[place if isinstance(place, tuple) else (place,)]
            return te.exp(read) * (i[0] + 1).astype("float64")

        return te.compute(shape, element, name="y")

    return function


CASES: dict[str, tuple[Callable[..., te.Tensor], list[tuple[int, ...]]]] = {
    "conv": (conv(1), [(10,), (3,)]),
    "conv strided": (conv(2), [(11,), (3,)]),
    "conv dilated": (conv(1, 2), [(11,), (3,)]),
    "conv strided and dilated": (conv(3, 2), [(17,), (4,)]),
    "conv without overlap": (conv(3), [(10,), (3,)]),
    "conv with gaps": (conv(4), [(11,), (3,)]),
    "conv2d": (conv2d, [(1, 2, 5, 4), (3, 2, 3, 2)]),
    "pool": (pool, [(7, 5)]),
    "transpose": (mapped((3, 5, 2), lambda i, j, k: (k, i, j)), [(2, 3, 5)]),
    "flip": (mapped((5, 7), lambda i, j: (4 - i, 6 - j)), [(5, 7)]),
    "slice": (mapped((3, 2), lambda i, j: (i + 2, 3 * j + 1)), [(6, 7)]),
    "constant": (mapped((3,), lambda i: (i, 2)), [(4, 3)]),
    "diagonal": (mapped((4,), lambda i: (i, i)), [(4, 5)]),
    "two diagonals": (mapped((3, 3), lambda i, j: (i + j, i + 2 * j)), [(5, 7)]),
    "flatten": (mapped((35,), lambda i: (i // 7, i % 7)), [(5, 7)]),
    "unflatten": (mapped((2, 3, 5), lambda i, j, k: (i * 3 + j) * 5 + k), [(31,)]),
    "repeat": (mapped((14,), lambda i: (i // 3,)), [(5,)]),
    "tile": (mapped((14,), lambda i: (i % 4,)), [(4,)]),
    "nested divisions": (mapped((30,), lambda i: (i // 6, i // 2 % 3)), [(5, 3)]),
    "three digits": (mapped((26,), lambda i: (i // 12, i // 4 % 3, i % 4)), [(3, 3, 4)]),
    "reshape": (
        mapped((4, 6), lambda i, j: ((i * 6 + j) // 12, (i * 6 + j) % 12 // 4, (i * 6 + j) % 4)),
        [(2, 3, 4)],
    ),
    "divided sum": (mapped((4, 5), lambda i, j: (i + 2 * j + 1) // 3), [(5,)]),
    "remainder of a sum": (mapped((4, 5), lambda i, j: ((i * 2 + j) % 4, j)), [(4, 5)]),
    "truncated": (mapped((9,), lambda i: te.truncdiv(i, 2)), [(5,)]),
    "truncated below zero": (mapped((9,), lambda i: te.truncdiv(i - 4, 2) + 2), [(5,)]),
    "clamped": (mapped((9,), lambda i: te.min(te.max(i - 2, 0), 4)), [(5,)]),
    "shifted by bits": (mapped((5,), lambda i: i << 1), [(9,)]),
    "square": (mapped((3,), lambda i: (i * i,)), [(5,)]),
    "product of axes": (mapped((3, 3), lambda i, j: (i * j,)), [(5,)]),
    "reversed digits": (mapped((3, 4), lambda i, j: (i * 4 + 3 - j,)), [(12,)]),
    "falling": (mapped((3, 4), lambda i, j: (11 - 4 * i - j,)), [(12,)]),
    "wide gaps": (mapped((2, 3), lambda i, j: (i * 10 + j * 2 + 1,)), [(17,)]),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    function, shapes = CASES[name]
    random = np.random.default_rng(2)
    given = {
        te.placeholder(shape, "float64", name=f"x{n}"): random.standard_normal(shape)
        for n, shape in enumerate(shapes)
    }
    check(function(*given), given, list(given))


def test_forms(golden: Callable[[str], None]) -> None:
    """No scatter: what is summed over is what does not follow from the element."""
    texts: list[str] = []
    for name, (function, shapes) in CASES.items():
        given = [te.placeholder(shape, "float64", name=f"x{n}") for n, shape in enumerate(shapes)]
        y = function(*given)
        made = te.gradient(y, given, te.placeholder(y.shape, "float64", name="h"))
        texts.append(f"{name}: {y.op}\n" + "\n".join(str(each.op) for each in made))
    golden("\n\n".join(texts))


def lines(tensors: list[te.Tensor]) -> str:
    return "\n".join(str(each.op) for each in tensors)


@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize("n", [1, 5])
def test_symbolic_sizes(m: int, n: int) -> None:
    rows, columns = te.var("rows"), te.var("columns")
    random = np.random.default_rng(4)
    sizes = {rows: m, columns: n}
    f8 = "float64"
    x = te.placeholder((rows, columns), f8, name="x")
    w = te.placeholder((columns, 3), f8, name="w")
    flat = te.placeholder((rows * columns,), f8, name="flat")
    values = {x: random.standard_normal((m, n)), w: random.standard_normal((n, 3))}
    check(te.nn.softmax(te.nn.matmul(x, w)), values, [x, w], sizes)
    check(te.nn.layer_norm(x), {x: values[x]}, [x], sizes, tolerance=1e-5)
    y = te.compute((rows, columns), lambda i, j: te.sin(flat[i * columns + j]), name="y")
    check(y, {flat: random.standard_normal(m * n)}, [flat], sizes)
    y = te.compute(
        (rows * columns,), lambda i: te.sin(x[i // columns, i % columns]) * x[i // columns, 0]
    )
    check(y, {x: values[x]}, [x], sizes)
    two = columns * 2
    z = te.placeholder((rows, columns, 2), f8, name="z")
    y = te.compute((rows * two,), lambda i: te.sin(z[i // two, i // 2 % columns, i % 2]), name="y")
    (by_z,) = check(y, {z: random.standard_normal((m, n, 2))}, [z], sizes)
    assert "sum(" not in str(by_z.op)
    k = te.reduce_axis((0, columns), name="k")
    y = te.compute((rows,), lambda i: te.max(x[rows - 1 - i, k], axis=k), name="y")
    check(y, {x: values[x]}, [x], sizes)


def test_symbolic_forms() -> None:
    n = te.size_var("n")
    x, w = te.placeholder((n + 2,), name="x"), te.placeholder((3,), name="w")
    k = te.reduce_axis((0, 3), name="k")
    y = te.compute((n,), lambda i: te.sum(x[i + k] * w[k], axis=k), name="y")
    by_x, by_w = te.gradient(y, [x, w], te.placeholder((n,), name="h"))
    text = lines([by_x, by_w])
    assert "sum(k)(h[i0 - k] * w[k], where=(i0 - k >= 0) & (i0 - k < n))" in text
    assert "d_y_d_w[k] = sum(i)(h[i] * x[i + k])" in text


def test_empty_sizes() -> None:
    """A size of 0 neither divides by it nor reads what is not there."""
    n = te.size_var("n")
    x = te.placeholder((6,), "float64", name="x")
    y = te.compute((3, n), lambda i, j: te.if_then_else(i * n + j < 6, x[i * n + j], 0.0))
    h = te.placeholder((3, n), "float64", name="h")
    z = te.compute((n, 3), lambda i, j: te.if_then_else(j * n < 6, x[j * n], 0.0))
    g = te.placeholder((n, 3), "float64", name="g")
    by_x, again = (te.gradient(y, [x], h)[0], te.gradient(z, [x], g)[0])
    for size in (0, 1, 2):
        a, b = np.ones((3, size)), np.ones((size, 3))
        found = te.evaluate([by_x, again], {h: a, g: b}, {n: size})
        want = [np.zeros(6), np.zeros(6)]
        for i in range(3):
            for j in range(size):
                want[0][i * size + j] += 1
                want[1][i * size] += 1
        np.testing.assert_array_equal(found, want)


def test_reads_at_places_from_memory() -> None:
    random = np.random.default_rng(8)
    table = te.placeholder((4, 3), "float64", name="table")
    row = te.placeholder((12,), "float64", name="row")
    t, offset = te.placeholder((6,), "int32", name="t"), te.placeholder((2,), "int32", name="o")
    given: dict[te.Tensor, Any] = {
        table: random.standard_normal((4, 3)),
        row: random.standard_normal(12),
        t: np.array([0, 3, 3, 1, 0, 3], "i4"),
        offset: np.array([1, 4], "i4"),
    }
    embedding = te.compute((6, 3), lambda i, j: table[t[i], j], name="y")
    (by_table,) = check(embedding, given, [table])
    assert "sum(i)(head[i, j], where=t[i] == i0)" in str(by_table.op)
    shifted = te.compute(
        (6, 3), lambda i, j: te.if_then_else(i > 0, table[t[i - 1], j], 0.0), name="y"
    )
    check(shifted, given, [table])
    ragged = te.compute((2, 3), lambda i, j: row[offset[i] + 2 * j], name="y")
    (by_row,) = check(ragged, given, [row])
    assert "sum(i)(" in str(by_row.op)
    masked = te.compute(
        (2, 3), lambda i, j: te.if_then_else(t[i + j] > 0, row[offset[i] + j], 0.0), name="y"
    )
    (by_row,) = check(masked, given, [row])
    assert "sum(i, j)(" in str(by_row.op)
    rows = te.compute((4,), lambda i: table[i, t[i] % 3], name="y")
    (by_table,) = check(rows, given, [table])
    assert "sum(" not in str(by_table.op)


def test_names_of_stages() -> None:
    x = te.placeholder((3, 4), name="x")
    k = te.reduce_axis((0, 4), name="k")
    top = te.compute((3,), lambda i: te.max(te.exp(x[i, k]), axis=k), name="top")
    made = print_graph(te.gradient(top, [x], te.placeholder((3,), name="h")))
    assert "top.arg.v1[i] = argmax(k)(exp(x[i, k]), k).v1" in made
    assert "d_top_d_x[i, k] = select(k == top.arg.v1[i], h[i] * exp(x[i, k]), 0.0)" in made
