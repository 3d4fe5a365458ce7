"""Rows without reductions: pointwise operations, movement of data, gathers, optimiser steps.
Imports `grammar` and `pieces`."""

from __future__ import annotations

from grammar import Draw, Value, kind
from pieces import after, before, chain, one_more, spread


@kind
def pointwise(d: Draw) -> object:
    """Up to four operands of any broadcast, stride and dtype."""
    shape = d.shape(d.whole(1, 4))
    value = d.input(shape, laid=0.3)
    for _ in range(d.whole(0, 3)):
        other = spread(d, shape)
        value = d.let(f"{value} {d.one_of('+-*')} {other}", shape)
    if d.chance(0.2):
        codes = d.input(shape, d.one_of(("int8", "uint8", "int32")), "below", 100)
        value = d.let(f"{value} * {codes}.to({value}.dtype)", shape)
    return chain(d, value, 1, 4)


@kind
def several_results(d: Draw) -> object:
    """Pointwise results that share what they read."""
    shape = d.shape(d.whole(1, 3))
    value = chain(d, d.input(shape), 0, 2)
    results = [one_more(d, value) for _ in range(d.whole(2, 3))]
    return f"({', '.join(map(str, results))})"


@kind
def permutation(d: Draw) -> object:
    """Dimensions in another order, and something pointwise with it."""
    shape = d.shape(d.whole(2, 5))
    order = d.shuffled(range(len(shape)))
    while order == sorted(order):  # nothing would move
        order = d.shuffled(range(len(shape)))
    value = before(d, d.input(shape))
    moved = Value(f"{value}.permute({tuple(order)})", tuple(shape[n] for n in order))
    moved = d.let(f"{moved}.contiguous()", moved.shape)
    return chain(d, moved, 0, 2)


@kind
def concatenation(d: Draw) -> object:
    """Tensors one after the other along any dimension."""
    rank = d.whole(1, 4)
    shape, place = list(d.shape(rank)), d.whole(0, rank - 1)
    parts, total = list[Value](), 0
    for _ in range(d.whole(2, 4)):
        shape[place] = max(1, d.near(shape[place] / 1.5))
        total += shape[place]
        parts.append(before(d, d.input(shape)))
    shape[place] = total
    return chain(d, d.let(f"torch.cat([{', '.join(map(str, parts))}], {place})", shape), 0, 2)


@kind
def padding_slicing_rolling(d: Draw) -> object:
    """A border, a part, or elements that move round."""
    rank = d.whole(2, 4)
    shape = d.shape(rank)
    value = before(d, d.input(shape))
    place = d.whole(0, rank - 1)
    far, size = d.whole(1, 5), shape[place]
    what = d.whole(0, 3)
    if what == 0:
        value = d.let(f"F.pad({value}, ({far}, {d.whole(0, 4)}))", value.shape)
        return d.let(d.one_of(("F.relu({})", "{} * 2.0")).format(value), value.shape)
    if what == 1:
        return chain(d, d.let(f"torch.roll({value}, {far}, {place})", shape), 0, 2)
    if what == 2:
        return chain(d, d.let(f"{value}.flip({place})", shape), 0, 2)
    kept = (*shape[:place], (size + 1) // 2, *shape[place + 1 :])
    index = ", ".join("::2" if n == place else ":" for n in range(rank))
    return chain(d, d.let(f"{value}[{index}]", kept), 1, 2)


@kind
def gather(d: Draw) -> object:
    """Rows or elements by their number."""
    count, width = d.shape(2)
    table = d.input((d.size(16, max(16, count * 4)), width))
    numbers = d.indices((count,), table.shape[0])
    if d.chance(0.6):
        value = d.let(f"F.embedding({numbers}, {table})", (count, width))
        return after(d, value)
    chosen = d.indices((count, width), table.shape[0])
    value = d.let(f"torch.gather({table}, 0, {chosen})", (count, width))
    return chain(d, value, 0, 2)


@kind
def optimiser_step(d: Draw) -> object:
    """Weights and states of an optimiser, from their gradient."""
    shape = d.shape(d.whole(1, 3))
    w, g, m, v = (str(d.input(shape)) for _ in range(4))
    if d.chance(0.4):
        d.line(f"n = 0.9 * {m} + {g} + 0.01 * {w}")
        return f"({w} - 0.1 * ({g} + 0.9 * n), n)"
    d.line(f"n = {m} * 0.9 + {g} * 0.1")
    d.line(f"s = {v}.square() * 0.999 + {g} * {g} * 0.001")
    return f"({w} * 0.999 - 0.001 * (n / 0.1) / ((s / 0.001).sqrt() + 1e-3), n, s)"
