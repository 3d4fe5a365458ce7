"""Scaled dot-product attention: two contractions around a softmax.

    S = q k^T;  T = f(S);  m = max(T);  p = exp(T - m);  l = sum(p);  P = p / l;  y = P v

Each line is a stage of its own, in the form that `online` takes: the reductions m, l and y follow
one another in one loop over the keys, so that no row of scores is ever stored.

Keys that a query does not see have the score -inf.  Where the places of a query and a key tell
whether it is seen, the reductions say so as well (`where=`), which shortens the loop over the keys.
The maximum starts from a finite number, so that a query that sees nothing has weights of
exp(-inf - m) = 0, not NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.index_arith import constant
from tedsl.expr.nodes import Axis, Const, Expr
from tedsl.nn.arguments import require_float, require_integer, require_rank, require_shape, wide
from tedsl.nn.operator import operator
from tedsl.tensor import math as functions
from tedsl.tensor.axis import reduce_axis
from tedsl.tensor.broadcast import broadcast_shapes, read_broadcast, same_extent
from tedsl.tensor.compute import compute
from tedsl.tensor.reduce import max as max_over
from tedsl.tensor.reduce import sum as sum_over
from tedsl.tensor.tensor import Tensor, read

Window = tuple[int | None, int | None]
"""How many keys before and after its own a query sees; None: all of them."""

# The maximum of no scores.  Any number will do that is far below all scores and far from infinity.
FLOOR = -1e30


@dataclass(frozen=True, slots=True)
class _Scores:
    """What becomes of a product of a query and a key."""

    scale: Expr
    causal: bool
    window: Window
    slopes: Tensor | None
    cap: float | None
    bias: Tensor | None
    lengths: Tensor | None

    @property
    def masked(self) -> bool:
        """True when a query may see no key."""
        return self.limited or self.bias is not None or self.lengths is not None

    @property
    def limited(self) -> bool:
        """True when a query does not see all keys, wherever it stands."""
        return self.causal or self.window != (None, None)


@dataclass(frozen=True, slots=True)
class _Operands:
    """Where keys and values are: `key(index)` and `value(index)` are elements in the dtype they are
    stored in, for `[*lead, head, key, depth]`."""

    lead: tuple[Expr, ...]
    heads: Expr
    keys: Expr
    depth: Expr
    columns: Expr
    key: Callable[[Sequence[Expr]], Expr]
    value: Callable[[Sequence[Expr]], Expr]


@operator
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: Window = (None, None),
    slopes: Tensor | None = None,
    cap: float | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    lengths: Tensor | None = None,
    name: str = "attention",
) -> Tensor:
    """softmax(f(q k^T)) v for each head (Vaswani and others, arXiv:1706.03762).

    Before the softmax, the product s of query i and key j becomes, in this order,

        s * scale;  cap * tanh(s / cap);  s - slope * |i' - j|;  s + bias;  -inf if j is not seen

    where i' = i + keys - queries is the key in step with the query: queries are the last positions
    of the keys, as in a cache that grows (FlashAttention 2.1 and PyTorch's causal_lower_right; for
    as many queries as keys there is no difference to PyTorch's `is_causal`).

    Args:
        q: `[*lead, heads, n, d]`; floats, at least three dimensions.
        k: `[*lead, groups, m, d]`, where `groups` divides `heads`: each of its heads serves
            `heads / groups` neighbouring ones of `q` (grouped-query attention).
        v: `[*lead, groups, m, e]`.
        causal: whether a query sees no key after i'.
        window: how many keys before and after i' a query sees, (None, None) for all.
        slopes: `[heads]`, for attention with linear biases (Press and others, arXiv:2108.12409).
        cap: a limit that scores approach (Gemma 2, arXiv:2408.00118), above 0.
        bias: of a shape that broadcasts to `[*lead, heads, n, m]`; -inf hides a key.
        scale: 1 / sqrt(d) when not given.
        lengths: `lead` of an integer dtype: how many keys there are for each of them, at most `m`;
            i' is then i + length - queries, and what `v` holds further on does not matter.
        name: what the operation prints as.

    Returns:
        `[*lead, heads, n, e]` in the dtype of `q`.  Everything is computed in float32 for 16-bit
        floats; but the weights are rounded to the dtype of `v`, so that the second product is one
        of 16-bit numbers too.  A query that sees no key gets zeros.  What `v` holds of keys that
        are not seen must be finite.

    Raises:
        ExprError: shapes that do not match, different dtypes, no floats, or numbers out of range.
    """
    operands = _dense(q, k, v, lengths, name)
    if bias is not None:
        _check_bias(bias, (*q.shape[:-1], k.shape[-2]), name)
    how = _scores(q, causal, window, slopes, cap, bias, scale, lengths, name)
    return _attend(q, operands, how, name)


@operator
def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    table: Tensor,
    lengths: Tensor,
    *,
    causal: bool = True,
    window: Window = (None, None),
    slopes: Tensor | None = None,
    cap: float | None = None,
    scale: float | None = None,
    name: str = "paged_attention",
) -> Tensor:
    """`attention` over keys and values in pages (Kwon and others, arXiv:2309.06180).

    Key j of sequence b is in slot `j % size` of page `table[b, j // size]`.  Entries of the table
    for keys from `lengths[b]` on are not looked at.

    Args:
        q: `[b, heads, n, d]`, floats: the last n positions of each sequence.
        k_pages: `[pages, size, groups, d]`.
        v_pages: `[pages, size, groups, e]`.
        table: `[b, most]`, int32: the pages of each sequence, in order.
        lengths: `[b]`, int32: the keys of each sequence, at most `most * size`.
        causal: whether a query sees no key after its own position.
        window: as for `attention`.
        slopes: as for `attention`.
        cap: as for `attention`.
        scale: as for `attention`.
        name: what the operation prints as.

    Returns:
        `[b, heads, n, e]` in the dtype of `q`, computed as by `attention`.

    Raises:
        ExprError: as by `attention`; a table or lengths of no integer dtype.
    """
    operands = _paged(q, k_pages, v_pages, table, lengths, name)
    how = _scores(q, causal, window, slopes, cap, None, scale, lengths, name)
    return _attend(q, operands, how, name)


def _dense(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, name: str) -> _Operands:
    """Keys and values as they are, checked."""
    for each in (q, k, v):
        require_float(each, name)
        require_rank(each, 3, name)
    lead, groups = q.shape[:-3], k.shape[-3]
    require_shape(k, (*lead, None, None, q.shape[-1]), name)
    require_shape(v, (*lead, groups, k.shape[-2], None), name)
    _require_same_dtype(q, (k, v), name)
    repeats = _repeats(q.shape[-3], groups, name)

    def key(i: Sequence[Expr]) -> Expr:
        return read(k, _grouped(i, repeats))

    def value(i: Sequence[Expr]) -> Expr:
        element = read(v, _grouped(i, repeats))
        return element if lengths is None else _within(element, i, lengths)

    return _Operands(lead, q.shape[-3], k.shape[-2], q.shape[-1], v.shape[-1], key, value)


def _paged(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, table: Tensor, lengths: Tensor, name: str
) -> _Operands:
    """Keys and values gathered through a table, checked."""
    for each in (q, k_pages, v_pages):
        require_float(each, name)
        require_shape(each, (None,) * 4, name)
    require_shape(k_pages, (None, None, None, q.shape[-1]), name)
    require_shape(v_pages, (*k_pages.shape[:3], None), name)
    _require_same_dtype(q, (k_pages, v_pages), name)
    require_shape(table, (q.shape[0], None), name)
    require_integer(table, name)
    size, repeats = k_pages.shape[1], _repeats(q.shape[1], k_pages.shape[2], name)

    def gathered(pages: Tensor, i: Sequence[Expr]) -> Expr:
        b, head, j, d = i
        page = read(table, (b, build.floordiv(j, size)))
        head = build.floordiv(head, repeats)
        return _within(read(pages, (page, build.floormod(j, size), head, d)), i, lengths)

    return _Operands(
        q.shape[:1],
        q.shape[1],
        build.mul(table.shape[1], size),
        q.shape[-1],
        v_pages.shape[-1],
        lambda i: gathered(k_pages, i),
        lambda i: gathered(v_pages, i),
    )


def _scores(
    q: Tensor,
    causal: bool,
    window: Window,
    slopes: Tensor | None,
    cap: float | None,
    bias: Tensor | None,
    scale: float | None,
    lengths: Tensor | None,
    name: str,
) -> _Scores:
    """The checked arguments."""
    dtype = wide(Const(0.0, q.dtype)).dtype
    if len(window) != 2 or any(each is not None and each < 0 for each in window):
        raise ExprError(
            f"window is {window!r}",
            subject=name,
            facts=[("allowed", "two ints of at least 0, or None")],
            hint="give how many keys before and after its own a query sees, None for all",
        )
    if cap is not None and not cap > 0:
        raise ExprError(f"cap is {cap}", subject=name, hint="give a number above 0, or None")
    if slopes is not None:
        require_float(slopes, name)
        require_shape(slopes, (q.shape[-3],), name)
    if lengths is not None:
        require_shape(lengths, q.shape[:-3], name)
        require_integer(lengths, name)
    return _Scores(_scale(q, scale, dtype), causal, window, slopes, cap, bias, lengths)


def _check_bias(bias: Tensor, whole: tuple[Expr, ...], name: str) -> None:
    require_float(bias, name)
    met = broadcast_shapes([bias.shape, whole], f"{name}, bias")
    if len(met) > len(whole) or not all(map(same_extent, met, whole)):
        raise ExprError(
            f"bias {bias.name} of the shape {list(bias.shape)} for scores of {list(whole)}",
            subject=name,
            hint="give a bias that broadcasts to the scores",
        )


def _scale(q: Tensor, scale: float | None, dtype: DType) -> Expr:
    depth = q.shape[-1]
    if scale is not None:
        return build.const(float(scale), dtype)
    if isinstance(depth, Const):
        return build.const(1.0 / math.sqrt(max(1, int(depth.value))), dtype)
    return functions.rsqrt(build.cast(depth, dtype))


def _repeats(heads: Expr, groups: Expr, name: str) -> int:
    """How many heads of queries share one of keys and values."""
    if same_extent(heads, groups):
        return 1
    many, few = constant(heads), constant(groups)
    if many is None or not few or many % few:
        raise ExprError(
            f"{heads} heads of queries for {groups} heads of keys and values",
            subject=name,
            hint="the heads of keys and values must divide those of queries, as known numbers",
        )
    return many // few


def _grouped(i: Sequence[Expr], repeats: int) -> tuple[Expr, ...]:
    """`[*lead, head, key, depth]` with the head of keys and values that serves `head`."""
    return (*i[:-3], build.floordiv(i[-3], repeats), *i[-2:])


def _within(element: Expr, i: Sequence[Expr], lengths: Tensor) -> Expr:
    """`element` of key `i[-2]`, and 0 without reading it from the length on."""
    there = build.lt(i[-2], read(lengths, i[:-3]))
    return build.if_then_else(there, element, Const(0.0, element.dtype))


def _require_same_dtype(q: Tensor, others: Sequence[Tensor], subject: str) -> None:
    for each in others:
        if each.dtype is not q.dtype:
            raise ExprError(
                f"{each.name} is {each.dtype} and {q.name} is {q.dtype}",
                subject=subject,
                hint=f"cast one of them: {each.name}.astype('{q.dtype}')",
            )


def _score(how: _Scores, product: Expr, i: Sequence[Expr], sizes: tuple[Expr, Expr]) -> Expr:
    """What the softmax takes of `product` at `i`, `[*lead, head, query, key]`; `sizes` are the
    numbers of queries and keys."""
    *_, head, _, key = i
    dtype, own = product.dtype, _own_key(how, i, sizes)
    score = product * how.scale
    if how.cap is not None:
        score = functions.tanh(score * (1.0 / how.cap)) * how.cap
    if how.slopes is not None:
        distance = functions.abs(build.cast(build.sub(own, key), dtype))
        score = score - build.cast(read(how.slopes, (head,)), dtype) * distance
    if how.bias is not None:
        score = score + build.cast(read_broadcast(how.bias, i), dtype)
    return build.select(_seen(how, i, sizes), score, Const(-math.inf, dtype))


def _length(how: _Scores, i: Sequence[Expr], keys: Expr) -> Expr:
    """How many keys there are."""
    return keys if how.lengths is None else build.cast(read(how.lengths, i[:-3]), DType.int32)


def _own_key(how: _Scores, i: Sequence[Expr], sizes: tuple[Expr, Expr]) -> Expr:
    """The key in step with a query."""
    queries, keys = sizes
    return build.add(i[-2], build.sub(_length(how, i, keys), queries))


def _seen(how: _Scores, i: Sequence[Expr], sizes: tuple[Expr, Expr]) -> Expr:
    """Whether the query sees the key at `i`, `[*lead, head, query, key]`."""
    own, key = _own_key(how, i, sizes), i[-1]
    before, after = how.window
    after = 0 if how.causal else after
    seen = [] if how.lengths is None else [build.lt(key, _length(how, i, sizes[1]))]
    if before is not None:
        seen.append(build.ge(key, build.sub(own, before)))
    if after is not None:
        seen.append(build.le(key, build.add(own, after)))
    return build.conjunction(seen)


def _attend(q: Tensor, kv: _Operands, how: _Scores, name: str) -> Tensor:
    """The stages of attention."""
    rows = (*kv.lead, kv.heads, q.shape[-2])
    whole = (*rows, kv.keys)
    d = reduce_axis((0, kv.depth), name="d")
    j0, j1, j2 = (reduce_axis((0, kv.keys), name="j") for _ in range(3))

    def product(*i: Axis) -> Expr:
        right = wide(kv.key((*i[:-2], i[-1], d)))
        return sum_over(wide(read(q, (*i[:-1], d))) * right, axis=d)

    def score(*i: Axis) -> Expr:
        return _score(how, read(scores, i), i, (rows[-1], kv.keys))

    def seen(i: Sequence[Axis], j: Axis) -> Expr | None:
        if not how.limited or how.lengths is not None:  # what is read does not shorten loops
            return None
        return _seen(how, (*i, j), (rows[-1], kv.keys))

    def largest(*i: Axis) -> Expr:
        start = Const(FLOOR, weighed.dtype) if how.masked else None
        return max_over(read(weighed, (*i, j0)), axis=j0, init=start, where=seen(i, j0))

    def share(*i: Axis) -> Expr:
        below = read(total, i[:-1])
        if how.masked:
            below = build.select(build.gt(below, 0.0), below, 1.0)
        return read(powers, i) / below

    def result(*i: Axis) -> Expr:
        weight = wide(build.cast(read(shares, (*i[:-1], j2)), q.dtype))
        right = wide(kv.value((*i[:-2], j2, i[-1])))
        where = seen(i[:-1], j2)
        return build.cast(
            sum_over(weight * right, axis=j2, where=where, finite=where is not None), q.dtype
        )

    scores = compute(whole, product, name=f"{name}.scores")
    weighed = compute(whole, score, name=f"{name}.weighed")
    top = compute(rows, largest, name=f"{name}.max")
    powers = compute(
        whole,
        lambda *i: functions.exp(read(weighed, i) - read(top, i[:-1])),
        name=f"{name}.powers",
    )
    total = compute(
        rows,
        lambda *i: sum_over(read(powers, (*i, j1)), axis=j1, where=seen(i, j1)),
        name=f"{name}.sum",
    )
    shares = compute(whole, share, name=f"{name}.shares")
    return compute((*rows, kv.columns), result, name=name)
