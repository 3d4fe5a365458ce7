"""Padded GEMM operands: rows that do not start at multiples of 16 bytes, which TMA cannot load.

    for i, j: for k: C[i, j] += A[i, k] * B[k, j]           with k in 0..4095, two bytes each
    --> for i, k: A.global[i, k] = A[i, k]                  a row of it takes 4096 elements
        for i, j: for k: C[i, j] += A.global[i, k] * B[k, j]

What an earlier kernel computes is stored with padded rows in the first place (`storage_align`); an
input is copied in a kernel of its own, where the product takes longer than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tedsl.expr.nodes import TensorRead
from tedsl.expr.visit import reads
from tedsl.schedules.analysis.nests import (
    contraction,
    definitions,
    extent_of,
    plain,
    pow2_at_least,
    size_of,
    volume,
)
from tedsl.schedules.gpu.launch import bind_all, pick_warps
from tedsl.schedules.knobs import flip, pick
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.plan import Align
from tedsl.scheduling.plan.links import places
from tedsl.tensor.tensor import ComputeOp, Operation, Tensor

# Bytes that padded rows are a multiple of: a cache line.
LINE = 128
# The alignment in bytes that TMA descriptors need.
SIXTEEN = 16
# Operations of a product for which loading one byte element by element takes as much longer as
# copying it does: products of 128 by 128 tiles without TMA reach an eighth of the peak on an H200.
WORTH = 64
# Bytes that an H200 copies in the time of a launch.
LAUNCH = 8 << 20


def align_operands(s: Schedule, name: str, inner: Sequence[str]) -> None:
    """Give the operands of contractions padded rows, where that takes less time than it saves.

    Args:
        s: the schedule.
        name: of the kernel's root, for the knobs.
        inner: the contractions of one kernel.
    """
    view = definitions(s)
    names = view.names
    readers: dict[Tensor, list[str]] = {}
    for each in inner:
        for read in reads(*view[each].bodies):
            if plain(read) is not None and len(read.indices) >= 2:
                tensor = _stored(s, names, read.tensor)
                if not rows_aligned(s, TensorRead(tensor, read.indices)):
                    readers.setdefault(tensor, []).append(each)
    for tensor, users in readers.items():
        direct = [n for n in users if tensor in _direct(s, n)]
        size = size_of(tensor.shape[-1])
        if direct != users or size is None or size * tensor.dtype.nbytes < LINE:
            continue
        if tensor.op not in places(s.plan).by_op:
            continue
        _align(s, name, tensor, users, sum(_operations(s, n) for n in users))


def _stored(s: Schedule, names: Mapping[Operation, str], tensor: Tensor) -> Tensor:
    """The tensor of the schedule for one of its definitions, in which more is substituted."""
    name = names.get(tensor.op)
    return tensor if name is None else s[name].op.outputs[tensor.index]


def rows_aligned(s: Schedule, read: TensorRead) -> bool:
    """True when the rows of a tensor start at multiples of 16 bytes."""
    size, step = size_of(read.tensor.shape[-1]), read.dtype.nbytes
    number = places(s.plan).by_op.get(read.tensor.op)
    if number is not None and any(_whole(a, step) for a in s.plan.stage_at(number).aligned):
        return True
    return size is not None and size * step % SIXTEEN == 0


def _whole(align: Align, nbytes: int) -> bool:
    """True when such a row stride is a multiple of 16 bytes."""
    return align.factor * nbytes % SIXTEEN == 0 and align.offset * nbytes % SIXTEEN == 0


def _direct(s: Schedule, name: str) -> list[Tensor]:
    """The tensors that a stage reads by itself, not through inlined stages."""
    op = s[name].op
    return [r.tensor for r in reads(*op.bodies)] if isinstance(op, ComputeOp) else []


def _operations(s: Schedule, name: str) -> int:
    """FLOPs of a contraction, two for each product; 0 where an extent is symbolic."""
    op = definitions(s)[name]
    return 0 if contraction(op) is None else 2 * (volume((*op.axes, *op.reduce_axes)) or 0)


def _align(s: Schedule, name: str, tensor: Tensor, users: Sequence[str], operations: int) -> None:
    """Padded rows for one tensor: its own where it is computed, else those of a copy."""
    source, factor = s[tensor], LINE // tensor.dtype.nbytes
    if not source.plan.placement.at_root or source.plan.placement.head:
        return
    outputs = [t.op for t in s.outputs]
    if isinstance(tensor.op, ComputeOp) and tensor.op not in outputs and len(source.op.outputs) < 2:
        source.storage_align(tensor.op.axes[-2], factor)
        return
    points = 1
    for extent in tensor.shape:
        points *= size_of(extent) or 0
    pays = operations > WORTH * (points * tensor.dtype.nbytes + LAUNCH)
    if not points or not flip(s, f"{name}.align_{source.name}", pays):
        return
    copy = s[s.cache_read(tensor, "global", list(users))]
    if isinstance(copy.op, ComputeOp):
        copy.storage_align(copy.op.axes[-2], factor)
        _copied(s, copy, copy.op)


def _copied(s: Schedule, stage: Stage, op: ComputeOp) -> None:
    """The copy kernel: tiles of neighbours in a row by a few rows."""
    high, wide = (extent_of(axis) or 1 for axis in op.axes[-2:])
    columns = pick(s, f"{stage.name}.columns", (128, 256, 512), 256, pow2_at_least(wide))
    rows = pick(s, f"{stage.name}.rows", (1, 2, 4, 8, 16), 8, pow2_at_least(high))
    ro, ri = stage.split(op.axes[-2], factor=rows)
    co, ci = stage.split(op.axes[-1], factor=columns)
    stage.reorder(*op.axes[:-2], ro, co, ri, ci)
    bind_all(stage, (*op.axes[:-2], ro, co))
    stage.vectorize(ri)
    stage.vectorize(ci)
    stage.launch(num_warps=pick_warps(s, stage, (2, 4, 8), 4, rows * columns))
