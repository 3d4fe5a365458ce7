"""Convolutions of one to three dimensions.  Imports `importer`."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Expr
from tedsl.tensor import reduce
from tedsl.torch.elements.value import Index, Indices, Value, cast_to, floor_parts, numbers
from tedsl.torch.importer.context import Context
from tedsl.torch.importer.registry import Family, takes
from tedsl.torch.lib import aten
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
    if x.rank != weight.rank or not 1 <= spatial <= 3 or numbers(x.shape[1:]) is None:
        raise NotTaken("a convolution without a batch, or of sizes known at the call only")
    steps = [_spread(each, spatial) for each in (stride, padding, dilation)]
    window = Window(context, x, weight, steps, groups)
    found = window.transposed() if transposed else window.plain()
    result = context.dtype()
    if bias is None:
        return cast_to(found, result)

    def element(i: Indices) -> Expr:
        return build.rounded(found[i] + build.cast(bias[(i[1],)], found.dtype), result)

    return Value(found.shape, result, element, None, 2)


def _spread(given: Sequence[int], spatial: int) -> list[int]:
    """One number for each spatial dimension."""
    return list(given) * spatial if len(given) == 1 else list(given)


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
        self.kernel = [
            context.axis(extent, f"r{d}") for d, extent in enumerate(self.weight.shape[2:])
        ]

    def _sum(self, terms: Expr, axes: list[Axis], tests: list[Expr]) -> Expr:
        where = build.conjunction(tests) if tests else None
        return reduce.sum(terms, axes, where=where, dtype=self.dtype)

    def _term(self, at: Sequence[Index], of: Sequence[Index]) -> Expr:
        return build.cast(self.x[at], self.dtype) * build.cast(self.weight[of], self.dtype)

    def _name(self) -> str:
        return "sum" if self.dtype is not self.x.dtype else ""

    def plain(self) -> Value:
        """Each window of the input."""
        outputs = self.weight.shape[0]
        assert isinstance(outputs, int)
        within, each = self.weight.shape[1], outputs // self.groups
        c = self.context.axis(within, "c")

        def element(i: Indices) -> Expr:
            tests: list[Expr] = []
            at: list[Index] = []
            for d, r in enumerate(self.kernel):
                place = i[2 + d] * self.stride[d] + r * self.dilation[d] - self.padding[d]
                at.append(place)
                if self.padding[d]:
                    tests += [build.ge(place, 0), build.lt(place, self.x.shape[2 + d])]
            group: Index = floor_parts(i[1], each)[0] if self.groups > 1 else 0
            channel = build.as_expr(group) * within + c if self.groups > 1 else c
            terms = self._term((i[0], channel, *at), (i[1], c, *self.kernel))
            return self._sum(terms, [c, *self.kernel], tests)

        return self.context.stage(self.context.shape(), element, self._name())

    def transposed(self) -> Value:
        """What each place of the output gets from the windows that reach it."""
        inputs, each = self.weight.shape[0], self.weight.shape[1]
        assert isinstance(inputs, int)
        within = inputs // self.groups
        c = self.context.axis(within, "c")

        def element(i: Indices) -> Expr:
            tests: list[Expr] = []
            at: list[Index] = []
            for d, r in enumerate(self.kernel):
                reach = i[2 + d] + self.padding[d] - r * self.dilation[d]
                place: Index = reach
                if self.stride[d] != 1:
                    place, rest = floor_parts(reach, self.stride[d])
                    tests.append(build.eq(rest, 0))
                at.append(place)
                tests += [build.ge(reach, 0), build.lt(place, self.x.shape[2 + d])]
            if self.groups > 1:
                group, own = floor_parts(i[1], each)
                channel: Index = build.as_expr(group) * within + c
            else:
                channel, own = c, i[1]
            terms = self._term((i[0], channel, *at), (channel, own, *self.kernel))
            return self._sum(terms, [c, *self.kernel], tests)

        return self.context.stage(self.context.shape(), element, self._name())
