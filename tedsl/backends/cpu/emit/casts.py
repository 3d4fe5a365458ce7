"""Conversions between element types, with the rounding that numpy and ml_dtypes use."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tedsl.backends.cpu.emit.llvm_text import Function, Value
from tedsl.backends.cpu.emit.llvm_values import Num
from tedsl.backends.cpu.emit.types import is_short_float, is_signed, register_type
from tedsl.dtypes import DType
from tedsl.processor import machine


def round_bfloat16(x: Num) -> Num:
    """float32 to the nearest bfloat16, halves to even; still as float32.

    By hand, because the instruction some machines have flushes subnormal numbers to zero.
    """
    bits = x.bits()
    nearest = (bits + ((bits >> 16) & 1) + 0x7FFF) & -65536
    quiet = (bits | 0x400000) & -65536
    return x.isnan().where(quiet.floats(), nearest.floats())


@dataclass(frozen=True, slots=True)
class _Format:
    """A float type that is converted by integer arithmetic.

    Attributes:
        memory: what it is in memory, as an integer.
        kept: bits of the fraction.
        least: the exponent of the smallest normal number.
        beyond: from where on the bits, without the sign, are no finite number.
        limit: magnitudes from here on round to infinity; above it to NaN where there is none.
        nan: the bits of a NaN.
        has_infinity: false where what is too large is NaN.
    """

    memory: str
    kept: int
    least: int
    beyond: int
    limit: float
    nan: int
    has_infinity: bool = True

    @property
    def sign(self) -> int:
        """How far left of its place here the sign is in a float32."""
        return 24 if self.memory == "i8" else 16


_FORMATS = {
    DType.float8_e4m3fn: _Format("i8", 3, -6, 0x7F, 464.0, 0x7F, has_infinity=False),
    DType.float8_e5m2: _Format("i8", 2, -14, 0x7C, 61440.0, 0x7F),
    DType.float16: _Format("i16", 10, -14, 0x7C00, 65520.0, 0x7E00),
}
_NAN = 0x7FC00000


def _round_by_hand(x: Num, form: _Format) -> Num:
    """float32 to the nearest value of the format, halves to even; still as float32.

    Adding and subtracting 1.5 * 2^23 steps of the type, whose size the exponent of `x` gives,
    leaves a whole number of steps.
    """
    exponent = (x.bits() & 0x7F800000).call("umax", (127 + form.least) << 23)
    steps = ((exponent + ((23 - form.kept) << 23)) | 0x400000).floats()
    nearest = ((x + steps) - steps).copysign(x)
    if not form.has_infinity:
        return (x.abs() <= form.limit).where(nearest, math.nan)
    beyond = x.abs().compare("uge", form.limit)
    return beyond.where((x * math.inf), nearest)


def unpack(raw: Num, dtype: DType) -> Num:
    """The memory of a float of 8 or 16 bits as float32, exactly."""
    if dtype is DType.bfloat16:
        return (raw.cast("zext", "i32") << 16).floats()
    if dtype is DType.float16:
        if machine().has_half:
            return raw.cast("fpext", "float")
        raw = raw.bits()
    form = _FORMATS[dtype]
    packed, shift = raw.cast("zext", "i32"), 23 - form.kept
    sign = 1 << (31 - form.sign)
    size = packed & (sign - 1)
    normal = (size << shift) + ((126 + form.least) << 23)
    steps = size.cast("uitofp", "float") * 2.0 ** (form.least - form.kept)
    bits = (size < 1 << form.kept).where(steps.bits(), normal)
    beyond = (size << shift) | 0x7F800000 if form.has_infinity else bits.const(_NAN)
    bits = (size > form.beyond - 1).where(beyond, bits)
    return (bits | ((packed & sign) << form.sign)).floats()


def pack(x: Num, dtype: DType) -> Num:
    """float32 that is a value of a float type of 8 or 16 bits as its memory."""
    if dtype is DType.bfloat16:
        return (x.bits() >> 16).cast("trunc", "i16")
    if dtype is DType.float16 and machine().has_half:
        return x.cast("fptrunc", "half")
    form = _FORMATS[dtype]
    bits, size = x.bits(), x.abs()
    normal = ((bits & 0x7FFFFFFF) >> (23 - form.kept)) - ((126 + form.least) << form.kept)
    steps = (size * 2.0 ** (form.kept - form.least)).cast("fptoui", "i32")
    packed = (size < 2.0**form.least).where(steps, normal)
    if form.has_infinity:
        packed = size.eq(math.inf).where(packed.const(form.beyond), packed)
    packed = x.isnan().where(packed.const(form.nan), packed)
    packed = packed | ((bits >> form.sign) & (1 << (31 - form.sign)))
    found = packed.cast("trunc", form.memory)
    return found.floats() if dtype is DType.float16 else found


def round_short(x: Num, dtype: DType) -> Num:
    """float32 to the nearest value of a float type of 8 or 16 bits, still as float32."""
    if dtype is DType.bfloat16:
        return round_bfloat16(x)
    if dtype is DType.float16 and machine().has_half:
        return x.cast("fptrunc", "half").cast("fpext", "float")
    return _round_by_hand(x, _FORMATS[dtype])


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
