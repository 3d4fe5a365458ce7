"""Running sums and products.  Imports `importer`."""

from __future__ import annotations

from typing import Any, cast

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Expr
from tedsl.nn.indexing import cumsum as nn_cumsum
from tedsl.tensor.compute import compute, placeholder
from tedsl.tensor.scan import scan
from tedsl.tensor.tensor import Tensor, read
from tedsl.torch.elements.value import Value, cast_to, filled, number_of, viewed, whole
from tedsl.torch.importer.context import Context
from tedsl.torch.importer.registry import Family, takes
from tedsl.torch.lib import aten


@takes(Family.SCAN, aten.cumsum.default)
def cumsum(context: Context, x: Value, dim: int, *_: Any) -> Value:
    """The sum of all elements up to each one."""
    result = context.dtype()
    if x.rank == 0:
        return cast_to(x, result)
    source = context.tensor(x)
    return whole(nn_cumsum(source, axis=dim, dtype=result, name=f"{context.name}.scan"))


@takes(Family.SCAN, aten.cumprod.default)
def cumprod(context: Context, x: Value, dim: int, *_: Any) -> Value:
    """The product of all elements up to each one."""
    result = context.dtype()
    if x.rank == 0:
        return cast_to(x, result)
    work = DType.float32 if result.is_short_float else result
    d = dim + x.rank if dim < 0 else dim
    if any(number_of(extent) == 0 for extent in x.shape):
        return filled(1, x.shape, result)
    source = cast_to(cast_to(context.held(x), result), work)
    others = (*x.shape[:d], *x.shape[d + 1 :])
    state = placeholder((x.shape[d], *others), work, name=f"{context.name}.state")
    first = compute(
        (1, *others),
        lambda *i: source[(*i[1 : d + 1], 0, *i[d + 1 :])],
        name=f"{context.name}.first",
    )

    def following(*i: Axis) -> Expr:
        term = source[(*i[1 : d + 1], i[0], *i[d + 1 :])]
        return read(state, (build.sub(i[0], 1), *i[1:])) * term

    step = compute(state.shape, lambda *i: following(*i), name=f"{context.name}.step")
    made = whole(cast(Tensor, scan(first, step, state, name=f"{context.name}.scan")))
    moved = viewed(made, x.shape, lambda i: (i[d], *i[:d], *i[d + 1 :]))
    return cast_to(moved, result)
