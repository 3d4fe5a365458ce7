"""Results of a GEMM that stay on the device, stored in padded rows: where a row has no whole number
of vectors, its elements are stored, and loaded again, one by one.

    for i, j: C[i, j] = sum(k)(A[i, k] * B[k, j])        with j in 0..415, two bytes each
    for i: S[i] = sum(j)(C[i, j])
    --> a row of C takes 416 elements
"""

from __future__ import annotations

from tedsl.expr.nodes import TensorRead
from tedsl.expr.visit import axes_of
from tedsl.schedules.analysis.nests import is_reduction
from tedsl.schedules.analysis.views import View, definitions, extent_of, size_of
from tedsl.schedules.gpu.gemm.operand_layouts import LINE, SECTOR, SIXTEEN
from tedsl.schedules.knobs import flip
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import ComputeOp


def pad_rows(s: Schedule, root: str) -> None:
    """The knob `padded` of a result that reductions along its rows read, and what depends on
    those: kernels of rows."""
    op = s[root].op
    if not isinstance(op, ComputeOp) or any(each.op is op for each in s.outputs):
        return
    out, *others = op.outputs
    if others or out.ndim < 2:
        return
    wide = size_of(out.shape[-1])
    nbytes = 0 if wide is None else wide * out.dtype.nbytes
    if nbytes < LINE or nbytes % SIXTEEN == 0 or not _by_rows(definitions(s), root):
        return
    if flip(s, f"{root}.padded", True):
        s[root].storage_align(op.axes[-2], SECTOR // out.dtype.nbytes)


def _by_rows(view: View, root: str) -> bool:
    """True where those who read a result are reductions along its rows, and stages behind them."""
    folds = {name for name, read in view.readers[root] if _along_rows(view[name], read)}
    others = {name for name, _ in view.readers[root]} - folds
    behind = set(folds)
    for name in view:
        if any(source in behind for source in view.sources(name)):
            behind.add(name)
    return bool(folds) and others <= behind


def _along_rows(op: ComputeOp, read: TensorRead) -> bool:
    """True of a reduction of rows by themselves; several in a row are neighbours in memory, which
    are folded as one."""
    inside, around = (axes_of(*part) for part in (read.indices[-1:], read.indices[:-1]))
    folded = [axis for axis in op.reduce_axes if extent_of(axis) != 1]
    return is_reduction(op) and bool(folded) and all(a in inside - around for a in folded)
