"""Cascades of reductions of columns, such as the mean and the variance of each channel, in one
pass by programs whose lanes run across neighbouring columns.

    for c: for k: v[c] = online(x[k, c])
"""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis
from tedsl.schedules.analysis.chains import chain_ends, folds_before, follow, inline_between
from tedsl.schedules.analysis.groups import Group, crossed_row
from tedsl.schedules.analysis.nests import is_reduction, padded, reduce_axes
from tedsl.schedules.analysis.views import blocks, definitions, extent_of, times, volume
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.launch import pick_warps, tile_grid
from tedsl.schedules.knobs import flip, pick
from tedsl.schedules.loops import fused
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage

# Columns and rows of a tile, and columns where the wider one leaves many lanes idle.
ACROSS, PIECE = 64, 64
NARROW = 32
COLUMNS, ROWS = (16, 32, 64, 128), (16, 32, 64, 128)
# Programs for each SM that keep it busy.
ENOUGH = 4


def online_columns(s: Schedule, group: Group) -> bool:
    """Fold whole columns, all reductions of them in one pass, by the knob `online`; False where
    they are not one cascade, or short.

        for c: m = sum(k)(x[k, c]);  v = sum(k)((x[k, c] - m / n)**2);  y[c] = f(m, v)
        --> for c: for pieces of k: v, m = online(x[k, c]);  y[c] = f(m, v)
    """
    view = definitions(s)
    across = crossed_row(view, group)
    folds = [name for name in group.inner if is_reduction(view[name])]
    length = volume(view[folds[0]].reduce_axes) if folds else None
    single = not (group.in_parts or group.follows or group.beside or group.regions)
    if across is None or length is None or length < 2 * PIECE or len(folds) < 2 or not single:
        return False
    ends = chain_ends(s, group)
    if len(ends) != 1 or {ends[0], *folds_before(s, ends[0])} != set(folds):
        return False
    if not flip(s, f"{group.root}.online", True):
        return False
    inline_between(s, group.inner)
    stage, last = s[group.root], s[ends[0]]
    others = [axis for axis in view[group.root].axes if axis is not across]
    few = _are_few(s, others, across, ACROSS)
    columns, rows = _tile(s, stage, across, length, few)
    few = _are_few(s, others, across, columns)
    place = tile_grid(stage, others, [(across, columns)])
    last.compute_at(stage, place)
    _pass(s, last, rows)
    warps = pick_warps(s, stage, (2, 4, 8, 16), 8 if few else 4, rows * columns)
    stage.launch(num_warps=warps)
    return True


def _are_few(s: Schedule, others: Sequence[Axis], across: Axis, columns: int) -> bool:
    """True where tiles of so many columns do not keep the device busy."""
    tiles = times(volume(others), blocks(extent_of(across), columns))
    return tiles is not None and tiles < ENOUGH * gpu_of(s).sms


def _across(extent: int) -> int:
    """Columns of a tile: fewer where an eighth of the lanes less is idle then."""
    tiles = {wide: -(-extent // wide) * wide for wide in (ACROSS, NARROW)}
    return NARROW if 9 * tiles[NARROW] < 8 * tiles[ACROSS] else ACROSS


def _tile(
    s: Schedule, stage: Stage, across: Axis, length: int | None, few: bool = False
) -> tuple[int, int]:
    """The columns and rows of a tile, narrow ones where there are `few`."""
    wide = extent_of(across)
    usual = ACROSS if wide is None else _across(wide)
    usual = NARROW if few else usual
    columns = pick(s, f"{stage.name}.columns", COLUMNS, usual, padded(wide))
    return columns, pick(s, f"{stage.name}.block", ROWS, ACROSS * PIECE // usual, padded(length))


def _pass(s: Schedule, last: Stage, rows: int) -> None:
    """The loop of a cascade over pieces of so many rows."""
    turn, piece = last.split(fused(last, reduce_axes(last)), factor=rows)
    follow(last, turn)
    last.vectorize(piece)
