"""Pooling of te.nn against loops over every window in float64, and against PyTorch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from nn_numbers import built, close, drawn, functions, given
from nn_values import DTYPES, needs_torch, torch

import tedsl as te
from tedsl.nn.windows import Layout
from tedsl.tensor.printer import print_graph

nn = te.nn
ANY: Any = "somewhere"
LAYOUTS: tuple[Layout, ...] = ("channels_last", "channels_first")
Spans = list[tuple[list[int], int]]


def slid(n: int, k: int, s: int, p: int, d: int, ceil_mode: bool, with_padding: bool) -> Spans:
    """Of each window along one dimension the elements it holds, and how many it counts.

    Windows follow one another while they fit; with `ceil_mode` while the one before has not come to
    the end of the padding, and they start before the padding there.
    """
    spans: Spans = []
    start, reach = -p, (k - 1) * d + 1
    end = start
    while (start < n and end < n + p) if ceil_mode else start + reach <= n + p:
        end = start + reach
        held = [t for t in range(start, end, d) if 0 <= t < n]
        counted = min(start + k, n + p) - start if with_padding else len(held)
        spans.append((held, counted))
        start += s
    return spans


def parts(n: int, count: int | None) -> Spans:
    """Of each of `count` parts the elements it holds, and how many they are."""
    count = n if count is None else count
    spans: Spans = []
    for o in range(count):
        held = list(range(math.floor(o * n / count), math.ceil((o + 1) * n / count)))
        spans.append((held, len(held)))
    return spans


def pooled(x: Any, spans: Sequence[Spans], mean: bool) -> Any:
    """Maximum or mean over windows of the last dimensions of `x`."""
    x = x.astype("f8")
    found = np.zeros((*x.shape[: x.ndim - len(spans)], *map(len, spans)))
    for spot in np.ndindex(*map(len, spans)):
        windows = [spans[d][o] for d, o in enumerate(spot)]
        part = x
        for d, (held, _) in enumerate(windows):
            part = part.take(held, axis=x.ndim - len(spans) + d)
        axes = tuple(range(x.ndim - len(spans), x.ndim))
        counted = math.prod(n for _, n in windows)
        value = part.sum(axes) / counted if mean else part.max(axes, initial=-np.inf)
        found[(..., *spot)] = value
    return found


def channels_last(array: Any, rank: int) -> Any:
    return np.ascontiguousarray(np.moveaxis(array, -rank - 1, -1))


SIZE = (6, 5, 4)


def windows() -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Operators with their rank and their arguments but the first and the layout."""
    choices = itertools.product((1, 2, 3), (None, 1, 3), (0, 1), (1, 2), (False, True))
    for k, s, p, d, ceil_mode in choices:
        how: dict[str, Any] = {"kernel_size": k, "stride": s, "padding": p, "ceil_mode": ceil_mode}
        if p <= ((k - 1) * d + 1) // 2:
            yield "max_pool", 1, how | {"dilation": d}
            yield "max_pool", 2, how | {"dilation": d}
        if d == 1 and p <= k // 2:
            for counted in (False, True):
                yield "avg_pool", 2, how | {"count_include_pad": counted}
    yield "max_pool", 2, {"kernel_size": (2, 3), "stride": (3, 1), "padding": (1, 0)}
    yield "max_pool", 3, {"kernel_size": (2, 3, 1), "padding": (1, 1, 0), "ceil_mode": True}
    yield "avg_pool", 3, {"kernel_size": (2, 3, 2), "stride": 2, "padding": 1, "ceil_mode": True}
    yield "avg_pool", 1, {"kernel_size": 4, "stride": 3, "padding": 2, "ceil_mode": True}
    yield "max_pool", 2, {"kernel_size": (6, 5)}


def reference(kind: str, x: Any, rank: int, how: dict[str, Any]) -> Any:
    def each(name: str, default: Any) -> list[Any]:
        value = how.get(name, default)
        value = default if value is None else value
        return [value] * rank if isinstance(value, int) else list(value)

    kernel = each("kernel_size", 1)
    numbers = (kernel, each("stride", kernel), each("padding", 0), each("dilation", 1))
    modes = (how.get("ceil_mode", False), how.get("count_include_pad", True))
    spans = [slid(*along, *modes) for along in zip(x.shape[-rank:], *numbers, strict=True)]
    return pooled(x, spans, kind == "avg_pool")


