"""Is a candidate's output right?  The tolerance, and the comparison with a reference.

The reference is made by `expected_outputs`; what is compared with it here, and how closely, is
stated below. Imports `expr`, `random_inputs` and numpy.

Tolerance: an element passes when |got - want| <= absolute + relative * |want|, with

    relative = 4 * eps(output) + 8 * eps(stages) + 32 * eps(sums)  (8-bit floats: eps(output) once)
    absolute = (8 * eps(stages) + (8 + 2 * sqrt(L)) * eps(sums)) * max|want| + 4 * noise

where eps(output) is the spacing of the output's element type, eps(sums) that of the coarsest float
type that any stage computes or adds in, eps(stages) that of the coarsest one to which anything is
rounded before the last step, and L the most elements that are summed one after the other on a path
from an input to an output.  The scale is that of the whole output because reassociating a sum
changes it by a share of its largest partial sums, not of its final value.  `noise` is how far the
outputs move when every float input moves by a rounding of its own type, or of the finest type in
use where that is coarser (`expected_outputs`): where large values cancel into a small result, no
order of operations is closer than that.  NaN must meet NaN; infinity must meet infinity, or a
value within the tolerance of the largest finite number.  Integers and booleans must be equal.
Where something is computed of a step (a comparison or a conversion of a computed float) one element
in ten thousand may differ, each of which must be what the other side of its step gives
(`rounding_flips`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from tedsl.checking.array_chunks import by_pieces, parts
from tedsl.checking.random_inputs import Array
from tedsl.dtypes import DType
from tedsl.expr.nodes import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    Expr,
    Reduce,
    TensorRead,
    Unary,
    UnaryOp,
)
from tedsl.expr.visit import reads, walk
from tedsl.tensor.tensor import PlaceholderOp, Tensor
from tedsl.workload.extents import Extents
from tedsl.workload.workload import longest_reduction, nodes_of

FLIPS = 1e-4
FEW_FLIPS = 4
"""What may differ however small an output is; each has to be excused."""
NOISES = 4.0
_EPS = {
    DType.float8_e4m3fn: 2.0**-3,
    DType.float8_e5m2: 2.0**-2,
    DType.float16: 2.0**-10,
    DType.bfloat16: 2.0**-7,
    DType.float32: 2.0**-23,
}
TF32 = 2.0**-10
"""Spacing of the numbers to which the factors of a sum may be rounded that says so."""
COARSEST = 2.0**-7
"""Of 8-bit floats, nothing is computed in them: a result that is stored in one may be the next, and
what is computed of stored ones is held to what it would be held to in bfloat16."""
_DIVISIONS = (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD)
_ROUNDINGS = (UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.ROUND, UnaryOp.TRUNC, UnaryOp.SIGN)


def epsilon(dtype: DType) -> float:
    """Spacing of numbers just above 1; 0 for integers."""
    return _EPS.get(dtype, 2.0**-52) if dtype.is_float else 0.0


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far one output may be from the reference."""

    relative: float
    scaled: float
    flips: float
    noise: float = 0.0

    def times(self, factor: float) -> Tolerance:
        """A wider tolerance, for a reference that has an error of its own."""
        return replace(self, relative=self.relative * factor, scaled=self.scaled * factor)

    @staticmethod
    def of(size: Extents, output: Tensor) -> Tolerance:
        """The tolerance of `output` by the formula above."""
        extents = {
            axis: size.extent(axis.domain.extent)
            for op in size.workload.computes
            for axis in (*op.axes, *op.reduce_axes)
            if axis.domain is not None
        }
        length = longest_reduction(size.workload, extents)
        sums = _coarsest(_sum_dtypes(size))
        stages = max(_coarsest(_rounded_dtypes(size)), TF32 if _rounds_factors(size) else 0.0)
        spacings = 1 if output.dtype.is_float8 else 4
        relative = spacings * epsilon(output.dtype) + 8 * stages + 32 * sums
        flips = FLIPS if has_steps(size) else 0.0
        return Tolerance(relative, 8 * stages + (8 + 2 * math.sqrt(length)) * sums, flips)


