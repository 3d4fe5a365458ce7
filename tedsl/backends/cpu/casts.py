"""Conversions between element types, with the rounding that numpy and ml_dtypes use."""

from __future__ import annotations

import math

from tedsl.backends.cpu.builder import Function, Value
from tedsl.backends.cpu.num import Num
from tedsl.backends.cpu.types import is_short_float, is_signed, register_type
from tedsl.dtypes import DType


def round_bfloat16(x: Num) -> Num:
    """float32 to the nearest bfloat16, halves to even; still as float32.

    By hand, because the instruction some machines have flushes subnormal numbers to zero.
    """
    bits = x.bits()
    nearest = (bits + ((bits >> 16) & 1) + 0x7FFF) & -65536
    quiet = (bits | 0x400000) & -65536
    return x.isnan().where(quiet.floats(), nearest.floats())


def round_float8(x: Num, dtype: DType) -> Num:
    """float32 to the nearest value of an 8-bit float type, halves to even; still as float32.

    Adding and subtracting 1.5 * 2^23 steps of the type, whose size the exponent of `x` gives,
    leaves a whole number of steps.
    """
    kept, least = _FLOAT8[dtype]
    exponent = (x.bits() & 0x7F800000).call("umax", (127 + least) << 23)
    steps = ((exponent + ((23 - kept) << 23)) | 0x400000).floats()
    nearest = ((x + steps) - steps).copysign(x)
    if not dtype.info.has_infinity:
        return (x.abs() <= 464.0).where(nearest, math.nan)
    beyond = x.abs().compare("uge", 61440.0)
    return beyond.where((x * math.inf), nearest)


_FLOAT8 = {DType.float8_e4m3fn: (3, -6), DType.float8_e5m2: (2, -14)}
"""Bits of the fraction, and the exponent of the smallest normal number."""
_BEYOND = {DType.float8_e4m3fn: 0x7F, DType.float8_e5m2: 0x7C}
"""From where on the byte, its sign left out, is no finite number."""
_NAN = 0x7FC00000


def unpack_float8(raw: Num, dtype: DType) -> Num:
    """A byte of memory as float32, exactly."""
    kept, least = _FLOAT8[dtype]
    byte = raw.cast("zext", "i32")
    size, shift = byte & 0x7F, 23 - kept
    normal = (size << shift) + ((126 + least) << 23)
    steps = size.cast("uitofp", "float") * 2.0 ** (least - kept)
    bits = (size < 1 << kept).where(steps.bits(), normal)
    first = _BEYOND[dtype]
    beyond = (size << shift) | 0x7F800000 if dtype.info.has_infinity else bits.const(_NAN)
    bits = (size > first - 1).where(beyond, bits)
    return (bits | ((byte & 0x80) << 24)).floats()


def pack_float8(x: Num, dtype: DType) -> Num:
    """float32 that is a value of the type as the byte of memory."""
    kept, least = _FLOAT8[dtype]
    bits, size = x.bits(), x.abs()
    normal = ((bits & 0x7FFFFFFF) >> (23 - kept)) - ((126 + least) << kept)
    steps = (size * 2.0 ** (kept - least)).cast("fptoui", "i32")
    byte = (size < 2.0**least).where(steps, normal)
    if dtype.info.has_infinity:
        byte = size.eq(math.inf).where(byte.const(_BEYOND[dtype]), byte)
    byte = x.isnan().where(byte.const(0x7F), byte)
    return (byte | ((bits >> 24) & 0x80)).cast("trunc", "i8")


def round_short(x: Num, dtype: DType) -> Num:
    """float32 to the nearest value of a float type of 8 or 16 bits, still as float32."""
    if dtype.is_float8:
        return round_float8(x, dtype)
    if dtype is DType.bfloat16:
        return round_bfloat16(x)
    return x.cast("fptrunc", "half").cast("fpext", "float")


def round_odd(x: Num) -> Num:
    """double to float32 so that a second rounding gives the result of a single one.

    An inexact result gets an odd last bit: neither of two neighbours of a coarser type is then a
    false tie.
    """
    near = x.cast("fptrunc", "float")
    back = near.cast("fpext", "double")
    bits = near.bits()
    even = (bits & 1).eq(0)
    inexact = back.compare("one", x)
    grew = back.abs() > x.abs()
    step = grew.where(bits - 1, bits + 1)
    return (inexact & even).where(step, bits).floats()


def convert(fn: Function, value: Value, source: DType, to: DType) -> Value:
    """`value` of dtype `source` as `to`."""
    if source is to:
        return value
    x = Num(fn, value)
    if to.is_bool:
        return x.ne(0.0 if source.is_float else 0).value
    target = register_type(to, value.type.lanes).elem
    if source.is_float:
        return (_float_to_float(x, source, to) if to.is_float else _float_to_int(x, to)).value
    if to.is_float:
        name = "sitofp" if is_signed(source) else "uitofp"
        if is_short_float(to) and not to.is_float8 and source.bits > 16 and not source.is_bool:
            return round_short(round_odd(x.cast(name, "double")), to).value
        number = x.cast(name, target)
        return (round_short(number, to) if is_short_float(to) else number).value
    if x.type.elem == target:
        return value
    if source.is_bool or x.type.bits < to.bits:
        return x.cast("sext" if is_signed(source) else "zext", target).value
    return x.cast("trunc", target).value


def _float_to_float(x: Num, source: DType, to: DType) -> Num:
    if to is DType.float64:
        return x.cast("fpext", "double")
    if is_short_float(to):
        if source is DType.float64:  # to 8 bits it goes through float32, by definition
            x = x.cast("fptrunc", "float") if to.is_float8 else round_odd(x)
        return round_short(x, to)
    return x.cast("fptrunc", "float") if source is DType.float64 else x


def _float_to_int(x: Num, to: DType) -> Num:
    """Truncation toward zero; values that do not fit give some number, never undefined
    behaviour."""
    wide = to.bits if to.bits >= 32 else 32
    name = "fptosi" if is_signed(to) or to.bits < 32 else "fptoui"
    number = x.cast(name, f"i{wide}")
    number = number.new(x.fn.op(f"freeze {number.value}", number.type))
    return number if wide == to.bits else number.cast("trunc", f"i{to.bits}")
