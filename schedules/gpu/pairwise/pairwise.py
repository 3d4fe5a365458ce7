"""Pairwise reductions, as GEMM-shaped loops without multiply-add (pairwise distances, min-plus
products): register tiles on CUDA cores, one outer-product step of the reduced axis at a time.

    for i, j: d[i, j] = reduce(k)(f(x[i, k], y[k, j]))

Each row of one operand meets each column of the other, so what is read is reused across a tile.  A
program holds a tile of results in registers and goes through the reduction one term at a time, with
a vector of each operand.

A reduction of these results along rows or columns has them computed a tile at a time, inside its
loop, so that they are never stored:

    for i: n[i] = reduce(j)(g(d[i, j]))
    --> for some i: for some j: (d = reduce(k)(f(x[i, k], y[k, j])); n[i] = reduce(j)(g(d)))
"""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import axes_of, reads
from tedsl.schedules.analysis.groups import Group
from tedsl.schedules.analysis.nests import (
    among,
    any_order,
    contraction,
    is_reduction,
    padded,
    plain,
    reduce_axes,
    same_axes,
    sole_readers,
)
from tedsl.schedules.analysis.views import View, definitions, extent_of, volume
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.gemm.gemm import busy
from tedsl.schedules.gpu.gemm.k_steps import LEAST
from tedsl.schedules.gpu.gemm.mainloop import longest
from tedsl.schedules.gpu.launch import pick_warps, tile_grid
from tedsl.schedules.knobs import flip, pick
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp

# The tile of a program of two warps.  The lanes of a warp lie along the columns, four for each, and
# all rows are in each thread: it computes 32 results of 12 loads.  More rows are more registers,
# fewer columns as many loads for fewer results.
TALL, WIDE = 8, 256
COLUMNS = 128
# Results for each SM from which it has a tile; fewer of them are reduced a row of terms at a time,
# which keeps more threads busy.
ENOUGH = TALL * LEAST
SIDES = (4, 8, 16, 32, 64, 128, 256)


def sides(op: ComputeOp) -> tuple[Axis, Axis] | None:
    """The axes M and N of a pairwise reduction; None for other reductions.

    Each is in a part only of what is reduced, and there without the other.  Neighbouring columns
    are neighbours in the result where either are.
    """
    if not is_reduction(op) or contraction(op) is not None:
        return None
    used = [set(axes_of(*read.indices)) for read in reads(*op.bodies)]
    used = [axes for axes in used if any(k in axes for k in op.reduce_axes)]
    for one in used:
        for other in used:
            left = tuple(a for a in op.axes if a in one and a not in other)
            right = tuple(a for a in op.axes if a in other and a not in one)
            if left and right:
                row, column = longest(left), longest(right)
                return (column, row) if row is op.axes[-1] else (row, column)
    return None


def _worth_a_tile(axes: Sequence[Axis]) -> bool:
    """True when each has enough elements for what is read to be reused."""
    return all((extent_of(axis) or LEAST) >= LEAST for axis in axes)


def pairs(s: Schedule, view: View, group: Group) -> tuple[Axis, Axis] | None:
    """The axes M and N of the root, for a kernel of a pairwise reduction and its epilogue."""
    alone = len(group.inner) == 1 and not group.beside
    if not alone or not same_axes(group.rows, view[group.root].axes):
        return None
    (name,) = group.inner
    found, results = sides(view[name]), volume(view[name].axes)
    if found is None or not _worth_a_tile(found):
        return None
    if results is not None and results < ENOUGH * gpu_of(s).sms:
        return None
    row, column = (group.axes[name].get(axis) for axis in found)
    return None if row is None or column is None else (row, column)


def fold_pairs(s: Schedule, group: Group, sides: tuple[Axis, Axis]) -> None:
    """Tiles of results in registers, the reduction loop outside of them."""
    view = definitions(s)
    stage, root = s[group.root], view[group.root]
    row, column = sides
    others = [a for a in root.axes if a is not row and a is not column]
    tall, wide = _tile(s, stage, sides, volume(others) or 1)
    apart = root.axes[0] if group.apart else None
    place = tile_grid(stage, others, [(row, tall), (column, wide)], apart)
    inner = s[group.inner[0]]
    inner.compute_at(stage, place)
    known = group.axes[inner.name]
    _term_by_term(s, inner, stage.name, [a for a in inner.op.axis if among(known.get(a), sides)])
    _launch(s, stage, tall, wide)


