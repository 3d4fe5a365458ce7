"""Matrix products."""

from __future__ import annotations

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Expr
from tedsl.nn.arguments import require_equal, require_float, require_rank, require_shape, wide
from tedsl.nn.operator import operator
from tedsl.tensor.axis import reduce_axis
from tedsl.tensor.compute import compute
from tedsl.tensor.reduce import sum as sum_over
from tedsl.tensor.signatures import refusal
from tedsl.tensor.tensor import Tensor, read


def narrowed(total: Expr, dtype: DType) -> Expr:
    """A sum of products in the dtype of its factors; of integers as wide as it was added up."""
    return build.cast(total, dtype) if dtype.is_float else total


@operator
def matmul(a: Tensor, b: Tensor, name: str = "matmul") -> Tensor:
    """The matrix product over the last two dimensions; with one dimension before them PyTorch's
    `bmm`.

    Args:
        a: `[..., m, k]`.
        b: `[..., k, n]`; the dimensions before the last two are those of `a`, or there are none
            in one of the two.
        name: what the operation prints as.

    Returns:
        `[..., m, n]` in the dtype in which `a` and `b` meet.  Floats of 8 and 16 bits are
        multiplied and added up in float32 (in `<name>.red`) and rounded once.  Integers of 8 and 16
        bits are multiplied and added up in 32 and the result stays so; other dtypes accumulate in
        their own.

    Raises:
        ExprError: fewer than two dimensions, or extents that do not match.
    """
    for each in (a, b):
        require_rank(each, 2, name)
    require_equal(a.shape[-1], b.shape[-2], "the inner extents", name)
    batch = a.shape[:-2] or b.shape[:-2]
    for x, y in zip(batch, b.shape[:-2], strict=False):
        require_equal(x, y, "batch extents", name)
    if a.shape[:-2] and b.shape[:-2] and a.ndim != b.ndim:
        raise ExprError(
            f"{a.name} has {a.ndim - 2} batch dimensions and {b.name} has {b.ndim - 2}",
            subject=name,
            hint="give both the same batch dimensions, or one of them none",
        )
    k = reduce_axis((0, a.shape[-1]), name="k")
    left_rank, right_rank = a.ndim - 2, b.ndim - 2

    def element(*i: Axis) -> Expr:
        lead, row, column = i[:-2], i[-2], i[-1]
        left = read(a, (*lead[:left_rank], row, k))
        right = read(b, (*lead[:right_rank], k, column))
        x, y = build.promote(left, right)
        return narrowed(sum_over(wide(x) * wide(y), axis=k), x.dtype)

    return compute((*batch, a.shape[-2], b.shape[-1]), element, name=name)


def product(a: object, b: object) -> Tensor:
    """`a @ b`: `matmul`, where a vector is a row on the left and a column on the right.

    Args:
        a: `[..., m, k]`, or `[k]`.
        b: `[..., k, n]`, or `[k]`.

    Returns:
        As `matmul`, without the dimension that a vector does not have; of two vectors a scalar.

    Raises:
        ExprError: a factor that is no tensor or has rank 0, or what `matmul` refuses.
    """
    for each in (a, b):
        if not isinstance(each, Tensor):
            raise refusal("@", "a factor", each, Tensor)
        require_rank(each, 1, "@")
    assert isinstance(a, Tensor) and isinstance(b, Tensor)
    if a.ndim > 1 and b.ndim > 1:
        return matmul(a, b)
    require_equal(a.shape[-1], b.shape[-2 if b.ndim > 1 else 0], "the inner extents", "@")
    k = reduce_axis((0, a.shape[-1]), name="k")
    rows, columns = a.shape[:-1], (*b.shape[:-2], *b.shape[1:][-1:])

    def element(*i: Axis) -> Expr:
        rest = i[len(rows) :]
        left = read(a, (*i[: len(rows)], k))
        right = read(b, (*rest[:-1], k, *rest[-1:]))
        x, y = build.promote(left, right)
        return narrowed(sum_over(wide(x) * wide(y), axis=k), x.dtype)

    return compute((*rows, *columns), element, name="matmul")


@operator
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, name: str = "linear") -> Tensor:
    """x @ weight.T + bias.

    Args:
        x: `[..., in]`, floats.
        weight: `[out, in]`, as PyTorch stores it.
        bias: `[out]`, or None.
        name: what the operation prints as.

    Returns:
        `[..., out]` in the dtype of `x`.  Accumulated, and the bias added, in float32 (float64 for
        float64 inputs), then rounded once.

    Raises:
        ExprError: ranks or extents that do not match, or no floats.
    """
    require_float(x, name)
    require_rank(x, 1, name)
    require_shape(weight, (None, x.shape[-1]), name)
    if bias is not None:
        require_shape(bias, (weight.shape[0],), name)
    k = reduce_axis((0, x.shape[-1]), name="k")

    def element(*i: Axis) -> Expr:
        left, right = wide(read(x, (*i[:-1], k))), wide(read(weight, (i[-1], k)))
        total: Expr = sum_over(left * right, axis=k)
        if bias is not None:
            total = total + wide(read(bias, (i[-1],)))
        return build.cast(total, x.dtype)

    return compute((*x.shape[:-1], weight.shape[0]), element, name=name)
