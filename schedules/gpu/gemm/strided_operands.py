"""GEMM operands of which a product reads parts, with a stride, from a slice or at computed places
of one dimension: what it reads is copied, with a dimension for each axis.

    for i, j: for k: C[i, j] += A[i, k] * B[k * 830 + j * 2]      with j in 0..415
    --> for k, j: B.global[k, j] = B[k * 830 + j * 2]
        for i, j: for k: C[i, j] += A[i, k] * B.global[k, j]

`gpu/gemm/operand_layouts.py` asks for it, and says in which order the dimensions lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tedsl.expr.nodes import Axis, Const, Expr, TensorRead
from tedsl.expr.visit import axes_of, reads
from tedsl.index.affine import coefficients
from tedsl.schedules.analysis.nests import computed
from tedsl.schedules.analysis.views import extent_of, size_of
from tedsl.schedules.loops import lay_in_order
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.compute import placeholder
from tedsl.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Digit:
    """A part of an index, `index % (places * stride) // stride`: from `start` on so many places,
    one for each element of an axis, or one where it is no axis."""

    axis: Axis | None = field(compare=False)
    stride: int
    start: int
    extent: int
    places: int


@dataclass(frozen=True, slots=True)
class Parts:
    """The digits of each index by which a tensor of these sizes is read."""

    digits: tuple[tuple[Digit, ...], ...]
    sizes: tuple[int, ...]

    @property
    def kept(self) -> tuple[Digit, ...]:
        """The digits that are axes: the dimensions of what is read."""
        return tuple(each for digits in self.digits for each in digits if each.axis is not None)

    @property
    def points(self) -> int:
        """How many elements are read."""
        return math.prod(each.extent for each in self.kept)

    @property
    def steps(self) -> tuple[int, ...]:
        """By how many elements of the tensor each of those dimensions moves on."""
        return tuple(each.stride * step for each, step in self._places if each.axis is not None)

    @property
    def begin(self) -> int:
        """The place of the first element that is read."""
        return sum(each.start * each.stride * step for each, step in self._places)

    @property
    def _places(self) -> list[tuple[Digit, int]]:
        """Each digit, and the elements behind one of its index."""
        beyond = [math.prod(self.sizes[n + 1 :]) for n in range(len(self.sizes))]
        groups = zip(self.digits, beyond, strict=True)
        return [(each, step) for digits, step in groups for each in digits]

    def read(self, tensor: Tensor) -> TensorRead:
        """How what is read would be read of a tensor that has no more than that."""
        shape = tuple(each.extent for each in self.kept)
        axes = tuple(each.axis for each in self.kept if each.axis is not None)
        return TensorRead(placeholder(shape, tensor.dtype), axes)


def parts_of(read: TensorRead) -> Parts | None:
    """The parts of the indices of a read; None where indices of elements overlap, as in the windows
    of a convolution, or are not known."""
    sizes = [size_of(extent) for extent in read.tensor.shape]
    found: list[tuple[Digit, ...]] = []
    for index, size in zip(read.indices, sizes, strict=True):
        digits = None if size is None else _digits(index, size)
        if digits is None:
            return None
        found.append(digits)
    known = tuple(size for size in sizes if size is not None)
    parts = Parts(tuple(found), known)
    axes = {each.axis for each in parts.kept}
    return parts if len(axes) == len(parts.kept) > 1 else None


def _digits(index: Expr, size: int) -> tuple[Digit, ...] | None:
    axes = list(axes_of(index))
    known = None if reads(index) else coefficients(index, axes)
    if known is None or not isinstance(known[1], Const):
        return None
    left = size_of(known[1])
    steps = [(known[0].get(axis, 0), axis) for axis in axes if extent_of(axis) != 1]
    from_0 = all(axis.domain is not None and size_of(axis.domain.min) == 0 for axis in axes)
    if left is None or left < 0 or not from_0 or any(step < 1 for step, _ in steps):
        return None
    found: list[Digit] = []
    end = size
    for step, axis in sorted(steps, key=lambda each: -each[0]):
        extent, start = extent_of(axis), left // step
        if extent is None or start + extent > -(-end // step):
            return None
        found.append(Digit(axis, step, start, extent, -(-end // step)))
        end, left = step, left % step
    if end > 1:
        found.append(Digit(None, 1, left, 1, end))
    inside = 0
    for digit in reversed(found):
        if inside >= digit.stride:
            return None
        inside += (digit.start + digit.extent - 1) * digit.stride
    return tuple(found) if inside < size else None


def take_apart(
    s: Schedule, tensor: Tensor, users: Sequence[str], parts: Parts, order: Sequence[int]
) -> Stage:
    """A copy of the parts of a tensor, for those who read no more of it; `order` numbers its
    dimensions from the outermost on."""
    copy = s[s.cache_read(tensor, "global", list(users))]
    digits = [each for group in parts.digits for each in group]

    def place(*indices: Expr) -> tuple[Expr, ...]:
        made: list[Expr] = []
        for index, group in zip(indices, parts.digits, strict=True):
            for digit in group:
                whole = index if digit.stride == 1 else index // digit.stride
                made.append(whole)
                index = index % digit.stride
        return tuple(made)

    copy.transform_layout(place)
    for number, digit in enumerate(digits):
        copy = _only(s, copy, number, digit)
    dimensions = [n for n, each in enumerate(digits) if each.axis is not None]
    lay_in_order(copy, [dimensions[n] for n in order])
    return copy


def _only(s: Schedule, copy: Stage, number: int, digit: Digit) -> Stage:
    """The places of one dimension that are read; nothing computes the others."""
    if digit.start:
        rest, kept = s.divide(copy, _axis(copy, number), digit.start)
        s[rest].compute_inline()
        copy = s[kept]
    if digit.start + digit.extent < digit.places:
        kept, rest = s.divide(copy, _axis(copy, number), digit.extent)
        s[rest].compute_inline()
        copy = s[kept]
    return copy


def _axis(copy: Stage, number: int) -> Axis:
    return computed(copy).axes[number]
