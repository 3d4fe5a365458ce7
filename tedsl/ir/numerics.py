"""What each scalar operator means on numpy values: the numbers behind the interpreter.

Part of the third room; imports `expr`, numpy and ml_dtypes.  Every function takes numpy scalars or
arrays of the operand's dtype and returns values of the result's dtype.  Integers wrap; float16 and
bfloat16 are rounded after every operation; transcendental functions of types below float64 are
computed in float64 and rounded once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, assert_never, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tedsl.dtypes import DType
from tedsl.expr.nodes import BinaryOp, CompareOp, UnaryOp

Value = Any
"""A numpy scalar or array; numpy's own types say no more where bfloat16 is one of the dtypes."""
Fn1 = Callable[[Value], Value]
Fn2 = Callable[[Value, Value], Value]
Array = npt.NDArray[Any]

py: Any = operator
xp: Any = np
"""The same modules without the stubs, which know less than the code: bfloat16, scalars or
arrays."""

_BFLOAT16: np.dtype[Any] = np.dtype(cast("Any", ml_dtypes.bfloat16))


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy element type of `dtype`."""
    return _BFLOAT16 if dtype is DType.bfloat16 else np.dtype(dtype.value)


def scalar(value: float, dtype: DType) -> Value:
    """`value` as a numpy scalar of `dtype`."""
    return numpy_dtype(dtype).type(value)


def poison(dtype: DType) -> Value:
    """What memory nobody wrote holds: NaN, or a pattern of 0xA5 bytes for integers."""
    if dtype.is_float:
        return scalar(math.nan, dtype)
    if dtype.is_bool:
        return np.bool_(True)
    return np.frombuffer(b"\xa5" * dtype.nbytes, numpy_dtype(dtype))[0]


def _erf(a: Value) -> Value:
    return xp.asarray(_ERF(a), np.float64)[()]


_ERF = xp.frompyfunc(math.erf, 1, 1)


def _sigmoid(a: Value) -> Value:
    return 1.0 / (1.0 + xp.exp(-a))


def _rsqrt(a: Value) -> Value:
    return 1.0 / xp.sqrt(a)


def _popcount(a: Value) -> Value:
    bits = xp.asarray(a)
    octets = bits[..., None].copy().view(xp.uint8)
    return xp.unpackbits(octets, axis=-1).sum(-1).astype(bits.dtype)


WIDE: dict[UnaryOp, Fn1] = {
    UnaryOp.EXP: xp.exp,
    UnaryOp.EXP2: xp.exp2,
    UnaryOp.EXPM1: xp.expm1,
    UnaryOp.LOG: xp.log,
    UnaryOp.LOG2: xp.log2,
    UnaryOp.LOG10: xp.log10,
    UnaryOp.LOG1P: xp.log1p,
    UnaryOp.SQRT: xp.sqrt,
    UnaryOp.RSQRT: _rsqrt,
    UnaryOp.TANH: xp.tanh,
    UnaryOp.SIGMOID: _sigmoid,
    UnaryOp.ERF: _erf,
    UnaryOp.SIN: xp.sin,
    UnaryOp.COS: xp.cos,
    UnaryOp.TAN: xp.tan,
    UnaryOp.ASIN: xp.arcsin,
    UnaryOp.ACOS: xp.arccos,
    UnaryOp.ATAN: xp.arctan,
    UnaryOp.SINH: xp.sinh,
    UnaryOp.COSH: xp.cosh,
    UnaryOp.ASINH: xp.arcsinh,
    UnaryOp.ACOSH: xp.arccosh,
    UnaryOp.ATANH: xp.arctanh,
}
NARROW: dict[UnaryOp, Fn1] = {
    UnaryOp.NEG: py.neg,
    UnaryOp.NOT: py.invert,
    UnaryOp.ABS: xp.absolute,
    UnaryOp.SIGN: xp.sign,
    UnaryOp.ISNAN: xp.isnan,
    UnaryOp.ISINF: xp.isinf,
    UnaryOp.ISFINITE: xp.isfinite,
    UnaryOp.POPCOUNT: _popcount,
}
ROUNDING: dict[UnaryOp, Fn1] = {
    UnaryOp.FLOOR: xp.floor,
    UnaryOp.CEIL: xp.ceil,
    UnaryOp.ROUND: xp.rint,
    UnaryOp.TRUNC: xp.trunc,
}


def unary(op: UnaryOp, dtype: DType) -> Fn1:
    """`op` on operands of `dtype`."""
    if op in ROUNDING:
        return ROUNDING[op] if dtype.is_float else _same
    if op in NARROW:
        return NARROW[op]
    return _wide(WIDE[op], dtype)


def _same(a: Value) -> Value:
    return a


def _wide(fn: Fn1, dtype: DType) -> Fn1:
    """`fn` in float64, rounded once to `dtype`."""
    if dtype is DType.float64:
        return fn
    narrow = numpy_dtype(dtype)
    return lambda a: fn(a.astype(np.float64)).astype(narrow)


def compare(op: CompareOp) -> Fn2:
    """`op` on operands of any one dtype."""
    match op:
        case CompareOp.EQ:
            return py.eq
        case CompareOp.NE:
            return py.ne
        case CompareOp.LT:
            return py.lt
        case CompareOp.LE:
            return py.le
        case CompareOp.GT:
            return py.gt
        case CompareOp.GE:
            return py.ge
        case _ as never:
            assert_never(never)


def binary(op: BinaryOp, dtype: DType) -> Fn2:
    """`op` on operands of `dtype`."""
    if dtype.is_bool and op in BOOLEAN:
        return BOOLEAN[op]
    if op in PLAIN:
        return PLAIN[op]
    if dtype.is_integer:
        return INTEGER[op]
    return _wide2(FLOATING[op], dtype)


def _truncdiv(a: Value, b: Value) -> Value:
    quotient = a // b
    return quotient + ((quotient < 0) & (quotient * b != a)).astype(a.dtype)


def _integer_power(a: Value, b: Value) -> Value:
    """Wraps around; a negative exponent gives the quotient 1 / a**-b truncated to zero."""
    result = xp.power(a, xp.maximum(b, b.dtype.type(0)))
    if b.dtype.kind == "u" or not xp.any(b < 0):
        return result
    one = a.dtype.type(1)
    sign = xp.where((a == -one) & ((b & one) == one), -one, (xp.abs(a) == one).astype(a.dtype))
    return xp.where(b < 0, sign, result).astype(a.dtype)[()]


def _float_truncdiv(a: Value, b: Value) -> Value:
    return xp.trunc(a / b)


PLAIN: dict[BinaryOp, Fn2] = {
    BinaryOp.ADD: py.add,
    BinaryOp.SUB: py.sub,
    BinaryOp.MUL: py.mul,
    BinaryOp.DIV: py.truediv,
    BinaryOp.FLOORDIV: py.floordiv,
    BinaryOp.FLOORMOD: py.mod,
    BinaryOp.MIN: xp.minimum,
    BinaryOp.MAX: xp.maximum,
    BinaryOp.AND: py.and_,
    BinaryOp.OR: py.or_,
    BinaryOp.XOR: py.xor,
    BinaryOp.SHL: py.lshift,
    BinaryOp.SHR: py.rshift,
}
BOOLEAN: dict[BinaryOp, Fn2] = {
    BinaryOp.ADD: py.or_,
    BinaryOp.MUL: py.and_,
    BinaryOp.MIN: py.and_,
    BinaryOp.MAX: py.or_,
}
INTEGER: dict[BinaryOp, Fn2] = {
    BinaryOp.TRUNCDIV: _truncdiv,
    BinaryOp.TRUNCMOD: xp.fmod,
    BinaryOp.POW: _integer_power,
}
FLOATING: dict[BinaryOp, Fn2] = {
    BinaryOp.TRUNCDIV: _float_truncdiv,
    BinaryOp.TRUNCMOD: xp.fmod,
    BinaryOp.POW: xp.power,
    BinaryOp.ATAN2: xp.arctan2,
}


def _wide2(fn: Fn2, dtype: DType) -> Fn2:
    narrow = numpy_dtype(dtype)
    return lambda a, b: fn(a.astype(np.float64), b.astype(np.float64)).astype(narrow)


def converter(source: DType, target: DType) -> Fn1:
    """The cast from `source` to `target`: truncating, wrapping, or rounding to nearest even."""
    if source is target:
        return _same
    if target.is_bool:
        return lambda a: a != 0
    dtype = numpy_dtype(target)
    if source is DType.bfloat16 and not target.is_float:
        return lambda a: a.astype(np.float32).astype(dtype)
    return lambda a: a.astype(dtype)


def choose(condition: Value, a: Value, b: Value) -> Value:
    """`a` where `condition`, else `b`."""
    if xp.ndim(condition) == 0:
        return a if condition else b
    return xp.where(condition, a, b)
