"""Convolutions of one to three dimensions.  Imports `importer`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Expr
from tedsl.tensor import reduce
from tedsl.torch.elements.dtypes import constant
from tedsl.torch.elements.value import (
    Index,
    Indices,
    Value,
    cast_to,
    floor_parts,
    numbers,
    viewed,
)
from tedsl.torch.importer.context import Context
from tedsl.torch.importer.registry import Family, takes
from tedsl.torch.lib import aten
from tedsl.torch.operators.windows import spread
from tedsl.torch.refusals import NotTaken


@takes(
    Family.CONVOLUTION,
    aten.convolution.default,
    limits="1 to 3 dimensions, constant sizes but for the batch",
)
def convolution(
    context: Context,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    """A sum over a window and the channels of a group, of which padding is left out."""
    del output_padding
    spatial = weight.rank - 2
    known = numbers((*x.shape[1:], *weight.shape)) is not None
    if x.rank != weight.rank or not 1 <= spatial <= 3 or not known:
        raise NotTaken("a convolution without a batch, or of sizes known at the call only")
    steps = [spread(each, spatial) for each in (stride, padding, dilation)]
    window = Window(context, x, weight, steps, groups)
    found = window.transposed() if transposed else window.plain()
    result = context.dtype()
    if bias is None:
        return cast_to(found, result)

    def element(i: Indices) -> Expr:
        return build.rounded(found[i] + build.cast(bias[(i[1],)], found.dtype), result)

    return Value(found.shape, result, element, None, 2)


class Window:
    """One convolution: its operands, its axes of reduction and the reads at them."""

    def __init__(
        self,
        context: Context,
        x: Value,
        weight: Value,
        steps: Sequence[Sequence[int]],
        groups: int,
    ) -> None:
        self.context = context
        self.x, self.weight = context.held(x, "x"), context.held(weight, "weight")
        self.stride, self.padding, self.dilation = steps
        self.groups = groups
        self.dtype = DType.float32 if x.dtype.is_short_float else x.dtype

    def _term(self, x: Expr, weight: Expr) -> Expr:
        return build.cast(x, self.dtype) * build.cast(weight, self.dtype)

    def _sum(self, term: Expr, axes: Sequence[Axis]) -> Expr:
        tf32 = self.context.tf32(convolution=True)
        return reduce.sum(term, axes, dtype=self.dtype, tf32=tf32)

    def _name(self) -> str:
        return "sum" if self.dtype is not self.x.dtype else ""

    def _channel(self, i: Index, each: int, c: Axis, within: int) -> Index:
        """The channel of the input for one of the output: the `c`-th of its group."""
        if self.groups == 1:
            return c
        return build.as_expr(floor_parts(i, each)[0]) * within + c

    def _padded(self, ends: Sequence[tuple[int, int]]) -> Value:
        """The input with zeros around it, a stage; itself where there are none.

        The sum is then one of products without a condition, which the rules tile as one.
        """
        x = self.x
        if not any(map(any, ends)):
            return x
        sizes = x.shape[2:]
        around = [n + low + high for n, (low, high) in zip(sizes, ends, strict=True)]
        zero = constant(0, x.dtype)

        def element(i: Indices) -> Expr:
            at = [place - low for place, (low, _) in zip(i[2:], ends, strict=True)]
            tests = [build.ge(place, 0) for place in at]
            tests += [build.lt(place, n) for place, n in zip(at, sizes, strict=True)]
            return build.if_then_else(build.conjunction(tests), x[(*i[:2], *at)], zero)

        return self.context.stage((*x.shape[:2], *around), element, "padded")

    def plain(self) -> Value:
        """Each window of the input."""
        outputs, within, *_ = map(int, self.weight.shape)
        each = outputs // self.groups
        c = self.context.axis(within, "c")
        kernel = [self.context.axis(n, f"r{d}") for d, n in enumerate(self.weight.shape[2:])]
        source = self._padded([(each, each) for each in self.padding])

        def element(i: Indices) -> Expr:
            steps = zip(i[2:], kernel, self.stride, self.dilation, strict=True)
            at = [place * step + r * apart for place, r, step, apart in steps]
            x = source[(i[0], self._channel(i[1], each, c, within), *at)]
            term = self._term(x, self.weight[(i[1], c, *kernel)])
            return self._sum(term, [c, *kernel])

        return self.context.stage(self.context.shape(), element, self._name())

    def transposed(self) -> Value:
        """What each place of the output gets from the windows that reach it.

        Places that are a stride apart are reached by the same taps: for each remainder of the
        division by the stride (a phase) this is a plain convolution with those taps, and what is
        computed are the phases side by side.
        """
        inputs, each, *taps = map(int, self.weight.shape)
        within = inputs // self.groups
        result = self.context.shape()
        lengths = map(int, result[2:])
        phases = [
            Phases(*given)
            for given in zip(self.stride, self.padding, self.dilation, taps, lengths, strict=True)
        ]
        c = self.context.axis(within, "c")
        kernel = [self.context.axis(phase.count, f"r{d}") for d, phase in enumerate(phases)]
        weight = self._in_phases(phases)
        ends = [phase.ends(int(n)) for phase, n in zip(phases, self.x.shape[2:], strict=True)]
        source = self._padded(ends)
        kinds = [phase.stride for phase in phases]

        def element(i: Indices) -> Expr:
            own, places = i[1 : 1 + len(phases)], i[2 + len(phases) :]
            outer = i[1 + len(phases)]
            parts = zip(phases, places, own, kernel, ends, strict=True)
            at = [p.source(place, b, r) + low for p, place, b, r, (low, _) in parts]
            channel = self._channel(outer, each, c, within)
            inner = outer if self.groups == 1 else floor_parts(outer, each)[1]
            term = self._term(source[(i[0], channel, *at)], weight[(*own, channel, inner, *kernel)])
            return self._sum(term, [c, *kernel])

        shape = (result[0], *kinds, result[1], *(phase.places for phase in phases))
        found = self.context.stage(shape, element, "phases")

        def at(i: Indices) -> list[Index]:
            parts = [p.parts(place) for p, place in zip(phases, i[2:], strict=True)]
            return [i[0], *(b for _, b in parts), i[1], *(place for place, _ in parts)]

        return viewed(found, result, at)

    def _in_phases(self, phases: Sequence[Phases]) -> Value:
        """The weight by the phase, the channels, and the number of a tap in its phase; 0 for taps
        that a phase has less than another."""
        weight, rank = self.weight, len(phases)
        shape = (*(p.stride for p in phases), *weight.shape[:2], *(p.count for p in phases))

        def element(i: Indices) -> Expr:
            parts = zip(phases, i[:rank], i[2 + rank :], strict=True)
            found = [phase.tap(b, q) for phase, b, q in parts]
            value = weight[(*i[rank : 2 + rank], *(tap for tap, _ in found))]
            tests = [test for _, own in found for test in own]
            if not tests:
                return value
            return build.if_then_else(build.conjunction(tests), value, constant(0, weight.dtype))

        read = Value(shape, weight.dtype, element)
        return (
            read
            if all(p.stride == 1 for p in phases)
            else self.context.held(Value(shape, weight.dtype, element, None, 1), "taps")
        )


@dataclass(frozen=True, slots=True)
class Phases:
    """One dimension of a transposed convolution by the remainders of a place, which is
    `stride * n + b`: the taps that reach it are `tap = step * q + first(b)`, and the element of the
    input is `n - dilation / common * q + (b + padding - dilation * first(b)) / stride`.
    """

    stride: int
    padding: int
    dilation: int
    taps: int
    length: int

    @property
    def common(self) -> int:
        """Only remainders that it divides are reached at all."""
        return math.gcd(self.stride, self.dilation)

    @property
    def step(self) -> int:
        """From one tap of a phase to the next."""
        return self.stride // self.common

    @property
    def count(self) -> int:
        """Taps of a phase, the most of all."""
        return -(-self.taps // self.step)

    @property
    def places(self) -> int:
        """How many `n` there are."""
        return -(-self.length // self.stride)

    def first(self, b: Index) -> Index:
        """The first tap of a phase."""
        if self.step == 1:
            return 0
        inverse = pow(self.dilation // self.common, -1, self.step)
        return (build.as_expr(b) + self.padding) // self.common * inverse % self.step

    def parts(self, place: Index) -> tuple[Index, Index]:
        """`n` and the phase of a place of the output."""
        return floor_parts(place, self.stride)

    def tap(self, b: Index, q: Index) -> tuple[Index, list[Expr]]:
        """The `q`-th tap of a phase, and the conditions under which there is one."""
        found = self.first(b) + q * self.step
        tests = [build.lt(found, self.taps)] if self.taps % self.step else []
        if self.common > 1:
            tests.append(build.eq(build.floormod(b + self.padding, self.common), 0))
        return found, tests

    def source(self, place: Index, b: Index, q: Index) -> Index:
        """The element of the input, which may lie outside of it."""
        shift = (build.as_expr(b) + self.padding - self.dilation * self.first(b)) // self.stride
        return place + shift - q * (self.dilation // self.common)

    def ends(self, size: int) -> tuple[int, int]:
        """Zeros before and after an input of this size."""
        apart = self.dilation // self.common
        inverse = pow(apart, -1, self.step) if self.step > 1 else 0
        placed = range(self.padding, self.padding + self.stride)
        shifts = [
            (b - self.dilation * (b // self.common * inverse % self.step)) // self.stride
            for b in placed
        ]
        low = min(shifts) - (self.count - 1) * apart
        high = self.places - 1 + max(shifts)
        return max(0, -low), max(0, high - (size - 1))
