"""TOPI's operators that move elements: shapes, slices, gathers, joins.

Each is one `te.compute`, whose tag says that it reads an element of each input for each of its own.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from functools import reduce as fold
from math import prod
from operator import mul
from typing import Any

import numpy as np

from tedsl.errors import ExprError
from tedsl.nn import indexing
from tedsl.tensor import math, reduce
from tedsl.tensor.axis import reduce_axis
from tedsl.tensor.compute import compute
from tedsl.tensor.tensor import Tensor
from tedsl.tvm.topi.shapes import get_const_int, ravel_index
from tedsl.tvm.topi.shapes import unravel_index as unravelled
from tedsl.tvm.topi.tag import BROADCAST, ELEMWISE, INJECTIVE

__all__ = [
    "adv_index",
    "arange",
    "broadcast_to",
    "cast",
    "concatenate",
    "cumsum",
    "einsum",
    "expand_dims",
    "flatten",
    "flip",
    "full",
    "full_like",
    "gather",
    "gather_nd",
    "identity",
    "layout_transform",
    "meshgrid",
    "ndarray_size",
    "one_hot",
    "reinterpret",
    "repeat",
    "reshape",
    "shape",
    "split",
    "squeeze",
    "stack",
    "strided_slice",
    "take",
    "tile",
    "transpose",
    "unravel_index",
    "where",
]
Shape = Sequence[Any]


def _moved(shape: Shape, element: Callable[..., Any], name: str, tag: str = INJECTIVE) -> Tensor:
    return compute(tuple(shape), element, name=name, tag=tag)


def _axis(a: Tensor, axis: int, name: str, room: int = 0) -> int:
    """A dimension, counted from the front."""
    rank = a.ndim + room
    if not -rank <= axis < rank:
        raise ExprError(
            f"{a.name} has no dimension {axis}",
            subject=f"topi.{name}",
            facts=[("allowed", f"{-rank} .. {rank - 1}")],
            hint="name one of its dimensions",
        )
    return axis % rank


def reshape(a: Tensor, newshape: Shape) -> Tensor:
    """The elements in row-major order with other extents; one may be -1, for what is left."""
    shape: list[Any] = list(newshape)
    if -1 in [n for n in shape if isinstance(n, int)]:
        rest = prod(n for n in shape if not isinstance(n, int) or n != -1)
        shape[shape.index(-1)] = prod(a.shape) // rest
    return _moved(shape, lambda *i: a(*unravelled(ravel_index(i, shape), a.shape)), "T_reshape")


def flatten(data: Tensor) -> Tensor:
    """All dimensions but the first as one."""
    rest = data.shape[1:]
    shape = (data.shape[0], prod(rest))

    def element(i: Any, j: Any) -> Any:
        return data(i, *unravelled(j, rest))

    return _moved(shape, element, "tensor")


def transpose(a: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """The dimensions in the order `axes`, by default reversed."""
    order = list(axes) if axes else list(reversed(range(a.ndim)))
    order = [_axis(a, each, "transpose") for each in order]
    if sorted(order) != list(range(a.ndim)):
        raise ExprError(
            f"{order} is no order of {a.ndim} dimensions",
            subject="topi.transpose",
            hint="name each dimension once",
        )
    place = [order.index(n) for n in range(a.ndim)]
    shape = [a.shape[n] for n in order]
    return _moved(shape, lambda *i: a(*(i[p] for p in place)), "T_transpose")


def expand_dims(a: Tensor, axis: int, num_newaxis: int = 1) -> Tensor:
    """Dimensions of extent 1 before the dimension `axis`."""
    at = _axis(a, axis, "expand_dims", 1)
    shape = [*a.shape[:at], *[1] * num_newaxis, *a.shape[at:]]
    return _moved(shape, lambda *i: a(*i[:at], *i[at + num_newaxis :]), "T_expand_dims", BROADCAST)


def squeeze(a: Tensor, axis: int | Sequence[int] | None = None) -> Tensor:
    """Without dimensions of extent 1: these, or all."""
    ones = [n for n, extent in enumerate(a.shape) if getattr(extent, "value", extent) == 1]
    given = ones if axis is None else [axis] if isinstance(axis, int) else list(axis)
    gone = {_axis(a, each, "squeeze") for each in given}
    kept = [n for n in range(a.ndim) if n not in gone]

    def element(*i: Any) -> Any:
        own = dict(zip(kept, i, strict=True))
        return a(*(own.get(n, 0) for n in range(a.ndim)))

    return _moved([a.shape[n] for n in kept], element, "T_squeeze")


def broadcast_to(data: Tensor, shape: Shape) -> Tensor:
    """Dimensions of extent 1, and those in front, repeated."""
    ones = [getattr(extent, "value", None) == 1 for extent in data.shape]

    def element(*indices: Any) -> Any:
        own = indices[len(indices) - data.ndim :]
        return data(*(0 if one else i for one, i in zip(ones, own, strict=True)))

    return _moved(shape, element, "T_broadcast_to", BROADCAST)


def concatenate(a_tuple: Sequence[Tensor], axis: int = 0) -> Tensor:
    """One after the other, along a dimension."""
    first = a_tuple[0]
    at = _axis(first, axis, "concatenate")
    ends: list[Any] = [0]
    for each in a_tuple:
        ends.append(ends[-1] + each.shape[at])

    def element(*i: Any) -> Any:
        value: Any = None
        for each, begin, end in reversed(list(zip(a_tuple, ends, ends[1:], strict=False))):
            own = each(*i[:at], i[at] - begin, *i[at + 1 :])
            value = own if value is None else math.if_then_else(i[at] < end, own, value)
        return value

    return _moved([*first.shape[:at], ends[-1], *first.shape[at + 1 :]], element, "T_concat")


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Side by side, along a new dimension."""
    return concatenate([expand_dims(each, axis) for each in tensors], axis)


