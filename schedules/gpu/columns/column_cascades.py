"""Cascades of reductions of columns, such as the mean and the variance of each channel, in one
pass: parts of the columns in programs of their own, whose lanes run across neighbouring columns.

    for p, c: for k: v[p, c] = online(x[p * part + k, c])
"""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis
from tedsl.schedules.analysis.chains import follow
from tedsl.schedules.analysis.nests import pow2_at_least
from tedsl.schedules.analysis.views import definitions, extent_of, volume
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.launch import bind_all, pick_warps
from tedsl.schedules.knobs import pick
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage

# Columns and rows of a tile.
ACROSS, PIECE = 64, 64
PARTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
# Programs for each SM that keep it busy.
ENOUGH = 4


def column_parts(s: Schedule, root: str, axes: Sequence[Axis], length: int) -> int:
    """The knob `parts`: in how many parts columns are, 1 where tiles of whole ones keep the device
    busy or there is little to read."""
    tiles = (volume(axes[:-1]) or 1) * -(-(extent_of(axes[-1]) or 1) // ACROSS)
    fitting = [n for n in PARTS if n == 1 or 2 * n * PIECE <= length]
    busy = ENOUGH * gpu_of(s).sms
    usual = max(n for n in fitting if n == 1 or n * tiles <= busy)
    return pick(s, f"{root}.parts", fitting, usual, max(fitting))


def fold_columns(s: Schedule, partial: Stage) -> None:
    """One online pass over each part, a tile of neighbouring columns and some rows at a time."""
    op = definitions(s)[partial.name]
    (folded,), (part, *others, across) = op.reduce_axes, op.axes
    wide, high = extent_of(across) or ACROSS, extent_of(folded) or PIECE
    columns = pick(s, f"{partial.name}.columns", (16, 32, 64, 128), ACROSS, pow2_at_least(wide))
    rows = pick(s, f"{partial.name}.block", (16, 32, 64, 128), PIECE, pow2_at_least(high))
    outer, inner = partial.split(across, factor=columns)
    bind_all(partial, [part, *others, outer])
    partial.vectorize(inner)
    turn, piece = partial.split(folded, factor=rows)
    follow(partial, turn)
    partial.vectorize(piece)
    partial.launch(num_warps=pick_warps(s, partial, (2, 4, 8), 4, rows * columns))
