"""Rows of several operators: attention with its gradients, and small graphs of ten to forty stages.
Imports `grammar` and `pieces`."""

from __future__ import annotations

import math

from grammar import Draw, Value, kind
from pieces import chain


def _attending(d: Draw, queries: int | None = None) -> tuple[int, int, int, int, int]:
    """Batch, heads, queries, keys and the width of a head."""
    batch, heads = d.one_of((1, 1, 2)), d.one_of((1, 2, 4, 8))
    width = d.one_of((16, 32, 64, 64, 80, 96, 128))
    if d.scale.elements < 1 << 12:
        width = d.one_of((4, 8, 5))
    left = d.part(d.scale.products) / (2 * batch * heads * width)
    if queries is not None:
        most = d.scale.elements // (batch * heads * width)
        return batch, heads, queries, max(4, d.near(min(left / queries, most))), width
    keys = max(4, d.near(math.sqrt(left)))
    return batch, heads, keys if d.chance(0.7) else max(2, d.near(keys / 2)), keys, width


def _masked(d: Draw, scores: str, queries: int, keys: int, heads: int) -> Value:
    """Scores with one of the usual masks or biases."""
    value, what = d.let(scores, (queries, keys)), d.whole(0, 4)
    places = (
        f"rows = torch.arange({queries}, device={value}.device)[:, None]",
        f"rows = rows + {max(0, keys - queries)}",
        f"columns = torch.arange({keys}, device={value}.device)[None, :]",
    )
    if what in (0, 1):
        for line in places:
            d.line(line)
        near = f" & (rows - columns < {max(2, keys // 4)})" if what == 1 else ""
        d.line(f"seen = (columns <= rows){near}")
        return d.let(f"torch.where(seen, {value}, -1e4)", value.shape)
    if what == 2:
        return d.let(f"{value} + {d.input((heads, queries, keys))}", value.shape)
    if what == 3:
        return d.let(f"30.0 * torch.tanh({value} / 30.0)", value.shape)
    return value


def _grouped(d: Draw, queries: int | None) -> object:
    batch, heads, queries, keys, width = _attending(d, queries)
    each = d.one_of((2, 4, 8)) if queries < 8 else 2
    q = d.input((batch, heads * each, queries, width))
    k, v = (d.input((batch, heads, keys, width)) for _ in "kv")
    if d.chance(0.5):
        spread = (f"{x}.repeat_interleave({each}, 1)" for x in (k, v))
        return f"F.scaled_dot_product_attention({q}, {', '.join(spread)})"
    shape = f"{batch}, {heads}, {each}, {queries}, {width}"
    scores = f"{q}.view({shape}) @ {k}[:, :, None].mT * {width**-0.5:.6f}"
    d.line(f"p = F.softmax({scores}, -1)")
    return f"(p @ {v}[:, :, None]).view({batch}, {heads * each}, {queries}, {width})"


@kind
def attention(d: Draw) -> object:
    """Causal, in a window, with a bias, capped or whole."""
    batch, heads, queries, keys, width = _attending(d)
    q = d.input((batch, heads, queries, width))
    k, v = (d.input((batch, heads, keys, width)) for _ in "kv")
    if d.chance(0.3):
        causal = d.chance(0.5) and queries == keys
        return f"F.scaled_dot_product_attention({q}, {k}, {v}, is_causal={causal})"
    scores = _masked(d, f"{q} @ {k}.mT * {width**-0.5:.6f}", queries, keys, heads)
    return f"F.softmax({scores}, -1) @ {v}"


@kind
def grouped_queries(d: Draw) -> object:
    """Several heads of queries for each of keys."""
    return _grouped(d, None)


@kind
def one_query(d: Draw) -> object:
    """Decoding: one query a head, or a few, over long keys."""
    if d.chance(0.5):
        return _grouped(d, d.one_of((1, 1, 2, 4)))
    batch, heads, queries, keys, width = _attending(d, 1)
    q = d.input((batch, heads, queries, width))
    k, v = (d.input((batch, heads, keys, width)) for _ in "kv")
    lengths = d.indices((batch,), keys)
    d.line(f"seen = torch.arange({keys}, device={q}.device) <= {lengths}[:, None, None, None]")
    scores = f"torch.where(seen, {q} @ {k}.mT * {width**-0.5:.6f}, -1e4)"
    return f"F.softmax({scores}, -1) @ {v}"


