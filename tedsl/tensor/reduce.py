"""Reductions: `sum`, `prod`, `max`, `min`, `all`, `any` and `comm_reducer`.

Each builds a `Reduce` node; where it may stand is `compute`'s business.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast, overload

from tedsl.dtypes import DType, Kind
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.naming import check_name
from tedsl.expr.nodes import (
    Axis,
    AxisKind,
    Binary,
    BinaryOp,
    Const,
    Expr,
    Reduce,
    Reducer,
    Var,
)
from tedsl.expr.promote import DTypeLike, Operand, as_dtype
from tedsl.expr.wider import in_accumulator, unmarked
from tedsl.once import same
from tedsl.tensor.axis import with_extents
from tedsl.tensor.verify_op import MAX_DEPTH, depth_of, free_axes

Axes = Axis | Sequence[Axis]
_ACCUMULATE = {
    DType.float16: DType.float32,
    DType.bfloat16: DType.float32,
    DType.float8_e4m3fn: DType.float32,
    DType.float8_e5m2: DType.float32,
    DType.bool: DType.int32,
    DType.int8: DType.int32,
    DType.int16: DType.int32,
    DType.uint8: DType.uint32,
    DType.uint16: DType.uint32,
}


@same
def simple_reducer(op: BinaryOp, dtype: DType) -> Reducer:
    """The reducer `lhs op rhs` on scalars of `dtype`: one object for each pair.

    Identities: 0 for +, |, ^; 1 for *; all ones for &; for min and max the infinities of floats
    and the range's ends of integers.
    """
    build.require_computed(op, dtype)
    lhs, rhs = Var("x", dtype), Var("y", dtype)
    number: bool | int | float
    match op:
        case BinaryOp.ADD | BinaryOp.OR | BinaryOp.XOR:
            number = 0
        case BinaryOp.MUL:
            number = 1
        case BinaryOp.AND:
            number = 1 if dtype.is_bool else -1 if dtype.kind is Kind.INT else dtype.info.highest
        case BinaryOp.MIN:
            number = math.inf if dtype.is_float else dtype.info.highest
        case BinaryOp.MAX:
            number = -math.inf if dtype.is_float else dtype.info.lowest
        case _:
            raise ExprError(
                f"{op.value} is not commutative and associative with an identity",
                hint="reduce with + * min max & | ^, or te.comm_reducer",
            )
    identity = build.const(number, dtype)
    return Reducer(_NAMES[op], (lhs,), (rhs,), (Binary(op, lhs, rhs),), (identity,))


_NAMES = {
    BinaryOp.ADD: "sum",
    BinaryOp.MUL: "prod",
    BinaryOp.MIN: "min",
    BinaryOp.MAX: "max",
    BinaryOp.AND: "all",
    BinaryOp.OR: "any",
    BinaryOp.XOR: "xor",
}


def _reduce(
    op: BinaryOp, expr: Operand, axis: Axes, where: Operand | None, init: Operand | None
) -> Reduce:
    source = build.as_expr(expr)
    start = cast("Sequence[Any]", init if isinstance(init, (tuple, list)) else (init,))
    return _make(simple_reducer(op, source.dtype), (source,), axis, where, tuple(start))[0]


def sum(
    expr: Operand,
    axis: Axes,
    where: Operand | None = None,
    init: Operand | None = None,
    dtype: DTypeLike | None = None,
    finite: bool = False,
    tf32: bool = False,
) -> Reduce:
    """The sum of `expr` over `axis`.

    Terms are computed in the type that they are added up in: of 16-bit floats `a` and `b`, the sum
    of `a[k] * b[k]` is that of `float32(a[k]) * float32(b[k])`, as in any library and in the matrix
    units; no product is rounded.  What is read, cast or folded already is converted as it is, so a
    cast rounds where that is wanted: `(a[k] * b[k]).astype("bfloat16")`.  The definition prints as
    it is computed; `tedsl.expr.wider` has the rule in full.

    Args:
        expr: what is added up, an expression over the axis.
        axis: one `te.reduce_axis` or a list of them.
        where: a bool expression; points where it is false are left out, and not read.
        init: added once; over data axes only.
        dtype: dtype of the terms, of the accumulation and of the result.  Without it: float32 for
            floats of 8 and 16 bits, int32 for bool, int8 and int16, uint32 for uint8 and uint16,
            else that of `expr`.  (NumPy and PyTorch widen integers as well, to 64 bits, NumPy with
            their sign, PyTorch signed; here they are 32, which matrix units add up: give `"int64"`
            where 32 may overflow.)  Given the dtype of `expr`, nothing is widened: 16-bit floats
            are rounded at each step, narrow integers wrap.
        finite: the factors of `expr` are neither infinite nor NaN at the points that `where` leaves
            out.  Then a sum of products may be a matrix product with zeros at these points; where
            it is not true, the result is NaN there.
        tf32: float32 factors of products may be rounded to TF32 (10 bits of mantissa) where matrix
            units multiply that several times as fast as float32: `sm_80` and later.  Others compute
            as without it.  PyTorch does so for convolutions, by default.

    Returns:
        The reduction; 0 (or `init`) when there is nothing to add.

    Raises:
        ExprError: no axis, an axis that is not a `te.reduce_axis`, `where`, `finite` or `tf32` that
            is not bool, or `finite` without `where`.
    """
    for name, given in (("finite", finite), ("tf32", tf32)):
        if not isinstance(given, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ExprError(
                f"te.sum was given {name}={given!r}, which is no bool",
                hint=f"give {name}=True or {name}=False",
            )
    if finite and where is None:
        raise ExprError(
            "te.sum was given finite=True and no where=",
            hint="finite= is about the points that where= leaves out; leave it away",
        )
    total = _reduce(BinaryOp.ADD, _terms(expr, dtype), axis, where, init)
    return replace(total, finite=finite and total.where is not None, tf32=tf32)


def prod(
    expr: Operand,
    axis: Axes,
    where: Operand | None = None,
    init: Operand | None = None,
    dtype: DTypeLike | None = None,
) -> Reduce:
    """The product of `expr` over `axis`; arguments and dtypes as for `sum`; 1 for nothing."""
    return _reduce(BinaryOp.MUL, _terms(expr, dtype), axis, where, init)


def _terms(expr: Operand, dtype: DTypeLike | None) -> Expr:
    source = build.as_expr(expr)
    wanted = _ACCUMULATE.get(source.dtype, source.dtype) if dtype is None else as_dtype(dtype)
    if depth_of(source) > MAX_DEPTH:
        return build.cast(source, wanted)  # which no definition may hold
    return in_accumulator(source, wanted)


@overload
def max(
    expr: Operand, axis: Axes, where: Operand | None = None, init: Operand | None = None
) -> Reduce: ...
@overload
def max(expr: Operand, axis: Operand) -> Expr: ...
def max(
    expr: Operand, axis: Axes | Operand, where: Operand | None = None, init: Operand | None = None
) -> Expr:
    """The largest `expr` over `axis`, or of two scalars: `te.max(a, b)`.

    NaN anywhere gives NaN.  Over nothing: -inf for floats, the lowest value for integers.  Of
    bools: any.  Arguments as for `sum`; 16-bit floats keep their dtype, as no rounding happens.
    """
    if _is_axes(axis):
        return _extreme(BinaryOp.MAX, expr, axis, where, init)
    return build.maximum(expr, axis)  # pyright: ignore[reportArgumentType]


@overload
def min(
    expr: Operand, axis: Axes, where: Operand | None = None, init: Operand | None = None
) -> Reduce: ...
@overload
def min(expr: Operand, axis: Operand) -> Expr: ...
def min(
    expr: Operand, axis: Axes | Operand, where: Operand | None = None, init: Operand | None = None
) -> Expr:
    """The smallest `expr` over `axis`, or of two scalars: `te.min(a, b)`.

    NaN anywhere gives NaN.  Over nothing: inf for floats, the highest value for integers.  Of
    bools: all.  Arguments as for `sum`.
    """
    if _is_axes(axis):
        return _extreme(BinaryOp.MIN, expr, axis, where, init)
    return build.minimum(expr, axis)  # pyright: ignore[reportArgumentType]


def _is_axes(axis: object) -> bool:
    """True for what names reduction axes, false for a scalar operand."""
    if isinstance(axis, Axis):
        return axis.kind is AxisKind.REDUCE
    return isinstance(axis, (list, tuple))


def _extreme(
    op: BinaryOp, expr: Operand, axis: Any, where: Operand | None, init: Operand | None
) -> Reduce:
    source = build.as_expr(expr)
    if source.dtype.is_bool:
        op = BinaryOp.OR if op is BinaryOp.MAX else BinaryOp.AND
    return _reduce(op, source, axis, where, init)


def all(*conditions: Operand, axis: Axes | None = None, where: Operand | None = None) -> Expr:
    """True when all `conditions` are: of several scalars, or of one expression over `axis`.

    Raises:
        ExprError: a condition that is not bool, or `axis` with several conditions.
    """
    return _logical(BinaryOp.AND, conditions, axis, where)


def any(*conditions: Operand, axis: Axes | None = None, where: Operand | None = None) -> Expr:
    """True when one of `conditions` is: of several scalars, or of one expression over `axis`.

    Raises:
        ExprError: a condition that is not bool, or `axis` with several conditions.
    """
    return _logical(BinaryOp.OR, conditions, axis, where)


def _logical(
    op: BinaryOp, conditions: tuple[Operand, ...], axis: Axes | None, where: Operand | None
) -> Expr:
    name = _NAMES[op]
    tests = [build.condition(each, name) for each in conditions]
    if axis is not None:
        if len(tests) != 1:
            raise ExprError(
                f"te.{name} over an axis was given {len(tests)} conditions",
                hint=f"combine them first: te.{name}(te.{name}(a, b), axis=k)",
            )
        return _reduce(op, tests[0], axis, where, None)
    result: Expr = build.TRUE if op is BinaryOp.AND else build.FALSE
    for test in tests:
        result = build.binary(op, result, test)
    return result


class Reduction(Protocol):
    """A reduction of one value, or of several side by side."""

    __name__: str

    @overload
    def __call__(
        self, expr: Operand, axis: Axes, where: Operand | None = None, init: Operand | None = None
    ) -> Reduce: ...
    @overload
    def __call__(
        self,
        expr: Sequence[Operand],
        axis: Axes,
        where: Operand | None = None,
        init: Sequence[Operand | None] | None = None,
    ) -> tuple[Reduce, ...]: ...


def comm_reducer(
    fcombine: Callable[[Any, Any], Any],
    fidentity: Callable[..., Any],
    name: str = "reduce",
    *,
    believed: bool = False,
) -> Reduction:
    """A reduction of your own.

    Args:
        fcombine: combines two values into one of the same dtype.  It must be associative and
            commutative (an argmax breaks ties by index); schedules rely on that.  The tuple form
            takes two tuples and returns a tuple of the same length.
        fidentity: from the dtype (tuple form: one dtype per value) to the constant, or tuple of
            constants, that changes nothing when combined, with no value that occurs: for a maximum
            of floats minus infinity, not the lowest finite number, if there may be infinities.
        name: what it prints as.
        believed: take it from the caller that `fcombine` combines in any order, where a schedule
            asks for a proof.

    Returns:
        `reducer(expr, axis, where=None, init=None)`.  `expr` is an expression, or a tuple of them
        for the tuple form; then the result is a tuple of reductions, to be returned together from
        `te.compute` as several outputs, or used one by one inside a body.  `reducer(a, b)` of two
        scalars combines them.

    Raises (from the reducer):
        ExprError: the dtypes or the number of values do not agree, or an identity is no constant.
    """
    check_name(name, "reducer")
    known: dict[tuple[DType, ...], Reducer] = {}

    def reducer(expr: Any, axis: Axes, where: Operand | None = None, init: Any = None) -> Any:
        several = isinstance(expr, (tuple, list))
        given = cast("Sequence[Operand]", expr if several else (expr,))
        sources = tuple(build.as_expr(each) for each in given)
        dtypes = tuple(source.dtype for source in sources)
        if not several and isinstance(axis, (Expr, int, float)) and not _is_axes(axis):
            return fcombine(sources[0], build.as_expr(axis, sources[0].dtype))
        if dtypes not in known:
            made = _custom(fcombine, fidentity, name, dtypes, several)
            known[dtypes] = replace(made, believed=believed)
        listed = several or isinstance(init, (tuple, list))
        given_init = cast("Sequence[Operand | None]", init if listed else (init,))
        start = (None,) * len(sources) if init is None else given_init
        results = _make(known[dtypes], sources, axis, where, tuple(start))
        return results if several else results[0]

    reducer.__name__ = name
    reducer.__doc__ = f"The reduction {name}(expr, axis, where=None, init=None); see comm_reducer."
    return reducer


def _takes(reducer: str, what: str, function: Callable[..., Any], count: int, given: str) -> None:
    """Refuse a function that cannot be called with so many arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError) as wrong:  # ValueError: a builtin does not say
        if isinstance(wrong, TypeError):
            raise ExprError(
                f"{what} of reducer {reducer!r} cannot be called with {given}: {wrong}",
                hint="te.comm_reducer(lambda x, y: x + y, lambda dtype: te.const(0, dtype))",
            ) from wrong


