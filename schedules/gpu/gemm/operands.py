"""Memory layout of GEMM operands, for the cost model: which axis is contiguous, and whether rows
are aligned to cache lines."""

from __future__ import annotations

from collections.abc import Collection

from tedsl.expr.nodes import Axis, Binary, BinaryOp, Const, TensorRead
from tedsl.expr.visit import axes_of, reads
from tedsl.schedules.analysis.nests import Contraction, among
from tedsl.schedules.analysis.views import size_of
from tedsl.schedules.gpu.gemm.cost_model import LINE
from tedsl.schedules.gpu.gemm.operand_layouts import SIXTEEN, WORD, rows_aligned
from tedsl.scheduling.handles.schedule import Schedule


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