@kind
def paged_attention(d: Draw) -> object:
    """Keys and values in pages that a table names."""
    batch, heads, queries, keys, width = _attending(d, 1)
    page = d.one_of((4, 8, 16))
    pages = max(1, keys // page)
    pool = pages * batch + d.whole(1, 8)
    q = d.input((batch, heads, queries, width))
    k, v = (d.input((pool, page, heads, width)) for _ in "kv")
    table = d.indices((batch, pages), pool)
    shape = f"{batch}, {pages * page}, {heads}, {width}"
    for name, stored in (("k", k), ("v", v)):
        d.line(f"{name} = {stored}[{table}].view({shape}).transpose(1, 2)")
    return f"F.softmax({q} @ k.mT * {width**-0.5:.6f}, -1) @ v"


@kind
def attention_gradient(d: Draw) -> object:
    """Backwards through attention."""
    batch, heads, queries, keys, width = _attending(d)
    q, g = (d.input((batch, heads, queries, width)) for _ in "qg")
    k, v = (d.input((batch, heads, keys, width)) for _ in "kv")
    d.line(f"run = lambda q, k, v: F.softmax(q @ k.mT * {width**-0.5:.6f}, -1) @ v")
    d.line(f"result, back = torch.func.vjp(run, {q}, {k}, {v})")
    return f"back({g})"


@kind
def layers(d: Draw) -> object:
    """Linear layers, activations, norms and residuals, ten to forty stages of them."""
    count, width = d.whole(2, 6), d.size(8, 256 if d.scale.elements > 1 << 12 else 12)
    rows = max(2, min(4096, d.part(d.scale.products) // (count * width * width)))
    x = d.input((rows, width))
    for _ in range(count):
        w, b = d.input((width, width)), d.input((width,))
        y = d.let(f"F.linear({x}, {w}, {b}) * {width**-0.5:.6f}", (rows, width))
        y = chain(d, y, 1, 3)
        if d.chance(0.5):
            y = d.let(f"{y} + {x}", y.shape)
        if d.chance(0.4):
            y = d.let(f"F.layer_norm({y}, ({width},), {d.input((width,))})", y.shape)
        x = y
    return x


@kind
def transformer_block(d: Draw) -> object:
    """Norm, attention, residual, norm, gated layers, residual."""
    heads, width = d.one_of((1, 2, 4)), d.one_of((8, 16, 32, 64))
    if d.scale.elements < 1 << 12:
        heads, width = 2, 4
    size = heads * width
    rows = max(4, min(1024, d.part(d.scale.products) // (12 * size * size)))
    x, n1, n2 = d.input((rows, size)), d.input((size,)), d.input((size,))
    wide = [d.input((size, size)) for _ in range(4)]
    up, gate, down = d.input((2 * size, size)), d.input((2 * size, size)), d.input((size, 2 * size))
    s = f"{size**-0.5:.6f}"
    d.line(f"h = F.rms_norm({x}, ({size},), {n1})")
    for name, w in zip("qkv", wide, strict=False):
        d.line(f"{name} = (F.linear(h, {w}) * {s}).view({rows}, {heads}, {width}).transpose(0, 1)")
    d.line(f"p = F.softmax(q @ k.mT * {width**-0.5:.6f}, -1)")
    d.line(f"a = (p @ v).transpose(0, 1).reshape({rows}, {size})")
    d.line(f"y = {x} + F.linear(a, {wide[3]}) * {s}")
    d.line(f"h = F.rms_norm(y, ({size},), {n2})")
    d.line(f"h = F.silu(F.linear(h, {gate}) * {s}) * F.linear(h, {up}) * {s}")
    return f"y + F.linear(h, {down}) * {s}"


@kind
def convolution_blocks(d: Draw) -> object:
    """Convolutions with statistics of the batch, activations and residuals."""
    count, channels = d.whole(1, 3), d.size(4, 64 if d.scale.elements > 1 << 12 else 5)
    batch = d.one_of((1, 2, 4))
    places = d.part(d.scale.products) / (count * 9 * channels * channels * batch)
    side = max(4, d.near(math.sqrt(min(places, d.scale.elements / (channels * batch)))))
    shape = batch, channels, side, side
    x = d.input(shape)
    for _ in range(count):
        w = d.input((channels, channels, 3, 3))
        a, b = d.input((channels,)), d.input((channels,))
        d.line(f"y = F.conv2d({x}, {w}, padding=1)")
        d.line(f"y = F.batch_norm(y, None, None, {a}, {b}, training=True)")
        x = d.let(f"F.relu(y + {x})" if d.chance(0.5) else "F.relu(y)", shape)
    return d.one_of((str(x), f"{x}.mean(dim=(2, 3))"))


@kind
def weights_gradient(d: Draw) -> object:
    """Backwards through a layer and its loss."""
    width, classes = d.size(4, 256), d.size(4, 128)
    rows = max(2, min(4096, d.part(d.scale.products) // (3 * width * classes)))
    x, w, b = d.input((rows, width)), d.input((classes, width)), d.input((classes,))
    labels = d.indices((rows,), classes)
    d.line(f"run = lambda w, b: F.cross_entropy(F.linear({x}, w, b), {labels})")
    d.line(f"result, back = torch.func.vjp(run, {w}, {b})")
    return "(result, *back(torch.ones_like(result)))"
