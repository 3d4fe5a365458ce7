"""Short reductions whose lanes are results: operands of which the lanes are no neighbours in memory
(the filter of a depthwise convolution, channels last) are copied first, the lanes last.

    for n, y, x, c: for r, q: C[n, y, x, c] += A[n, y + r, x + q, c] * W[c, r, q]
    --> for r, q, c: W.global[r, q, c] = W[c, r, q]
        for n, y, x, c: for r, q: C[n, y, x, c] += A[n, y + r, x + q, c] * W.global[r, q, c]

A thread loads the lanes that it has as one vector then, and a warp all of them from one cache line.
"""

from __future__ import annotations

from tedsl.expr.nodes import Axis, TensorRead
from tedsl.expr.visit import axes_of
from tedsl.index.affine import stride_of
from tedsl.schedules.analysis.groups import Group
from tedsl.schedules.analysis.nests import among, computed, is_reduction, plain
from tedsl.schedules.analysis.views import (
    definitions,
    elements_of,
    extent_of,
    in_memory,
    reads_of,
    volume,
)
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.gemm.operand_layouts import copied, through
from tedsl.schedules.knobs import flip
from tedsl.schedules.loops import lay_in_order
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import ComputeOp, Tensor

# Results that use each element of such an operand, and terms for each SM, from which loading lanes
# one by one takes longer than a kernel that copies the operand.
REUSED = 64
TERMS = 1 << 17
# Bytes of a register.
WORD = 4


def put_lanes_last(s: Schedule, group: Group, lane: Axis) -> None:
    """The knob `turn_*` of each such operand of a kernel with lanes along `lane`, an axis of its
    root."""
    view = definitions(s)
    results = volume(view[group.root].axes)
    for name in group.inner:
        op, known = view[name], group.axes[name]
        terms = volume(op.reduce_axes) if is_reduction(op) else None
        for read in reads_of(op):
            tensor, place = read.tensor, _place(read, {a: known.get(a) for a in op.axes}, lane)
            if place is None or results is None or terms is None or not _may_copy(s, tensor):
                continue
            points = elements_of(tensor)
            users = through(s, tensor, [name])
            if points and users and points * REUSED <= results:
                pays = results * terms >= gpu_of(s).sms * TERMS
                if flip(s, f"{group.root}.turn_{s[tensor].name}", pays):
                    _turn(s, tensor, users, place)


def loaded(op: ComputeOp, lane: Axis, results: int) -> int:
    """How many registers a term of a reduction loads with lanes along `lane`, for so many results
    of a thread: one for each element, fewer where lanes are neighbours in memory, which one vector
    has."""
    total = 0
    for read in reads_of(op):
        if not read.indices or lane not in axes_of(*read.indices):
            continue
        last = read.indices[-1]
        folded = [a for a in axes_of(last) if among(a, op.reduce_axes) and extent_of(a) != 1]
        vectors = not folded and stride_of(last, lane) == 1
        total += -(-results * read.dtype.nbytes // WORD) if vectors else results
    return total


def _place(read: TensorRead, known: dict[Axis, Axis | None], lane: Axis) -> int | None:
    """The dimension that is the lanes, where it is not the last one and the indices are axes."""
    axes = plain(read)
    if axes is None:
        return None
    places_of = [n for n, axis in enumerate(axes) if known.get(axis) is lane]
    return places_of[0] if places_of and places_of[0] + 1 < len(axes) else None


def _may_copy(s: Schedule, tensor: Tensor) -> bool:
    return in_memory(s, tensor) and not s[tensor].plan.placement.head


def _turn(s: Schedule, tensor: Tensor, users: list[str], place: int) -> None:
    copy = s[s.cache_read(tensor, "global", users)]
    order = [*(n for n in range(tensor.ndim) if n != place), place]
    lay_in_order(copy, order)
    op = computed(copy)
    copied(s, copy, op, op.axes[order.index(tensor.ndim - 1)], 16)
