"""Cascades of reductions of columns, such as the mean and the variance of each channel, in one
pass by programs whose lanes run across neighbouring columns: of whole columns where there are
enough of them, else of parts of columns, which another kernel combines.

    for p, c: for k: v[p, c] = online(x[p * part + k, c])
"""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis
from tedsl.schedules.analysis.chains import chain_ends, follow, inline_between
from tedsl.schedules.analysis.groups import Group, crossed_row
from tedsl.schedules.analysis.nests import is_reduction, pow2_at_least, reduce_axes
from tedsl.schedules.analysis.views import definitions, extent_of, volume
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.launch import bind_all, pick_warps
from tedsl.schedules.knobs import flip, pick
from tedsl.schedules.loops import fused
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.primitives.online.chain import chain_of

# Columns and rows of a tile, and columns where the wider one leaves many lanes idle.
ACROSS, PIECE = 64, 64
NARROW = 32
COLUMNS, ROWS = (16, 32, 64, 128), (16, 32, 64, 128)
PARTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
# Programs for each SM that keep it busy.
ENOUGH = 4


def column_parts(s: Schedule, root: str, axes: Sequence[Axis], length: int) -> int:
    """The knob `parts`: in how many parts columns are, 1 where tiles of whole ones keep the device
    busy or there is little to read."""
    wide = extent_of(axes[-1]) or 1
    tiles = (volume(axes[:-1]) or 1) * -(-wide // _across(wide))
    fitting = [n for n in PARTS if n == 1 or 2 * n * PIECE <= length]
    busy = ENOUGH * gpu_of(s).sms
    usual = max(n for n in fitting if n == 1 or n * tiles <= busy)
    return pick(s, f"{root}.parts", fitting, usual, max(fitting))


def fold_columns(s: Schedule, partial: Stage) -> None:
    """One online pass over each part, a tile of neighbouring columns and some rows at a time."""
    op = definitions(s)[partial.name]
    part, *others, across = op.axes
    columns, rows = _tile(s, partial, across, volume(op.reduce_axes))
    outer, inner = partial.split(across, factor=columns)
    bind_all(partial, [part, *others, outer])
    partial.vectorize(inner)
    _pass(s, partial, rows)
    partial.launch(num_warps=pick_warps(s, partial, (2, 4, 8), 4, rows * columns))


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
    if len(ends) != 1 or {ends[0], *_before(s, ends[0])} != set(folds):
        return False
    if not flip(s, f"{group.root}.online", True):
        return False
    inline_between(s, group.inner)
    stage, last = s[group.root], s[ends[0]]
    others = [axis for axis in view[group.root].axes if axis is not across]
    tiles = _tiles(others, across, ACROSS)
    few = tiles is not None and tiles < ENOUGH * gpu_of(s).sms
    columns, rows = _tile(s, stage, across, length, few)
    tiles = _tiles(others, across, columns)
    few = tiles is not None and tiles < ENOUGH * gpu_of(s).sms
    outer, inner = stage.split(across, factor=columns)
    stage.reorder(*others, outer, inner)
    place = bind_all(stage, [*others, outer])
    stage.vectorize(inner)
    last.compute_at(stage, place)
    _pass(s, last, rows)
    warps = pick_warps(s, stage, (2, 4, 8, 16), 8 if few else 4, rows * columns)
    stage.launch(num_warps=warps)
    return True


def _before(s: Schedule, last: str) -> list[str]:
    """The reductions of the cascade that ends in `last`, but for that."""
    return [stage.name for stage in chain_of(s.plan, s[last].plan).members]


def _tiles(others: Sequence[Axis], across: Axis, columns: int) -> int | None:
    """How many tiles of so many columns there are."""
    wide, rest = extent_of(across), volume(others)
    return None if wide is None or rest is None else rest * -(-wide // columns)


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
    most = None if wide is None else pow2_at_least(wide)
    columns = pick(s, f"{stage.name}.columns", COLUMNS, usual, most)
    high = None if length is None else pow2_at_least(length)
    return columns, pick(s, f"{stage.name}.block", ROWS, ACROSS * PIECE // usual, high)


def _pass(s: Schedule, last: Stage, rows: int) -> None:
    """The loop of a cascade over pieces of so many rows."""
    turn, piece = last.split(fused(last, reduce_axes(last)), factor=rows)
    follow(last, turn)
    last.vectorize(piece)
