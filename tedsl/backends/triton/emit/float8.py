"""8-bit floats in Triton's text: their constants, and conversions from and to float32.

From sm_89 on Triton has both types; its conversion stops at the largest number, where the language
says NaN or infinite, and the helpers here put that right.  For older devices the elements are bytes
in memory and in registers, which helpers convert; tensor cores get them as float16, exactly.
"""

from __future__ import annotations

import numpy as np

from tedsl.dtypes import DType
from tedsl.expr import numerics

BYTES = "tl.uint8"

NATIVE: dict[DType, str] = {
    DType.float8_e4m3fn: '''
@triton.jit
def to_float8_e4m3fn(x):
    """The nearest float8_e4m3fn of a float32; NaN above 464."""
    return tl.where(tl.abs(x) <= 464.0, x, float("nan")).to(tl.float8e4nv)
''',
    DType.float8_e5m2: '''
@triton.jit
def to_float8_e5m2(x):
    """The nearest float8_e5m2 of a float32; infinite from 61440 on."""
    near = x.to(tl.float8e5).to(tl.uint8, bitcast=True)
    infinite = tl.where(x < 0.0, 0xFC, 0x7C).to(tl.uint8)
    return tl.where(tl.abs(x) >= 61440.0, infinite, near).to(tl.float8e5, bitcast=True)
''',
}
"""float32 to the type."""

PACK: dict[DType, str] = {
    DType.float8_e4m3fn: '''
@triton.jit
def byte_of_float8_e4m3fn(x):
    """The byte of the nearest float8_e4m3fn of a float32; NaN above 464.

    Adding and subtracting 1.5 * 2^23 steps of the type leaves a whole number of steps.
    """
    bits = x.to(tl.int32, bitcast=True)
    exponent = tl.maximum(bits & 0x7F800000, 0x3C800000)
    steps = ((exponent + 0x0A000000) | 0x400000).to(tl.float32, bitcast=True)
    near = (tl.abs(x) + steps) - steps
    normal = (near.to(tl.int32, bitcast=True) >> 20) - 0x3C0
    byte = tl.where(near < 0.015625, (near * 512.0).to(tl.int32), normal)
    byte = tl.where(tl.abs(x) <= 464.0, byte, 0x7F)
    return (byte | ((bits >> 24) & 0x80)).to(tl.uint8)
''',
    DType.float8_e5m2: '''
@triton.jit
def byte_of_float8_e5m2(x):
    """The byte of the nearest float8_e5m2 of a float32; infinite from 61440 on.

    Adding and subtracting 1.5 * 2^23 steps of the type leaves a whole number of steps.
    """
    bits = x.to(tl.int32, bitcast=True)
    exponent = tl.maximum(bits & 0x7F800000, 0x38800000)
    steps = ((exponent + 0x0A800000) | 0x400000).to(tl.float32, bitcast=True)
    near = (tl.abs(x) + steps) - steps
    normal = (near.to(tl.int32, bitcast=True) >> 21) - 0x1C0
    byte = tl.where(near < 0.00006103515625, (near * 65536.0).to(tl.int32), normal)
    byte = tl.where(tl.abs(x) < 61440.0, byte, tl.where(x != x, 0x7F, 0x7C))
    return (byte | ((bits >> 24) & 0x80)).to(tl.uint8)
''',
}
"""float32 to the byte of the type."""

UNPACK: dict[DType, str] = {
    DType.float8_e4m3fn: '''
@triton.jit
def half_of_float8_e4m3fn(byte):
    """float8_e4m3fn as float16, exactly: its bits are those of a float16 256 times as small."""
    bits = byte.to(tl.int32)
    half = (((bits & 0x7F) << 7) | ((bits & 0x80) << 8)).to(tl.int16).to(tl.float16, bitcast=True)
    return tl.where((bits & 0x7F) == 0x7F, float("nan"), half * 256.0)
''',
    DType.float8_e5m2: '''
@triton.jit
def half_of_float8_e5m2(byte):
    """float8_e5m2 as float16, exactly: its bits are the first of it."""
    return (byte.to(tl.int32) << 8).to(tl.int16).to(tl.float16, bitcast=True)
''',
}
"""The byte of the type to float16."""


def byte_of(value: bool | int | float, dtype: DType) -> int:
    """The representation of the value of `dtype` nearest to a number."""
    with np.errstate(over="ignore"):
        number = np.float32(value)
    return int(numerics.cast(number, DType.float32, dtype).view(np.uint8))
