"""8-bit floats in full: every number of a type, and the float32 numbers at which its roundings
change."""

from __future__ import annotations

from typing import Any

import numpy as np

from tedsl.dtypes import DType
from tedsl.expr.numerics import numpy_dtype

FLOAT8 = (DType.float8_e4m3fn, DType.float8_e5m2)
OTHERS = (DType.float32, DType.float64, DType.bfloat16, DType.int32, DType.bool, *FLOAT8)


def every(dtype: DType) -> Any:
    """All 256 values."""
    return np.arange(256, dtype=np.uint8).view(numpy_dtype(dtype))


def edges(dtype: DType) -> Any:
    """Every value, the middle between it and the next, what lies beside these, and what no type of
    8 bits holds."""
    wide = every(dtype).astype(np.float32)
    known = np.unique(wide[np.isfinite(wide)])
    last = known[-1] - known[-2]
    known = np.concatenate([known, [known[-1] + last, known[-1] + 2 * last]]).astype(np.float32)
    middles = (known[1:] + known[:-1]) / 2
    middles = np.concatenate([middles, -middles]).astype(np.float32)
    far = np.array([np.inf, -np.inf, np.nan, -0.0, 1e-40, -1e-9, 1e30, -3e38], np.float32)
    near = [np.nextafter(middles, np.float32(end)) for end in (-np.inf, np.inf)]
    return np.concatenate([known, -known, middles, *near, far])


def nearest(x: Any, dtype: DType) -> Any:
    """float32 to the nearest number of the type, in float64, by looking at all of them."""
    wide = every(dtype).astype(np.float64)
    numbers = np.sort(wide[np.isfinite(wide) & (wide >= 0)])[1:]  # 0 once
    step = numbers[-1] - numbers[-2]
    numbers = np.append(numbers, numbers[-1] + step)  # what would come next is out of range
    size = np.abs(x.astype(np.float64))
    high = np.clip(np.searchsorted(numbers, size), 1, len(numbers) - 1)
    low = high - 1
    below, above = size - numbers[low], numbers[high] - size
    # The code of a number is its place, so that of two neighbours the even one has an even place.
    up = (above < below) | ((above == below) & (high % 2 == 0))
    place = np.where(up, high, low)
    outside = (place == len(numbers) - 1) | (size > numbers[-1])
    beyond = np.inf if dtype.info.has_infinity else np.nan
    found = np.where(outside, beyond, numbers[place])
    return np.where(np.isnan(x), np.nan, np.copysign(found, x))


def agree(got: Any, want: Any) -> None:
    """Equal, NaN like NaN, and zeros of one sign."""
    got, want = np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64)
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])
