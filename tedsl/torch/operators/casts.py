"""Copies in another type, or in another order of memory.  Imports `importer` and `elements`."""

from __future__ import annotations

from typing import Any

from tedsl.torch.elements.dtypes import dtype_of
from tedsl.torch.elements.value import Value, broadcast, cast_to
from tedsl.torch.importer.context import Context
from tedsl.torch.importer.registry import Family, takes
from tedsl.torch.lib import aten, prims, torch
from tedsl.torch.refusals import NotTaken


@takes(Family.CAST, aten._to_copy.default, limits="on one device")
def to_copy(context: Context, x: Value, *_: Any) -> Value:
    """A copy in another type."""
    fake = context.fakes[0]
    if fake.device != context.result.device or context.result.layout is not torch.strided:
        raise NotTaken("a copy to another device or layout")
    return cast_to(x, context.dtype())


@takes(Family.CAST, aten.copy.default)
def copy(context: Context, x: Value, source: Value, *_: Any) -> Value:
    """Another tensor's elements in the type and shape of the first."""
    return cast_to(broadcast(source, context.shape()), x.dtype)


@takes(Family.CAST, prims.inductor_force_stride_order.default)
def relaid(context: Context, x: Value, *_: Any) -> Value:
    """The same elements, under the strides that the fake result has."""
    del context
    return x


@takes(Family.CAST, prims.convert_element_type.default)
def convert_element_type(context: Context, x: Value, dtype: Any) -> Value:
    """Elements in another type."""
    return cast_to(x, dtype_of(dtype))
