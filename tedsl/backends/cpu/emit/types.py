"""How each element type lives in memory and in registers.

Floats of 8 and 16 bits are float32 values in registers that are rounded to their type after every
operation, so that results are those of numpy and ml_dtypes; bfloat16 and the 8-bit floats live in
memory as plain bits.  bool is
i1 in registers and a byte in memory.
"""

from __future__ import annotations

import math
import struct

import numpy as np

from tedsl.backends.cpu.emit.llvm_text import Type
from tedsl.dtypes import DType
from tedsl.expr import numerics

_MEMORY = {
    DType.float16: "half",
    DType.bfloat16: "i16",
    DType.float32: "float",
    DType.float64: "double",
    DType.float8_e4m3fn: "i8",
    DType.float8_e5m2: "i8",
    DType.int8: "i8",
    DType.int16: "i16",
    DType.int32: "i32",
    DType.int64: "i64",
    DType.uint8: "i8",
    DType.uint16: "i16",
    DType.uint32: "i32",
    DType.uint64: "i64",
    DType.bool: "i8",
}
_SHORT = {dtype: "float" for dtype in DType if dtype.is_short_float}
_REGISTER = {**_MEMORY, **_SHORT, DType.bool: "i1"}


def memory_elem(dtype: DType) -> str:
    """The LLVM element that is loaded and stored."""
    return _MEMORY[dtype]


def register_type(dtype: DType, lanes: int = 0) -> Type:
    """The LLVM type in which values of `dtype` are computed."""
    return Type(_REGISTER[dtype], lanes)


def is_short_float(dtype: DType) -> bool:
    """Whether values are computed in float32 and rounded."""
    return dtype in _SHORT


def rounded(value: bool | int | float, dtype: DType) -> bool | int | float:
    """A literal as the nearest value of a short float type; others are rounded when written."""
    if dtype.is_float8:
        return float(numerics.cast(np.float32(value), DType.float32, dtype))
    if dtype is DType.float16:
        try:
            return float(struct.unpack("<e", struct.pack("<e", value))[0])
        except OverflowError:
            return math.copysign(math.inf, value)
    if dtype is DType.bfloat16 and math.isfinite(value):
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        nearest = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return float(struct.unpack("<f", struct.pack("<I", nearest))[0])
    return value


def is_signed(dtype: DType) -> bool:
    """Whether integers of `dtype` carry a sign."""
    return not dtype.name.startswith("u") and not dtype.is_bool
