"""Convolutions of te.nn against loops over every element in float64, and against PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from nn_numbers import built, close, drawn, functions, given
from nn_values import DTYPES, needs_torch, torch

import tedsl as te
from tedsl.nn.windows import Layout
from tedsl.tensor.printer import print_graph

nn = te.nn
ANY: Any = "reflect"
LAYOUTS: tuple[Layout, ...] = ("channels_last", "channels_first")


@dataclass(frozen=True)
class Case:
    """A convolution, or with `transposed` its transpose; shapes as PyTorch has them."""

    size: tuple[int, ...]
    taps: tuple[int, ...]
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1
    more: Any = 0
    transposed: bool = False
    batch: int = 2
    inputs: int = 4
    outputs: int = 8
    bias: bool = True

    @property
    def rank(self) -> int:
        return len(self.size)

    def numbers(self, value: Any) -> list[int]:
        return [value] * self.rank if isinstance(value, int) else list(value)

    def pads(self) -> list[tuple[int, int]]:
        """Zeros before and after each dimension."""
        if self.padding == "same":
            reach = [
                (k - 1) * d for k, d in zip(self.taps, self.numbers(self.dilation), strict=True)
            ]
            return [(r // 2, r - r // 2) for r in reach]
        return [(p, p) for p in self.numbers(0 if self.padding == "valid" else self.padding)]

    def arrays(self, dtype: str) -> list[Any]:
        """x, weight and bias in PyTorch's layout."""
        pair = (self.outputs, self.inputs // self.groups)
        if self.transposed:
            pair = (self.inputs, self.outputs // self.groups)
        x = drawn((self.batch, self.inputs, *self.size), dtype, 1)
        return [x, drawn((*pair, *self.taps), dtype, 2), drawn((self.outputs,), dtype, 3)]

    def tensors(self, arrays: list[Any], layout: Layout) -> tuple[te.Tensor, dict[te.Tensor, Any]]:
        """The result, and the values of the inputs, in `layout`."""
        x, w, b = arrays
        if layout == "channels_last":
            x = channels_last(x)
            order = range(2, 2 + self.rank)
            w = w.transpose(*order, *((0, 1) if self.transposed else (1, 0))).copy()
        values = {given(v, name): v for v, name in ((x, "x"), (w, "w"), (b, "b"))}
        tx, tw, tb = values
        bias = tb if self.bias else None
        suffix = f"{self.rank}d"
        if self.transposed:
            operator = getattr(nn, f"conv_transpose{suffix}")
            return operator(
                tx, tw, bias, self.stride, self.padding, self.more, self.groups, self.dilation,
                layout,
            ), values  # fmt: skip
        operator = getattr(nn, f"conv{suffix}")
        return operator(
            tx, tw, bias, self.stride, self.padding, self.dilation, self.groups, layout
        ), values

    def reference(self, x: Any, w: Any, b: Any) -> Any:
        x, w = x.astype("f8"), w.astype("f8")
        found = self.spread(x, w) if self.transposed else self.slid(x, w)
        return found + (b.astype("f8").reshape(-1, *[1] * self.rank) if self.bias else 0.0)

    def slid(self, x: Any, w: Any) -> Any:
        """Each window of the padded input against the kernel."""
        strides, steps = self.numbers(self.stride), self.numbers(self.dilation)
        padded = np.pad(x, [(0, 0), (0, 0), *self.pads()])
        counts = [
            (n - d * (k - 1) - 1) // s + 1
            for n, k, s, d in zip(padded.shape[2:], self.taps, strides, steps, strict=True)
        ]
        found = np.zeros((self.batch, self.outputs, *counts))
        each_in, each_out = self.inputs // self.groups, self.outputs // self.groups
        for spot in np.ndindex(*counts):
            for tap in np.ndindex(*self.taps):
                at = tuple(
                    o * s + t * d for o, s, t, d in zip(spot, strides, tap, steps, strict=True)
                )
                for f in range(self.outputs):
                    first = f // each_out * each_in
                    part = padded[(slice(None), slice(first, first + each_in), *at)]
                    found[(slice(None), f, *spot)] += part @ w[(f, slice(None), *tap)]
        return found

    def spread(self, x: Any, w: Any) -> Any:
        """Each element of the input adds the kernel to its window of the result."""
        strides, steps = self.numbers(self.stride), self.numbers(self.dilation)
        paddings, more = self.numbers(self.padding), self.numbers(self.more)
        whole = [
            (n - 1) * s + d * (k - 1) + 1 + e
            for n, s, d, k, e in zip(self.size, strides, steps, self.taps, more, strict=True)
        ]
        found = np.zeros((self.batch, self.outputs, *whole))
        each_in, each_out = self.inputs // self.groups, self.outputs // self.groups
        for spot in np.ndindex(*self.size):
            for tap in np.ndindex(*self.taps):
                at = tuple(
                    o * s + t * d for o, s, t, d in zip(spot, strides, tap, steps, strict=True)
                )
                for c in range(self.inputs):
                    first = c // each_in * each_out
                    value = x[(slice(None), c, *spot)]
                    target = found[(slice(None), slice(first, first + each_out), *at)]
                    target += value[:, None] * w[(c, slice(None), *tap)]
        cut = tuple(slice(p, n - p) for p, n in zip(paddings, whole, strict=True))
        return found[(slice(None), slice(None), *cut)]


def channels_last(array: Any) -> Any:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


FORWARD: dict[str, Case] = {
    "plain": Case((7, 6), (3, 2)),
    "strided": Case((7, 6), (3, 2), stride=2, padding=1),
    "odd strides": Case((9, 8), (2, 3), stride=(3, 2), padding=(1, 0)),
    "same": Case((5, 6), (2, 3), padding="same", dilation=(1, 2)),
    "valid": Case((5, 6), (2, 3), padding="valid"),
    "dilated": Case((8, 7), (3, 2), padding=2, dilation=(2, 3), stride=(1, 2)),
    "grouped": Case((5, 5), (3, 3), padding=1, groups=2),
    "depthwise": Case((5, 6), (3, 3), padding=1, groups=4, outputs=4),
    "depthwise, two for each": Case((5, 6), (3, 3), groups=4),
    "pointwise": Case((4, 3), (1, 1), stride=2),
    "pointwise depthwise": Case((4, 3), (1, 1), groups=4, outputs=4, padding=1),
    "as large as the padded input": Case((3, 4), (5, 6), padding=1),
    "without a bias": Case((4, 4), (3, 3), bias=False),
    "one dimension": Case((9,), (4,), stride=3, padding=2, groups=2),
    "three dimensions": Case((3, 4, 3), (2, 3, 2), stride=(1, 2, 1), padding=(0, 1, 1)),
    "no rows": Case((0, 3), (2, 2), padding=1),
    "no batch elements": Case((4, 3), (2, 2), batch=0),
    "one of everything": Case((1, 1), (1, 1), batch=1, inputs=1, outputs=1),
    "one spot": Case((1, 1), (3, 3), padding=1),
}
TRANSPOSED: dict[str, Case] = {
    "plain": Case((4, 3), (3, 2), transposed=True),
    "strided": Case((4, 3), (3, 4), stride=2, padding=1, transposed=True),
    "more kept": Case((4, 3), (3, 3), stride=(3, 2), padding=1, more=(2, 1), transposed=True),
    "dilated": Case((4, 3), (3, 2), stride=2, dilation=(1, 3), more=(0, 2), transposed=True),
    "grouped": Case((3, 4), (3, 3), stride=2, padding=1, groups=2, transposed=True),
    "depthwise": Case((3, 3), (2, 3), stride=2, groups=4, outputs=4, transposed=True),
    "stride past the kernel": Case((3, 3), (1, 2), stride=3, transposed=True),
    "without a bias": Case((4, 3), (3, 3), bias=False, transposed=True),
    "one dimension": Case((5,), (4,), stride=3, padding=2, groups=2, transposed=True),
    "three dimensions": Case((2, 3, 2), (2, 3, 2), stride=(1, 2, 1), padding=1, transposed=True),
    "no batch elements": Case((3, 3), (2, 2), batch=0, transposed=True),
    "one spot": Case((1, 1), (3, 3), padding=1, transposed=True),
}


def check(case: Case, dtype: str, layout: Layout) -> None:
    arrays = case.arrays(dtype)
    out, values = case.tensors(arrays, layout)
    wanted = case.reference(*arrays)
    (found,) = te.evaluate(out, values)
    close(found, channels_last(wanted) if layout == "channels_last" else wanted, dtype, 4.0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FORWARD)
def test_convolutions(name: str, layout: Layout) -> None:
    check(FORWARD[name], "float64", layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposes(name: str, layout: Layout) -> None:
    check(TRANSPOSED[name], "float64", layout)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str) -> None:
    for case in (FORWARD["strided"], FORWARD["depthwise"], TRANSPOSED["strided"]):
        check(case, dtype, "channels_last")


def test_sixteen_bits_are_added_up_wide() -> None:
    x, w = np.full((1, 70, 64), 0.1, "f2"), np.full((70, 64, 1), 0.1, "f2")
    (found,) = te.evaluate(nn.conv1d(a := given(x, "x"), b := given(w, "w")), {a: x, b: w})
    np.testing.assert_allclose(found, 4480 * float(x[0, 0, 0]) ** 2, rtol=5e-4)


def test_no_batch_dimension() -> None:
    case = FORWARD["strided"]
    x, w, b = case.arrays("float64")
    tx, tw, tb = given(x[0], "x"), given(w, "w"), given(b, "b")
    out = nn.conv2d(tx, tw, tb, 2, 1, layout="channels_first")
    (found,) = te.evaluate(out, {tx: x[0], tw: w, tb: b})
    close(found, case.reference(x, w, b)[0], "float64")


@needs_torch
@pytest.mark.parametrize("transposed", [False, True])
def test_against_torch(transposed: bool) -> None:
    cases = TRANSPOSED if transposed else FORWARD
    for name, case in cases.items():
        if 0 in case.size or name == "same":
            continue  # refused, and warned about, there
        arrays = case.arrays("float32")
        x, w, b = (torch.from_numpy(array) for array in arrays)
        bias = b if case.bias else None
        how: dict[str, Any] = {"stride": case.stride, "padding": case.padding}
        how |= {"dilation": case.dilation, "groups": case.groups}
        if transposed:
            how["output_padding"] = case.more
        operator = f"conv{'_transpose' if transposed else ''}{case.rank}d"
        wanted = getattr(torch.nn.functional, operator)(x, w, bias, **how).numpy()
        out, values = case.tensors(arrays, "channels_first")
        (found,) = te.evaluate(out, values)
        assert found.shape == wanted.shape, name
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5, err_msg=name)


def symbolic(case: Case, layout: Layout) -> tuple[te.Tensor, dict[te.Tensor, Any], Any]:
    """The case with symbolic batch and spatial sizes."""
    arrays = case.arrays("float32")
    _, values = case.tensors(arrays, layout)
    (x, xv), (w, wv), (b, bv) = values.items()
    batch, *spots = (te.size_var(name) for name in ["n", "h", "w"][: case.rank + 1])
    channel = te.const(case.inputs)
    shape = (batch, *spots, channel) if layout == "channels_last" else (batch, channel, *spots)
    x = te.placeholder(shape, name="x")
    how = (w, b, case.stride, case.padding)
    if case.transposed:
        out = nn.conv_transpose2d(x, *how, case.more, case.groups, case.dilation, layout)
    else:
        out = nn.conv2d(x, *how, case.dilation, case.groups, layout)
    wanted = case.reference(*arrays)
    if layout == "channels_last":
        wanted = channels_last(wanted)
    return out, {x: xv, w: wv, b: bv}, wanted


@pytest.mark.cpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["plain", "strided", "same", "depthwise"])
def test_symbolic_sizes(name: str, layout: Layout) -> None:
    out, values, wanted = symbolic(FORWARD[name], layout)
    close(te.evaluate(out, values)[0], wanted, "float32", 4.0)
    close(built(out, values, "cpu")[0], wanted, "float32", 4.0)