def _custom(
    fcombine: Callable[[Any, Any], Any],
    fidentity: Callable[..., Any],
    name: str,
    dtypes: tuple[DType, ...],
    several: bool,
) -> Reducer:
    """The reducer for these dtypes, checked."""
    lhs = tuple(Var(f"x{n}" if several else "x", dtype) for n, dtype in enumerate(dtypes))
    rhs = tuple(Var(f"y{n}" if several else "y", dtype) for n, dtype in enumerate(dtypes))
    given = ("two tuples", "a dtype for each") if several else ("two values", "a dtype")
    _takes(name, "fcombine", fcombine, 2, given[0])
    _takes(name, "fidentity", fidentity, len(dtypes), given[1])
    combined: Any = fcombine(lhs, rhs) if several else (fcombine(lhs[0], rhs[0]),)
    identity: Any = fidentity(*dtypes) if several else (fidentity(dtypes[0]),)
    for what, values in (("fcombine", combined), ("fidentity", identity)):
        listed = isinstance(values, (tuple, list))
        if not listed or len(cast("Sequence[object]", values)) != len(dtypes):
            raise ExprError(
                f"{what} of reducer {name!r} returned {values!r}",
                hint=f"return a tuple of {len(dtypes)}, one for each value reduced",
            )
    return Reducer(
        name,
        lhs,
        rhs,
        tuple(_component(name, each, dtype) for each, dtype in zip(combined, dtypes, strict=True)),
        tuple(_identity(name, each, dtype) for each, dtype in zip(identity, dtypes, strict=True)),
    )


