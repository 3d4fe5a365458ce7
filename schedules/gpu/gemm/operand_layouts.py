"""GEMM operands in a layout that tiles are loaded from.

Rows at multiples of 16 bytes, which TMA asks for:

    for i, j: for k: C[i, j] += A[i, k] * B[k, j]           with k in 0..4095, two bytes each
    --> for i, k: A.global[i, k] = A[i, k]                  a row of it takes 4096 elements
        for i, j: for k: C[i, j] += A.global[i, k] * B[k, j]

The lanes of a K step beside each other (the channels of an image last), and neighbours of one
product (the batch first):

    for n, f, y, x: for c, r, q: C[n, f, y, x] += A[n, c, y + r, x + q] * W[f, c, r, q]
    --> for n, y, x, c: A.global[n, y, x, c] = A[n, c, y, x]
        for f, r, q, c: W.global[f, r, q, c] = W[f, c, r, q]
        for n, f, y, x: for c, r, q: C[n, f, y, x] += A.global[n, y + r, x + q, c] * W.global[...]

What an earlier kernel computes is stored with padded rows in the first place (`storage_align`); all
else is copied in a kernel of its own, where the product takes longer than that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tedsl.devices import GpuDevice
from tedsl.dtypes import DType
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Const, TensorRead
from tedsl.expr.visit import axes_of, reads
from tedsl.index.affine import stride_of
from tedsl.schedules.analysis.nests import (
    Contraction,
    among,
    computed,
    contraction,
    direct_reads,
    neighbours,
    plain,
    pow2_at_least,
)
from tedsl.schedules.analysis.views import definitions, elements_of, extent_of, size_of, volume
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.gemm.k_steps import lanes_of
from tedsl.schedules.gpu.gemm.strided_operands import Parts, parts_of, take_apart
from tedsl.schedules.gpu.launch import pick_warps
from tedsl.schedules.gpu.pointwise.turned_tiles import run_of, tiled
from tedsl.schedules.knobs import flip, pick
from tedsl.schedules.loops import lay_in_order
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.plan import Align
from tedsl.scheduling.plan.graph import loop_readers, readers
from tedsl.scheduling.plan.links import places
from tedsl.tensor.tensor import ComputeOp, Operation, Tensor

Order: TypeAlias = tuple[int, ...]
"""Dimensions of a tensor, the last in memory last."""

# Bytes that padded rows are a multiple of: a cache line.
LINE = 128
# What DRAM and L2 move at least.
SECTOR = 32
# The alignment in bytes that TMA descriptors need.
SIXTEEN = 16
# Bytes that a thread copies to shared memory at least (cp.async).
WORD = 4
# Operations of a product for which loading one byte element by element takes as much longer as
# copying it does: products of 128 by 128 tiles without TMA reach an eighth of the peak on an H200,
# and products of float32, whose parts are computed in registers, a thirtieth.  Narrower tiles have
# fewer for each element that is gathered.
WORTH, WORTH_SPLIT, SIDE, LEAST_SIDE = 64, 16, 128, 16
# Elements of a tile that is copied: several for each thread.
FILLED = 2048
# Bytes that an H200 copies in the time of a launch.
LAUNCH = 8 << 20


def lay_out_operands(
    s: Schedule, name: str, inner: Sequence[str], padded: bool = True, turned: bool = True
) -> None:
    """Give the operands of the contractions `inner` of one kernel, whose knobs are called after
    `name`, a layout that tiles are loaded from, where that takes less time than it saves; with
    `padded` rows, too, and in another order of dimensions by default only if they are `turned`."""
    for tensor, direct, one, pays in _wishes(s, inner, padded):
        if one.parts is None:
            _lay_out(s, name, tensor, direct, one.order, pays and (turned or not one.turns))
            continue
        placed = s[tensor].plan.placement
        own = placed.at_root and not placed.head
        if own and flip(s, f"{name}.pack_{s[tensor].name}", pays):
            _pack(s, tensor, direct, one.parts, one.order)


def turns(s: Schedule, inner: Sequence[str]) -> bool:
    """True where an operand of the contractions `inner` of one kernel is turned by default."""
    return any(
        one.parts is None and one.turns and pays
        for *_, one, pays in _wishes(s, inner, padded=False)
    )


def _wishes(
    s: Schedule, inner: Sequence[str], padded: bool
) -> list[tuple[Tensor, list[str], _Wanted, bool]]:
    """Operands that are to lie otherwise, the stages that read them, how, and whether that takes
    less time than it saves."""
    view = definitions(s)
    users: dict[Tensor, list[str]] = {}
    wanted: dict[Tensor, set[_Wanted]] = {}
    for each in inner:
        for read in reads(*view[each].bodies):
            tensor = _stored(s, view.names, read.tensor)
            found = _wanted(s, view[each], TensorRead(tensor, read.indices), padded)
            if found is not None:
                users.setdefault(tensor, []).append(each)
                wanted.setdefault(tensor, set()).add(found)
    wishes: list[tuple[Tensor, list[str], _Wanted, bool]] = []
    for tensor, names in users.items():
        direct = through(s, tensor, names)
        if not direct or len(wanted[tensor]) > 1 or tensor.op not in places(s.plan).by_op:
            continue
        one = wanted[tensor].pop()
        if one.parts is not None and not _read_so(s, tensor, direct, one.parts):
            continue
        points = elements_of(tensor) if one.parts is None else one.parts.points
        pays = _operations(s, names) > one.worth * (points * tensor.dtype.nbytes + LAUNCH)
        wishes.append((tensor, direct, one, pays))
    return wishes


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The dimensions of an operand in the order in which memory should have them, of its parts
    where it is read in such; and the operations for each byte for which that is worth a copy."""

    order: Order
    worth: int
    parts: Parts | None = None

    @property
    def turns(self) -> bool:
        """Whether the order is another one than the operand has."""
        return self.order != tuple(range(len(self.order)))