def test_symbolic_transpose() -> None:
    out, values, wanted = symbolic(TRANSPOSED["strided"], "channels_last")
    close(te.evaluate(out, values)[0], wanted, "float32", 4.0)


@pytest.mark.cpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernels_on_the_cpu(layout: Layout) -> None:
    names = ("strided", "grouped", "depthwise", "dilated", "one dimension")
    cases = [*(FORWARD[n] for n in names), TRANSPOSED["strided"], TRANSPOSED["grouped"]]
    for case in (*cases, FORWARD["three dimensions"]):
        arrays = case.arrays("float32")
        out, values = case.tensors(arrays, layout)
        wanted = case.reference(*arrays)
        found, _ = built(out, values, "cpu")
        close(found, channels_last(wanted) if layout == "channels_last" else wanted, "float32", 4.0)


@pytest.mark.ptxas
@pytest.mark.parametrize(
    "case",
    [
        Case((18, 17), (3, 3), padding=1, inputs=16, outputs=16),
        Case((9, 9), (3, 3), padding=1, groups=4, outputs=4),
        replace(TRANSPOSED["strided"], inputs=16, outputs=16, size=(9, 9)),
    ],
    ids=["contraction", "depthwise", "transposed"],
)
def test_kernels_of_triton(case: Case) -> None:
    arrays = case.arrays("float16")
    out, values = case.tensors(arrays, "channels_last")
    found, kernel = built(out, values, "triton-interpret")
    close(found, channels_last(case.reference(*arrays)), "float16", 4.0)
    assert functions(kernel) == 1
    assert ("tl.dot" in kernel.source) == (case.groups == 1)


