"""Inputs for checking and timing: random by element type, in range where they are indices.

Every candidate meets `random`, and `extreme`, in which magnitudes are much larger.  One that may
win meets besides `rows`, whose rows are each of a kind (all zero, all equal, negative, one spike,
tiny), `masked`, where elements and whole rows are a large negative number, as masks make them,
`huge`, where magnitudes go up to 1e7, and `special`, where they are around 1e-8 and some elements
are -0.0, denormal, NaN or infinite.  NaN and infinities are left out where what becomes of them is
not said: below reductions of reductions (whose online forms multiply by what has become infinite),
reductions with a condition or a combination of their own, and conversions to integers; infinities
below sums of products (matrix units take operands apart).  The same seed gives the same numbers in
every process.  Imports `expr` and numpy.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tedsl.checking.array_chunks import drawn
from tedsl.dtypes import DType, Kind
from tedsl.expr.nodes import (
    Binary,
    BinaryOp,
    Cast,
    Expr,
    Reduce,
    TensorRead,
    Unary,
    UnaryOp,
)
from tedsl.expr.visit import reads, walk
from tedsl.runtime.arrays.views import NUMPY_DTYPES
from tedsl.tensor.tensor import ComputeOp, Operation, PlaceholderOp, ScanOp, Tensor
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload, nodes_of

Array = NDArray[Any]
KINDS = ("random", "extreme")
ADVERSE = ("rows", "masked", "huge", "special")
SPECIAL_EVERY = 7
"""Of so many elements that could be special one is, of so many rows that could hold NaN one."""
TINY_SCALE = 1e-8
LARGEST = 1e7
MASK = -1.2345678e9
"""What stands for minus infinity.  The digits make its sums inexact."""
SMALL_MASK = -1.0037e4
"""The same where it is multiplied and added, or an element holds no more: in a sum of its squares
other terms still count, so that no order of additions makes another element the largest."""
LEAST = {DType.float8_e4m3fn: -448.0}
"""What ends above it."""
TINY_EVERY = 16
"""Of so many rows that could be tiny, one is."""
_DIVISIONS = (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD)
_TINY_BINARY = (BinaryOp.DIV, BinaryOp.POW, BinaryOp.ATAN2, *_DIVISIONS)
_TINY_UNARY = (UnaryOp.LOG, UnaryOp.LOG2, UnaryOp.LOG10, UnaryOp.RSQRT, UnaryOp.SIGN)
_SHORT_ROW = 16
_PLAIN_ONLY = (*_DIVISIONS, BinaryOp.SHL, BinaryOp.SHR)


def make_inputs(size: Extents, seed: int, kind: str) -> dict[Tensor, Array]:
    """An array for every placeholder.

    Floats are normal (times 1000 when `extreme`, 30 for types that end below 1e5).  Integers lie in
    -10..10 (their whole range when `extreme`), in 1..10 where something divides or shifts, and
    inside the dimension they index.
    """
    workload = size.workload
    plain = any(
        isinstance(node, Binary) and node.op in _PLAIN_ONLY and node.dtype.is_integer
        for node in nodes_of(workload)
    )
    tiny = not any(_feels_tiny(node) for node in nodes_of(workload))
    taken = undefined_taken(workload) if kind == "special" else (False, False)
    bounds = index_bounds(size)
    multiplied = _has_products(workload)
    made: dict[Tensor, Array] = {}
    for number, op in enumerate(workload.placeholders):
        seeds = [seed & 0xFFFFFFFF, number, (*KINDS, *ADVERSE).index(kind)]
        tensor = op.outputs[0]
        shape = size.shape(tensor)
        draw = partial(_draw, dtype=op.dtype, extreme=kind == "extreme", plain=plain)
        if op in bounds:
            draw = partial(_draw_indices, bound=bounds[op])
        elif kind == "masked" and op.dtype.is_float:
            draw = partial(_draw_masked, mask=_mask(op.dtype, multiplied=multiplied))
        elif kind == "huge" and op.dtype.is_float:
            draw = partial(_draw_huge, dtype=op.dtype)
        elif kind == "special" and op.dtype.is_float:
            draw = partial(_draw_special, dtype=op.dtype, tiny=tiny)
        of_kinds = kind == "rows" and not plain and op not in bounds
        stored = NUMPY_DTYPES[op.dtype]
        drawn_as = np.dtype(np.float32) if of_kinds and op.dtype.is_float else stored
        raw = drawn(draw, math.prod(shape), drawn_as, seeds).reshape(shape)
        if of_kinds:
            raw = _rows_of_kinds(raw, op.dtype, number, tiny)
        elif kind == "masked" and op.dtype.is_float and raw.ndim > 1:
            raw.reshape(-1, shape[-1])[3::4] = _mask(op.dtype, multiplied=multiplied)
        elif kind == "special" and op.dtype.is_float:
            _put_undefined(raw, number, *taken)
        made[tensor] = raw.astype(stored, copy=False)
    return made


def _draw(rng: np.random.Generator, count: int, dtype: DType, extreme: bool, plain: bool) -> Array:
    """Random numbers of one element type."""
    if dtype.kind is Kind.BOOL:
        return rng.integers(0, 2, count)
    if dtype.kind is Kind.FLOAT:
        scale = (30.0 if dtype.info.highest < 1e5 else 1000.0) if extreme else 1.0
        return rng.standard_normal(count, dtype=np.float32) * np.float32(scale)
    if plain:
        return rng.integers(1, 11, count)
    if extreme:
        kind = NUMPY_DTYPES[dtype]
        return rng.integers(int(dtype.info.lowest), int(dtype.info.highest), count, kind, True)
    return rng.integers(0 if dtype.kind is Kind.UINT else -10, 11, count)


def _draw_indices(rng: np.random.Generator, count: int, bound: int) -> Array:
    """Random numbers below `bound`."""
    return rng.integers(0, max(1, bound), count)


def _draw_masked(rng: np.random.Generator, count: int, mask: np.float32) -> Array:
    """Random floats, of which a third are at the value of a mask."""
    raw = rng.standard_normal(count, dtype=np.float32)
    raw[rng.random(count, dtype=np.float32) < 1 / 3] = mask
    return raw


def _draw_huge(rng: np.random.Generator, count: int, dtype: DType) -> Array:
    """Random floats of magnitudes up to 1e7, or near the largest of a small type."""
    low, high = 2.0, math.log10(LARGEST)
    if dtype.info.highest < 1e5:
        low, high = 0.0, math.log10(float(dtype.info.highest) / 4)
    sizes = np.power(np.float32(10), rng.uniform(low, high, count).astype(np.float32))
    return sizes * np.where(rng.integers(0, 2, count) == 0, np.float32(1), np.float32(-1))


def _draw_special(rng: np.random.Generator, count: int, dtype: DType, tiny: bool) -> Array:
    """Random floats of small magnitudes, some of them -0.0 and some denormal."""
    small = 1e-3 if dtype.info.highest < 1e5 else TINY_SCALE
    raw = rng.standard_normal(count, dtype=np.float32) * np.float32(small)
    which = rng.integers(0, SPECIAL_EVERY, count)
    raw[which == 0] = np.float32(-0.0)
    if tiny:
        raw[which == 1] *= np.float32(6e-5 if dtype.info.highest < 1e5 else 1e-32)
    return raw


def _put_undefined(raw: Array, number: int, undefined: bool, infinite: bool) -> None:
    """NaN and infinities in some rows, in few elements of each."""
    values = [*([np.nan] if undefined else []), *([np.inf, -np.inf] if infinite else [])]
    if not values or not raw.size:
        return
    short = _SHORT_ROW if raw.size % _SHORT_ROW == 0 else 1
    rows = raw.reshape(-1, raw.shape[-1] if raw.ndim > 1 else short)
    for turn, row in enumerate(range(number % SPECIAL_EVERY, len(rows), SPECIAL_EVERY)):
        rows[row, (5 * turn) % rows.shape[1]] = values[turn % len(values)]


def undefined_taken(workload: Workload) -> tuple[bool, bool]:
    """Whether it is said what becomes of NaN, and of infinities, wherever they are read."""
    below: set[Operation] = set()
    for op in workload.computes:
        nodes = list(walk(*op.bodies))
        folds = isinstance(op, ScanOp) or any(isinstance(node, Reduce) for node in nodes)
        read = any(each.tensor.op in below for each in reads(*op.bodies))
        if folds and read:
            return False, False
        for node in nodes:
            if isinstance(node, Cast) and node.a.dtype.is_float and not node.dtype.is_float:
                return False, False
            if isinstance(node, Reduce) and (node.where is not None or not node.reducer.operator):
                return False, False
        if folds or read:
            below.add(op)
    return True, not _has_products(workload)


def is_elementwise(workload: Workload) -> bool:
    """True where nothing is folded."""
    return not any(
        isinstance(op, ScanOp) or any(isinstance(node, Reduce) for node in walk(*op.bodies))
        for op in workload.computes
    )


def _mask(dtype: DType, *, multiplied: bool) -> np.float32:
    """What stands for minus infinity in an element type."""
    small = multiplied or dtype.info.highest < -MASK
    return np.float32(LEAST.get(dtype, SMALL_MASK if small else MASK))


def _has_products(workload: Workload) -> bool:
    """True where anything adds up products of two computed or given floats."""

    def is_product(node: Expr) -> bool:
        if not isinstance(node, Binary) or node.op is not BinaryOp.MUL or not node.dtype.is_float:
            return False
        return all(any(isinstance(n, TensorRead) for n in walk(side)) for side in (node.a, node.b))

    return any(
        node.reducer.operator is BinaryOp.ADD and any(map(is_product, walk(*node.sources)))
        for node in nodes_of(workload)
        if isinstance(node, Reduce)
    )


def _rows_of_kinds(raw: Array, dtype: DType, shift: int, tiny: bool) -> Array:
    """Each row of one kind, the kinds in turn; what has one dimension is cut into short rows.

    Rows of tiny numbers are few: a processor may take a hundred times as long over each.
    """
    if dtype.kind is Kind.BOOL or not raw.size:
        return raw
    flat = raw.reshape(-1, raw.shape[-1] if raw.ndim > 1 else 1).copy()
    signed = dtype.kind is not Kind.UINT
    per_row = 1 if raw.ndim > 1 else _SHORT_ROW
    kind = (np.arange(len(flat)) // per_row + shift) % 6
    flat[kind == 0] = 0
    flat[kind == 1] = 3
    if signed:
        flat[kind == 2] = -np.abs(flat[kind == 2])
    spike = np.flatnonzero(kind == 3)[:: per_row if per_row > 1 else 1]
    flat[kind == 3] = flat[kind == 3] // 4 if dtype.is_integer else flat[kind == 3] / 64
    flat[spike, flat.shape[1] // 2] = 10
    if dtype.is_float and tiny:
        small = np.flatnonzero(kind == 4)
        small = small[small // (6 * per_row) % TINY_EVERY == 0]
        flat[small] = flat[small] * (6e-6 if dtype is DType.float16 else 1e-39)
    return flat.reshape(raw.shape)


def _feels_tiny(node: Expr) -> bool:
    """True for what turns numbers too small for their type into very different results."""
    if isinstance(node, Binary):
        return node.op in _TINY_BINARY and node.dtype.is_float
    return isinstance(node, Unary) and node.op in _TINY_UNARY


def index_bounds(size: Extents) -> dict[Operation, int]:
    """For each integer placeholder that is used as an index: the smallest dimension it indexes."""
    bounds: dict[Operation, int] = {}
    for node in nodes_of(size.workload):
        if not isinstance(node, TensorRead):
            continue
        for index, extent in zip(node.indices, node.tensor.shape, strict=True):
            for inner in walk(index):
                if isinstance(inner, TensorRead):
                    for op in _integer_inputs(inner.tensor.op):
                        bounds[op] = min(bounds.get(op, 1 << 31), size.extent(extent))
    return bounds


def _integer_inputs(op: Operation) -> list[PlaceholderOp]:
    """Integer placeholders that `op` is, or is computed from."""
    if isinstance(op, PlaceholderOp):
        return [op] if op.dtype.is_integer else []
    found: list[PlaceholderOp] = []
    if isinstance(op, ComputeOp):
        for read in reads(*op.bodies):
            found.extend(_integer_inputs(read.tensor.op))
    return found