def _tile(s: Schedule, stage: Stage, sides: tuple[Axis, Axis], others: int) -> tuple[int, int]:
    """Rows and columns of a tile, none of them beyond the padded extent."""
    m, n = (extent_of(axis) for axis in sides)
    most = padded(m), padded(n)
    tall, wide = TALL, WIDE
    if m is not None and n is not None:
        tall, wide = min(tall, most[0] or tall), min(wide, most[1] or wide)
        tall, wide = busy(gpu_of(s), others, m, n, tall, wide)
    tall = pick(s, f"{stage.name}.tall", SIDES, tall, most[0] or max(SIDES))
    return tall, pick(s, f"{stage.name}.wide", SIDES, wide, most[1] or max(SIDES))


def _launch(s: Schedule, stage: Stage, tall: int, wide: int) -> None:
    """As many warps as have four columns for each of their lanes."""
    stage.launch(num_warps=pick_warps(s, stage, (1, 2, 4, 8), max(1, wide // COLUMNS), tall * wide))


def _term_by_term(s: Schedule, inner: Stage, name: str, lanes: Sequence[Axis]) -> None:
    """The reduction loop around the tile of its `lanes`, some terms of it unrolled."""
    axes = reduce_axes(inner)
    own = inner.op.axis
    inner.reorder(*(a for a in own if not among(a, lanes)), *axes, *lanes)
    few = pick(s, f"{name}.unroll", (1, 2, 4, 8), 4, extent_of(axes[-1]))
    if few > 1:
        _, piece = inner.split(axes[-1], factor=few)
        inner.unroll(piece)
    for axis in lanes:
        inner.vectorize(axis)


def take_pairs(s: Schedule, groups: Sequence[Group]) -> list[Group]:
    """The kernels, after reductions of the results of a pairwise reduction have been fused with it,
    by the knob `pairs`: the default where there are rows enough to keep a device busy without the
    columns."""
    view, sms = definitions(s), gpu_of(s).sms
    users = sole_readers(view, {s[t].name for t in s.outputs})
    kept = {group.root: group for group in groups}
    for group in groups:
        user = users.get(group.root)
        if user is None or group.inner or len(view[group.root].bodies) > 1:
            continue
        taker = next((g for g in kept.values() if user in (g.root, *g.inner)), None)
        if taker is None or taker is group or not _takes(view, taker, user, group.root):
            continue
        tiles = (volume(view[user].axes) or TALL * sms) // TALL
        if flip(s, f"{taker.root}.pairs", tiles >= sms):
            taker.pairs = group.root
            del kept[group.root]
    return list(kept.values())


def _takes(view: View, taker: Group, user: str, name: str) -> bool:
    """True for a kernel of one reduction, `user`, along M or N of the pairwise reduction `name`,
    and its epilogue."""
    fold, op = view[user], view[name]
    found = sides(op)
    if found is None or not _worth_a_tile(found) or not is_reduction(fold):
        return False
    alone = taker.inner == [] if taker.root == user else taker.inner == [user]
    if not alone or not any_order(fold) or contraction(fold) is not None or taker.pairs:
        return False
    root = view[taker.root]
    if taker.root != user and not same_axes(taker.rows, root.axes):
        return False
    if len(fold.reduce_axes) != 1 or len(fold.axes) + 1 != len(op.axes):
        return False
    at = [plain(r) for r in reads(*fold.bodies) if r.tensor.op is op]
    if any(axes is None or not same_axes(axes, at[0] or ()) for axes in at):
        return False
    mine = dict(zip(op.axes, at[0] or (), strict=True))
    ends = [mine[axis] for axis in found]
    return sum(among(axis, fold.reduce_axes) for axis in ends) == 1


def fold_of_pairs(s: Schedule, group: Group) -> None:
    """A kernel of one reduction, in whose loop over pieces its operand, a pairwise reduction, is
    computed a tile at a time."""
    view = definitions(s)
    stage, fold, source = s[group.root], s[group.inner[0]], s[group.pairs]
    op, folds = view[fold.name], view[source.name]
    (along,) = op.reduce_axes
    read = next(r for r in reads(*op.bodies) if r.tensor.op is folds)
    mine = dict(zip(folds.axes, plain(read) or (), strict=True))
    ends = sides(folds) or ()
    own = next(mine[axis] for axis in ends if mine[axis] is not along)
    row = group.axes[fold.name][own]
    others = [a for a in stage.op.axis if a is not row]
    tall, wide = _tile(s, stage, (row, along), volume(others) or 1)
    place = tile_grid(stage, others, [(row, tall)])
    fold.compute_at(stage, place)
    pieces, piece = fold.split(reduce_axes(fold)[0], factor=wide)
    rest = [a for a in fold.op.axis if a is not own]
    fold.reorder(*rest, pieces, own, piece)
    fold.vectorize(own)
    fold.vectorize(piece)
    source.compute_at(fold, pieces)
    _term_by_term(s, source, stage.name, list(ends))
    _launch(s, stage, tall, wide)
