"""Split long rows of an online softmax (or other cascaded reductions) over programs: partial
running statistics, combined by a second kernel as it stores, or, where a row has one result, by the
last program (last-block reduction).  Flash decoding splits its keys the same way."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import axes_of, reads
from tedsl.schedules.analysis.chains import (
    chain_ends,
    folds_before,
    follow,
    inline_between,
    parts_follow,
)
from tedsl.schedules.analysis.groups import Group
from tedsl.schedules.analysis.nests import (
    among,
    any_order,
    first,
    is_reduction,
    padded,
    pow2_at_least,
    reduce_axes,
)
from tedsl.schedules.analysis.views import definitions, extent_of, volume
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.fusion.horizontal import Beside, lead_parts
from tedsl.schedules.gpu.last_block import finish_last, one_launch
from tedsl.schedules.gpu.launch import bind_all, pick_warps
from tedsl.schedules.gpu.rows.merged_again import merged_again, store_merged
from tedsl.schedules.gpu.rows.thread_partials import (
    Piece,
    fold_lanes,
    in_one_access,
    may_have_lanes,
    run_of,
    split_in_lanes,
)
from tedsl.schedules.knobs import flip, pick
from tedsl.schedules.loops import fold_at_once, fused, fused_folds
from tedsl.schedules.trial import remembered
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage

PARTS = (1, 2, 4, 8, 16, 32, 64, 128)
# Elements of a row that are worth a program, and programs for each SM beyond which more of them
# gain nothing.
PART = 4096
MANY = 64
# Elements of a row with one result for which combining parts is worth it: of 88 rows of 115,712 a
# tenth to a third is saved, of 50,000 nothing (H100).
VERY_LONG = 1 << 16
# Programs for each SM that keep it busy, each with a stretch of a row.
ENOUGH = 8
BLOCKS = (512, 1024, 2048, 4096, 8192)
# Elements of everything that a program holds, where that is one row, and for each of its warps.
HELD, EACH = 4096, 1024


def few_rows(rows: int | None, sms: int) -> bool:
    """True when a program for each row leaves much of the device idle."""
    return rows is not None and rows < 2 * sms


def split_chain(s: Schedule, group: Group, ends: Sequence[str]) -> bool:
    """Reduce parts of the rows in programs of their own, and combine them, by the knob `parts`;
    False where that is not for these rows.

    The kernel has one cascade of all its reductions, and elements in rows that read it or a result
    for each row.
    """
    view = definitions(s)
    folds = [name for name in group.inner if is_reduction(view[name])]
    rows = volume(group.rows or ())
    columns = len(group.rows or ()) < len(view[group.root].axes)
    if len(ends) != 1 or rows is None or not (columns or len(folds) > 1):
        return False
    last = s[ends[0]]
    length = volume(view[last.name].reduce_axes)
    alone = {*folds} <= {last.name, *folds_before(s, last.name)}
    if length is None or not alone or any(len(view[n].bodies) > 1 for n in folds):
        return False
    parts = _parts(s, group.root, last.name, rows, length, columns or length >= VERY_LONG)
    if parts == 1:
        return False
    run = run_of(view[last.name])
    partial, root = s[_split(s, last.name, parts)], s[group.root]
    again = merged_again(s, group.beside, group.inner)
    apart = not columns and one_launch(s, root.name)
    _fold_parts(s, partial, root, run, apart)
    if not apart or not finish_last(s, root, group.inner, partial, group.axes[last.name]):
        _spread(s, group)
    if group.beside:
        store_merged(s, group.beside, again)
    return True


def split_cascades(s: Schedule, groups: list[Group], beside: Beside) -> None:
    """Reduce everything a tile at a time, once, where a cascade of full reductions is several
    kernels, each of which would read it again: those only combine the parts then."""
    owners: dict[str, Group] = {}
    for group in tuple(groups):
        view = definitions(s)
        folds = [name for name in (*group.inner, group.root) if is_reduction(view[name])]
        if len(folds) != 1 or group.contracts or group.in_parts or group.beside:
            continue
        name, op = folds[0], view[folds[0]]
        owners[name] = group
        length = volume(op.reduce_axes)
        earlier = () if op.axes or not length else folds_before(s, name)
        if not length or not earlier or not all(each in owners for each in earlier):
            continue
        cascade = [view[each] for each in (name, *earlier)]
        simple = all(len(each.bodies) == 1 and any_order(each) for each in cascade)
        if simple and _in_tiles(s, group.root, name, length, beside):
            for each in (name, *earlier):
                owners[each].in_parts = True
                if each in earlier and owners[each].inner:  # the others combine with it
                    _by_itself(s, groups, owners[each], each)


def _in_tiles(s: Schedule, root: str, name: str, length: int, beside: Beside) -> bool:
    """Reduce everything a tile at a time, which a program holds: its own mean, and what depends on
    that, are computed of registers."""
    tile = pick(s, f"{root}.tile", BLOCKS, HELD, pow2_at_least(length))
    if length < 2 * tile or not _parts_follow(s, name):
        return False
    partial = s[_split(s, name, -(-length // tile), tile)]
    (folded,) = definitions(s)[partial.name].reduce_axes
    partial.bind(partial.op.axis[0], "blockIdx.x")
    outer, piece = partial.split(folded, factor=tile)
    follow(partial, outer)
    partial.vectorize(piece)
    partial.launch(num_warps=pick_warps(s, partial, (4, 8, 16), tile // EACH, tile))
    lead_parts(beside, [partial.name, *folds_before(s, partial.name)], tile)
    return True


def _by_itself(s: Schedule, groups: list[Group], group: Group, name: str) -> None:
    """Make the one reduction of a kernel with a result for each row a kernel of its own."""
    place = next(n for n, each in enumerate(groups) if each is group)
    axes = {a: a for a in definitions(s)[name].axes}
    groups.insert(place, Group(name, axes={name: axes}, in_parts=True))
    group.inner.clear()
    group.rows, group.in_parts = None, False


def _parts(s: Schedule, root: str, last: str, rows: int, length: int, default: bool = True) -> int:
    """The knob `parts` of a kernel whose cascade ends in `last`: in how many parts each row is, one
    without `default` unless somebody asks."""
    sms = gpu_of(s).sms
    fitting = [n for n in PARTS if n == 1 or (n * PART <= length and n * rows <= MANY * sms)]
    if len(fitting) > 1 and not _parts_follow(s, last):
        return 1
    usual = 1
    if few_rows(rows, sms) and default:
        usual = max(n for n in fitting if n == 1 or n * rows <= ENOUGH * sms)
    return pick(s, f"{root}.parts", fitting, usual, max(fitting))


def _split(s: Schedule, name: str, parts: int, whole: int = BLOCKS[0]) -> str:
    """Make parts of a cascade, of a multiple of `whole` elements, stages of their own
    (`split_online`); returns the last of them."""
    stage = s[name]
    axes = reduce_axes(stage)
    length, axis = volume(axes), fused_folds(s, stage)
    if length is None:
        part, _ = stage.split(axis, nparts=parts)
    else:
        part, _ = stage.split(axis, factor=whole * -(-length // (parts * whole)))
    return s[first(s.split_online(stage.op.outputs[0], part, casts=True))].name


def _parts_follow(s: Schedule, name: str) -> bool:
    """True when a part of the cascade can be one online loop too."""
    return parts_follow(s, name, (_parts_follow, name), lambda trial: _split(trial, name, 2))


def one_pass(s: Schedule, group: Group) -> bool:
    """True for a kernel whose reductions are one cascade, of which a part of a row can be one
    online loop too."""
    inner, root = tuple(group.inner), group.root

    def found(trial: Schedule) -> bool:
        last = is_reduction(definitions(trial)[root])
        ends = [root] if last else chain_ends(trial, group)
        inline_between(trial, inner)
        if len(ends) != 1 or not _parts_follow(trial, ends[0]):
            return False
        view = definitions(trial)
        folds = [name for name in inner if name in view and is_reduction(view[name])]
        return {*folds} <= {ends[0], *folds_before(trial, ends[0])}

    return remembered(s, (one_pass, inner, root), found)


def _fold_parts(
    s: Schedule, partial: Stage, root: Stage, run: int | None, apart: bool = False
) -> None:
    """A program for each part of each row, whose elements are `run` neighbours and again so many:
    one online pass over it; with the number of the part on a grid axis of its own (`apart`) or
    not."""
    op = definitions(s)[partial.name]
    (folded,) = op.reduce_axes
    part = extent_of(folded) or 1
    block = pick(s, f"{root.name}.part_block", BLOCKS, 2048, pow2_at_least(part))
    ahead = pick(s, f"{root.name}.part_stages", (1, 2, 3, 4, 5), 1, -(-part // block))
    fine = may_have_lanes(s, partial.name, block)
    if fine and flip(s, f"{root.name}.part_lanes", True):
        nbytes = max(
            (r.dtype.nbytes for r in reads(*op.bodies) if folded in axes_of(*r.indices)), default=4
        )
        together = in_one_access(run, nbytes)
        lanes = split_in_lanes(s, partial.name, Piece(block, together, ahead))
        grid = _bind_parts(partial, definitions(s)[partial.name].axes, apart)
        fold_lanes(s, lanes, partial, grid)
    else:
        _bind_parts(partial, op.axes, apart)
        outer, piece = partial.split(folded, factor=block)
        follow(partial, outer)
        partial.vectorize(piece)
        if ahead > 1:
            partial.pipeline(outer, num_stages=ahead)
    warps = pick_warps(s, root, (2, 4, 8, 16), 8, block)
    partial.launch(num_warps=warps)


def _bind_parts(partial: Stage, axes: Sequence[Axis], apart: bool) -> Axis:
    """A program for each part, those of a row next to each other, the number of the part on a grid
    axis of its own (`apart`) or not."""
    part, *rows = axes
    if not apart:
        partial.reorder(*rows, part)
    return bind_all(partial, [*rows, part], apart=part if apart else None)


def _spread(s: Schedule, group: Group) -> None:
    """The second kernel: pieces of rows over the grid, each of which combines the parts of its row
    again; or rows.

    The rows that were reduced last come first: some of them are still in cache.
    """
    stage, view = s[group.root], definitions(s)
    rows = list(group.rows or ())
    columns = [a for a in view[group.root].axes if not among(a, rows)]
    stage.reorder(*rows, *columns)
    block = 1
    if columns:
        block = pick(s, f"{group.root}.block", BLOCKS, 2048, padded(volume(columns)))
        outer, piece = stage.split(fused(stage, columns), factor=block)
        rows.append(outer)
        stage.vectorize(piece)
    last_first = bool(columns) and flip(s, f"{group.root}.descending", True)
    grid = bind_all(stage, rows, descending=last_first)
    for name in reversed(group.inner):
        fold_at_once(s[name], stage, grid)
    stage.launch(num_warps=4 if block < 4096 else 8)