def _coarsest(dtypes: Iterable[DType]) -> float:
    """Spacing of the coarsest of some types; 0 where there is none."""
    return max((min(epsilon(dtype), COARSEST) for dtype in dtypes), default=0.0)


def _sum_dtypes(size: Extents) -> list[DType]:
    """Float types of reductions, and of what is computed to be rounded only when it is stored."""
    found: list[DType] = []
    for op in size.workload.computes:
        for body in op.bodies:
            last = body.a if isinstance(body, Cast) and body.dtype.is_float else body
            found += [last.dtype, *(n.dtype for n in walk(last) if isinstance(n, Reduce))]
    return [dtype for dtype in found if dtype.is_float]


def _rounded_dtypes(size: Extents) -> list[DType]:
    """Float types to which anything is rounded that is computed further: those of stages that
    others read, and of casts within one."""
    computes = size.workload.computes
    read = {r.tensor for op in computes for r in reads(*op.bodies)}
    found: list[DType] = []
    for op in computes:
        found += [t.dtype for t in op.outputs if t in read]
        for body in op.bodies:
            found += [n.dtype for n in walk(body) if isinstance(n, Cast) and n is not body]
    return [dtype for dtype in found if dtype.is_float]


def _rounds_factors(size: Extents) -> bool:
    """True when a sum lets matrix units round its factors."""
    bodies = [body for op in size.workload.computes for body in op.bodies]
    return any(isinstance(node, Reduce) and node.tf32 for node in walk(*bodies))


def noise_between(found: Array, moved: Array) -> float:
    """The largest finite difference of two float outputs; 0 for integers."""
    if found.dtype.kind in "iub":
        return 0.0

    def apart(piece: Array, other: Array) -> float:
        with np.errstate(all="ignore"):
            return largest_finite(piece.astype(np.float64) - other.astype(np.float64))

    return max(by_pieces(apart, found.reshape(-1), moved.reshape(-1)), default=0.0)


def largest_finite(values: Array) -> float:
    """The largest magnitude among finite numbers; 0 where there are none."""
    wide = np.abs(values.astype(np.float64, copy=False))
    return float(np.max(wide, where=np.isfinite(wide), initial=0.0))


def finest_epsilon(size: Extents) -> float:
    """Spacing of the finest float type that any stage produces or adds in."""
    return min((epsilon(dtype) for dtype in _float_stages(size)), default=0.0)


def _float_stages(size: Extents) -> list[DType]:
    """Element types of everything that is computed in or stored as floats, inputs left out."""
    found = [t.dtype for op in size.workload.computes for t in op.outputs]
    sums = [node.dtype for node in nodes_of(size.workload) if isinstance(node, Reduce)]
    return [dtype for dtype in (*found, *sums) if dtype.is_float]


def has_steps(size: Extents) -> bool:
    """True when a small change of a computed float can flip a whole result."""
    return any(is_step(node) for node in nodes_of(size.workload))


def is_step(node: Expr) -> bool:
    """True for what flips when a computed float changes by little."""
    match node:
        case Cast(a=a, dtype=dtype):
            return not dtype.is_float and _is_computed(a)
        case Compare(a=a, b=b):
            return _is_computed(a) or _is_computed(b)
        case Unary(op=op, a=a):
            return op in _ROUNDINGS and _is_computed(a)
        case Binary(op=op, a=a, b=b):
            return op in _DIVISIONS and (_is_computed(a) or _is_computed(b))
        case _:
            return False


def _is_computed(expr: Expr) -> bool:
    """True for a float that is computed of something, and not as it is given."""
    if not expr.dtype.is_float:
        return False
    plain = isinstance(expr, TensorRead) and isinstance(expr.tensor.op, PlaceholderOp)
    return not plain and any(isinstance(node, TensorRead) for node in walk(expr))


class Excuse(Protocol):
    """Says which of some differing elements no rounding explains."""

    def unexcused(self, places: Array, values: Array, bound: Bound) -> int | None:
        """The first of `values`, found at flat `places`, that nothing excuses; None where
        everything is."""
        ...


