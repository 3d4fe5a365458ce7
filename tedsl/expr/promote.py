"""Which dtype two operands meet in, and which Python numbers become which constants.

The rule, in order:

1. Python numbers are *weak*: `bool`, `int` and `float` adopt the other operand's dtype when their
   kind is not above it (bool < integer < float).  A weak float beside an integer makes float32; a
   weak int beside a bool makes int32.  numpy's default scalars (`np.int64`, `np.float64`,
   `np.bool_`) count as Python numbers; every other numpy scalar is strong and keeps its dtype.
2. Equal dtypes stay.  bool meets any dtype in that dtype.
3. An integer with a float meets in the float, whatever the widths.
4. Two floats meet in the wider; two different ones of equal width (float16 with bfloat16,
   float8_e4m3fn with float8_e5m2) meet in float32.
5. Two integers of one signedness meet in the wider.  Unsigned with signed meets in the narrowest
   signed type that holds both; uint64 with a signed type is refused, as no integer holds both.

Nothing is computed in an 8-bit float.  Beside a wider float it is that float, exactly; where the
rules give an 8-bit float (two of one type, one beside an integer or a number), choosing between
them is allowed, and every other operator is refused: cast first.

A value that its adopted dtype cannot hold (300 beside a uint8, 1e6 beside a float16) is refused
rather than wrapped.  Imports `nodes` only.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tedsl.dtypes import TABLE, DType, Kind
from tedsl.errors import ExprError
from tedsl.expr.nodes import Const, Expr
from tedsl.slips import advice

if TYPE_CHECKING:
    from tedsl.tensor.tensor import Tensor

Number: TypeAlias = "bool | int | float | np.generic[Any]"
"""What Python and numpy call a number."""

Operand: TypeAlias = "Expr | Tensor | Number"
"""What a scalar operator accepts.  A tensor must be of rank 0; it is read."""

DTypeLike: TypeAlias = DType | str | type[Any] | np.dtype[Any]
"""A dtype, its name, long or short (`SHORT`), or NumPy's or PyTorch's dtype of that name."""

SHORT = {
    **{f"{letters}{bits}": DType(f"{kind}{bits}")
       for letters, kind in (("i", "int"), ("u", "uint"), ("f", "float"), ("fp", "float"))
       for bits in (8, 16, 32, 64) if f"{kind}{bits}" in DType.__members__},
    "half": DType.float16, "float": DType.float32, "double": DType.float64, "int": DType.int32,
    "bf16": DType.bfloat16,
    "e4m3": DType.float8_e4m3fn, "fp8e4m3": DType.float8_e4m3fn,
    "e5m2": DType.float8_e5m2, "fp8e5m2": DType.float8_e5m2,
}  # fmt: skip
"""Names that other languages have for dtypes; `float` and `int` are TVM's, of 32 bits.  Python's
types of those names are not taken: NumPy's `float` has 64."""

_INT32 = TABLE[DType.int32]
_INT64 = TABLE[DType.int64]
_VECTORS = "elements are scalars: give the tensor one more dimension, and vectorize its loop"
_RANK = {Kind.BOOL: 0, Kind.UINT: 1, Kind.INT: 1, Kind.FLOAT: 2}


def as_dtype(dtype: DTypeLike) -> DType:
    """The `DType` that `dtype` names.

    Raises:
        ExprError: a name that is not in the table.
    """
    if isinstance(dtype, DType):
        return dtype
    if dtype is bool:
        return DType.bool
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if not isinstance(name, str):
        name = getattr(dtype, "__name__", str(dtype)).removeprefix("torch.")
    try:
        return (SHORT.get(name) if not isinstance(dtype, type) else None) or DType(name)
    except ValueError:
        raise ExprError(
            f"unknown dtype {name!r}",
            facts=[("allowed", ", ".join(DType))],
            hint=_VECTORS
            if re.fullmatch(r"[a-z]+\d+x\d+", name)
            else advice(name, (*DType, *SHORT)) or "write one of these names, such as 'float32'",
        ) from None


def plain_number(value: Number) -> tuple[bool | int | float, DType | None]:
    """The Python number in `value`, and its dtype when it is a strong numpy scalar, else None."""
    if isinstance(value, np.generic):
        dtype = as_dtype(value.dtype)
        number = float(value) if dtype.is_float else value.item()
        return number, None if dtype in (DType.int64, DType.float64, DType.bool) else dtype
    return value, None


def number_kind(value: bool | int | float) -> Kind:
    """The kind of a Python number."""
    if isinstance(value, bool):
        return Kind.BOOL
    return Kind.INT if isinstance(value, int) else Kind.FLOAT


def default_dtype(value: bool | int | float) -> DType:
    """The dtype of a number that meets nothing: bool, int32 (int64 when it must), float32."""
    match number_kind(value):
        case Kind.BOOL:
            return DType.bool
        case Kind.FLOAT:
            return DType.float32
        case _:
            small = _INT32.lowest <= value <= _INT32.highest
            return DType.int32 if small else DType.int64


def make_const(value: bool | int | float, dtype: DType) -> Const:
    """`value` as a constant of `dtype`.

    Raises:
        ExprError: a fraction, NaN or infinity for an integer; a value outside the dtype's range; a
            number other than 0 and 1 for bool.
    """
    info = TABLE[dtype]
    if dtype.is_float:
        try:
            number = float(value)
        except OverflowError:
            raise _does_not_fit(value, dtype) from None
        if math.isinf(number) and not info.has_infinity:
            raise _does_not_fit(value, dtype)
        if math.isfinite(number) and not info.lowest <= number <= info.highest:
            raise _does_not_fit(value, dtype)
        return Const(number, dtype)
    if isinstance(value, float) and not value.is_integer():
        raise ExprError(
            f"{value!r} is not a value of {dtype}",
            hint="give a float dtype, or round the number first",
        )
    if not info.lowest <= value <= info.highest:
        raise _does_not_fit(value, dtype)
    return Const(bool(value) if dtype.is_bool else int(value), dtype)


def _does_not_fit(value: bool | int | float, dtype: DType) -> ExprError:
    info = TABLE[dtype]
    return ExprError(
        f"{value!r} does not fit {dtype}",
        facts=[("allowed", f"{info.lowest} .. {info.highest}")],
        hint="cast the other operand to a wider dtype, or use te.min_value / te.max_value",
    )


def promote_types(a: DType, b: DType) -> DType:
    """The dtype in which two strong dtypes meet (rules 2 to 5 of this module).

    Raises:
        ExprError: uint64 with a signed integer.
    """
    if a is b or b.is_bool:
        return a
    if a.is_bool:
        return b
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.kind is b.kind:
        if a.bits == b.bits:
            return DType.float32
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind is Kind.INT else (b, a)
    bits = max(signed.bits, 2 * unsigned.bits)
    if bits > 64:
        raise ExprError(
            f"no integer dtype holds both {a} and {b}",
            hint="cast one operand, e.g. x.astype('int64')",
        )
    return DType(f"int{bits}")


def promote_weak(value: bool | int | float, other: DType) -> DType:
    """The dtype in which the Python number `value` meets a strong `other` (rule 1)."""
    kind = number_kind(value)
    if _RANK[kind] <= _RANK[other.kind]:
        return other
    return DType.float32 if kind is Kind.FLOAT else default_dtype(int(value))
