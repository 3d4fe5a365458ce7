"""A tensor of the graph as a function from indices to an element.

Views of PyTorch (`permute`, `slice`, `expand`, reshapes of what is contiguous) are other functions
of the same element: no stage, no copy.  Imports `expr` and `elements.dtypes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Const, Expr
from tedsl.expr.wider import holds
from tedsl.tensor.tensor import Tensor, read
from tedsl.torch.elements.dtypes import constant, saturated

Size: TypeAlias = "int | Expr"
Index: TypeAlias = "int | Expr"
Indices: TypeAlias = tuple[Index, ...]
Shape: TypeAlias = tuple[Size, ...]
ElementOf: TypeAlias = Callable[[Indices], Expr]


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """`element(i)` for every index `i` of `shape`.

    Attributes:
        shape: extents; numbers, or expressions of runtime sizes.
        dtype: that of every element.
        element: from as many indices as there are extents.
        tensor: the whole tensor of the language whose elements these are at the same indices, where
            there is one.
        work: operations that an element takes; 0 of what is only read or constant.
        laid: the whole tensor that this is a permutation of, and the order of the dimensions there.
    """

    shape: Shape
    dtype: DType
    element: ElementOf
    tensor: Tensor | None = None
    work: int = 0
    laid: tuple[Tensor, tuple[int, ...]] | None = None

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __getitem__(self, indices: Sequence[Index]) -> Expr:
        return self.element(tuple(indices))


def whole(tensor: Tensor) -> Value:
    """A tensor of the language."""
    shape = tuple(int(n.value) if isinstance(n, Const) else n for n in tensor.shape)
    return Value(shape, tensor.dtype, lambda i: read(tensor, i), tensor)


def permuted(tensor: Tensor, order: tuple[int, ...]) -> Value:
    """A tensor whose dimensions are those of the value in this order."""
    array = whole(tensor)
    shape = tuple(array.shape[order.index(d)] for d in range(len(order)))

    def element(i: Indices) -> Expr:
        return array.element(tuple(i[d] for d in order))

    return Value(shape, array.dtype, element, None, 0, (tensor, order))


def filled(number: float, shape: Shape, dtype: DType) -> Value:
    """The same number everywhere."""
    value = constant(number, dtype)
    return Value(shape, dtype, lambda _: value)


def viewed(value: Value, shape: Shape, at: Callable[[Indices], Sequence[Index]]) -> Value:
    """The elements of `value` under other indices: `at` is from those to these."""
    return Value(shape, value.dtype, lambda i: value.element(tuple(at(i))), None, value.work)


def cast_to(value: Value, dtype: DType) -> Value:
    """The elements as `dtype`; the same value when they are.  Where a float is only read into more
    bits, that is part of reading it."""
    if value.dtype is dtype:
        return value
    read_wider = value.work == 0 and value.dtype.is_float and holds(dtype, value.dtype)

    def element(i: Indices) -> Expr:
        return build.rounded(saturated(value.element(i), dtype), dtype)

    return Value(value.shape, dtype, element, None, 0 if read_wider else value.work + 1)


def broadcast(value: Value, shape: Shape) -> Value:
    """`value` repeated to `shape`: its extents of 1, and dimensions in front."""
    if same_shape(value.shape, shape):
        return value
    lead = len(shape) - value.rank
    # where both are 1, the index is that of the result: what it reads lies as it does
    pairs = zip(value.shape, shape[lead:], strict=True)
    kept = [is_one(wide) or not is_one(extent) for extent, wide in pairs]

    def at(i: Indices) -> list[Index]:
        return [each if keep else 0 for each, keep in zip(i[lead:], kept, strict=True)]

    return viewed(value, shape, at)


def is_one(extent: Size) -> bool:
    """True for the constant 1."""
    return same_size(extent, 1)


def number_of(extent: Size) -> int | None:
    """The number that an extent is, None of one that is not known before the call."""
    if isinstance(extent, int):
        return extent
    return int(extent.value) if isinstance(extent, Const) else None


def same_size(a: Size, b: Size) -> bool:
    """True for equal numbers and expressions of the same text."""
    known = number_of(a), number_of(b)
    if None in known:
        return a is b or (known == (None, None) and str(a) == str(b))
    return known[0] == known[1]


def same_shape(a: Shape, b: Shape) -> bool:
    """True when all extents are the same."""
    return len(a) == len(b) and all(map(same_size, a, b))


def numbers(shape: Shape) -> tuple[int, ...] | None:
    """The extents as numbers, None where one is not known before the call."""
    found = [number_of(extent) for extent in shape]
    return tuple(n for n in found if n is not None) if None not in found else None


def product(extents: Sequence[Size]) -> Size:
    """The number of elements."""
    count: Size = 1
    for extent in extents:
        count = count * extent
    known = number_of(count)
    return count if known is None else known


def floor_parts(index: Index, extent: Size) -> tuple[Index, Index]:
    """`index // extent` and `index % extent`."""
    if isinstance(index, int) and isinstance(extent, int):
        return divmod(index, extent) if extent else (0, 0)
    return build.floordiv(index, extent), build.floormod(index, extent)


def as_index(value: Expr) -> Expr:
    """An element as an index.

    Raises:
        ExprError: not an integer.
    """
    if not value.dtype.is_integer:
        raise ExprError(f"an index is {value.dtype}", hint="index with integers")
    return value if value.dtype in (DType.int32, DType.int64) else build.cast(value, DType.int32)