def _component(name: str, value: Operand, dtype: DType) -> Expr:
    """One value of the combination; a number adopts the dtype."""
    expr = unmarked(value) if isinstance(value, Expr) else build.as_expr(value, dtype)
    if expr.dtype is not dtype:
        raise ExprError(
            f"reducer {name!r} combines two {dtype} into {expr.dtype}",
            hint=f"cast the result: .astype('{dtype}'), or the sources before reducing",
        )
    return expr


def _identity(name: str, value: Operand, dtype: DType) -> Const:
    expr = build.as_expr(value, dtype)
    if not isinstance(expr, Const):
        raise ExprError(
            f"the identity of reducer {name!r} is {expr}, not a constant",
            hint="return a number, te.const, te.min_value(dtype) or te.max_value(dtype)",
        )
    return expr


def _make(
    reducer: Reducer,
    sources: tuple[Expr, ...],
    axis: Axes,
    where: Operand | None,
    init: tuple[Operand | None, ...],
) -> tuple[Reduce, ...]:
    """All values of the reduction, after checking its parts."""
    for source in sources:
        if source.dtype.is_float8:
            raise ExprError(
                f"{reducer.name} was given {source.dtype} values, which are only stored",
                hint="cast them first: x.astype('float32')",
            )
    axes = _axes(reducer.name, axis)
    condition = None if where is None else build.condition(where, f"{reducer.name}(where=)")
    if None in [each.domain for each in axes]:
        sources, axes = with_extents(sources, axes, condition)
    for each in axes:
        for ragged in _inside(each):
            condition = ragged if condition is None else build.logical_and(condition, ragged)
    if isinstance(condition, Const) and condition.value:
        condition = None
    start = _init(reducer, sources, axes, init)
    return tuple(Reduce(reducer, sources, axes, condition, start, n) for n in range(len(sources)))


