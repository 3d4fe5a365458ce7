"""Rows around products: every transposition, batched, broadcast, grouped, gathered, ragged, skinny,
with what stands before and after.  Imports `grammar` and `pieces`."""

from __future__ import annotations

import math

from grammar import Draw, Value, kind
from pieces import after, before, matrix


def _sizes(d: Draw, batch: int = 1) -> tuple[int, int, int]:
    """Rows, columns and what is added up of a product of some of the work of the scale."""
    left = d.part(d.scale.products) / max(1, batch)
    side = max(2.0, left ** (1 / 3))
    m, n = (d.near(max(2.0, side * d.one_of((0.4, 0.7, 1.0, 1.5, 2.5)))) for _ in "mn")
    return m, n, max(2, d.near(left / (m * n)))


@kind
def product(d: Draw) -> object:
    """Two matrices, stored one way or the other."""
    m, n, k = _sizes(d)
    a, b = before(d, matrix(d, m, k)), matrix(d, k, n)
    return after(d, d.let(f"{a} @ {b}", (m, n)))


@kind
def linear_layer(d: Draw) -> object:
    """As a layer does it: weights of (out, in), over any leading dimensions."""
    m, n, k = _sizes(d)
    lead = (m,)
    if d.chance(0.4):
        batch = d.one_of([b for b in range(1, 9) if m % b == 0])
        lead = (batch, m // batch)
    x, w = before(d, d.input((*lead, k))), d.input((n, k))
    bias = f", {d.input((n,))}" if d.chance(0.6) else ""
    return after(d, d.let(f"F.linear({x}, {w}{bias})", (*lead, n)))


@kind
def batched_product(d: Draw) -> object:
    """Many small products, stored any way, one side of which may be broadcast."""
    batch = d.shape(d.whole(1, 2), d.size(2, 64))
    m, n, k = _sizes(d, math.prod(batch))
    a = before(d, matrix(d, m, k, batch))
    b = matrix(d, k, n, batch if d.chance(0.75) else (1,) * len(batch))
    return after(d, d.let(f"{a} @ {b}", (*batch, m, n)))


@kind
def transposed_operands(d: Draw) -> object:
    """Batched products by subscripts: any order of dimensions on either side and behind."""
    batch = d.size(2, 32)
    m, n, k = _sizes(d, batch)
    sizes = {"b": batch, "m": m, "n": n, "k": k}
    first, second, result = ("".join(d.shuffled(each)) for each in ("bmk", "bkn", "bmn"))
    a, b = (d.input([sizes[c] for c in each]) for each in (first, second))
    text = f"torch.einsum('{first},{second}->{result}', {a}, {b})"
    return after(d, d.let(text, [sizes[c] for c in result]))


@kind
def skinny_product(d: Draw) -> object:
    """One side is a few rows, or one."""
    few = d.one_of((1, 1, 2, 3, 4, 8, 12, 16))
    left = d.part(d.scale.elements)
    k = d.near(math.sqrt(left) * d.one_of((0.5, 1.0, 2.0)))
    n = max(2, d.near(left / k))
    if d.chance(0.5):
        a, b = before(d, d.input((few, k))), matrix(d, k, n)
        return after(d, d.let(f"{a} @ {b}", (few, n)))
    a, b = matrix(d, n, k), d.input((k, few))
    return after(d, d.let(f"{a} @ {b}", (n, few)))


@kind
def tall_product(d: Draw) -> object:
    """A gradient of weights: what is added up is far longer than both sides."""
    m, n = d.size(4, 96), d.size(4, 96)
    k = max(2, d.near(min(d.part(d.scale.products) / (m * n), d.scale.elements / max(m, n))))
    a, b = d.input((k, m)), d.input((k, n))
    return after(d, d.let(f"{a}.T @ {b}", (m, n)))


@kind
def grouped_product(d: Draw) -> object:
    """Each group of columns by a matrix of its own."""
    groups = d.size(2, 32)
    m, n, k = _sizes(d, groups)
    x, w = before(d, d.input((m, groups, k))), d.input((groups, k, n))
    return after(d, d.let(f"torch.einsum('mgk,gkn->mgn', {x}, {w})", (m, groups, n)))


@kind
def gathered_product(d: Draw) -> object:
    """A mixture of experts: each block of rows by the matrix that its expert has."""
    experts, block = d.size(2, 16), d.one_of((16, 32, 64))
    blocks = d.size(2, 16)
    _, n, k = _sizes(d, blocks * 2)
    x, w = d.input((blocks * block, k)), d.input((experts, k, n))
    chosen = d.indices((blocks,), experts)
    text = f"torch.bmm({x}.view({blocks}, {block}, {k}), {w}[{chosen}])"
    return after(d, d.let(f"{text}.view({blocks * block}, {n})", (blocks * block, n)))


@kind
def quantised_product(d: Draw) -> object:
    """Weights of few bits, made numbers on the way."""
    m, n, k = _sizes(d)
    x = d.input((m, k))
    bits = d.one_of(("int8", "int16", "int4"))
    scale = d.input((n,), content="positive")
    if bits == "int4":
        k = max(2, k // 2 * 2)
        x = d.input((m, k))
        packed = d.input((n, k // 2), "uint8", "below", 256)
        d.line(f"low, high = ({packed} & 15), ({packed} >> 4)")
        d.line(f"w = torch.stack([low, high], -1).view({n}, {k}).to({x}.dtype) - 8.0")
    else:
        d.line(f"w = {d.input((n, k), bits, 'below', 100)}.to({x}.dtype) - 50.0")
    return after(d, d.let(f"{x} @ (w * {scale}[:, None] * 0.02).T", (m, n)))


@kind
def gated_products(d: Draw) -> object:
    """Two products of the same rows, one of which is a gate."""
    m, n, k = _sizes(d, 2)
    x, a, b = before(d, d.input((m, k))), matrix(d, k, n), matrix(d, k, n)
    gate = d.one_of(("F.silu({})", "F.gelu({})", "torch.sigmoid({})"))
    return after(d, d.let(f"{gate.format(f'{x} @ {a}')} * ({x} @ {b})", (m, n)))


@kind
def normed_product(d: Draw) -> object:
    """A norm of the rows before a product, or of its result with a residual."""
    m, n, k = _sizes(d)
    x, w = d.input((m, k)), matrix(d, k, n)
    if d.chance(0.5):
        x = Value(f"F.rms_norm({x}, ({k},), {d.input((k,))})", (m, k))
        return after(d, d.let(f"{x} @ {w}", (m, n)))
    y = d.let(f"{x} @ {w} + {d.input((m, n))}", (m, n))
    return f"F.layer_norm({y}, ({n},), {d.input((n,))}, {d.input((n,))})"


@kind
def ragged_product(d: Draw) -> object:
    """A batch of which each member has rows of its own number."""
    batch = d.size(2, 16)
    m, n, k = _sizes(d, batch)
    x, w, lengths = d.input((batch, m, k)), matrix(d, k, n), d.indices((batch,), m + 1)
    d.line(
        f"inside = torch.arange({m}, device={x}.device)[None, :, None] < {lengths}[:, None, None]"
    )
    return f"torch.where(inside, {x} @ {w}, 0.0)"
