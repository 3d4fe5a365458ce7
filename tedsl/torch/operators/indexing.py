"""Reads at indices that are data: embedding, gather, index.

An index outside is an error in PyTorch.  Here it is kept inside, for the sake of memory, and
`Context.checked` says what has to hold; where it does not, the call is PyTorch's, which raises.
Imports `importer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tedsl.expr.nodes import Expr
from tedsl.torch.elements.value import Index, Indices, Value, broadcast, number_of
from tedsl.torch.importer.context import Context
from tedsl.torch.importer.registry import Family, takes
from tedsl.torch.lib import aten
from tedsl.torch.refusals import NotTaken


def check_places(
    context: Context, source: Value, index: Value, d: int, negative: bool, looked: bool = True
) -> None:
    """What PyTorch asks of `index` along a dimension of `source`; whether it is inside is `looked`
    at in each call."""
    if number_of(source.shape[d]) == 0:
        raise NotTaken("a choice among nothing")
    if not index.dtype.is_integer:
        raise NotTaken("indices that are no integers")
    if looked:
        context.checked(index, source.shape[d], negative)


@takes(Family.INDEXING, aten.embedding.default)
def embedding(context: Context, weight: Value, index: Value, *_: Any) -> Value:
    """Rows by number."""
    table, place = context.held(weight), context.held(index)
    check_places(context, table, place, 0, False)
    extent = table.shape[0]

    def element(i: Indices) -> Expr:
        return table[(context.index(place, i[:-1], extent), i[-1])]

    return Value(context.shape(), weight.dtype, element, None, 2)


@takes(Family.INDEXING, aten.index_select.default)
def index_select(context: Context, x: Value, dim: int, index: Value) -> Value:
    """Places of a dimension by number."""
    if x.rank == 0:
        raise NotTaken("a choice among a single number")
    d = dim + x.rank if dim < 0 else dim
    source = context.held(x)
    place = context.held(index if index.rank else broadcast(index, (1,)))
    check_places(context, source, place, d, False)

    def element(i: Indices) -> Expr:
        chosen = context.index(place, (i[d],), source.shape[d])
        return source[(*i[:d], chosen, *i[d + 1 :])]

    return Value(context.shape(), x.dtype, element, None, 2)


@takes(Family.INDEXING, aten.gather.default)
def gather(context: Context, x: Value, dim: int, index: Value, *_: Any) -> Value:
    """One place of a dimension for each index."""
    if x.rank == 0 or index.rank != x.rank:
        raise NotTaken("a choice among a single number")
    d = dim + x.rank if dim < 0 else dim
    source, place = context.held(x), context.held(index)
    check_places(context, source, place, d, False)

    def element(i: Indices) -> Expr:
        chosen = context.index(place, i, source.shape[d])
        return source[(*i[:d], chosen, *i[d + 1 :])]

    return Value(context.shape(), x.dtype, element, None, 2)


@takes(
    Family.INDEXING,
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    limits="integers in place of bools",
)
def index(context: Context, x: Value, indices: Sequence[Value | None]) -> Value:
    """Dimensions by number, the numbers broadcast together, as numpy lays the result out."""
    given = {d: context.held(each) for d, each in enumerate(indices) if each is not None}
    if any(each.dtype.is_bool or each.dtype.bits == 8 for each in given.values()):
        raise NotTaken("a mask: the shape depends on data")
    shape = context.shape()
    source = context.held(x)
    for d, each in given.items():
        check_places(context, source, each, d, True)
    dims = sorted(given)
    together = dims[-1] - dims[0] + 1 == len(dims)
    rank = len(shape) - (x.rank - len(given))
    begin = dims[0] if together else 0
    rest = [d for d in range(x.rank) if d not in given]
    spread = {d: broadcast(each, shape[begin : begin + rank]) for d, each in given.items()}

    def element(i: Indices) -> Expr:
        inner = i[begin : begin + rank]
        at: list[Index] = [0] * x.rank
        for d, place in zip(rest, (*i[:begin], *i[begin + rank :]), strict=True):
            at[d] = place
        for d, each in spread.items():
            at[d] = context.index(each, inner, source.shape[d])
        return source[at]

    return Value(shape, x.dtype, element, None, 2)