@dataclass(frozen=True, slots=True)
class Bound:
    """A tolerance made concrete by the wanted values: |got - want| <= absolute +
    relative*|want|."""

    absolute: float
    relative: float
    largest: float
    allowed: int

    @staticmethod
    def of(want: Array, tolerance: Tolerance) -> Bound:
        """The bound for these wanted values."""
        allowed = max(FEW_FLIPS, int(tolerance.flips * want.size)) if tolerance.flips else 0
        if want.dtype.kind in "iub":
            return Bound(0.0, 0.0, 0.0, allowed)
        scale = max(by_pieces(largest_finite, want.reshape(-1)), default=0.0)
        largest = _largest(want.dtype)
        absolute = tolerance.scaled * scale + NOISES * tolerance.noise
        return Bound(absolute, tolerance.relative, largest, allowed)


def wrong_floats(xp: Any, got: Any, want: Any, bound: Bound) -> Any:
    """Where float64 `got` is not acceptably `want`; `xp` is numpy or torch, as the arrays are."""
    close = xp.abs(got - want) <= bound.absolute + bound.relative * xp.abs(want)
    same = (got == want) | (xp.isnan(got) & xp.isnan(want))
    edge = xp.minimum(xp.abs(got), xp.abs(want)) >= bound.largest * (1 - bound.relative)
    near = edge & (xp.sign(got) == xp.sign(want))
    finite = xp.isfinite(want) & xp.isfinite(got)
    return ~xp.where(finite, close, same | near)


def wrong_elements(got: Array, want: Array, bound: Bound) -> tuple[int, Array]:
    """How many elements of flat arrays are wrong, and where: of those that may be excused all, of
    more than these the first."""
    count, start = 0, 0
    found: list[Array] = []
    for piece, wanted in zip(parts(got), parts(want), strict=True):
        if want.dtype.kind in "iub":
            bad: Any = piece.view(np.uint8) != wanted.view(np.uint8)
            bad = bad.reshape(len(piece), -1).any(axis=1)
        else:
            with np.errstate(all="ignore"):
                bad = wrong_floats(np, piece.astype(np.float64), wanted.astype(np.float64), bound)
        number = int(np.count_nonzero(bad))
        if number and count <= bound.allowed:
            found.append(start + np.flatnonzero(bad)[: bound.allowed + 1])
        count += number
        start += len(piece)
    return count, np.concatenate(found) if found else np.zeros(0, np.int64)


def mismatch(
    got: Array, want: Array, tolerance: Tolerance, name: str, excuse: Excuse | None = None
) -> str | None:
    """What is wrong with an output, in one line; None when it is right.

    Args:
        got: the output.
        want: what it must be.
        tolerance: how close is enough.
        name: of the output.
        excuse: says what may differ all the same; without it nothing may.
    """
    if got.shape != want.shape:
        return f"{name} has shape {got.shape}, not {want.shape}"
    bound = Bound.of(want, tolerance)
    flat_got, flat = np.ascontiguousarray(got).reshape(-1), want.reshape(-1)
    count, places = wrong_elements(flat_got, flat, bound)
    first = first_fault(count, places, flat_got[places], bound, excuse)
    if first is None:
        return None
    return complaint(name, want.shape, first, count, flat_got[first], flat[first])


def first_fault(
    count: int, places: Array, values: Array, bound: Bound, excuse: Excuse | None
) -> int | None:
    """The flat place of the first wrong element that nothing excuses.

    Args:
        count: of wrong elements.
        places: where they are, or the first of them.
        values: what was found there.
        bound: how many may be excused, and how close is enough.
        excuse: what says which are.
    """
    if not count:
        return None
    if excuse is None or count > bound.allowed:
        return int(places[0])
    found = excuse.unexcused(places, values, bound)
    return None if found is None else int(places[found])


def complaint(
    name: str, shape: tuple[int, ...], first: int, count: int, got: object, want: object
) -> str:
    """`y[3, 0] is 1.5, not 1.0; 7 of 64 are wrong`."""
    place = ", ".join(str(int(i)) for i in np.unravel_index(first, shape))
    return f"{name}[{place}] is {got}, not {want}; {count} of {math.prod(shape)} are wrong"


def _largest(dtype: np.dtype[Any]) -> float:
    """The largest finite number of a float type."""
    for name in DType:
        if name.is_float and dtype.name == name.value:
            return float(name.info.highest)
    return math.inf