@pytest.mark.ptxas
def test_what_follows_joins_the_kernel_of_the_multipliers() -> None:
    x = te.placeholder((8, 56, 56, 64), "bfloat16", name="x")
    w = te.placeholder((3, 3, 64, 64), "bfloat16", name="w")
    scale, shift = (te.placeholder((64,), "float32", name=name) for name in ("scale", "shift"))
    out = nn.relu(nn.conv2d(x, w, padding=1).astype("float32") * scale + shift).astype("bfloat16")
    kernel = te.build(out, target="cuda:sm_90", cache=False)
    assert functions(kernel) == 1
    assert kernel.source.count("tl.dot") == 1
    for info in kernel.resources.values():
        assert info.stack == 0


def test_stages_are_named(golden: Callable[..., None]) -> None:
    n, h = te.size_var("n"), te.size_var("h")
    x = te.placeholder((n, h, 8, 6), "bfloat16", name="x")
    w, b = te.placeholder((3, 3, 6, 4), "bfloat16", name="w"), te.placeholder((4,), name="b")
    golden(print_graph(nn.conv2d(x, w, b, padding=1)), "conv2d")
    depthwise = te.placeholder((3, 3, 1, 6), "bfloat16", name="w")
    golden(print_graph(nn.conv2d(x, depthwise, stride=2, groups=6)), "depthwise")
    golden(print_graph(nn.conv_transpose2d(x, w, stride=2, padding=1)), "conv_transpose2d")