def split(ary: Tensor, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """As many equal parts along a dimension, or those that begin at indices."""
    at = _axis(ary, axis, "split")
    size = ary.shape[at]
    if isinstance(indices_or_sections, int):
        step = size // indices_or_sections
        cuts: list[Any] = [step * n for n in range(1, indices_or_sections)]
    else:
        cuts = list(indices_or_sections)
    parts = zip([0, *cuts], [*cuts, size], strict=True)
    return [_slice(ary, at, begin, end - begin, 1, "T_split") for begin, end in parts]


def _slice(a: Tensor, at: int, begin: Any, count: Any, step: Any, name: str) -> Tensor:
    shape = [*a.shape[:at], count, *a.shape[at + 1 :]]
    return _moved(shape, lambda *i: a(*i[:at], begin + i[at] * step, *i[at + 1 :]), name)


def strided_slice(
    a: Tensor,
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    slice_mode: str = "end",
    assume_inbound: bool = True,
) -> Tensor:
    """Elements from `begin` to before `end`, in steps, of each dimension or of some; by the mode
    `"size"` as many as `end` says.  Extents are constants."""
    begins, ends, chosen = list(begin), list(end), list(axes or range(len(begin)))
    steps = [1] * len(begins) if slice_mode == "size" else list(strides or [])
    steps += [1] * (len(begins) - len(steps))
    starts: list[Any] = [0] * a.ndim
    jumps, shape = [1] * a.ndim, list[Any](a.shape)
    for n, at in enumerate(chosen):
        size, low, step = get_const_int(a.shape[at]), begins[n], steps[n]
        high = ends[n] if n < len(ends) else size
        if slice_mode == "size":
            high = size if high < 0 else low + high
        start, stop, step = slice(low, high, step).indices(size)
        starts[at], jumps[at], shape[at] = start, step, len(range(start, stop, step))

    def element(*i: Any) -> Any:
        return a(*(s + each * j for s, each, j in zip(starts, i, jumps, strict=True)))

    return _moved(shape, element, "T_strided_slice")


def flip(a: Tensor, axis: int = 0) -> Tensor:
    """Backwards along a dimension."""
    at = _axis(a, axis, "flip")
    return _slice(a, at, a.shape[at] - 1, a.shape[at], -1, "T_flip")


def repeat(a: Tensor, repeats: int, axis: int) -> Tensor:
    """Each element so often, along a dimension."""
    at = _axis(a, axis, "repeat")
    shape = [*a.shape[:at], a.shape[at] * repeats, *a.shape[at + 1 :]]
    return _moved(shape, lambda *i: a(*i[:at], i[at] // repeats, *i[at + 1 :]), "T_repeat")


def tile(a: Tensor, reps: Sequence[int]) -> Tensor:
    """The whole so often, along the last dimensions."""
    rank = max(a.ndim, len(reps))
    extents = [*[1] * (rank - a.ndim), *a.shape]
    times = [*[1] * (rank - len(reps)), *reps]

    def element(*i: Any) -> Any:
        own = i[rank - a.ndim :]
        return a(*(each % extent for each, extent in zip(own, a.shape, strict=True)))

    return _moved([n * t for n, t in zip(extents, times, strict=True)], element, "T_tile")


def take(
    a: Tensor, indices: Tensor, axis: int | None = None, batch_dims: int = 0, mode: str = "clip"
) -> Tensor:
    """The elements that indices number, along a dimension or of all in row-major order; those
    outside are the nearest (`"clip"`), counted around (`"wrap"`), or 0."""
    if axis is None:
        return take(reshape(a, (prod(a.shape),)), indices, 0, 0, mode)
    at, rank = _axis(a, axis, "take"), indices.ndim
    batch = batch_dims % max(rank, 1) if batch_dims else 0
    size, own = a.shape[at], rank - batch

    def element(*i: Any) -> Any:
        number = indices(*i[:batch], *i[at : at + own])
        if mode == "clip":
            number = math.minimum(math.maximum(number, 0), size - 1)
        elif mode == "wrap":
            number = number % size
        return a(*i[:at], number, *i[at + own :])

    return _moved([*a.shape[:at], *indices.shape[batch:], *a.shape[at + 1 :]], element, "T_take")


def gather(data: Tensor, axis: int, indices: Tensor) -> Tensor:
    """The elements that indices number along a dimension, each in its own row."""
    at = _axis(data, axis, "gather")
    return _moved(indices.shape, lambda *i: data(*i[:at], indices(*i), *i[at + 1 :]), "T_gather")


def gather_nd(a: Tensor, indices: Tensor) -> Tensor:
    """The elements, or parts, that columns of `indices` number."""
    count, rest = get_const_int(indices.shape[0]), indices.ndim - 1

    def element(*i: Any) -> Any:
        return a(*(indices(n, *i[:rest]) for n in range(count)), *i[rest:])

    return _moved([*indices.shape[1:], *a.shape[count:]], element, "T_gather_nd")


def where(condition: Tensor, x: Tensor, y: Tensor) -> Any:
    """Elements of `x` where the condition holds, else of `y`."""
    return math.select(math.not_equal(condition, 0), x, y)


def one_hot(
    indices: Tensor, on_value: Any, off_value: Any, depth: int, axis: int, dtype: Any
) -> Tensor:
    """One value at the place along a new dimension that each index numbers, elsewhere another."""
    at = indices.ndim if axis == -1 else axis

    def element(*i: Any) -> Any:
        hit = indices(*i[:at], *i[at + 1 :]) == i[at]
        on, off = (math.cast(each, dtype) for each in (on_value, off_value))
        return math.select(hit, on, off)

    return _moved([*indices.shape[:at], depth, *indices.shape[at:]], element, "T_one_hot")


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = "float32") -> Tensor:
    """Numbers from `start` to before `stop`, in steps; of one number those below it."""
    begin, end = (0, start) if stop is None else (start, stop)
    count = len(np.arange(*(getattr(each, "value", each) for each in (begin, end, step))))
    return _moved([count], lambda *i: math.cast(begin + step * i[0], dtype), "T_arange")


def meshgrid(a_tuple: Sequence[Tensor], indexing: str = "ij") -> list[Tensor]:
    """For each vector the tensor over all that varies as it does."""
    order = list(range(len(a_tuple)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = 1, 0
    shape = [a_tuple[n].shape[0] for n in order]

    def along(a: Tensor, place: int) -> Tensor:
        return _moved(shape, lambda *i: a(i[place]), "T_meshgrid")

    return [along(a, order.index(n)) for n, a in enumerate(a_tuple)]


def full(shape: Shape, dtype: Any, fill_value: Any) -> Tensor:
    """One value everywhere."""
    return _moved(shape, lambda *_: math.cast(fill_value, dtype), "T_full", ELEMWISE)


def full_like(x: Tensor, fill_value: Any) -> Tensor:
    """One value in the shape of another tensor."""
    return full(x.shape, x.dtype, fill_value)


def shape(array: Tensor, dtype: Any = "int32") -> Tensor:
    """The extents as a tensor."""

    def element(n: Any) -> Any:
        value: Any = array.shape[-1]
        for at in reversed(range(array.ndim - 1)):
            value = math.select(n == at, array.shape[at], value)
        return math.cast(value, dtype)

    return _moved([array.ndim], element, "T_shape")


def ndarray_size(array: Tensor, dtype: Any = "int32") -> Tensor:
    """How many elements there are, in a tensor of no dimensions."""
    return full((), dtype, prod(array.shape))


def unravel_index(indices: Tensor, shape: Tensor | Shape) -> Tensor:
    """The indices of elements by their places in row-major order, along a new first dimension."""
    rank = get_const_int(shape.shape[0]) if isinstance(shape, Tensor) else len(shape)
    extents = [shape(n) for n in range(rank)] if isinstance(shape, Tensor) else list(shape)

    def element(n: Any, *i: Any) -> Any:
        found = unravelled(indices(*i), extents)
        value = found[-1]
        for at in reversed(range(rank - 1)):
            value = math.select(n == at, found[at], value)
        return value

    return _moved([rank, *indices.shape], element, "T_unravel")


def adv_index(data: Tensor, indices: Sequence[Tensor]) -> Tensor:
    """The parts that tensors of indices, of shapes that meet, number along the first dimensions."""
    rank = max(each.ndim for each in indices)
    sizes: list[Any] = [1] * rank
    for each in indices:
        for n, extent in enumerate(each.shape, rank - each.ndim):
            sizes[n] = extent if getattr(extent, "value", None) != 1 else sizes[n]
    wide = [broadcast_to(each, sizes) for each in indices]

    def element(*i: Any) -> Any:
        return data(*(each(*i[:rank]) for each in wide), *i[rank:])

    return _moved([*sizes, *data.shape[len(indices) :]], element, "T_adv_index")


def reinterpret(x: Any, dtype: Any) -> Any:
    """The bits of each element as another type."""
    return math.reinterpret(dtype, x)


def identity(x: Tensor) -> Tensor:
    """A copy."""
    return _moved(x.shape, lambda *i: x(*i), "T_identity", ELEMWISE)


def _parts_of(layout: str) -> list[tuple[str, int]]:
    """The dimensions of a layout, of which small letters are parts of so many."""
    found = re.findall(r"(\d*)([A-Za-z])", layout)
    return [(letter, int(many or 0)) for many, letter in found]


def layout_transform(array: Tensor, src_layout: str, dst_layout: str) -> Tensor:
    """The dimensions in another order, or in parts: `"NCHW"` as `"NCHW16c"`."""
    src, dst = _parts_of(src_layout), _parts_of(dst_layout)
    apart, after = ({each: many for each, many in part if many} for part in (src, dst))
    sizes = dict(zip((each for each, _ in src), array.shape, strict=True))
    whole = {x: n * apart.get(x.lower(), 1) for x, n in sizes.items() if x.isupper()}

    def element(*i: Any) -> Any:
        at = dict(zip((each for each, _ in dst), i, strict=True))
        place = {x: at[x] * after.get(x.lower(), 1) + at.get(x.lower(), 0) for x in whole}
        return array(
            *(
                place[x] // apart.get(x.lower(), 1) if x in place else place[x.upper()] % many
                for x, many in src
            )
        )

    shape = [many or whole[x] // after.get(x.lower(), 1) for x, many in dst]
    return _moved(shape, element, "T_layout_trans")


def einsum(subscripts: str, *operand: Tensor) -> Tensor:
    """A sum of products, as `numpy.einsum` writes it, without dots."""
    given, _, wanted = subscripts.replace(" ", "").partition("->")
    letters = given.split(",")
    if "->" not in subscripts:
        wanted = "".join(sorted(x for x in set(given) - {","} if given.count(x) == 1))
    pairs = [
        (x, n)
        for t, own in zip(operand, letters, strict=True)
        for x, n in zip(own, t.shape, strict=True)
    ]
    sizes = dict(pairs)
    folded = {x: reduce_axis((0, n), x) for x, n in sizes.items() if x not in wanted}

    def element(*i: Any) -> Any:
        at = dict(zip(wanted, i, strict=True)) | folded
        reads = [t(*(at[x] for x in own)) for t, own in zip(operand, letters, strict=True)]
        value = fold(mul, reads)
        return reduce.sum(value, axis=list(folded.values())) if folded else value

    return _moved([sizes[x] for x in wanted], element, "T_einsum")


def cast(x: Any, dtype: Any, span: object = None) -> Any:
    """Each element as another type."""
    return math.cast(x, dtype)


def cumsum(
    data: Tensor, axis: int | None = None, dtype: Any = None, exclusive: bool | None = None
) -> Tensor:
    """Sums so far, along a dimension or of all in row-major order; without the element itself if
    they are exclusive."""
    flat = reshape(data, (prod(data.shape),)) if axis is None else data
    return indexing.cumsum(flat, axis or 0, bool(exclusive), dtype=dtype)


def __getattr__(name: str) -> Any:
    """An operator that is in another file here."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("tedsl.tvm.topi"), name)
