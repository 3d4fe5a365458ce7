"""What the operators share: the dtype they compute in, and refusals of what they cannot take."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Expr
from tedsl.tensor.broadcast import same_extent
from tedsl.tensor.tensor import Tensor


def wide(element: Expr) -> Expr:
    """`element` in the dtype computed in: float32 for 8- and 16-bit floats, else its own."""
    return build.cast(element, wide_dtype(element.dtype))


def wide_dtype(dtype: DType) -> DType:
    """The dtype in which elements of `dtype` are computed."""
    return DType.float32 if dtype.is_short_float else dtype


def require_float(x: Tensor, subject: str) -> None:
    if not x.dtype.is_float:
        raise ExprError(
            f"{x.name} is {x.dtype}, not a float",
            subject=subject,
            hint=f"cast it first: {x.name}.astype('float32')",
        )


def require_rank(x: Tensor, rank: int, subject: str) -> None:
    if x.ndim < rank:
        raise ExprError(
            f"{x.name} has {x.ndim} dimensions, at least {rank} are needed",
            subject=subject,
            hint="add dimensions of extent 1 with te.compute",
        )


def require_equal(a: Expr, b: Expr, what: str, subject: str) -> None:
    if not same_extent(a, b):
        raise ExprError(
            f"{what} are {a} and {b}",
            subject=subject,
            hint="make them equal; use the same te.var for equal sizes",
        )


def require_shape(
    x: Tensor,
    shape: Sequence[Expr | None],
    subject: str,
    hint: str = "pass a tensor of that shape",
) -> None:
    """Refuse another rank, or an extent other than a wanted one (None: any)."""
    wanted = ", ".join("any" if extent is None else str(extent) for extent in shape)
    matches = x.ndim == len(shape) and all(
        extent is None or same_extent(extent, own)
        for extent, own in zip(shape, x.shape, strict=True)
    )
    if not matches:
        raise ExprError(
            f"{x.name} has the shape {list(x.shape)}, not [{wanted}]",
            subject=subject,
            hint=hint,
        )


def dimension(x: Tensor, axis: int, subject: str) -> int:
    """`axis` counted from the front."""
    if not -x.ndim <= axis < x.ndim:
        raise ExprError(
            f"{x.name} has {x.ndim} dimensions, there is no axis {axis}",
            subject=subject,
            facts=[("allowed", f"{-x.ndim} .. {x.ndim - 1}")],
            hint="give a dimension of the input",
        )
    return axis % x.ndim


def dimensions(x: Tensor, axis: int | Sequence[int] | None, subject: str) -> tuple[int, ...]:
    """The dimensions that `axis` names (None: all), counted from the front, in order."""
    if axis is None:
        return tuple(range(x.ndim))
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    found = sorted(dimension(x, each, subject) for each in given)
    if len(set(found)) < len(found):
        raise ExprError(
            f"{x.name} was given the axes {list(given)}, one of them twice",
            subject=subject,
            hint="give each dimension once",
        )
    return tuple(found)


def require_multiple(extent: Expr, of: int, what: str, subject: str) -> None:
    if of < 1 or not same_extent(build.floormod(extent, of), build.const(0, extent.dtype)):
        raise ExprError(
            f"{what} is {extent}, which is not known to be a multiple of {of}",
            subject=subject,
            hint=f"give a multiple of it; a symbolic one as {max(of, 1)} * te.var('n')",
        )


def require_integer(x: Tensor, subject: str) -> None:
    if not x.dtype.is_integer:
        raise ExprError(
            f"{x.name} is {x.dtype}, not an integer",
            subject=subject,
            hint=f"cast it first: {x.name}.astype('int64')",
        )


def require_number(x: Tensor, subject: str) -> None:
    if x.dtype.is_bool:
        raise ExprError(
            f"{x.name} is {x.dtype}, not a number",
            subject=subject,
            hint=f"cast it first: {x.name}.astype('int32')",
        )


def require_scalar(x: Tensor, subject: str) -> None:
    if x.ndim:
        raise ExprError(
            f"{x.name} has {x.ndim} dimensions, one number is needed",
            subject=subject,
            hint="give a number, or a tensor without dimensions: te.placeholder((), dtype)",
        )


def require_choice(given: str, allowed: Sequence[str], what: str, subject: str) -> None:
    if given not in allowed:
        listed = ", ".join(f'"{each}"' for each in allowed)
        raise ExprError(
            f"{what} is {given!r}",
            subject=subject,
            facts=[("allowed", listed)],
            hint="give one of these words",
        )


def require_between(given: float, low: float, high: float, what: str, subject: str) -> None:
    if not low <= given <= high:
        raise ExprError(
            f"{what} is {given}",
            subject=subject,
            facts=[("allowed", f"{low} .. {high}")],
            hint="give a number in that range",
        )
