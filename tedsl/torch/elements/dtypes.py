"""Element types of PyTorch and of the language, and PyTorch's promotion of operands.

The promotion is PyTorch's own function: it knows zero-dimensional tensors, Python numbers and the
wider type that 16-bit floats are computed in.  Imports `dtypes` and `expr`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Expr
from tedsl.torch.lib import load, torch
from tedsl.torch.refusals import NotTaken

_common: Any = load("torch._prims_common")
_DTYPES: dict[Any, DType] = {
    getattr(torch, dtype.value): dtype for dtype in DType if hasattr(torch, dtype.value)
}
_TORCH: dict[DType, Any] = {dtype: name for name, dtype in _DTYPES.items()}
_UNSIGNED = (DType.uint16, DType.uint32, DType.uint64)


class Promotion(StrEnum):
    """How the type of a pointwise result follows from the operands: PyTorch's names."""

    DEFAULT = "DEFAULT"
    NO_OPMATH = "NO_OPMATH"
    INT_TO_FLOAT = "INT_TO_FLOAT"
    ALWAYS_BOOL = "ALWAYS_BOOL"
    BOOL_TO_LONG = "BOOL_TO_LONG"


@dataclass(frozen=True, slots=True)
class Promoted:
    """The type that elements are computed in, and that of the result."""

    computed: DType
    result: DType


def dtype_of(dtype: object) -> DType:
    """The language's type of PyTorch's.

    Raises:
        NotTaken: complex numbers, quantised and sub-byte types.
    """
    found = _DTYPES.get(dtype)
    if found is None:
        raise NotTaken(f"no tensor expression has the type {dtype}")
    return found


def torch_dtype(dtype: DType) -> Any:
    """PyTorch's type of the language's."""
    return _TORCH[dtype]


def promoted(kind: Promotion, operands: Sequence[object]) -> Promoted:
    """What PyTorch promotes `operands` to: fake tensors and Python numbers.

    Raises:
        NotTaken: types that the language does not have, or does not compute in.
    """
    kinds = _common.ELEMENTWISE_TYPE_PROMOTION_KIND
    computed, result = _common.elementwise_dtypes(
        *operands, type_promotion_kind=getattr(kinds, kind.value)
    )
    found = Promoted(dtype_of(computed), dtype_of(result))
    if found.computed.is_float8 or found.computed in _UNSIGNED:
        raise NotTaken(f"nothing is computed in {found.computed} here")
    return found


def is_number(value: object) -> bool:
    """True for a Python number that an element can be."""
    return isinstance(value, (bool, int, float))


def saturated(element: Expr, dtype: DType) -> Expr:
    """An element as it is before it is rounded to `dtype`.  What lies beyond the range of an 8-bit
    float without infinity becomes its highest number in some releases of PyTorch and NaN in others:
    it is asked."""
    if not dtype.is_float8 or not _ends_at_highest(dtype):
        return element
    if not element.dtype.is_float or element.dtype.is_float8:
        element = build.cast(element, DType.float32)
    limits = float(dtype.info.lowest), float(dtype.info.highest)
    low, high = (build.const(limit, element.dtype) for limit in limits)
    below = build.select(build.lt(element, low), low, element)
    return build.select(build.gt(element, high), high, below)


@cache
def _ends_at_highest(dtype: DType) -> bool:
    """Whether PyTorch rounds infinity to a number."""
    return bool(torch.tensor(math.inf).to(torch_dtype(dtype)).float().isfinite())


def constant(value: float, dtype: DType) -> Expr:
    """A Python number as PyTorch stores it in `dtype`: rounded, infinite beyond the range, an
    integer wrapped.

    Raises:
        NotTaken: a fraction, NaN or infinity for an integer type.
    """
    if dtype.is_bool:
        return build.const(bool(value), dtype)
    if dtype.is_float:
        highest = float(dtype.info.highest)
        if math.isfinite(value) and abs(value) > highest:
            nearest = torch.tensor(value, dtype=torch.float64).to(torch_dtype(dtype)).item()
            return build.const(float(nearest), dtype)
        return build.const(float(value), dtype)
    if isinstance(value, float) and not value.is_integer():
        raise NotTaken(f"{value} is no value of {dtype}")
    number, low = int(value), int(dtype.info.lowest)
    return build.const((number - low) % (1 << dtype.bits) + low, dtype)
