"""Calls kernels with arrays that begin at any element.

Run as a program with the names of dtypes: a kernel that takes an array for better aligned than it
is ends the process, so it runs in one of its own.  Prints `right` when all numbers are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from externs import between, running_sum
from intrinsics import micro_kernel
from red_zones import displaced

import tedsl as te
from tedsl.dtypes import DType
from tedsl.expr.numerics import numpy_dtype

OFFSETS = range(18)
COUNTS = (1, 4, 7, 16, 24, 33, 100)
Array = Any


def copies(dtype: str) -> list[te.Kernel]:
    """An array as it is, of several lengths; one element; none; as many as the call has."""
    shapes: list[Any] = [(n,) for n in COUNTS] + [(), (0,), (4, 7), (te.size_var("n"),)]
    made: list[te.Kernel] = []
    for shape in shapes:
        made.append(copy(te.placeholder(shape, dtype, name="A")))
    return made


def copy(a: te.Tensor) -> te.Kernel:
    return te.build(te.compute(a.shape, lambda *i: a[i], name="B"), target="cpu")


def products(dtype: str) -> list[te.Kernel]:
    """Products of two sizes, and one whose row sums come first: a workspace."""
    made: list[te.Kernel] = []
    for m, n, k in ((4, 4, 4), (7, 5, 3)):
        a = te.placeholder((m, k), dtype, name="A")
        b = te.placeholder((k, n), dtype, name="B")
        made.append(te.build(te.nn.matmul(a, b), target="cpu"))
    a = te.placeholder((9, 33), dtype, name="A")
    r = te.reduce_axis((0, 33), name="r")
    total = te.compute((9,), lambda i: te.max(a[i, r], axis=r), name="M")
    s = te.create_schedule(te.compute((9, 33), lambda i, j: a[i, j] - total[i], name="D"))
    return [*made, te.build(s, target="cpu")]


def rows(dtype: str) -> list[te.Kernel]:
    """Rows of exponentials."""
    shapes = ((4, 4), (4, 100), (128, 100))
    return [
        te.build(te.nn.softmax(te.placeholder(s, dtype, name="A")), target="cpu") for s in shapes
    ]


def threads() -> list[te.Kernel]:
    """Loops shared by threads, an intrinsic, functions of C and of Python, and stores past the
    caches."""
    a = te.placeholder((64, 1111), name="A")
    shared = te.compute(a.shape, lambda i, j: te.exp(a[i, j]) * 2.0, name="B")
    p, q = (te.placeholder((8, 8), name=name) for name in "PQ")
    k = te.reduce_axis((0, 8), name="k")
    c = te.compute((8, 8), lambda i, j: te.sum(p[i, k] * q[k, j], axis=k), name="C")
    s = te.create_schedule(c)
    yo, xo, yi, xi = s[c].tile(*c.op.axis, 4, 4)
    ko, ki = s[c].split(k, 4)
    s[c].reorder(yo, xo, ko, yi, xi, ki)
    s[c].tensorize(yi, micro_kernel(4, 4, 4))
    long = te.placeholder((1 << 23,), name="L")
    far = te.compute(long.shape, lambda i: long[i] + 1.0, name="F")
    function = te.c_function(running_sum)
    defined = [shared, s, between(function), between(lambda i, o: i[0] + 1.0), far]
    return [te.build(each, target="cpu") for each in defined]


def check(kernel: te.Kernel, offsets: Sequence[int], shapes: dict[str, int] | None = None) -> None:
    """The same numbers, bit by bit, wherever the inputs and the output begin."""
    random = np.random.default_rng(3)
    given: list[Array] = []
    for buffer in kernel.signature.inputs:
        shape = [int(getattr(extent, "value", 21)) for extent in buffer.shape]
        numbers = random.integers(0, 2 if buffer.dtype.is_bool else 5, shape)
        given.append(numbers.astype(numpy_dtype(buffer.dtype)))
    want = kernel(*map(np.array, given))
    blank = np.zeros_like(want)
    for k in offsets:
        moved = [displaced(array, k + n) for n, array in enumerate(given)]
        for out in (displaced(blank, k), displaced(blank, 0), displaced(blank, k + 1)):
            kernel(*moved, out=out)
            assert out.tobytes() == want.tobytes(), f"{kernel.signature}: {k} elements on"
        assert kernel(*moved).tobytes() == want.tobytes(), f"{kernel.signature}: {k} elements on"


def main(dtypes: Sequence[str]) -> None:
    kinds: list[Callable[[str], list[te.Kernel]]] = [copies]
    for dtype in dtypes:
        if dtype == "threads":
            made = threads()
        else:
            number = DType(dtype)
            arithmetic = not number.is_bool and not number.is_float8
            kinds = [copies, products] if arithmetic else [copies]
            kinds += [rows] if arithmetic and number.is_float else []
            made = [kernel for kind in kinds for kernel in kind(dtype)]
        for kernel in made:
            large = dtype == "threads" and "8388608" in str(kernel.signature)
            check(kernel, OFFSETS[:3] if large else OFFSETS)
    print("right")


if __name__ == "__main__":
    main(sys.argv[1:])
