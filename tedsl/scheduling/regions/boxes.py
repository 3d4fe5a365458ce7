"""The box of elements of one stage that others read, while some loops stand still.

Part of `infer`; imports `index`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tedsl.expr.index_arith import ZERO, add, at_most, both, constant, less, maximum, minimum, sub
from tedsl.expr.nodes import Axis, Const, Expr, Range
from tedsl.expr.visit import axes_of, reads, substitute, walk
from tedsl.index.bounds import lower_bound, upper_bound
from tedsl.index.facts import Facts
from tedsl.index.interval import interval
from tedsl.index.prove import prove
from tedsl.index.simplify import simplify
from tedsl.scheduling.regions.span import greatest_difference

if TYPE_CHECKING:
    from tedsl.scheduling.regions.infer import StageBounds

MOST_HELD = 1 << 20
"""Elements along one dimension, of which a tile in registers may have as many."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A read at `indices` in a stage with these bounds, in these loops; `always` when no condition
    in its definition guards what the indices read.  Equal when all of these are the same."""

    bounds: StageBounds
    loops: tuple[Axis, ...]
    indices: tuple[Expr, ...]
    always: bool


def box_read(
    shape: Sequence[Expr], fixed: frozenset[Axis], readings: Sequence[Reading], facts: Facts
) -> tuple[Range, ...]:
    """The elements of what has this shape that `readings` read, while the loops in `fixed` stand
    still."""
    whole = tuple(Range(ZERO, extent) for extent in shape)
    boxes: list[tuple[Range, ...]] = []
    for reading in readings:
        index_of: Mapping[Expr, Expr] = {**reading.bounds.index}
        moving = [axis for axis in reading.loops if axis not in fixed]
        boxes.append(
            tuple(
                index_range(substitute(index, index_of), moving, full, reading.bounds.facts)
                if _may_be_asked(reading, index, fixed)
                else full
                for index, full in zip(reading.indices, whole, strict=True)
            )
        )
    return tuple(_union(list(dims), full, facts) for *dims, full in zip(*boxes, whole, strict=True))


def _may_be_asked(reading: Reading, index: Expr, fixed: frozenset[Axis]) -> bool:
    """True when what an index reads is there before the loops of the region, which it is read for:
    the reader reads it whenever they run, or it is inside its tensor whatever they are."""
    asked = reads(index)
    if not asked:
        return True
    bounds = reading.bounds
    outside = [guard for guard in bounds.guards if axes_of(guard) <= fixed]
    if reading.always and len(outside) == len(bounds.guards):
        return True
    facts = bounds.facts
    for guard in outside:
        facts = facts.assume(guard)
    index_of: Mapping[Expr, Expr] = {**bounds.index}
    return all(
        prove(both(at_most(ZERO, place), less(place, size)), facts)
        for read in asked
        for place, size in zip(
            (substitute(each, index_of) for each in read.indices), read.tensor.shape, strict=True
        )
    )


def index_range(index: Expr, moving: Sequence[Axis], full: Range, facts: Facts) -> Range:
    """The range of one index while `moving` axes run, or the whole dimension when it is not
    known."""
    index = simplify(index, facts)
    low = lower_bound(index, moving, facts)
    high = upper_bound(index, moving, facts)
    if low is None or high is None:
        return full
    return Range(low, add(sub(high, low), 1))


def _union(ranges: list[Range], full: Range, facts: Facts) -> Range:
    """The smallest range that holds all, clipped to the dimension where that is provable and leaves
    a constant extent constant."""
    low, end = ranges[0].min, add(ranges[0].min, ranges[0].extent)
    for r in ranges[1:]:
        low = simplify(minimum(low, r.min), facts)
        end = simplify(maximum(end, add(r.min, r.extent)), facts)
    box = Range(low, simplify(sub(end, low), facts))
    if prove(at_most(low, ZERO), facts):
        low = ZERO
    if prove(at_most(full.extent, end), facts):
        end = full.extent
    extent: Expr | None = simplify(sub(end, low), facts)
    loops = [node for node in walk(extent) if isinstance(node, Axis)]
    if loops:
        extent = upper_bound(extent, loops, facts)
    whole = _settled(full, facts)
    if extent is None or reads(extent):
        return whole
    needed = _settled(Range(simplify(low, facts), simplify(extent, facts)), facts)
    if constant(needed.extent) is None and constant(box.extent) is not None:
        needed = Range(simplify(box.min, facts), box.extent)
    if constant(needed.extent) is None:
        # Of clamped neighbours (i and min(i + 1, n - 1)) a constant number at most.
        most = greatest_difference(end, low, facts)
        if most is not None:
            needed = Range(needed.min, Const(max(most, 0), needed.extent.dtype))
    known, dimension = constant(needed.extent), constant(whole.extent)
    if known is None and _is_of_a_type(needed.extent):
        return whole
    if known is not None and known < 0:  # of loops that never run
        needed = Range(needed.min, Const(0, needed.extent.dtype))
    if known is not None and dimension is None and known > MOST_HELD:
        return _as_long(needed, known, whole, facts)
    return whole if known is not None and dimension is not None and dimension <= known else needed


def _is_of_a_type(extent: Expr) -> bool:
    """True when a number in an extent is what a type leaves of an index that data say: no size of
    memory, beside others it may not even be a number of its type."""
    return any(isinstance(node, Const) and abs(node.value) > MOST_HELD for node in walk(extent))


def _as_long(box: Range, known: int, whole: Range, facts: Facts) -> Range:
    """At most as much as a dimension of a runtime size has, where a constant is far beyond what any
    registers hold: what a type or a clamp leaves of an index is no size of memory.

    Of A[x % n] the whole dimension, not 2**31 elements for an int32.
    """
    most = interval(whole.extent, facts).hi
    low = simplify(maximum(box.min, ZERO), facts)
    if (most is not None and most <= known) or known > box.extent.dtype.info.highest or reads(low):
        return whole
    return Range(low, simplify(minimum(whole.extent, known), facts))


def _settled(box: Range, facts: Facts) -> Range:
    """The range with a constant for an extent that can have only one value."""
    size = interval(box.extent, facts)
    if constant(box.extent) is not None or size.lo is None or size.lo != size.hi:
        return box
    return Range(box.min, Const(size.lo, box.extent.dtype))