def _inside(axis: Axis) -> list[Expr]:
    """Where the points of an axis are that count, where its range depends on others."""
    below = [] if axis.end is None else [build.lt(axis, axis.end)]
    return below if axis.begin is None else [build.le(axis.begin, axis), *below]


def _axes(name: str, axis: Axes) -> tuple[Axis, ...]:
    given: object = axis
    axes: tuple[Axis, ...] = ()
    if isinstance(axis, (Axis, list, tuple)):
        axes = (axis,) if isinstance(axis, Axis) else tuple(axis)
    for each in axes:
        if not _is_axes(each) or each.kind is not AxisKind.REDUCE:
            raise ExprError(
                f"{name} was given the axis {each!r}, which is not a reduction axis",
                hint="make one with te.reduce_axis((0, n), name='k')",
            )
    if not axes:
        raise ExprError(
            f"{name} was given no axis ({given!r})",
            hint="give axis=k or axis=[k1, k2], made by te.reduce_axis((0, n), name='k')",
        )
    if len(set(axes)) < len(axes):
        raise ExprError(
            f"{name} was given an axis twice: {', '.join(a.name for a in axes)}",
            hint="give each reduction axis once",
        )
    return axes


def _init(
    reducer: Reducer,
    sources: tuple[Expr, ...],
    axes: tuple[Axis, ...],
    init: tuple[Operand | None, ...],
) -> tuple[Expr, ...] | None:
    given = [each for each in init if each is not None]
    if not given:
        return None
    if len(given) != len(sources):
        raise ExprError(
            f"{reducer.name} reduces {len(sources)} values and was given {len(given)} for init",
            hint="give one init for each",
        )
    start = tuple(build.as_expr(v, s.dtype) for v, s in zip(given, sources, strict=True))
    for each in start:
        if bad := free_axes(each) & set(axes):
            names = ", ".join(sorted(axis.name for axis in bad))
            raise ExprError(
                f"init of {reducer.name} uses {names}, which it reduces over",
                hint="init may use data axes only",
            )
    return start


__all__ = ["all", "any", "comm_reducer", "max", "min", "prod", "simple_reducer", "sum"]