X = te.placeholder((2, 7, 6, 4), name="x")
W = te.placeholder((3, 3, 4, 8), name="w")
N = te.size_var("n")


def conv(x: te.Tensor = X, w: te.Tensor = W, **how: Any) -> Callable[[], te.Tensor]:
    return lambda: nn.conv2d(x, w, **how)


def back(x: te.Tensor = X, w: te.Tensor = W, **how: Any) -> Callable[[], te.Tensor]:
    return lambda: nn.conv_transpose2d(x, w, **how)


def p(*shape: Any, dtype: str = "float32") -> te.Tensor:
    return te.placeholder(shape, dtype, name="v")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (conv(p(7, 6)), r"conv2d: v has 2 dimensions, 3 or 4 are[\s\S]*\[n, h, w, c\], or with"),
        (conv(X, p(3, 3, 4)), r"v has the shape \[3, 3, 4\], not \[any, any, any, any\]"),
        (conv(X, p(3, 3, 5, 8)), r"channels of x, and those that v takes, are 4 and 5"),
        (conv(X, p(3, 3, 4, 8), groups=2), r"channels of x, and those that v takes, are 4 and 8"),
        (conv(X, p(3, 3, 2, 7), groups=2), r"7 channels are not known to be 2 groups"),
        (conv(p(2, 7, 6, N), p(3, 3, N, 8), groups=0), r"groups is 0[\s\S]*at least 1"),
        (conv(stride=0), r"stride is 0[\s\S]*an int of at least 1, or 2 of them"),
        (conv(stride=(1, 2, 1)), r"stride is \(1, 2, 1\)"),
        (conv(stride=(1.5, 1)), r"stride is \(1\.5, 1\)"),
        (conv(dilation=0), r"dilation is 0"),
        (conv(padding=-1), r"padding is -1[\s\S]*an int of at least 0"),
        (conv(padding=ANY), r"there is no padding 'reflect'[\s\S]*\"same\""),
        (conv(padding="same", stride=2), r"padding is \"same\" and the stride \(2, 2\)"),
        (
            conv(dilation=3),
            r"a window of 3 elements, dilated by 3, over 6 padded by 0 and 0[\s\S]*1 \.\. 6 elem",
        ),
        (conv(X, p(0, 3, 4, 8)), r"a window of 0 elements"),
        (conv(bias=p(4)), r"v has the shape \[4\], not \[8\]"),
        (conv(p(2, 7, 6, 4, dtype="int32")), r"v is int32, not a float[\s\S]*astype"),
        (conv(layout=ANY), r"there is no layout 'reflect'[\s\S]*channels_first"),
        (back(X, p(3, 3, 5, 8)), r"channels of x, and those that v takes, are 4 and 5"),
        (back(groups=3), r"conv_transpose2d: 4 channels are not known to be 3 groups"),
        (back(output_padding=1), r"output_padding is 1 for a stride of 1 and a dilation of 1"),
        (back(p(2, 1, 1, 4), padding=2), r"padding of 2 leaves -1 of the elements that 1 make"),
        (back(bias=p(4), groups=2), r"v has the shape \[4\], not \[16\]"),
    ],
)
def test_refusals(call: Callable[[], te.Tensor], message: str) -> None:
    with pytest.raises(te.ExprError, match=message):
        call()


def test_every_rank_and_layout_has_the_same_keywords() -> None:
    """The operators of all ranks differ in nothing but the rank."""
    for kind, layout in itertools.product(("conv", "conv_transpose"), LAYOUTS):
        for rank in (1, 2, 3):
            case = Case((3,) * rank, (2,) * rank, transposed=kind == "conv_transpose")
            out, _ = case.tensors(case.arrays("float32"), layout)
            names: Sequence[str] = [axis.name for axis in out.op.axis]
            spots = ["d", "h", "w"][-rank:]
            assert names == ["n", *(["c", *spots] if layout == LAYOUTS[1] else [*spots, "c"])]
            assert out.name == f"{kind}{rank}d"
