"""Numbers of 8 bits with scales: what makes them, and their matrix product."""

from __future__ import annotations

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Expr, UnaryOp
from tedsl.expr.promote import DTypeLike, as_dtype
from tedsl.nn.arguments import (
    require_equal,
    require_float,
    require_rank,
    require_shape,
    wide,
    wide_dtype,
)
from tedsl.nn.operator import operator
from tedsl.tensor.axis import reduce_axis
from tedsl.tensor.compute import compute
from tedsl.tensor.reduce import max as max_over
from tedsl.tensor.reduce import sum as sum_over
from tedsl.tensor.tensor import Tensor, read

LEAST_SCALE = 2.0**-126
"""The smallest normal float32."""
_NARROW = (DType.float8_e4m3fn, DType.float8_e5m2, DType.int8)


@operator
def scaled_matmul(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    bias: Tensor | None = None,
    dtype: DTypeLike = "bfloat16",
    name: str = "scaled_matmul",
) -> Tensor:
    """(a @ b.T) * scale_a * scale_b + bias, of 8-bit floats or int8.

    Both operands are folded along their rows, as in `jax.nn.scaled_matmul`, which is how the matrix
    units take 8 bits; `b` is `torch._scaled_mm`'s `mat2.T`.

    Args:
        a: `[..., m, k]`, 8-bit floats or int8.
        b: `[n, k]`, of the same kind.
        scale_a: `[..., m]`, one for each row of `a`; `[]`, one for all; or None.
        scale_b: `[n]`, `[]` or None.
        bias: `[n]`, or None.
        dtype: of the result, a float.
        name: what the operation prints as.

    Returns:
        `[..., m, n]`.  Products are added up in float32, those of int8 exactly in int32; scales and
        bias follow in float32, and the result is rounded once.  Derivatives by 8-bit floats are
        float32, and take a cast that rounds for the identity; int8 has none.

    Raises:
        ExprError: operands that are neither two 8-bit floats nor two int8, shapes that do not
            match, a `dtype` that is no float.
    """
    _require_narrow(a, b, name)
    to = _result(dtype, name)
    rows = _scale(scale_a, a.shape[:-1], name)
    columns = _scale(scale_b, b.shape[:1], name)
    if bias is not None:
        require_float(bias, name)
        require_shape(bias, b.shape[:1], name)
    k = reduce_axis((0, a.shape[-1]), name="k")
    sums = DType.int32 if a.dtype is DType.int8 else DType.float32

    def element(*i: Axis) -> Expr:
        left, right = build.cast(read(a, (*i[:-1], k)), sums), build.cast(read(b, (i[-1], k)), sums)
        total: Expr = build.cast(sum_over(left * right, axis=k), DType.float32)
        for scale, place in ((rows, i[:-1]), (columns, i[-1:])):
            if scale is not None:
                total = total * wide(read(scale, place if scale.ndim else ()))
        if bias is not None:
            total = total + wide(read(bias, i[-1:]))
        return build.cast(total, to)

    return compute((*a.shape[:-1], b.shape[0]), element, name=name)


def _result(dtype: DTypeLike, subject: str) -> DType:
    to = as_dtype(dtype)
    if not to.is_float:
        raise ExprError(
            f"the result is asked for in {to}",
            subject=subject,
            hint='give a float as dtype, e.g. "bfloat16"',
        )
    return to


def _require_narrow(a: Tensor, b: Tensor, subject: str) -> None:
    require_rank(a, 2, subject)
    require_shape(b, (None, a.shape[-1]), subject)
    same = a.dtype is b.dtype or (a.dtype.is_float8 and b.dtype.is_float8)
    if a.dtype not in _NARROW or not same:
        raise ExprError(
            f"{a.name} is {a.dtype} and {b.name} is {b.dtype}",
            subject=subject,
            facts=[("allowed", "two 8-bit floats, or two int8")],
            hint="make them with te.nn.quantize, or use te.nn.linear on wider floats",
        )


def _scale(scale: Tensor | None, lead: tuple[Expr, ...], subject: str) -> Tensor | None:
    """A scale for each of the rows, or one for all."""
    if scale is None:
        return None
    require_float(scale, subject)
    if scale.ndim:
        require_shape(scale, lead, subject)
        for own, wanted in zip(scale.shape, lead, strict=True):
            require_equal(own, wanted, f"rows and scales ({scale.name})", subject)
    return scale


@operator
def quantize(
    x: Tensor, dtype: DTypeLike = "float8_e4m3fn", name: str = "quantize"
) -> tuple[Tensor, Tensor]:
    """Each row as numbers of 8 bits, scaled so that the largest fits.

    Args:
        x: `[..., k]`, floats of 16 bits or more.
        dtype: an 8-bit float or int8.
        name: what the operations print as.

    Returns:
        (values, scales): `values` is `[..., k]` of `dtype`, `scales` `[...]` float32, and `x` is
        about values * scales.  A scale is the largest magnitude of its row over the largest number
        of `dtype`, 2^-126 at the least; values are the nearest, halves to even.  A row with a NaN
        or an infinity has such a scale.

    Raises:
        ExprError: `x` is no float of 16 bits or more, or has no dimension; another `dtype`.
    """
    require_float(x, name)
    require_rank(x, 1, name)
    to = as_dtype(dtype)
    if to not in _NARROW or x.dtype.is_float8:
        raise ExprError(
            f"{x.name} of {x.dtype} is to become {to}",
            subject=name,
            facts=[("allowed", f"floats of 16 bits or more to {', '.join(_NARROW)}")],
            hint="give one of these as dtype",
        )
    highest = float(to.info.highest)
    k = reduce_axis((0, x.shape[-1]), name="k")
    largest = compute(
        x.shape[:-1],
        lambda *i: max_over(build.unary(UnaryOp.ABS, wide(read(x, (*i, k)))), axis=k),
        name=f"{name}.largest",
    )
    scales = compute(
        x.shape[:-1],
        lambda *i: build.cast(
            build.maximum(read(largest, i), highest * LEAST_SCALE) / highest, DType.float32
        ),
        name=f"{name}.scales",
    )

    def value(*i: Axis) -> Expr:
        scaled = wide(read(x, i)) / build.cast(read(scales, i[:-1]), wide_dtype(x.dtype))
        return build.cast(scaled if to.is_float8 else build.unary(UnaryOp.ROUND, scaled), to)

    return compute(x.shape, value, name=name), scales