def both_layouts(kind: str, x: Any, rank: int, wanted: Any, *args: Any, **how: Any) -> None:
    """The operator in both layouts gives `wanted`."""
    for layout in LAYOUTS:
        last = layout == "channels_last"
        array = channels_last(x, rank) if last else x
        tensor = given(array, "x")
        out = getattr(nn, f"{kind}{rank}d")(tensor, *args, **how, layout=layout)
        (found,) = te.evaluate(out, {tensor: array})
        close(found, channels_last(wanted, rank) if last else wanted, array.dtype.name)


@pytest.mark.parametrize("kind", ["max_pool", "avg_pool"])
def test_windows(kind: str) -> None:
    for name, rank, how in windows():
        if name == kind:
            x = drawn((2, 3, *SIZE[:rank]))
            both_layouts(kind, x, rank, reference(kind, x, rank, how), **how)


SIZES: list[tuple[int, Any]] = [
    *((1, n) for n in (1, 2, 4, 5, 6, 9)),
    *((2, n) for n in (1, 3, 5, (2, 5), (None, 2), (7, 1))),
    (3, (3, None, 2)),
    (3, 1),
]


@pytest.mark.parametrize("kind", ["adaptive_max_pool", "adaptive_avg_pool"])
def test_parts(kind: str) -> None:
    for rank, size in SIZES:
        x = drawn((2, 3, *SIZE[:rank]))
        wanted_sizes = [size] * rank if isinstance(size, int) else size
        spans = [parts(n, c) for n, c in zip(SIZE[:rank], wanted_sizes, strict=True)]
        both_layouts(kind, x, rank, pooled(x, spans, "avg" in kind), size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str) -> None:
    x = drawn((2, 3, 6, 5), dtype)
    how = {"kernel_size": 3, "stride": 2, "padding": 1}
    for kind in ("max_pool", "avg_pool"):
        both_layouts(kind, x, 2, reference(kind, x, 2, how), **how)
    spans = [parts(6, 4), parts(5, 4)]
    for kind in ("adaptive_max_pool", "adaptive_avg_pool"):
        both_layouts(kind, x, 2, pooled(x, spans, "avg" in kind), 4)


def test_sixteen_bits_are_added_up_wide() -> None:
    x = np.full((1, 5000, 1), 0.1, "f2")
    a = given(x, "x")
    for out in (nn.avg_pool1d(a, 5000), nn.adaptive_avg_pool1d(a, 1)):
        np.testing.assert_allclose(te.evaluate(out, {a: x})[0], float(x[0, 0, 0]), rtol=1e-3)


def test_integers_have_maxima() -> None:
    x = np.arange(-12, 0, dtype="i4").reshape(1, 6, 2)
    a = given(x, "x")
    (found,) = te.evaluate(nn.max_pool1d(a, 3, 2, 1), {a: x})
    np.testing.assert_array_equal(found[0], [[-10, -9], [-6, -5], [-2, -1]])


def test_special_values() -> None:
    inf, nan = np.inf, np.nan
    x = np.array([[-inf, -inf, -inf, 1.0, nan, 2.0, inf, 3.0]]).reshape(1, 8, 1)
    a = given(x, "x")
    (found,) = te.evaluate(nn.max_pool1d(a, 2, 2), {a: x})
    np.testing.assert_array_equal(found[0, :, 0], [-inf, 1.0, nan, inf])
    (found,) = te.evaluate(nn.max_pool1d(a, 2, 7, 1), {a: x})
    np.testing.assert_array_equal(found[0, :, 0], [-inf, inf])


def test_no_elements() -> None:
    x = np.zeros((0, 6, 3))
    a = given(x, "x")
    for out in (nn.max_pool1d(a, 2), nn.avg_pool1d(a, 2), nn.adaptive_avg_pool1d(a, 3)):
        assert te.evaluate(out, {a: x})[0].shape == (0, 3, 3)


def test_no_batch_dimension() -> None:
    x = drawn((5, 6))
    a = given(x, "x")
    (found,) = te.evaluate(nn.avg_pool1d(a, 2, layout="channels_first"), {a: x})
    close(found, x.reshape(5, 3, 2).mean(2), "float64")


@needs_torch
def test_against_torch() -> None:
    for kind, rank, how in windows():
        x = drawn((2, 3, *SIZE[:rank]), "float32")
        wanted = getattr(torch.nn.functional, f"{kind}{rank}d")(torch.from_numpy(x), **how)
        both_layouts(kind, x, rank, wanted.numpy(), **how)
    for rank, size in SIZES:
        x = drawn((2, 3, *SIZE[:rank]), "float32")
        for kind in ("adaptive_max_pool", "adaptive_avg_pool"):
            wanted = getattr(torch.nn.functional, f"{kind}{rank}d")(torch.from_numpy(x), size)
            both_layouts(kind, x, rank, wanted.numpy(), size)


