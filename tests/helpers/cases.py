"""Computations as generators draw them: `Case`, and what all that draw one have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import choices as st
import numpy as np

import tedsl as te
from tedsl.dtypes import DType
from tedsl.expr.nodes import Expr, Var
from tedsl.expr.numerics import Array, numpy_dtype
from tedsl.tensor.printer import print_graph
from tedsl.tensor.tensor import Tensor

Draw = st.Draw
Formula = Callable[[list[Any], tuple[Expr, ...]], Any]
"""From reads and axes to a value."""


@dataclass(frozen=True)
class Sizes:
    """What extents are drawn from, the largest of each dimension in the order in which they are
    drawn, and of how many elements inputs are."""

    extents: tuple[int, ...]
    most: tuple[int, ...]
    elements: int


SMALL = Sizes((1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33), (33, 17, 7), 1500)
LARGE = Sizes(
    (1, 2, 3, 7, 8, 16, 17, 24, 32, 33, 40, 56, 64, 65, 112, 128, 128, 129, 256, 384, 520, 1024),
    (1024, 256, 129, 64, 17),
    1 << 15,
)
"""Odd extents beside multiples of 8, 16, 56 and 128, of which accesses are vectorised."""
DTYPES = (
    *("float32",) * 5,
    *("int32",) * 3,
    *("float16", "bfloat16", "float64", "int8", "uint8", "int64", "bool"),
)
STORED = (DType.float8_e4m3fn, DType.float8_e5m2)
"""What values are only stored in; those that are drawn, such types hold exactly."""
Draw = st.Draw


@dataclass
class Dim:
    """One extent: as it stands in a shape, and its value in this case."""

    extent: Any
    value: int


@dataclass
class Known:
    """A tensor that a stage may read.  `exact`: it holds no rounded values, and no NaN, which an
    order of comparisons would show; `finite`: nor infinities, of which differences are NaN."""

    tensor: Tensor
    dims: tuple[Dim, ...]
    exact: bool
    finite: bool = True

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype


@dataclass
class Case:
    """A computation, arrays for its inputs, what its rounding errors depend on, and a number.

    `finite`: what stands for minus infinity in it is not compared.  `close`: the tolerance, of the
    largest value, where it does not follow from the number of stages.
    """

    outputs: list[Tensor] = field(default_factory=list[Tensor])
    inputs: dict[Tensor, Array] = field(default_factory=dict[Tensor, Array])
    sizes: dict[Var, int] = field(default_factory=dict[Var, int])
    depth: int = 0
    length: int = 1
    number: int = 0
    finite: bool = False
    close: float = 0.0

    def __repr__(self) -> str:
        """The definitions and the shapes, as hypothesis shows them."""
        arrays = ", ".join(f"{t.name}{list(a.shape)}" for t, a in self.inputs.items())
        return f"\n{print_graph(self.outputs)}\n  inputs {arrays}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


def least(dtype: DType) -> Expr:
    """What is below every value of a type, the identity of a maximum: minus infinity of floats."""
    return -te.infinity(dtype) if dtype.info.has_infinity else te.min_value(dtype)


def most(dtype: DType) -> Expr:
    """What is above every value of a type."""
    return te.infinity(dtype) if dtype.info.has_infinity else te.max_value(dtype)


@st.composite
def extents(draw: Draw, sizes: Sizes = SMALL) -> int:
    """One extent; 0 now and then."""
    return 0 if draw(st.integers(0, 30)) == 17 else draw(st.sampled_from(sizes.extents))


class Drawing:
    """Draws the pieces of a case."""

    def __init__(self, draw: Draw, externs: bool, sizes: Sizes) -> None:
        self.draw = draw
        self.externs = externs
        self.sizes = sizes
        self.elements = 1
        self.case = Case()
        self.dtype = DType(draw(st.sampled_from(DTYPES)))
        self.case.number = draw(st.integers(0, 2**16))
        self.random = np.random.default_rng(self.case.number)
        self.count = self.dims = 0

    def chance(self, hits: int, out_of: int) -> bool:
        return self.draw(st.integers(1, out_of)) > out_of - hits

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def dim(self) -> Dim:
        value = self.draw(extents(self.sizes))
        most = self.sizes.most[min(self.dims, len(self.sizes.most) - 1)]
        value = min(value, most, max(1, self.sizes.elements // self.elements))
        self.dims += 1
        self.elements *= max(1, value)
        if self.chance(1, 6):
            kind = self.draw(st.sampled_from(("int32", "int64")))
            var = te.size_var(self.name("n"), kind)
            self.case.sizes[var] = value
            return Dim(var, value)
        return Dim(te.const(value, "int64") if self.chance(1, 12) else value, value)

    def placeholder(
        self, dims: tuple[Dim, ...], dtype: DType | None = None, below: int = 0
    ) -> Known:
        """A new input; floats are multiples of 1/4 between -1 and 1, indices are in 0 ..
        `below`."""
        dtype = dtype or self.dtype
        tensor = te.placeholder([d.extent for d in dims], dtype, name=self.name("A"))
        shape = tuple(d.value for d in dims)
        if dtype.is_float:
            data = self.random.integers(-4, 5, shape) / 4
        elif dtype.is_bool:
            data = self.random.integers(0, 2, shape)
        else:
            low = 0 if below or dtype.kind == "uint" else -3
            data = self.random.integers(low, below or 4, shape)
        self.case.inputs[tensor] = np.asarray(data).astype(numpy_dtype(dtype))
        return Known(tensor, dims, exact=True)

    def define(
        self,
        dims: Sequence[Dim],
        body: Callable[..., Any],
        exact: bool = False,
        finite: bool = True,
    ) -> Known:
        tensor: Any = te.compute([d.extent for d in dims], body, name=self.name("T"))
        return Known(tensor, tuple(dims), exact, finite)

    def formula(self, dtype: DType, depth: int) -> Formula:
        """A random expression over two reads of `dtype` and the axes."""
        if depth == 0:
            which = self.draw(st.integers(0, 2))
            number = self.draw(st.sampled_from((0, 1, 2)))
            constant = te.const(number % 2 if dtype.is_bool else number, dtype)
            return lambda reads, i: constant if which == 2 else reads[which]
        first, second = self.formula(dtype, depth - 1), self.formula(dtype, depth - 1)
        apply = self.draw(st.sampled_from(operators(dtype)))
        return lambda reads, i: apply(first(reads, i), second(reads, i), i)


def operators(dtype: DType) -> list[Callable[[Any, Any, tuple[Expr, ...]], Any]]:
    """Functions of two operands of `dtype` that stay in a sane range."""
    if dtype.is_bool:
        return [
            lambda a, b, i: a & b,
            lambda a, b, i: a | b,
            lambda a, b, i: a ^ b,
            lambda a, b, i: te.logical_not(a),
            lambda a, b, i: te.select(i[0] % 2 == 0, a, b) if i else a,
        ]
    common: list[Callable[[Any, Any, tuple[Expr, ...]], Any]] = [
        lambda a, b, i: a + b,
        lambda a, b, i: a - b,
        lambda a, b, i: a * b,
        lambda a, b, i: te.maximum(a, b),
        lambda a, b, i: te.minimum(a, b),
        lambda a, b, i: te.select(i[-1] < 5, a, b) if i else a,
        lambda a, b, i: te.if_then_else(i[0] % 2 == 1, a, b) if i else b,
    ]
    if dtype.is_integer:
        five = te.const(5, dtype)
        return [
            *common,
            lambda a, b, i: a // five,
            lambda a, b, i: a % five,
            lambda a, b, i: te.truncdiv(a, five),
            lambda a, b, i: (a ^ b) & five,
            lambda a, b, i: te.cast(te.cast(a, "int8"), dtype),
        ]
    one = te.const(1, dtype)
    if dtype.bits == 16:
        return [*common, lambda a, b, i: -a, lambda a, b, i: te.abs(a)]
    return [
        *common,
        lambda a, b, i: a / (te.abs(b) + one),
        lambda a, b, i: te.exp(te.minimum(a, one)),
        lambda a, b, i: te.tanh(a),
        lambda a, b, i: te.log(te.abs(a) + one),
        lambda a, b, i: te.erf(a),
        lambda a, b, i: te.sin(te.minimum(te.maximum(a, -one), one)),
        lambda a, b, i: te.sigmoid(a),
        lambda a, b, i: te.sqrt(te.abs(a) + one),
        lambda a, b, i: te.cast(te.cast(a, "float64"), dtype),
    ]
