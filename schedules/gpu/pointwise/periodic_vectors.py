"""Broadcast row vectors (bias, weights) beside unaligned rows: a program takes the same place of
several periods of the alignment, and loads the vector once for them.

    for i, j: y[i, j] = x[i, j] * w[j]           with rows of 8193 elements of two bytes
    --> for f: y[f] = x[f] * w[f % 8193]         one flat row, in vectors of 8 elements
    --> for k, g: y[k * 8 * 8193 + g] = x[k * 8 * 8193 + g] * w[g % 8193]

In the flat row each vector of x is aligned, but w is loaded element by element: 8193 is odd, so
that a vector of w would start anywhere.  Every 8 rows, which are a period, the alignment of x
repeats; what was loaded of w for some places of a period serves the same places of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tedsl.devices import GpuDevice
from tedsl.dtypes import DType
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Expr, TensorRead
from tedsl.expr.visit import axes_of, walk
from tedsl.schedules.analysis.nests import arithmetic, plain
from tedsl.schedules.analysis.views import extent_of, volume
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.gemm.cost_model import LINE, dram
from tedsl.schedules.gpu.rows.aligned_pieces import ACCESS
from tedsl.schedules.gpu.rows.thread_partials import in_one_access
from tedsl.schedules.knobs import pick
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp

# Elements of a period at least: its last tile is not whole.
LONG = 1 << 14
# Clocks for what one instruction loads for the lanes of a warp, which are a vector apart: a line of
# the L1 cache in each.
APART = 32 * ACCESS // LINE
CHOICES = (1, 2, 4, 8)
# The share of the time of all else that is not worth more registers.
SLACK = 1 / 4


@dataclass(frozen=True, slots=True)
class Periods:
    """Elements of a period, which may be several of the shortest; for how many periods a program
    uses what it has loaded for one; and all elements."""

    length: int
    count: int
    total: int


def periods_of(
    s: Schedule, stage: Stage, op: ComputeOp, everything: Sequence[TensorRead], led: bool
) -> Periods | None:
    """The periods of a flat tile; None where a program takes one, nothing is broadcast along rows,
    or a row is a period.

    By default a program takes as many as it needs for its loads of the vector to take no longer
    than DRAM does; it takes one where other kernels may be fused into it (`led`), which saves more.
    """
    last, total = extent_of(op.axes[-1]), volume(op.axes)
    if last is None or total is None or len(op.axes) < 2:
        return None
    if not any(_is_of_columns(read, op.axes[-1]) for read in everything):
        return None
    nbytes = min(each.dtype.nbytes for each in (*op.bodies, *everything))
    rows = ACCESS // nbytes // in_one_access(last, nbytes)
    if rows <= 1:
        return None
    length = rows * last * -(-LONG // (rows * last))
    usual = 1 if led else _enough(gpu_of(s), op, everything, rows)
    count = pick(s, f"{stage.name}.periods", CHOICES, usual, total // length)
    return Periods(length, count, total) if count > 1 else None


def _enough(gpu: GpuDevice, op: ComputeOp, everything: Sequence[TensorRead], pieces: int) -> int:
    """Periods from which on the broadcast vectors, of which each 16 bytes are loaded in so many
    `pieces`, are loaded, and what is computed of them alone is, in the time that DRAM takes for
    the rest; or in which the rest of the arithmetic is most of it."""
    last = op.axes[-1]
    fetched = {read.tensor for read in everything if _is_of_columns(read, last)}
    along = {read.tensor for read in everything if last in axes_of(*read.indices)}
    moved = [*op.bodies, *along.difference(fetched)]
    elements = 32 * ACCESS // min(each.dtype.nbytes for each in (*moved, *fetched))
    memory = elements * sum(each.dtype.nbytes for each in moved) // dram(gpu)
    a_clock = gpu.fma[DType.float32] / (2 * gpu.sms * gpu.clock)
    once = _work(_of_columns(op.bodies, last)) * elements / a_clock
    rest = _work(op.bodies) * elements / a_clock - once
    clocks, enough = len(fetched) * pieces * APART, max(memory, (1 + SLACK) * rest)
    fine = (n for n in CHOICES if clocks / n <= memory and once / n + rest <= enough)
    return next(fine, max(CHOICES))


def _work(exprs: Sequence[Expr]) -> int:
    """Instructions for each element, about; a division of floats takes ten."""
    found = (node for node in walk(*exprs) if isinstance(node, Binary))
    return arithmetic(*exprs) + 9 * sum(node.op is BinaryOp.DIV for node in found)


def _of_columns(exprs: Sequence[Expr], last: Axis) -> list[Expr]:
    """The largest parts of expressions that only the place in a row decides."""
    found: list[Expr] = []
    for expr in exprs:
        if set(axes_of(expr)) == {last}:
            found.append(expr)
        elif not isinstance(expr, TensorRead):
            found += _of_columns(expr.children(), last)
    return found


def _is_of_columns(read: TensorRead, last: Axis) -> bool:
    """True for a read that is broadcast over rows: only the place in a row decides."""
    axes = plain(read)
    return axes is not None and len(axes) == 1 and axes[0] is last


def tile_periods(stage: Stage, flat: Axis, periods: Periods, tile: int) -> int:
    """Programs of `tile` neighbours, a power of two, in each of some periods of the loop `flat`
    over all elements; returns the elements of a program."""
    turns, place = stage.split(flat, factor=periods.length)
    outer, inner = stage.split(turns, factor=periods.count)
    blocks, elements = stage.split(place, factor=tile)
    stage.reorder(outer, blocks, inner, elements)
    grid = stage.fuse(outer, blocks)
    stage.bind(grid, "blockIdx.x")
    stage.vectorize(inner)
    stage.vectorize(elements)
    # A mask that ends within a vector access has each of its elements loaded alone.
    together = periods.length * periods.count
    whole = periods.total // together * -(-periods.length // tile)
    if whole and periods.total % together:
        stage.cut(grid, whole)
    return tile * periods.count
