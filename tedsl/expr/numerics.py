"""What each scalar operator means, in numpy: the numbers behind the reference.

Functions take numpy arrays or scalars of the operand's dtype and return the result's dtype.
Integers wrap around; 16-bit floats are rounded after every operation; transcendental functions are
computed in float64 and rounded once.  Imports `nodes`, numpy, and ml_dtypes when bfloat16 or an
8-bit float is used.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tedsl.dtypes import DType
from tedsl.expr.nodes import BinaryOp, CompareOp, UnaryOp

Array = npt.NDArray[Any]
Value = Any
"""A numpy array or scalar; numpy's stubs know less than the code where bfloat16 is one of them."""
Fn1 = Callable[[Value], Value]
Fn2 = Callable[[Value, Value], Value]

xp: Any = np
py: Any = operator


@cache
def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy element type of `dtype`."""
    if dtype is DType.bfloat16 or dtype.is_float8:
        return np.dtype(getattr(importlib.import_module("ml_dtypes"), dtype.value))
    return np.dtype(dtype.value)


def _sigmoid(a: Value) -> Value:
    return 1.0 / (1.0 + xp.exp(-a))


def _rsqrt(a: Value) -> Value:
    return 1.0 / xp.sqrt(a)


_elementwise_erf: Any = xp.frompyfunc(math.erf, 1, 1)


def _erf(a: Value) -> Value:
    return xp.asarray(_elementwise_erf(a), np.float64)


def _popcount(a: Value) -> Value:
    octets = xp.ascontiguousarray(a)[..., None].view(np.uint8)
    counts = xp.unpackbits(octets, axis=-1).sum(axis=-1)
    return counts.reshape(xp.shape(a)).astype(a.dtype)


def _bits(a: Value) -> Value:
    return a.view(f"{'i' if a.dtype.kind == 'f' else 'f'}{a.dtype.itemsize}")


_TRANSCENDENTAL: dict[UnaryOp, Fn1] = {
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

_EXACT: dict[UnaryOp, Fn1] = {
    UnaryOp.NEG: py.neg,
    UnaryOp.NOT: py.invert,
    UnaryOp.ABS: xp.absolute,
    UnaryOp.SIGN: xp.sign,
    UnaryOp.ISNAN: xp.isnan,
    UnaryOp.ISINF: xp.isinf,
    UnaryOp.ISFINITE: xp.isfinite,
    UnaryOp.POPCOUNT: _popcount,
    UnaryOp.BITS: _bits,
}

_ROUNDING: dict[UnaryOp, Fn1] = {
    UnaryOp.FLOOR: xp.floor,
    UnaryOp.CEIL: xp.ceil,
    UnaryOp.ROUND: xp.rint,
    UnaryOp.TRUNC: xp.trunc,
}


def unary(op: UnaryOp, a: Value, dtype: DType) -> Value:
    """`op(a)` of an operand of `dtype`."""
    if op in _ROUNDING:
        return _ROUNDING[op](a) if dtype.is_float else a
    if op in _EXACT:
        return _EXACT[op](a)
    return _TRANSCENDENTAL[op](a.astype(np.float64)).astype(numpy_dtype(dtype))


def _trunc_quotient(a: Value, b: Value) -> Value:
    quotient = a // b
    return quotient + ((quotient < 0) & (quotient * b != a)).astype(a.dtype)


def _integer_power(a: Value, b: Value) -> Value:
    """Wraps around; a negative exponent gives 1 / a**-b truncated to zero (and 0 where a is 0)."""
    result = xp.power(a, xp.maximum(b, b.dtype.type(0)))
    if b.dtype.kind == "u" or not xp.any(b < 0):
        return result
    one = a.dtype.type(1)
    sign = xp.where((a == -one) & ((b & one) == one), -one, (xp.abs(a) == one).astype(a.dtype))
    return xp.where(b < 0, sign, result).astype(a.dtype)


SAME_DTYPE: dict[BinaryOp, Fn2] = {
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

_INTEGER: dict[BinaryOp, Fn2] = {
    BinaryOp.TRUNCDIV: _trunc_quotient,
    BinaryOp.TRUNCMOD: xp.fmod,
    BinaryOp.POW: _integer_power,
}

_FLOAT64: dict[BinaryOp, Fn2] = {
    BinaryOp.TRUNCDIV: lambda a, b: xp.trunc(a / b),
    BinaryOp.TRUNCMOD: xp.fmod,
    BinaryOp.POW: xp.power,
    BinaryOp.ATAN2: xp.arctan2,
}


def binary(op: BinaryOp, a: Value, b: Value, dtype: DType) -> Value:
    """`a op b` of operands of `dtype`."""
    if op in SAME_DTYPE:
        return SAME_DTYPE[op](a, b)
    if not dtype.is_float:
        return _INTEGER[op](a, b)
    wide = _FLOAT64[op](a.astype(np.float64), b.astype(np.float64))
    return wide.astype(numpy_dtype(dtype))


COMPARE: dict[CompareOp, Fn2] = {
    CompareOp.EQ: py.eq,
    CompareOp.NE: py.ne,
    CompareOp.LT: py.lt,
    CompareOp.LE: py.le,
    CompareOp.GT: py.gt,
    CompareOp.GE: py.ge,
}


def cast(a: Value, source: DType, target: DType) -> Value:
    """`a` of `source` as `target`: truncated, wrapped, or rounded to nearest even.

    Casts to an 8-bit float go through float32.
    """
    if source is target:
        return a
    if source.is_float8 or target.is_float8 or (source is DType.bfloat16 and not target.is_float):
        a = a.astype(np.float32)
    if target.is_bool:
        return a != 0
    return a.astype(numpy_dtype(target))


def distinct(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """What occurs in whole numbers, ascending.

    `np.unique` does it with a table of hashes, which takes a hundred times as long where most of
    millions of numbers occur once.
    """
    ordered = np.sort(values, axis=None)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]


REDUCE: dict[BinaryOp, Any] = {
    BinaryOp.ADD: xp.add,
    BinaryOp.MUL: xp.multiply,
    BinaryOp.MIN: xp.minimum,
    BinaryOp.MAX: xp.maximum,
    BinaryOp.AND: xp.bitwise_and,
    BinaryOp.OR: xp.bitwise_or,
    BinaryOp.XOR: xp.bitwise_xor,
}
"""The ufunc whose `reduce` folds each operator."""