def operators(x: te.Tensor) -> list[te.Tensor]:
    """One of each kind over two dimensions."""
    return [
        nn.max_pool2d(x, 3, 2, 1, ceil_mode=True),
        nn.avg_pool2d(x, (3, 2), (2, 1), (1, 0), ceil_mode=True, count_include_pad=False),
        nn.avg_pool2d(x, 2),
        nn.adaptive_avg_pool2d(x, (4, 3)),
        nn.adaptive_max_pool2d(x, (None, 2)),
        nn.adaptive_avg_pool2d(x, 1),
    ]


X = drawn((2, 7, 6, 5), "float32")


@pytest.mark.cpu
def test_symbolic_sizes() -> None:
    n, h, w = (te.size_var(name) for name in "nhw")
    symbolic, known = te.placeholder((n, h, w, 5), name="x"), given(X, "x")
    for number, (made, right) in enumerate(zip(operators(symbolic), operators(known), strict=True)):
        (want,) = te.evaluate(right, {known: X})
        close(te.evaluate(made, {symbolic: X})[0], want, "float32")
        if number % 3 == 0:
            close(built(made, {symbolic: X}, "cpu")[0], want, "float32")


@pytest.mark.cpu
@pytest.mark.parametrize(
    "target", ["cpu", pytest.param("triton-interpret", marks=pytest.mark.ptxas)]
)
def test_kernels(target: str) -> None:
    x = given(X, "x")
    for out in operators(x) if target == "cpu" else operators(x)[1:4:2]:
        (want,) = te.evaluate(out, {x: X})
        found, kernel = built(out, {x: X}, target)
        close(found, want, "float32")
        assert functions(kernel) == 1


def test_stages_are_named(golden: Callable[..., None]) -> None:
    n, h = te.size_var("n"), te.size_var("h")
    x = te.placeholder((n, h, 9, 6), "bfloat16", name="x")
    golden(print_graph(nn.max_pool2d(x, 3, 2, 1)), "max_pool2d")
    golden(print_graph(nn.avg_pool2d(x, 2, ceil_mode=True)), "avg_pool2d")
    golden(print_graph(nn.adaptive_avg_pool2d(x, (4, 3))), "adaptive_avg_pool2d")


P = te.placeholder((2, 7, 6, 5), name="x")
I = te.placeholder((2, 7, 6, 5), "int32", name="i")  # noqa: E741


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.max_pool1d(P, 2), r"max_pool1d: x has 4 dimensions, 2 or 3 are needed"),
        (lambda: nn.max_pool2d(P, 0), r"kernel_size is 0[\s\S]*at least 1, or 2 of them"),
        (lambda: nn.max_pool2d(P, (2, 2, 2)), r"kernel_size is \(2, 2, 2\)"),
        (lambda: nn.max_pool2d(P, 2, stride=0), r"stride is 0"),
        (lambda: nn.max_pool2d(P, 2, dilation=-1), r"dilation is -1"),
        (lambda: nn.max_pool2d(P, 2, padding=-1), r"padding is -1"),
        (
            lambda: nn.max_pool2d(P, 3, padding=2),
            r"padding of 2 for windows that reach over 3 elements[\s\S]*0 \.\. 1",
        ),
        (lambda: nn.avg_pool2d(P, (7, 7)), r"a window of 7 elements, dilated by 1, over 6 padded"),
        (lambda: nn.avg_pool2d(I, 2), r"avg_pool2d: i is int32, not a float"),
        (lambda: nn.max_pool2d(P, 2, layout=ANY), r"there is no layout 'somewhere'"),
        (lambda: nn.adaptive_max_pool2d(P, 0), r"output_size is \[0, 0\][\s\S]*at least 1"),
        (lambda: nn.adaptive_max_pool2d(P, (2,)), r"output_size is \[2\]"),
        (lambda: nn.adaptive_avg_pool2d(I, 2), r"adaptive_avg_pool2d: i is int32"),
        (
            lambda: nn.adaptive_avg_pool1d(P, 2),
            r"pool1d: x has 4 dim[\s\S]*\[n, w, c\]",
        ),
    ],
)
def test_refusals(call: Callable[[], te.Tensor], message: str) -> None:
    with pytest.raises(te.ExprError, match=message):
        call()
