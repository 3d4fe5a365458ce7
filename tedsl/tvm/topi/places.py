"""TOPI's operators that choose elements by where they are: diagonals, triangles, sequences, parts
that are set.

Imports `transform`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tedsl.expr.nodes import Expr
from tedsl.tensor import math as functions
from tedsl.tensor import reduce
from tedsl.tensor.axis import reduce_axis
from tedsl.tensor.compute import compute
from tedsl.tensor.tensor import Tensor
from tedsl.tvm.topi.shapes import get_const_int
from tedsl.tvm.topi.tag import BROADCAST, INJECTIVE

__all__ = [
    "expand_like",
    "matrix_set_diag",
    "reverse_sequence",
    "sequence_mask",
    "sparse_to_dense",
    "strided_set",
    "trilu",
]
math: Any = functions


def sequence_mask(data: Tensor, valid_length: Tensor, mask_value: Any = 0, axis: int = 0) -> Tensor:
    """Another value from a length on that each column has, along the first or second dimension."""

    def element(*i: Any) -> Any:
        inside = i[axis] < valid_length(i[1 - axis])
        return math.select(inside, data(*i), math.cast(mask_value, data.dtype))

    return compute(data.shape, element, name="T_sequence_mask", tag=INJECTIVE)


def reverse_sequence(
    a: Tensor, seq_lengths: Tensor, seq_axis: int = 1, batch_axis: int = 0
) -> Tensor:
    """The first elements along `seq_axis` backwards, as many as each index along `batch_axis` has
    a length of; the others as they are."""
    along, of = seq_axis % a.ndim, batch_axis % a.ndim

    def element(*i: Any) -> Any:
        count, place = seq_lengths(i[of]), i[along]
        other = math.select(place < count, count - 1 - place, place)
        return a(*i[:along], other, *i[along + 1 :])

    return compute(a.shape, element, name="T_reverse_sequence", tag=INJECTIVE)


def trilu(data: Tensor, k: Any, upper: bool) -> Tensor:
    """The triangle above diagonal `k` of each matrix, with it, or that below, and 0 elsewhere.

    Args:
        k: a number, or a tensor of no dimensions.
    """
    diagonal = k() if isinstance(k, Tensor) else k

    def element(*i: Any) -> Any:
        place = i[-1] - i[-2]
        kept = place >= diagonal if upper else place <= diagonal
        return math.select(kept, data(*i), math.cast(0, data.dtype))

    return compute(data.shape, element, name="T_trilu", tag=INJECTIVE)


def matrix_set_diag(
    data: Tensor,
    diagonal: Tensor,
    k: int | Sequence[int] = 0,
    align: str = "RIGHT_LEFT",
) -> Tensor:
    """A matrix, or many, with another diagonal `k`, or others from the lowest to the highest.

    Args:
        diagonal: `[..., places]`; of several `[..., diagonals, places]`, the highest first.
        align: where those above and those below stand that are shorter than the longest: `"LEFT"`
            or `"RIGHT"` each, joined by `_`.
    """
    low, high = (k, k) if isinstance(k, int) else (k[0], k[-1])
    above, below = (word == "RIGHT" for word in align.split("_"))
    one = low == high
    rows, columns = data.shape[-2:]
    longest = diagonal.shape[-1]

    def element(*i: Any) -> Any:
        number = i[-1] - i[-2]
        place = math.select(number >= 0, i[-2], i[-1])
        if one:
            at = (place,)
            inside = reduce.all(number == low, place < longest)
        else:
            tall, wide = rows + math.minimum(number, 0), columns - math.maximum(number, 0)
            gap = longest - math.minimum(tall, wide)
            shift = math.select(number >= 0, gap if above else 0, gap if below else 0)
            at = (high - number, place + shift)
            inside = reduce.all(low <= number, number <= high)
        return math.if_then_else(inside, diagonal(*i[:-2], *at), data(*i))

    return compute(data.shape, element, name="T_matrix_set_diag", tag=INJECTIVE)


def expand_like(a: Tensor, shape_like: Tensor, axis: Sequence[int]) -> Tensor:
    """Repeated along new dimensions, in the shape of another tensor.

    Args:
        axis: the dimensions of the result that `a` does not have.
    """
    new = {each % shape_like.ndim for each in axis}
    kept = [n for n in range(shape_like.ndim) if n not in new]
    ones = a.ndim == 1 and len(kept) == 0  # a number, which TOPI writes as one element

    def element(*i: Any) -> Any:
        return a(0) if ones else a(*(i[n] for n in kept))

    return compute(shape_like.shape, element, name="T_expand_like", tag=BROADCAST)


def strided_set(
    a: Tensor, v: Tensor, begin: Tensor, end: Tensor, strides: Tensor | None = None
) -> Tensor:
    """`a` with `v` in place of what lies from `begin` to before `end`, in steps.

    Args:
        begin, end, strides: integers, one for each of the first dimensions; below 0 counted from
            behind.
    """
    count = get_const_int(begin.shape[0])

    def element(*i: Any) -> Any:
        tests: list[Any] = []
        at = list[Any](i)
        for n in range(count):
            size, step = a.shape[n], 1 if strides is None else strides(n)
            low, high = (_from_front(each(n), size) for each in (begin, end))
            back = step < 0
            far = math.select(back, low - i[n], i[n] - low)
            wide = math.select(back, 0 - step, step)
            tests += [far >= 0, math.select(back, i[n] > high, i[n] < high), far % wide == 0]
            at[n] = far // wide
        return math.if_then_else(reduce.all(*tests), v(*at), a(*i))

    return compute(a.shape, element, name="T_strided_set", tag=INJECTIVE)


def _from_front(place: Expr, size: Any) -> Expr:
    return math.select(place < 0, place + size, place)


def sparse_to_dense(
    sparse_indices: Tensor,
    output_shape: Sequence[Any],
    sparse_values: Tensor,
    default_value: Tensor | float = 0,
) -> Tensor:
    """Values at the places that indices say, and another value elsewhere.

    Args:
        sparse_indices: integers `[]`, `[n]` or `[n, dimensions]`.
        sparse_values: `[]` or `[n]`, of each place; of a place named twice that named last.
        default_value: a number or a tensor of no dimensions.
    """
    rank, dtype = sparse_indices.ndim, sparse_values.dtype
    other = default_value() if isinstance(default_value, Tensor) else default_value

    def value(n: Any) -> Any:
        return sparse_values() if sparse_values.ndim == 0 else sparse_values(n)

    if rank == 0:

        def alone(*i: Any) -> Any:
            return math.select(i[0] == sparse_indices(), value(0), math.cast(other, dtype))

        return compute(tuple(output_shape), alone, name="T_sparse_to_dense", tag=INJECTIVE)

    n = reduce_axis((0, sparse_indices.shape[0]), name="n")

    def last(*i: Any) -> Any:
        own = [sparse_indices(n)] if rank == 1 else [sparse_indices(n, d) for d in range(len(i))]
        hit = reduce.all(*(a == b for a, b in zip(own, i, strict=True)))
        return reduce.max(math.select(hit, math.cast(n, "int32"), -1), axis=n)

    found = compute(tuple(output_shape), last, name="T_place")

    def element(*i: Any) -> Any:
        place = math.maximum(found(*i), 0)
        return math.if_then_else(found(*i) >= 0, value(place), math.cast(other, dtype))

    return compute(tuple(output_shape), element, name="T_sparse_to_dense", tag=INJECTIVE)