def _wanted(s: Schedule, op: ComputeOp, read: TensorRead, padded: bool) -> _Wanted | None:
    """What a contraction wants of an operand; None where it lies well."""
    parts = parts_of(read)
    if parts is not None and _partly(read, parts):
        order, worth = _order(op, parts.read(read.tensor), gpu_of(s))
        moved = order != tuple(range(len(order)))
        steps = sorted(parts.steps)
        # TMA takes boxes that start anywhere in a row.
        begins = parts.begin if len(read.indices) < 2 else 0
        aligned = all(n * read.dtype.nbytes % SIXTEEN == 0 for n in (begins, *steps[1:]))
        short = parts.kept[order[-1]].extent * read.dtype.nbytes < LINE
        if not moved and steps[0] == 1 and (aligned or short or not padded):
            return None
        return _Wanted(order, worth, parts)
    if len(read.indices) < 2:
        return None
    order, worth = _order(op, read, gpu_of(s))
    fine = not padded or not isinstance(read.indices[-1], Axis)
    if order == tuple(range(read.tensor.ndim)) and (fine or rows_aligned(s, read)):
        return None
    return _Wanted(order, worth)


def _partly(read: TensorRead, parts: Parts) -> bool:
    """True of a read of one dimension, or that leaves elements out; where those are rows or columns
    beside what is read, what computes them is stored with aligned rows."""
    beside = plain(read) is not None and isinstance(read.tensor.op, ComputeOp)
    return not beside and (len(read.indices) < 2 or parts.points < math.prod(parts.sizes))


def _read_so(s: Schedule, tensor: Tensor, users: Sequence[str], parts: Parts) -> bool:
    """True where stages read these parts of a tensor and nothing else of it."""
    found = [read for name in users for read in direct_reads(s[name]) if read.tensor is tensor]
    return all(parts_of(read) == parts for read in found)


