"""Rows by number, positions of extremes, and running sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, BinaryOp, Const, Expr
from tedsl.expr.promote import DTypeLike, as_dtype
from tedsl.nn.arguments import dimension, require_integer, require_rank, wide, wide_dtype
from tedsl.nn.operator import operator
from tedsl.tensor import math as functions
from tedsl.tensor.axis import reduce_axis
from tedsl.tensor.compute import compute, placeholder
from tedsl.tensor.reduce import Reduction, comm_reducer, simple_reducer
from tedsl.tensor.scan import scan
from tedsl.tensor.tensor import Tensor, read


@operator
def embedding(input: Tensor, weight: Tensor, name: str = "embedding") -> Tensor:
    """The rows of `weight` that `input` numbers.

    Args:
        input: integers in 0 .. V - 1, of any shape; any other gives a row of 0.
        weight: `[V, d]`, of any dtype.
        name: what the operation prints as.

    Returns:
        `[*input.shape, d]` in the dtype of `weight`.  Its derivative by `weight` adds up, for each
        row, what reaches the places that read it.

    Raises:
        ExprError: numbers that are no integers, or a weight that has not two dimensions.
    """
    require_integer(input, name)
    if weight.ndim != 2:
        raise ExprError(
            f"{weight.name} has {weight.ndim} dimensions, 2 are needed",
            subject=name,
            hint="give the table as [rows, columns]",
        )

    def element(*i: Axis) -> Expr:
        return read(weight, (read(input, i[:-1]), i[-1]))

    return compute((*input.shape, weight.shape[1]), element, name=name)


@operator
def one_hot(
    input: Tensor, num_classes: int | Expr, dtype: DTypeLike = DType.int64, name: str = "one_hot"
) -> Tensor:
    """1 at the class that each element numbers, elsewhere 0.

    Args:
        input: integers of any shape; one outside 0 .. num_classes - 1 gives zeros only.
        num_classes: the extent of the new, last dimension.
        dtype: that of the result.
        name: what the operation prints as.

    Returns:
        `[*input.shape, num_classes]` of `dtype`.

    Raises:
        ExprError: `input` is no integer, or `num_classes` is negative.
    """
    require_integer(input, name)

    def element(*i: Axis) -> Expr:
        chosen = read(input, i[:-1])
        if chosen.dtype is DType.uint64:  # no integer holds both a uint64 and a signed index
            return build.cast(build.eq(chosen, build.cast(i[-1], DType.uint64)), dtype)
        return build.cast(build.eq(chosen, i[-1]), dtype)

    return compute((*input.shape, num_classes), element, name=name)


@operator
def argmax(
    x: Tensor, axis: int | None = None, keepdims: bool = False, name: str = "argmax"
) -> Tensor:
    """The position of the largest element along `axis`: of the first of them, or of the first NaN.

    Args:
        x: numbers or bools, of at least one dimension.
        axis: the dimension to search; None searches all of them in row-major order.
        keepdims: keep the dimensions searched, with extent 1.
        name: what the operation prints as.

    Returns:
        int64, in `x.shape` without the dimensions searched.  The search, which finds the value
        too, is the stage `<name>.arg`.

    Raises:
        ExprError: no such dimension, or nothing to search.
    """
    return _extreme(BinaryOp.MAX, x, axis, keepdims, name)


@operator
def argmin(
    x: Tensor, axis: int | None = None, keepdims: bool = False, name: str = "argmin"
) -> Tensor:
    """The position of the smallest element along `axis`: of the first of them, or of the first NaN;
    arguments, result and errors as for `argmax`."""
    return _extreme(BinaryOp.MIN, x, axis, keepdims, name)


def _extreme(op: BinaryOp, x: Tensor, axis: int | None, keepdims: bool, name: str) -> Tensor:
    require_rank(x, 1, name)
    dims = range(x.ndim) if axis is None else [dimension(x, axis, name)]
    for d in dims:
        extent = x.shape[d]
        if isinstance(extent, Const) and extent.value == 0:
            raise ExprError(
                f"{x.name} has the extent 0 along axis {d}: there is nothing to search",
                subject=name,
                hint="give at least one element",
            )
    kept = [d for d in range(x.ndim) if d not in dims]
    along = {d: reduce_axis((0, x.shape[d]), name=f"k{d}") for d in dims}

    def found(*i: Axis) -> Sequence[Expr]:
        rest = dict(zip(kept, i, strict=True))
        value = read(x, [along[d] if d in along else rest[d] for d in range(x.ndim)])
        if value.dtype.is_bool:
            value = build.cast(value, DType.int32)
        if value.dtype.is_short_float:  # comparisons of pairs of them are unpacked one by one
            value = build.cast(value, DType.float32)
        place: Expr = build.const(0)
        for d in dims:
            place = place * x.shape[d] + along[d]
        return first(op)((value, place), axis=list(along.values()))

    shape = [x.shape[d] for d in kept]
    made = cast("tuple[Tensor, Tensor]", compute(shape, found, name=f"{name}.arg"))
    if keepdims:
        shape = [x.shape[d] if d in kept else build.const(1) for d in range(x.ndim)]

    def element(*i: Axis) -> Expr:
        rest = [i[d] for d in kept] if keepdims else i
        return build.cast(read(made[1], rest), DType.int64)

    return compute(shape, element, name=name)


def first(op: BinaryOp) -> Reduction:
    """The better of two values with their places; of equal ones, or two NaN, the earlier place."""

    def is_nan(value: Expr) -> Expr:
        return functions.isnan(value)

    def as_good(a: Expr, b: Expr) -> Expr:
        fine = build.ge(a, b) if op is BinaryOp.MAX else build.le(a, b)
        return build.logical_or(is_nan(a), fine)

    def combine(a: Sequence[Expr], b: Sequence[Expr]) -> tuple[Expr, Expr]:
        earlier = build.lt(a[1], b[1])
        first = build.logical_and(
            as_good(a[0], b[0]), build.logical_or(earlier, build.logical_not(as_good(b[0], a[0])))
        )
        return build.select(first, a[0], b[0]), build.select(first, a[1], b[1])

    def identity(value: DType, place: DType) -> tuple[Expr, Expr]:
        last = build.const(int(place.info.highest), place)
        return simple_reducer(op, value).identity[0], last

    return comm_reducer(combine, identity, name=f"arg{op.value}")


@operator
def cumsum(
    x: Tensor,
    axis: int = -1,
    exclusive: bool = False,
    reverse: bool = False,
    dtype: DTypeLike | None = None,
    name: str = "cumsum",
) -> Tensor:
    """The sum of all elements up to each one along `axis`.

    It is a scan: as many additions as elements, one after the other along `axis`, side by side
    along the other dimensions.

    Args:
        x: numbers or bools, of at least one dimension.
        axis: the dimension to add along; negative counts from the end.
        exclusive: leave the element itself out, so that the first sum is 0.
        reverse: add from the end.
        dtype: that of the terms and of the result; without it that of `x`, int32 for bools.
        name: what the operation prints as.

    Returns:
        The shape of `x`.  Sixteen-bit floats are added up in float32, and each sum is rounded once.
        The sums with their start, 0, are the scan `<name>.sums`, with `axis` in front.

    Raises:
        ExprError: no such dimension, or an unknown dtype.
    """
    require_rank(x, 1, name)
    d = dimension(x, axis, name)
    kind = DType.int32 if x.dtype.is_bool else x.dtype
    result = kind if dtype is None else as_dtype(dtype)
    others, count = x.shape[:d] + x.shape[d + 1 :], x.shape[d]

    work = wide_dtype(result)
    state = placeholder((count + 1, *others), work, name=f"{name}.state")

    def following(*i: Axis) -> Expr:
        step, rest = i[0], i[1:]
        place = count - step if reverse else step - 1
        term = wide(build.cast(read(x, (*rest[:d], place, *rest[d:])), result))
        # the first row is `start`; as a definition of all rows, this one has to say so
        return read(state, (step - 1, *rest)) + build.if_then_else(build.gt(step, 0), term, 0)

    start = compute((1, *others), lambda *_: build.const(0, work), name=f"{name}.start")
    names = ["t", *(f"i{n}" for n in range(len(others)))]
    step = compute(state.shape, following, name=f"{name}.step", varargs_names=names)
    sums = cast("Tensor", scan(start, step, state, [x], name=f"{name}.sums"))

    def element(*i: Axis) -> Expr:
        before = count - 1 - i[d] if reverse else i[d]
        row = before if exclusive else before + 1
        return build.cast(read(sums, (row, *i[:d], *i[d + 1 :])), result)

    return compute(x.shape, element, name=name)
