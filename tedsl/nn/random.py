"""Random numbers that are functions of a seed and a place: nothing is stored, and every target
gives the same bits.

The generator is Philox4x32-10 of Salmon, Moraes, Dror and Shaw (Parallel random numbers: as easy as
1, 2, 3; SC 2011): ten rounds of multiplications and exclusive ors turn a counter of four words,
under a key of two, into four random words.  The key is the seed; two words of the counter are the
number of the element in row-major order, the other two are `offset`, so that neither the elements
of a tensor nor tensors of different offsets share a number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Const, Expr
from tedsl.expr.promote import DTypeLike, as_dtype
from tedsl.nn.arguments import require_between, require_float, require_integer, require_scalar, wide
from tedsl.nn.operator import operator
from tedsl.tensor.axis import INT32_MAX
from tedsl.tensor.compute import Shape, as_shape, compute
from tedsl.tensor.tensor import Tensor, read

Whole = int | Expr | Tensor
"""An integer: a number, an expression, or a tensor without dimensions."""

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = (1 << 32) - 1
_FRACTION_BITS = {DType.float16: 11, DType.bfloat16: 8, DType.float32: 24, DType.float64: 53}
_KEEP_BITS = _FRACTION_BITS[DType.float32]


@operator
def philox(counter: Sequence[Expr | int], key: Sequence[Expr | int]) -> tuple[Expr, ...]:
    """Four random words from a counter and a key: Philox4x32-10, for use in a body.

    Args:
        counter: four uint32 words, the least significant first; numbers or expressions.
        key: two such words.

    Returns:
        Four uint32 expressions, which share their parts.  What is not used is not computed.

    Raises:
        ExprError: another number of words, or words that are not uint32.
    """
    c, k = _as_words(counter, 4, "counter"), _as_words(key, 2, "key")
    for n in range(_ROUNDS):
        high, low = zip(*map(_product, _MULTIPLIERS, (c[0], c[2])), strict=True)
        bumped = [
            word + build.const(n * step & _WORD, DType.uint32)
            for word, step in zip(k, _KEY_STEPS, strict=True)
        ]
        c = (high[1] ^ c[1] ^ bumped[0], low[1], high[0] ^ c[3] ^ bumped[1], low[0])
    return c


@operator
def random_bits(shape: Shape, seed: Whole, offset: Whole = 0, name: str = "random_bits") -> Tensor:
    """Random words: the first that `philox` gives for each element.

    Args:
        shape: extents, outermost first; one extent may stand bare.
        seed: any integer; its low 64 bits count.
        offset: any integer, 64 bits of which count; another one gives other numbers.  Count it up
            from one use of a seed to the next.
        name: what the operation prints as.

    Returns:
        uint32, of that shape.

    Raises:
        ExprError: a seed or offset that is no integer or has dimensions.
    """
    draw = _Draw(shape, seed, offset, name)
    return compute(draw.shape, lambda *i: draw.words(i)[0], name=name)


@operator
def random_uniform(
    shape: Shape,
    seed: Whole,
    offset: Whole = 0,
    dtype: DTypeLike = DType.float32,
    name: str = "random_uniform",
) -> Tensor:
    """Random floats in [0, 1): the highest bits of the words of `philox` over a power of two.

    Each is a multiple of 2^-24 (float32), 2^-53 (float64, of two words), 2^-11 (float16) or 2^-8
    (bfloat16), all equally likely.

    Args:
        shape: extents, outermost first; one extent may stand bare.
        seed: any integer; its low 64 bits count.
        offset: any integer, 64 bits of which count; another one gives other numbers.
        dtype: a float.
        name: what the operation prints as.

    Returns:
        `dtype`, of that shape.

    Raises:
        ExprError: a dtype that is no float, a seed or offset that is no integer or has dimensions.
    """
    kind = as_dtype(dtype)
    if kind not in _FRACTION_BITS:
        raise ExprError(
            f"dtype is {kind}",
            subject=name,
            facts=[("allowed", ", ".join(_FRACTION_BITS))],
            hint="draw integers with te.nn.random_bits",
        )
    draw = _Draw(shape, seed, offset, name)
    bits = _FRACTION_BITS[kind]

    def element(*i: Axis) -> Expr:
        words = draw.words(i)
        if bits <= 32:  # through int32, whose conversion every processor has
            whole = build.cast(words[0] >> (32 - bits), DType.int32)
            return build.cast(build.cast(whole, DType.float32) * 2.0**-bits, kind)
        high, low = (build.cast(word, DType.uint64) for word in words[:2])
        whole = build.cast((high << 32 | low) >> (64 - bits), DType.int64)
        return build.cast(whole, kind) * 2.0**-bits

    return compute(draw.shape, element, name=name)


@operator
def dropout(x: Tensor, p: float, seed: Whole, offset: Whole = 0, name: str = "dropout") -> Tensor:
    """x / (1 - p), or 0 with probability `p` (Srivastava and others, JMLR 15, 2014).

    An element is kept where `random_uniform(x.shape, seed, offset)` is at least `p`.  This is
    decided again wherever it is needed, in the derivative too: no mask is stored.

    Args:
        x: floats of any shape.
        p: from 0 to 1, the probability of a 0.
        seed: any integer; its low 64 bits count.
        offset: any integer, 64 bits of which count; another one gives another mask.  Use one
            for each layer and step.
        name: what the operation prints as.

    Returns:
        The shape and dtype of `x`.

    Raises:
        ExprError: `p` outside 0 .. 1, `x` is no float, a seed or offset that is no integer or has
            dimensions.
    """
    require_float(x, name)
    require_between(p, 0.0, 1.0, "p", name)
    draw = _Draw(x.shape, seed, offset, name)
    threshold = math.ceil(p * 2**_KEEP_BITS)  # u >= p of multiples u of 2^-24
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0

    def element(*i: Axis) -> Expr:
        kept = build.ge(draw.words(i)[0] >> (32 - _KEEP_BITS), threshold)
        return build.cast(build.select(kept, wide(read(x, i)) * scale, 0.0), x.dtype)

    return compute(x.shape, element, name=name)


class _Draw:
    """The words of each element of a shape, under a seed and an offset."""

    def __init__(self, shape: Shape, seed: Whole, offset: Whole, subject: str) -> None:
        self.shape = as_shape(shape, subject)
        self.key = _halves(seed, "seed", subject)
        self.offset = _halves(offset, "offset", subject)

    def words(self, i: Sequence[Expr]) -> tuple[Expr, ...]:
        low, high = self._number(i)
        return philox((low, high, *self.offset), self.key)

    def _number(self, i: Sequence[Expr]) -> tuple[Expr, Expr]:
        """The place of an element in row-major order, as two words."""
        count = 1
        for extent in self.shape:
            count *= int(extent.value) if isinstance(extent, Const) else INT32_MAX + 1
        kind = DType.uint32 if count <= _WORD else DType.uint64
        number: Expr = Const(0, kind)
        for axis, extent in zip(i, self.shape, strict=True):
            number = number * build.cast(extent, kind) + build.cast(axis, kind)
        if kind is DType.uint32:
            return number, Const(0, DType.uint32)
        return build.cast(number, DType.uint32), build.cast(number >> 32, DType.uint32)


def _halves(value: Whole, what: str, subject: str) -> tuple[Expr, Expr]:
    """The low and the high word of the low 64 bits of an integer."""
    if isinstance(value, int):
        return (
            build.const(value & _WORD, DType.uint32),
            build.const(value >> 32 & _WORD, DType.uint32),
        )
    if isinstance(value, Tensor):
        require_integer(value, subject)
        require_scalar(value, subject)
        value = read(value, ())
    kind: object = getattr(value, "dtype", type(value).__name__)  # a float may come this way too
    if not isinstance(kind, DType) or not kind.is_integer:
        raise ExprError(f"{what} is {value} ({kind})", subject=subject, hint="give an integer")
    whole = build.cast(value, DType.uint64)
    return build.cast(whole, DType.uint32), build.cast(whole >> 32, DType.uint32)


def _as_words(given: Sequence[Expr | int], count: int, what: str) -> tuple[Expr, ...]:
    words = tuple(
        build.const(word, DType.uint32) if isinstance(word, int) else word for word in given
    )
    if len(words) != count or any(word.dtype is not DType.uint32 for word in words):
        listed = ", ".join(str(word.dtype) for word in words)
        raise ExprError(
            f"the {what} is ({listed})",
            subject="philox",
            facts=[("allowed", f"{count} words of uint32")],
            hint="cast each word: x.astype('uint32')",
        )
    return words


def _product(a: int, b: Expr) -> tuple[Expr, Expr]:
    """The high and the low word of the product of two words."""
    product = build.cast(b, DType.uint64) * a
    return build.cast(product >> 32, DType.uint32), build.cast(product, DType.uint32)
