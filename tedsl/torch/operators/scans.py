"""Running sums, products and extremes.  Imports `importer`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Expr
from tedsl.nn.indexing import cumsum as nn_cumsum
from tedsl.tensor import math as te
from tedsl.tensor.compute import compute, placeholder
from tedsl.tensor.scan import scan
from tedsl.tensor.tensor import Tensor, read
from tedsl.torch.elements.value import Indices, Value, cast_to, filled, number_of, viewed, whole
from tedsl.torch.importer.context import Context
from tedsl.torch.importer.registry import Converted, Family, takes
from tedsl.torch.lib import aten

States: TypeAlias = Callable[[Indices], Sequence[Expr]]
Following: TypeAlias = Callable[[Sequence[Expr], Indices], Sequence[Expr]]


@takes(Family.SCAN, aten.cumsum.default)
def cumsum(context: Context, x: Value, dim: int, *_: Any) -> Value:
    """The sum of all elements up to each one."""
    result = context.dtype()
    if x.rank == 0:
        return cast_to(x, result)
    work = _accumulated_in(context, result)
    source = context.tensor(x if x.dtype is result else cast_to(x, result))
    sums = whole(nn_cumsum(source, axis=dim, dtype=work, name=f"{context.name}.scan"))
    return cast_to(sums, result)


def _accumulated_in(context: Context, dtype: DType) -> DType:
    """What running sums and products of a type are kept in, as PyTorch's are (its `acc_type`):
    float64 for float32 on the CPU, where each step's rounding would stay in all that follow."""
    if dtype is DType.float32 and context.result.device.type == "cpu":
        return DType.float64
    return DType.float32 if dtype.is_short_float else dtype


class Along:
    """A scan along one dimension of a value, which is put in front.

    Args:
        context: of the node.
        x: what is scanned, of at least one element, computed once.
        dim: the dimension.
    """

    def __init__(self, context: Context, x: Value, dim: int) -> None:
        self.context, self.x = context, x
        self.d = dim + x.rank if dim < 0 else dim
        self.others = (*x.shape[: self.d], *x.shape[self.d + 1 :])

    @property
    def step_dtype(self) -> DType:
        """What numbers the steps."""
        return build.as_expr(self.x.shape[self.d]).dtype

    def term(self, i: Indices) -> Expr:
        """The element that step `i[0]` takes."""
        return self.x[(*i[1 : self.d + 1], i[0], *i[self.d + 1 :])]

    def run(self, dtypes: Sequence[DType], first: States, following: Following) -> list[Value]:
        """States after each step, laid out as the value is.

        Args:
            dtypes: of the states.
            first: from an index to the states at step 0.
            following: from the states before and an index to those after.
        """
        name = self.context.name
        shape: tuple[Expr | int, ...] = (self.x.shape[self.d], *self.others)
        start: tuple[Expr | int, ...] = (1, *self.others)
        states = [
            placeholder(shape, dtype, name=f"{name}.state{n}") for n, dtype in enumerate(dtypes)
        ]

        def step(*i: Axis) -> Any:
            before = [read(state, (build.sub(i[0], 1), *i[1:])) for state in states]
            found = list(following(before, i))
            return found[0] if len(found) == 1 else tuple(found)

        def begin(*i: Axis) -> Any:
            found = list(first((0, *i[1:])))
            return found[0] if len(found) == 1 else tuple(found)

        starts = _several(compute(start, begin, name=f"{name}.first"))
        steps = _several(compute(shape, step, name=f"{name}.step"))
        made = scan(starts, steps, states, name=f"{name}.scan")
        return [
            viewed(whole(each), self.x.shape, lambda i: (i[self.d], *i[: self.d], *i[self.d + 1 :]))
            for each in _several(made)
        ]


def _several(made: Any) -> list[Tensor]:
    """What a definition gives, one tensor or some."""
    given: Sequence[Tensor] = [made] if isinstance(made, Tensor) else made
    return list(given)


def _empty(x: Value) -> bool:
    return any(number_of(extent) == 0 for extent in x.shape)


@takes(Family.SCAN, aten.cumprod.default)
def cumprod(context: Context, x: Value, dim: int, *_: Any) -> Value:
    """The product of all elements up to each one."""
    result = context.dtype()
    if x.rank == 0:
        return cast_to(x, result)
    if _empty(x):
        return filled(1, x.shape, result)
    work = _accumulated_in(context, result)
    along = Along(context, cast_to(cast_to(context.held(x), result), work), dim)
    (found,) = along.run(
        [work], lambda i: [along.term(i)], lambda before, i: [before[0] * along.term(i)]
    )
    return cast_to(found, result)


def _with_place(context: Context, x: Value, dim: int, largest: bool) -> Converted:
    """The extreme up to each element and its place: the last of equal ones, the last NaN."""
    if x.rank == 0:
        return x, filled(0, (), DType.int64)
    if _empty(x):
        return x, filled(0, x.shape, DType.int64)
    wide = cast_to(x, DType.int32) if x.dtype.is_bool else x
    along = Along(context, context.held(wide), dim)
    beyond = build.gt if largest else build.lt
    if 1 not in context.read:
        further = build.maximum if largest else build.minimum

        def alone(before: Sequence[Expr], i: Indices) -> Sequence[Expr]:
            return [further(before[0], along.term(i))]

        (only,) = along.run([wide.dtype], lambda i: [along.term(i)], alone)
        return cast_to(only, x.dtype), context.unread(x.shape, DType.int64)

    def following(before: Sequence[Expr], i: Indices) -> Sequence[Expr]:
        term, place = along.term(i), build.as_expr(i[0])
        # places are compared, too: whichever of two states comes first, the later place is kept
        later = build.gt(place, before[1])
        even = build.logical_and(build.eq(term, before[0]), later)
        taken = build.logical_or(beyond(term, before[0]), even)
        if term.dtype.is_float:
            old, new = te.isnan(before[0]), te.isnan(term)
            sound = build.logical_and(build.logical_not(old), taken)
            last = build.logical_and(new, build.logical_or(build.logical_not(old), later))
            taken = build.logical_or(sound, last)
        return build.select(taken, term, before[0]), build.select(taken, place, before[1])

    kind = along.step_dtype
    value, place = along.run(
        [wide.dtype, kind], lambda i: (along.term(i), build.const(0, kind)), following
    )
    return cast_to(value, x.dtype), cast_to(place, DType.int64)


@takes(Family.SCAN, aten.cummax.default)
def cummax(context: Context, x: Value, dim: int) -> Converted:
    """The largest element up to each one, and its place."""
    return _with_place(context, x, dim, True)


@takes(Family.SCAN, aten.cummin.default)
def cummin(context: Context, x: Value, dim: int) -> Converted:
    """The smallest element up to each one, and its place."""
    return _with_place(context, x, dim, False)


@takes(Family.SCAN, aten.logcumsumexp.default)
def logcumsumexp(context: Context, x: Value, dim: int) -> Value:
    """The logarithm of the sum of exponentials up to each element."""
    if x.rank == 0 or _empty(x):
        return x
    work = _accumulated_in(context, x.dtype)
    along = Along(context, context.held(cast_to(x, work)), dim)

    def following(before: Sequence[Expr], i: Indices) -> Sequence[Expr]:
        a, b = before[0], along.term(i)
        high, low = build.maximum(a, b), build.minimum(a, b)
        even = build.logical_and(build.eq(high, low), te.isinf(high))
        return [build.select(even, high, high + te.log1p(te.exp(low - high)))]

    (found,) = along.run([work], lambda i: [along.term(i)], following)
    return cast_to(found, x.dtype)
