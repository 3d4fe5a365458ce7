"""Rotary position embedding (Su and others, RoFormer, arXiv:2104.09864)."""

from __future__ import annotations

import math

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Expr
from tedsl.expr.promote import DTypeLike, as_dtype
from tedsl.nn.arguments import (
    dimension,
    require_float,
    require_integer,
    require_multiple,
    require_rank,
    require_shape,
    wide,
    wide_dtype,
)
from tedsl.nn.operator import operator
from tedsl.tensor import math as functions
from tedsl.tensor.compute import compute
from tedsl.tensor.math import UnaryFunction
from tedsl.tensor.tensor import Tensor, read


@operator
def rope(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    axis: int = -2,
    name: str = "rope",
) -> Tensor:
    """Turn pairs of the last dimension by angles that depend on the position.

    The pair (a, b) number j at position t becomes (a cos - b sin, b cos + a sin), with the cosine
    and sine of `[t, j]`.

    Args:
        x: floats, `[..., d]`, with positions along `axis`.
        cos: `[positions, d / 2]`.
        sin: `[positions, d / 2]`.
        interleaved: the pairs are neighbours, 2j and 2j + 1 (RoFormer, GPT-J); otherwise they are
            j and j + d / 2 (GPT-NeoX, Llama).
        axis: the dimension of the positions, not the last; negative counts from the end.
        name: what the operation prints as.

    Returns:
        The shape and dtype of `x`.

    Raises:
        ExprError: an extent d that is not known to be even, tables of another shape, positions
            along the last dimension, or no floats.
    """
    place, half = _checked(x, cos, sin, axis, name)

    def turned(i: tuple[Axis, ...], pair: Expr, other: Expr, sign: float) -> Expr:
        at = (i[place], pair)
        across = wide(read(x, (*i[:-1], other))) * wide(read(sin, at))
        straight = wide(read(x, i)) * wide(read(cos, at))
        return straight - across if sign < 0 else straight + across

    def element(*i: Axis) -> Expr:
        j = i[-1]
        if interleaved:
            first, pair = build.eq(build.floormod(j, 2), 0), build.floordiv(j, 2)
            a, b = turned(i, pair, j + 1, -1.0), turned(i, pair, j - 1, 1.0)
        else:
            first = build.lt(j, half)
            a, b = turned(i, j, j + half, -1.0), turned(i, j - half, j - half, 1.0)
        return build.cast(build.if_then_else(first, a, b), x.dtype)

    return compute(x.shape, element, name=name)


def _checked(x: Tensor, cos: Tensor, sin: Tensor, axis: int, name: str) -> tuple[int, Expr]:
    """The dimension of the positions, and the number of pairs."""
    require_float(x, name)
    require_rank(x, 2, name)
    place, width = dimension(x, axis, name), x.shape[-1]
    if place == x.ndim - 1:
        raise ExprError(
            f"the positions of {x.name} are along its last dimension, which holds the pairs",
            subject=name,
            hint="give another axis",
        )
    require_multiple(width, 2, f"the last extent of {x.name}", name)
    half = build.floordiv(width, 2)
    for each in (cos, sin):
        require_float(each, name)
        require_shape(each, (x.shape[place], half), name)
    return place, half


@operator
def rope_tables(
    positions: Tensor | Expr | int,
    dim: int | Expr,
    base: float = 10000.0,
    dtype: DTypeLike = DType.float32,
    name: str = "rope",
) -> tuple[Tensor, Tensor]:
    """The cosines and sines that `rope` takes: of position * base^(-2j / dim) for pair j.

    Args:
        positions: integers, `[n]`, or how many there are, which are then 0, 1, ...
        dim: the width d of what is turned.
        base: sets the slowest turn; above 0.
        dtype: that of the tables, a float; 16-bit ones are computed in float32.
        name: what the operations print as, with `.cos` and `.sin`.

    Returns:
        Two tensors `[n, dim / 2]`.

    Raises:
        ExprError: a width that is not known to be even, positions that are no integers, a base that
            is not above 0, or a dtype that is no float.
    """
    kind = as_dtype(dtype)
    if not kind.is_float:
        raise ExprError(f"dtype is {kind}, not a float", subject=name, hint="give a float dtype")
    if not base > 0:
        raise ExprError(f"base is {base}", subject=name, hint="give a number above 0")
    count: Expr | int
    if isinstance(positions, Tensor):
        require_integer(positions, name)
        require_shape(positions, (None,), name)
        count = positions.shape[0]
    else:
        count = positions
    width = build.as_expr(dim)
    require_multiple(width, 2, "dim", name)
    work = wide_dtype(kind)

    def angle(t: Expr, j: Expr) -> Expr:
        where = read(positions, (t,)) if isinstance(positions, Tensor) else t
        turn = build.cast(j, work) * (-2.0 * math.log(base)) / build.cast(width, work)
        return build.cast(where, work) * functions.exp(turn)

    def turned(function: UnaryFunction, suffix: str) -> Tensor:
        def element(t: Axis, j: Axis) -> Expr:
            return build.cast(function(angle(t, j)), kind)

        return compute((count, build.floordiv(width, 2)), element, name=f"{name}.{suffix}")

    return turned(functions.cos, "cos"), turned(functions.sin, "sin")
