"""The one table of element types: numpy, LLVM and Triton names, ranges, promotion.  Imports only
numpy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The family of an element type."""

    FLOAT = "float"
    INT = "int"
    UINT = "uint"
    BOOL = "bool"


class DType(StrEnum):
    """An element type.  A member is also its name: `A.dtype == "float32"`."""

    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"
    float64 = "float64"
    float8_e4m3fn = "float8_e4m3fn"
    float8_e5m2 = "float8_e5m2"
    int8 = "int8"
    int16 = "int16"
    int32 = "int32"
    int64 = "int64"
    uint8 = "uint8"
    uint16 = "uint16"
    uint32 = "uint32"
    uint64 = "uint64"
    bool = "bool"

    info: Info
    kind: Kind
    bits: int
    is_float: bool
    is_integer: bool
    is_bool: bool

    @property
    def nbytes(self) -> int:
        """Bytes one element takes in memory."""
        return self.bits // 8

    @property
    def is_float8(self) -> bool:
        """An 8-bit float: stored, cast and chosen between, but nothing is computed in it."""
        return self in _FLOAT8

    @property
    def is_short_float(self) -> bool:
        """A float of 8 or 16 bits, whose sums are taken in float32."""
        return self.is_float and self.bits < 32


@dataclass(frozen=True, slots=True)
class Info:
    """One row: `bits` in memory, names in each backend, and finite range (`lowest`, `highest`).

    A float without an infinity becomes NaN where the others become infinite.
    """

    kind: Kind
    bits: int
    llvm: str
    triton: str
    lowest: int | float
    highest: int | float
    has_infinity: bool = False


def _float(bits: int, llvm: str, triton: str, highest: float, has_infinity: bool = True) -> Info:
    return Info(Kind.FLOAT, bits, llvm, triton, -highest, highest, has_infinity)


def _signed(bits: int) -> Info:
    return Info(Kind.INT, bits, f"i{bits}", f"int{bits}", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _unsigned(bits: int) -> Info:
    return Info(Kind.UINT, bits, f"i{bits}", f"uint{bits}", 0, 2**bits - 1)


TABLE: dict[DType, Info] = {
    DType.float16: _float(16, "half", "float16", 65504.0),
    DType.bfloat16: _float(16, "bfloat", "bfloat16", 3.3895313892515355e38),
    DType.float32: _float(32, "float", "float32", 3.4028234663852886e38),
    DType.float64: _float(64, "double", "float64", 1.7976931348623157e308),
    DType.float8_e4m3fn: _float(8, "i8", "float8e4nv", 448.0, has_infinity=False),
    DType.float8_e5m2: _float(8, "i8", "float8e5", 57344.0),
    DType.int8: _signed(8),
    DType.int16: _signed(16),
    DType.int32: _signed(32),
    DType.int64: _signed(64),
    DType.uint8: _unsigned(8),
    DType.uint16: _unsigned(16),
    DType.uint32: _unsigned(32),
    DType.uint64: _unsigned(64),
    DType.bool: Info(Kind.BOOL, 8, "i1", "int1", 0, 1),
}
for _dtype, _row in TABLE.items():  # asked for all the time
    _dtype.info, _dtype.kind, _dtype.bits = _row, _row.kind, _row.bits
    _dtype.is_float = _row.kind is Kind.FLOAT
    _dtype.is_integer = _row.kind in (Kind.INT, Kind.UINT)
    _dtype.is_bool = _row.kind is Kind.BOOL
_FLOAT8 = (DType.float8_e4m3fn, DType.float8_e5m2)

SAME_BITS = {
    DType.float32: DType.int32,
    DType.float64: DType.int64,
    DType.int32: DType.float32,
    DType.int64: DType.float64,
}
"""The floats whose bits are read as an integer, and the other way round."""
