"""What a converter may ask for: the fake result, stages, checks of indices.

Imports `elements` and the language.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Expr, Reduce
from tedsl.expr.visit import structural_equal
from tedsl.tensor.axis import reduce_axis
from tedsl.tensor.compute import compute
from tedsl.tensor.tensor import ComputeOp, Tensor
from tedsl.torch import precision
from tedsl.torch.elements.dtypes import dtype_of
from tedsl.torch.elements.sizes import Sizes
from tedsl.torch.elements.value import (
    ElementOf,
    Index,
    Indices,
    Shape,
    Size,
    Value,
    as_index,
    permuted,
    same_shape,
    whole,
)
from tedsl.torch.lib import torch
from tedsl.torch.refusals import NotTaken


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """`low <= value < high` for all elements, which PyTorch raises an error without.  Of an `index`
    it raises on every device, on a GPU from within the kernel."""

    value: Value
    low: Size
    high: Size
    index: bool = False


def _same_fold(one: Tensor, other: Tensor) -> bool:
    """True for reductions with one operator of the same elements."""
    a, b = one.op, other.op
    if not isinstance(a, ComputeOp) or not isinstance(b, ComputeOp):
        return False
    first, second = a.bodies[0], b.bodies[0]
    folded = list(zip(a.reduce_axes, b.reduce_axes, strict=False))
    if not isinstance(first, Reduce) or not isinstance(second, Reduce):
        return False
    operator, ranges = first.reducer.operator, [(x.domain, y.domain) for x, y in folded]
    alike = operator is not None and operator is second.reducer.operator
    alike = (
        alike and same_shape(one.shape, other.shape) and len(a.reduce_axes) == len(b.reduce_axes)
    )
    alike = alike and all(x and y and structural_equal(x.extent, y.extent) for x, y in ranges)
    return alike and structural_equal(
        first, second, dict([*zip(a.axes, b.axes, strict=True), *folded])
    )


class Context:
    """One node on its way to tensor expressions.

    Attributes:
        sizes: of the graph.
        name: of the node; its stages are called so.
        target: the operator; None of what is no node.
        fakes: the arguments as PyTorch's fake tensors and numbers, in the order of the schema.
        result: the fake result.
        checks: what has to hold of indices, of all nodes so far.
        folds: the reductions of all nodes so far: the same one is computed once, be it a mean or
            the middle of a variance.
        read: which of several results are read.
        order: the dimensions of the result from the outermost in memory on, where it is one tensor
            that is not row-major and has no gaps.
    """

    def __init__(
        self,
        sizes: Sizes,
        name: str,
        fakes: Sequence[Any],
        result: Any,
        checks: list[Check],
        target: Any = None,
        read: Collection[int] = (),
        order: tuple[int, ...] | None = None,
        folds: list[Tensor] | None = None,
    ) -> None:
        self.sizes = sizes
        self.name = name
        self.fakes = tuple(fakes)
        self.result = result
        self.checks = checks
        self.target = target
        self.read = frozenset(read)
        self.order = order
        self.folds: list[Tensor] = [] if folds is None else folds

    def shape(self, output: int | None = None) -> Shape:
        """The shape of the result, or of one of several."""
        fake = self.result if output is None else self.result[output]
        return self.sizes.shape(fake.shape)

    def dtype(self, output: int | None = None) -> DType:
        """The type of the result, or of one of several."""
        fake = self.result if output is None else self.result[output]
        return dtype_of(fake.dtype)

    def tf32(self, convolution: bool = False) -> bool:
        """True where PyTorch's settings let the factors of this product be rounded to TF32, and
        that saves time."""
        tensors = [each for each in self.fakes if isinstance(each, torch.Tensor)]
        wide = all(each.is_cuda and each.dtype is torch.float32 for each in tensors)
        if not wide or not precision.rounds(convolution):
            return False
        return precision.rounding_saves(self.target, self.fakes, self.result)

    def stage(self, shape: Shape, element: ElementOf, name: str = "") -> Value:
        """A tensor of its own, defined element by element; of the result's shape it lies in memory
        as the result does."""
        order = self.order
        if order is None or not same_shape(shape, self.shape()):
            return whole(self._computed(shape, element, name))
        back = [order.index(d) for d in range(len(order))]

        def laid(i: Indices) -> Expr:
            return element(tuple(i[n] for n in back))

        return permuted(self._computed(tuple(shape[d] for d in order), laid, name), order)

    def _computed(self, shape: Shape, element: ElementOf, name: str) -> Tensor:
        called = f"{self.name}.{name}" if name else self.name
        made = compute(shape, lambda *i: element(i), name=called)
        if not isinstance(made.op, ComputeOp) or not made.op.reduce_axes:
            return made
        known = next((each for each in self.folds if _same_fold(each, made)), made)
        self.folds += [made] if known is made else []
        return known

    def stages(self, shape: Shape, elements: Any, name: str = "") -> tuple[Value, ...]:
        """Several outputs of one operation: `elements` gives a tuple."""
        called = f"{self.name}.{name}" if name else self.name
        made = compute(shape, lambda *i: elements(i), name=called)
        return tuple(whole(each) for each in cast("tuple[Tensor, ...]", made))

    def tensor(self, value: Value, name: str = "in") -> Tensor:
        """The value as a whole tensor; a stage where it is not one."""
        if value.tensor is not None:
            return value.tensor
        return self._computed(value.shape, value.element, name)

    def held(self, value: Value, name: str = "in") -> Value:
        """The value computed once: what is more than a read becomes a stage."""
        return value if value.work == 0 else whole(self.tensor(value, name))

    def axis(self, extent: Size, name: str = "k") -> Axis:
        """An axis to reduce over."""
        return reduce_axis((0, extent), name=name)

    def unread(self, shape: Shape, dtype: DType) -> Value:
        """One of several results, which is not in `read`."""

        def element(_: Indices) -> Expr:
            raise NotTaken(f"a result of {self.name} that nobody was to read")

        return Value(shape, dtype, element)

    def index(self, value: Value, i: Indices, extent: Size) -> Expr:
        """An element that counts along `extent`, negative ones from its end, as an index.

        It is kept inside, for the sake of memory; `checked` says what is right.
        """
        found = as_index(value[i])
        wrapped = build.select(build.lt(found, 0), found + extent, found)
        return build.minimum(build.maximum(wrapped, 0), build.sub(extent, 1))

    def checked(self, value: Value, extent: Size, negative: bool = True) -> None:
        """The call is PyTorch's where an element is no index along `extent`."""
        low: Index = build.neg(build.as_expr(extent)) if negative else 0
        self.checks.append(Check(value, low, extent, index=True))

    def require_computed(self, value: Value) -> None:
        """Refuse 8-bit floats, which are only stored."""
        if value.dtype.is_float8:
            raise NotTaken(f"nothing is computed in {value.dtype}")


def remembered(element: ElementOf) -> ElementOf:
    """The function, which gives the same object to those who ask for one element in turn."""
    last: list[tuple[Indices, Expr]] = []

    def asked(i: Indices) -> Expr:
        if last and len(last[0][0]) == len(i):
            known, found = last[0]
            if all(_same(a, b) for a, b in zip(known, i, strict=True)):
                return found
        found = element(i)
        last[:] = [(i, found)]
        return found

    return asked


def _same(a: Index, b: Index) -> bool:
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)
