"""How a PyTorch tensor lies in memory, and how a kernel reads or writes it there without a copy.

Kernels take row-major arrays.  A tensor whose dimensions lie in another order (channels last, a
transpose) is a row-major array of permuted dimensions; dimensions of stride 0 are read at 0; any
other strided tensor is its whole memory as one dimension, read at the sum of index times stride.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tedsl.torch.elements.sizes import Sizes
from tedsl.torch.elements.value import (
    Index,
    Indices,
    Shape,
    Size,
    Value,
    number_of,
    viewed,
    whole,
)
from tedsl.torch.lib import torch
from tedsl.torch.refusals import CompilerFault, NotTaken

_OTHERWISE = "a tensor does not repeat the memory that its fake one does"


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where the elements of a tensor of `shape` are.

    Attributes:
        shape: the extents that PyTorch has.
        order: its dimensions from the outermost in memory, without those of stride 0; None where
            memory has gaps.
        strides: in elements; numbers where `order` is None.
    """

    shape: Shape
    order: tuple[int, ...] | None
    strides: tuple[Size, ...]

    @property
    def memory(self) -> Shape:
        """The shape of the row-major array."""
        if self.order is not None:
            return tuple(self.shape[d] for d in self.order)
        return (1 + sum((n - 1) * s for n, s in self._steps()),)

    def _steps(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for extent, stride in zip(self.shape, self.strides, strict=True):
            assert isinstance(extent, int) and isinstance(stride, int)
            found.append((extent, stride))
        return found

    @property
    def plain(self) -> bool:
        """True of a row-major tensor."""
        return self.order == tuple(range(len(self.shape)))

    @property
    def places(self) -> tuple[int, ...] | None:
        """For each dimension that of the row-major array; None of memory with gaps, or that is
        several elements."""
        if self.order is None or len(self.order) < len(self.shape):
            return None
        return tuple(map(self.order.index, range(len(self.shape))))

    def value(self, array: Value) -> Value:
        """The tensor of which `array` is the memory."""
        if self.plain:
            return array
        order = self.order
        if order is not None:
            return viewed(array, self.shape, lambda i: [i[d] for d in order])
        steps = self._steps()

        def at(i: Indices) -> Sequence[Index]:
            place: Index = 0
            for each, (extent, stride) in zip(i, steps, strict=True):
                if stride and extent != 1:
                    place = place + each * stride
            return (place,)

        return viewed(array, self.shape, at)

    def array(self, tensor: Any) -> Any:
        """The memory of a tensor of this layout as a row-major one; a copy where it lies
        otherwise.

        Raises:
            CompilerFault: elements that were to be the same memory are not.
        """
        if self.plain:
            return tensor if tensor.is_contiguous() else tensor.contiguous()
        if self.order is None:
            if tuple(tensor.stride()) != self.strides:
                if 0 in self.strides:
                    raise CompilerFault(_OTHERWISE)
                tensor = _strided(self, tensor).copy_(tensor)
            return torch.as_strided(tensor, self.memory, (1,), tensor.storage_offset())
        for d in reversed(range(len(self.shape))):
            if d not in self.order:
                if tensor.stride(d) != 0 and tensor.shape[d] > 1:
                    raise CompilerFault(_OTHERWISE)
                tensor = tensor.select(d, 0)
        left = sorted(self.order)
        found = tensor.permute([left.index(d) for d in self.order])
        return found if found.is_contiguous() else found.contiguous()

    def written(self, value: Value) -> Value:
        """What is computed as a row-major array for a result of this layout."""
        order = self.order if self.order is not None else tuple(range(len(self.shape)))
        if order == tuple(range(len(self.shape))):
            return value
        if value.laid is not None and value.laid[1] == order:
            return whole(value.laid[0])
        place = {d: n for n, d in enumerate(order)}

        def at(i: Indices) -> Sequence[Index]:
            return [i[place[d]] if d in place else 0 for d in range(len(self.shape))]

        return viewed(value, tuple(self.shape[d] for d in order), at)

    def result(self, array: Any, shape: Sequence[int]) -> Any:
        """The tensor of this layout and of `shape` over what was written."""
        if self.plain:
            return array
        if self.order is None:
            if 0 in self.strides:  # the same memory several times: nothing can be written there
                return array
            return _strided(self, array).copy_(array)
        left = sorted(self.order)
        found = array.permute([self.order.index(d) for d in left])
        for d in range(len(self.shape)):
            if d not in self.order:
                found = found.unsqueeze(d)
        return found.expand(shape) if len(left) < len(self.shape) else found


def _strided(layout: Layout, like: Any) -> Any:
    """Memory of a layout, of the type and on the device of another tensor."""
    return torch.empty_strided(layout.shape, layout.strides, dtype=like.dtype, device=like.device)


def layout_of(fake: Any, sizes: Sizes) -> Layout:
    """The layout of a fake tensor.

    Raises:
        NotTaken: memory with gaps whose sizes are known at the call only, or sparse memory.
    """
    if fake.layout is not torch.strided:
        raise NotTaken("a tensor without strides")
    shape, strides = sizes.shape(fake.shape), sizes.shape(fake.stride())
    if any(number_of(extent) == 0 for extent in shape):
        return Layout(shape, tuple(range(len(shape))), strides)
    order = _order(fake)
    if order is None and not all(isinstance(each, int) for each in (*shape, *strides)):
        raise NotTaken("memory with gaps, of sizes that are known at the call only")
    return Layout(shape, order, strides)


def order_of(fake: Any) -> tuple[int, ...] | None:
    """All dimensions of a fake tensor from the outermost in memory on, where they fill it and it is
    not row-major."""
    if not isinstance(fake, torch.Tensor) or fake.layout is not torch.strided:
        return None
    if any(type(n) is int and n == 0 for n in fake.shape):  # a symbol may not be asked
        return None
    order = _order(fake)
    every = tuple(range(fake.ndim))
    return order if order is not None and order != every and len(order) == fake.ndim else None


def _order(fake: Any) -> tuple[int, ...] | None:
    """The dimensions from the outermost in memory if they fill it, else None."""
    shape, strides = list(map(symbolic, fake.shape)), list(map(symbolic, fake.stride()))
    every = tuple(range(len(shape)))
    if _fills(shape, strides, every):
        return every
    kept = [d for d in every if strides[d] != 0 or shape[d] == 1]
    steps = {d: _example(stride) for d, stride in enumerate(fake.stride())}
    wide = sorted((d for d in kept if shape[d] != 1), key=lambda d: (-steps[d], d))
    order = tuple([d for d in kept if shape[d] == 1] + wide)
    return order if _fills(shape, strides, order) else None


def symbolic(size: Any) -> Any:
    """A size as a number or as the expression that PyTorch has of it."""
    return size if isinstance(size, int) else size.node.expr


def _example(size: Any) -> int:
    """What a size is in the example that PyTorch traced, 0 where that is not known."""
    return size if isinstance(size, int) else int(size.node.hint or 0)


def _fills(shape: Sequence[Any], strides: Sequence[Any], order: Sequence[int]) -> bool:
    expected: Any = 1
    for d in reversed(order):
        if shape[d] == 1:
            continue
        if not bool(strides[d] == expected):
            return False
        expected = expected * shape[d]
    return True
