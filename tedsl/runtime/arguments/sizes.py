"""Sizes of one call: integer expressions over runtime scalars.  Imports `expr`, `index`, `ir`."""

from __future__ import annotations

from collections.abc import Mapping

from tedsl.dtypes import DType
from tedsl.errors import BackendError
from tedsl.expr.nodes import Axis, Cast, Expr, Var
from tedsl.index.evaluate import EvaluationError, evaluate_int
from tedsl.ir.nodes import Func
from tedsl.ir.printer import print_expr

Number = bool | int | float
Values = Mapping[Var, Number]


def evaluate(expr: Expr, values: Mapping[Var, Number] | Mapping[Axis | Var, Number]) -> int:
    """The value of a size, exactly: one that overflows its dtype is seen.

    Raises:
        BackendError: it has none, e.g. a division by zero.
    """
    integers = {var: int(value) for var, value in values.items() if not var.dtype.is_float}
    try:
        return evaluate_int(expr, integers)
    except EvaluationError as error:
        where = ", ".join(f"{var.name} = {value}" for var, value in integers.items())
        raise BackendError(
            f"the size {print_expr(expr)} has no value: {error.reason}",
            facts=[("where", where)] if where else (),
            hint=error.hint,
        ) from error


def launched(func: Func, values: Values) -> bool:
    """Whether a call with these sizes runs a kernel."""
    return func.when is None or bool(evaluate(func.when, values))


def evaluate_shape(shape: tuple[Expr, ...], values: Values) -> tuple[int, ...]:
    """The extents of a shape."""
    return tuple(evaluate(extent, values) for extent in shape)


def bare_var(extent: Expr) -> Var | None:
    """The variable, when an extent is just a variable (or one cast to another integer type)."""
    while isinstance(extent, Cast):
        extent = extent.a
    return extent if isinstance(extent, Var) else None


def fits(value: Number, dtype: DType) -> bool:
    """True when `value` is in the range of `dtype`; so is every float for a float type."""
    if isinstance(value, float):
        return dtype.is_float
    return dtype.info.lowest <= value <= dtype.info.highest
