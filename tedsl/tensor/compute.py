"""`placeholder` and `compute`: how operations are made from the user's functions.

A `Reduce` may stand anywhere in a body.  At the top it is the operation's own reduction; anywhere
else `split_reductions` makes a stage of its own for it, named `<name>.red`, `<name>.red1`, ...
Imports everything of `expr` below it, and `index` through `bounds_check`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast, overload

import numpy as np

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.index_arith import MAX_ELEMENTS, elements
from tedsl.expr.nodes import Axis, Const, Expr, Reduce
from tedsl.expr.promote import DTypeLike, Operand, as_dtype
from tedsl.expr.wider import unmarked
from tedsl.once import tell
from tedsl.tensor.axis import as_extent, data_axis
from tedsl.tensor.reducer_stages import is_one_reduction, split_reductions
from tedsl.tensor.tensor import ComputeOp, PlaceholderOp, Tensor, noted
from tedsl.tensor.verify_op import check_depth, make_compute

Shape = Sequence[Expr | int] | Expr | int
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def placeholder(shape: Shape, dtype: DTypeLike | None = None, name: str = "placeholder") -> Tensor:
    """An input of the computation.

    Args:
        shape: extents, outermost first; ints or integer expressions; `()` for a scalar.
        dtype: element type; float32 where it is not given.
        name: what it prints as; need not be unique.

    Raises:
        ExprError: a negative or non-integer extent, or an unknown dtype.
    """
    kind = as_dtype(DType.float32 if dtype is None else dtype)
    return PlaceholderOp(name, as_shape(shape, f"placeholder {name}"), kind).outputs[0]


@overload
def compute(
    shape: Shape,
    fcompute: Callable[..., Operand],
    name: str = "compute",
    tag: str = "",
    attrs: Mapping[str, Any] | None = None,
    varargs_names: Sequence[str] | None = None,
) -> Tensor: ...
@overload
def compute(
    shape: Shape,
    fcompute: Callable[..., Sequence[Operand]],
    name: str = "compute",
    tag: str = "",
    attrs: Mapping[str, Any] | None = None,
    varargs_names: Sequence[str] | None = None,
) -> tuple[Tensor, ...]: ...
def compute(
    shape: Shape,
    fcompute: Callable[..., Operand | Sequence[Operand]],
    name: str = "compute",
    tag: str = "",
    attrs: Mapping[str, Any] | None = None,
    varargs_names: Sequence[str] | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """A tensor defined element by element.

    Args:
        shape: extents, outermost first; one extent may stand bare; `()` for a scalar.
        fcompute: from one axis per dimension to the element: `lambda i, j: A[i, j] + 1`.  Its
            argument names become the axis names; `lambda *i` takes all (remaining) axes.  A tuple
            or list of elements defines several outputs of the same shape.
        name: what the operation prints as; need not be unique.
        tag: free text for whoever looks at operations.
        attrs: free notes by name, kept as `op.attrs`; nothing follows them.
        varargs_names: axis names for `lambda *i`.

    Returns:
        The tensor, or a tuple of tensors when `fcompute` returned a tuple or list.

    Raises:
        ExprError: a negative extent; a function whose arguments do not match the shape or that has
            defaults or keywords; an axis of another definition in the body; a read that is proved
            to be outside its tensor; outputs that mix a reduction with something else.

    A read whose index is known only when a kernel runs (`T[X[i]]`, or a runtime scalar in it) gives
    0 where the index is outside its tensor, below 0 as well, on every target and wherever the stage
    is computed; an index that is proved to be inside costs nothing.  `te.evaluate` refuses such a
    read, and says which stage reads what.

    A reduction that is not the whole body is computed by a stage of its own, over the data axes
    that it uses: in `te.compute((n, m), lambda i, j: A[i, j] / te.sum(A[i, k], axis=k), name="P")`
    the operation `P.red` has the one axis `i`.  Conditions of `te.if_then_else` around it become
    part of its `where` when they use only those axes, or when its reads need them.
    """
    extents = as_shape(shape, f"compute {name}")
    names = _axis_names(fcompute, len(extents), name, varargs_names)
    axes = tuple(map(data_axis, names, extents))
    result = fcompute(*axes)
    several = isinstance(result, (tuple, list))
    given = cast("Sequence[Operand]", result if several else (result,))
    op = define(tuple(build.as_expr(each) for each in given), axes, name, tag)
    tell(noted, op, dict(attrs or {}))
    return op.outputs if several else op.outputs[0]


def define(bodies: tuple[Expr, ...], axes: tuple[Axis, ...], name: str, tag: str = "") -> ComputeOp:
    """The operation with these `bodies` over `axes`; nested reductions are split off and all the
    checks of `compute` made."""
    if not bodies:
        raise ExprError(f"compute {name!r} has no outputs", hint="return at least one element")
    bodies = tuple(unmarked(body) for body in bodies)
    for body in bodies:
        check_depth(name, body)
    reductions = [isinstance(body, Reduce) for body in bodies]
    if any(reductions) and len(bodies) > 1 and not is_one_reduction(bodies):
        raise ExprError(
            f"the outputs of compute {name!r} are "
            + ("different reductions" if all(reductions) else "a reduction and something else"),
            hint="return one te.comm_reducer tuple, or write a compute for each output",
        )
    bodies = split_reductions(bodies, axes, name)
    reduce_axes = bodies[0].axes if isinstance(bodies[0], Reduce) else ()
    return make_compute(name, axes, bodies, reduce_axes, tag)


def as_shape(shape: object, subject: str) -> tuple[Expr, ...]:
    """Extents as integer expressions.

    Raises:
        ExprError: a negative, non-integer or axis-dependent extent.
    """
    one = isinstance(shape, (Expr, int, float, np.integer))
    if not one and not isinstance(shape, Iterable):
        raise ExprError(
            f"the shape is {shape!r} ({type(shape).__name__})",
            subject=subject,
            facts=[("allowed", "a tuple of ints and expressions, or one of these")],
            hint="give the extent of each dimension: (4, 8), or () for a single number",
        )
    given: list[object] = [shape] if one else list(cast("Iterable[object]", shape))
    extents = tuple(as_extent(each, subject) for each in given)
    for position, extent in enumerate(extents):
        if isinstance(extent, Const) and extent.value < 0:
            raise ExprError(
                f"extent {position} is {extent.value}, below 0",
                subject=subject,
                hint="give extents of at least 0",
            )
    if elements(extents) > MAX_ELEMENTS:
        raise ExprError(
            f"the shape has {elements(extents)} elements",
            subject=subject,
            facts=[("allowed", "at most 2**59")],
            hint="give smaller extents",
        )
    return extents


def _axis_names(
    fcompute: Callable[..., object], rank: int, name: str, varargs_names: Sequence[str] | None
) -> list[str]:
    """One axis name per dimension, from the arguments of `fcompute`."""
    names: list[str] = []
    rest: str | None = None
    try:
        parameters = inspect.signature(fcompute).parameters.values()
    except ValueError as error:  # of some types and functions of C
        raise ExprError(
            f"the function of compute {name!r} is {fcompute!r}, of which Python knows no arguments",
            hint="wrap it: lambda i: f(i)",
        ) from error
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            rest = parameter.name
        elif parameter.kind not in _POSITIONAL or parameter.default is not parameter.empty:
            raise ExprError(
                f"argument {parameter.name!r} of the function of compute {name!r} is a keyword or "
                "has a default",
                hint="take axes as plain positional arguments; bind other values outside",
            )
        else:
            names.append(parameter.name)
    missing = rank - len(names)
    if missing < 0 or (missing > 0 and rest is None):
        raise ExprError(
            f"the function of compute {name!r} takes {len(names)} axes, the shape has {rank} "
            "dimensions",
            hint="take one argument per dimension, or all of them as lambda *i; a function of "
            "whole rows comes by te.decl_tensor_intrin and s[T].tensorize",
        )
    if rest is None:
        return names
    if varargs_names is not None:
        if len(varargs_names) != missing:
            raise ExprError(
                f"compute {name!r} has {len(varargs_names)} varargs_names for {missing} axes",
                hint="give one name for each axis that lambda *i takes",
            )
        return names + list(varargs_names)
    return names + [f"{rest}{n}" for n in range(missing)]