def _order(op: ComputeOp, read: TensorRead, gpu: GpuDevice) -> tuple[Order, int]:
    """The dimensions of an operand in the order in which memory should have them, and the
    operations for each byte for which that is worth a copy."""
    shape, last = contraction(op, grouped=True), read.tensor.ndim - 1
    usual, along = tuple(range(last + 1)), read.indices[-1]
    worth = WORTH_SPLIT if read.dtype is DType.float32 else WORTH
    if shape is None or shape.unit is None:
        return usual, worth
    lanes, place = lanes_of(shape.folded), last
    if lanes is not None:
        steps = [(n, stride_of(index, lanes)) for n, index in enumerate(read.indices)]
        place = next((n for n, step in steps if isinstance(step, int) and step == 1), last)
    inner = (*usual[:place], *usual[place + 1 :], place)
    if isinstance(along, Axis) and among(along, (*shape.rows, *shape.columns)):
        # wgmma takes 16-bit tiles in either order, wider ones of the right operand, which it reads
        # from shared memory, with the folded axis innermost.
        wide = gpu.has_wgmma and shape.unit is DType.float32 and among(along, shape.columns)
        return (inner, WORTH) if wide else (usual, worth)
    if isinstance(along, Axis) and among(along, shape.batch) and extent_of(along) != 1:
        known = plain(read)
        if known is None:
            return usual, worth
        return tuple(sorted(usual, key=lambda n: not among(known[n], shape.batch))), worth
    used = axes_of(*read.indices)
    across = [a for a in (*shape.rows, *shape.columns) if a not in used]
    return inner, max(1, worth * _side(op, across, gpu) // SIDE)


def _side(op: ComputeOp, across: Sequence[Axis], gpu: GpuDevice) -> int:
    """How many results along `across` a tile has for each element that is gathered for it, where
    each SM has a tile."""
    results, beside = volume(op.axes), volume(across)
    if results is None or not beside:
        return SIDE
    high = min(SIDE, max(1, results // beside))
    return min(SIDE, beside, max(LEAST_SIDE, results // (gpu.sms * high)))


def through(s: Schedule, tensor: Tensor, users: Sequence[str]) -> list[str]:
    """The stages that read a tensor for the kernel's contractions: these, or what is inlined there;
    none where others read it through that."""
    found: list[str] = []
    for stage in readers(s.plan, tensor.op):
        loops = {stage.name}
        if stage.placement.inlined:
            loops = {each.name for each in loop_readers(s.plan, stage.op)}
        if loops <= set(users):
            found.append(stage.name)
        elif stage.placement.inlined and not loops.isdisjoint(users):
            return []
    return found


def _stored(s: Schedule, names: Mapping[Operation, str], tensor: Tensor) -> Tensor:
    """The tensor of the schedule for one of its definitions, in which more is substituted."""
    name = names.get(tensor.op)
    return tensor if name is None else s[name].op.outputs[tensor.index]


def copied_anyway(s: Schedule, op: ComputeOp, products: Sequence[str]) -> bool:
    """True where rows of what `op` is computed from start off the multiples that TMA asks for, and
    `products` that read `op` take longer than to copy them: it is then stored itself, its rows
    aligned, in the time of the copy."""
    points, nbytes = volume(op.axes), op.outputs[0].dtype.nbytes
    if points is None or _operations(s, products) <= WORTH * (points * nbytes + LAUNCH):
        return False
    return any(
        elements_of(read.tensor) >= points and not rows_aligned(s, read)
        for read in reads(*op.bodies)
        if len(read.indices) >= 2 and isinstance(read.indices[-1], Axis)
    )


def rows_aligned(s: Schedule, read: TensorRead, to: int = SIXTEEN) -> bool:
    """True when the rows of a tensor start at multiples of so many bytes, and of a scalar."""
    if not read.tensor.shape:
        return True
    size, step = size_of(read.tensor.shape[-1]), read.dtype.nbytes
    number = places(s.plan).by_op.get(_stored(s, definitions(s).names, read.tensor).op)
    if number is not None and any(_whole(a, step, to) for a in s.plan.stage_at(number).aligned):
        return True
    return size is not None and size * step % to == 0


def _whole(align: Align, nbytes: int, to: int) -> bool:
    """True when such a row stride is a multiple of so many bytes."""
    return align.factor * nbytes % to == 0 and align.offset * nbytes % to == 0


def _operations(s: Schedule, names: Sequence[str]) -> int:
    """FLOPs of contractions, two for each product; 0 where an extent is symbolic."""
    ops = [definitions(s)[name] for name in names]
    products = [op for op in ops if contraction(op, grouped=True) is not None]
    return 2 * sum(volume((*op.axes, *op.reduce_axes)) or 0 for op in products)


def _lay_out(
    s: Schedule, name: str, tensor: Tensor, users: Sequence[str], order: Order, pays: bool
) -> None:
    """Other rows for one tensor: its own padded ones where it is computed, else those of a copy,
    by default where that `pays`."""
    source, factor = s[tensor], LINE // tensor.dtype.nbytes
    moved = order != tuple(range(tensor.ndim))
    wide = size_of(tensor.shape[order[-1]])
    placed = source.plan.placement
    if not placed.at_root or placed.head or wide is None:
        return
    if not moved and wide * tensor.dtype.nbytes < LINE:
        return
    own, outputs = tensor.op, [t.op for t in s.outputs]
    alone = not moved and own not in outputs and len(source.op.outputs) < 2
    if isinstance(own, ComputeOp) and alone:
        source.storage_align(own.axes[-2], factor)
        return
    knob = f"{name}.turn_{source.name}" if moved else f"{name}.align_{source.name}"
    if not elements_of(tensor) or not flip(s, knob, pays):
        return
    copy = s[s.cache_read(tensor, "global", list(users))]
    if moved:
        lay_in_order(copy, order)
    op = computed(copy)
    if not moved or not rows_aligned(s, TensorRead(op.outputs[0], op.axes)):
        copy.storage_align(op.axes[-2], _rows_at(op.outputs[0]))
    across = op.axes[order.index(tensor.ndim - 1) if moved else -2]
    copied(s, copy, op, across, 16 if moved else 8)


def _pack(s: Schedule, tensor: Tensor, users: Sequence[str], parts: Parts, order: Order) -> None:
    """A copy of the parts of a tensor, with aligned rows."""
    copy = take_apart(s, tensor, users, parts, order)
    op = computed(copy)
    if not rows_aligned(s, TensorRead(op.outputs[0], op.axes)):
        copy.storage_align(op.axes[-2], _rows_at(op.outputs[0]))
    nearest = min(range(len(order)), key=lambda n: parts.steps[n])
    moved = nearest != order[-1]
    across = op.axes[order.index(nearest) if moved else -2]
    copied(s, copy, op, across, 16 if moved else 8)


def _rows_at(copy: Tensor) -> int:
    """The elements that padded rows of a copy start at multiples of: short ones are not padded to
    lines, which gathered lanes would load in vain."""
    wide = size_of(copy.shape[-1])
    short = wide is not None and wide * copy.dtype.nbytes < LINE
    return (SECTOR if short else LINE) // copy.dtype.nbytes


def copied(s: Schedule, stage: Stage, op: ComputeOp, across: Axis, few: int) -> None:
    """The copy kernel: tiles of neighbours in a row by a `few` elements `across`, more of short
    rows."""
    runs = [*neighbours(op.axes[:-1], reads(*op.bodies)), op.axes[-1:]]
    place, last = run_of(runs, across), len(runs) - 1
    high, wide = (volume(runs[n]) or 1 for n in (place, last))
    columns = pick(s, f"{stage.name}.columns", (128, 256, 512), 256, pow2_at_least(wide))
    usual = max(few, FILLED // columns)
    rows = pick(s, f"{stage.name}.rows", (1, 2, 4, 8, 16, 32, 64, 128), usual, pow2_at_least(high))
    tiled(stage, runs, {place: rows, last: columns})
    stage.launch(num_warps=pick_warps(s, stage, (2, 4, 8), 4, rows * columns))


def across(shape: Contraction) -> tuple[bool, bool]:
    """For A and B: whether M (or N) is the contiguous axis in memory rather than K."""
    first, second = (reads(operand) for operand in shape.operands)
    return (
        any(_last_among(read, shape.rows) for read in first),
        any(_last_among(read, shape.columns) for read in second),
    )


def ragged(shape: Contraction) -> tuple[bool, bool]:
    """For A and B: whether rows start at multiples of 16 bytes, but not of cache lines, so that a
    piece of a row as long as a line lies in two of them."""
    first, second = (any(map(_off_lines, reads(operand))) for operand in shape.operands)
    return first, second


def loose(s: Schedule, shape: Contraction, to: int = WORD) -> tuple[bool, bool]:
    """For A and B: whether rows start off the words that threads copy to shared memory, or off
    multiples of so many bytes."""
    first, second = (
        any(len(r.indices) >= 2 and not rows_aligned(s, r, to) for r in reads(operand))
        for operand in shape.operands
    )
    return first, second


def is_box(read: TensorRead, batch: Collection[Axis] = ()) -> bool:
    """True when each index is an axis of its own, plus the start of a part of a reduction or of a
    piece of a result, or says no more than which `batch` a tile is of: a box, as TMA takes."""
    axes: list[Axis] = []
    for index in read.indices:
        match index:
            case _ if set(axes_of(index)) <= set(batch) and not reads(index):
                continue
            case Axis():
                axes.append(index)
            case Binary(op=BinaryOp.ADD, a=Axis() as inside, b=Const()):
                axes.append(inside)
            case Binary(
                op=BinaryOp.ADD,
                a=Binary(op=BinaryOp.MUL, a=Axis(), b=Const()),
                b=Axis() as inside,
            ):
                axes.append(inside)
            case _:
                return False
    return len(set(axes)) == len(axes)


def _last_among(read: TensorRead, axes: tuple[Axis, ...]) -> bool:
    last = read.indices[-1] if read.indices else None
    return isinstance(last, Axis) and among(last, axes)


def _off_lines(read: TensorRead) -> bool:
    size = size_of(read.tensor.shape[-1]) if len(read.indices) >= 2 else None
    length = 0 if size is None else size * read.dtype.nbytes
    return length > LINE and length % SIXTEEN == 0 and length % LINE != 0
