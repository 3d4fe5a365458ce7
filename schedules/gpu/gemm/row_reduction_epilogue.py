"""Row and column reductions in the epilogue of a GEMM: each tile stores partial statistics (of an
online softmax, too), a second kernel combines them, and the GEMM's result need not be stored.

    C[i, j] = sum(k)(a * b);  t[i] = reduce(j)(f(C[i, j]));  D[i, j] = g(C[i, j])
    --> for tiles of i, j: { C; D; t.rf[jo, i] = reduce(ji)(f(C[i, j])) }
        t[i] = reduce(jo)(t.rf[jo, i])

Cascaded reductions (the largest element of a row, then a sum relative to it) share a step in each
tile, and their parts are combined by the same rescaling.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tedsl.errors import ScheduleError
from tedsl.expr.nodes import Axis, TensorRead
from tedsl.expr.visit import reads
from tedsl.schedules.analysis.chains import folds_before, follow
from tedsl.schedules.analysis.nests import (
    among,
    any_order,
    contraction,
    first,
    is_reduction,
    plain,
    pow2_at_least,
    reduce_axes,
    same_axes,
)
from tedsl.schedules.analysis.views import View, definitions
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.gemm.cost_model import ahead, best_tile, pays_in_parts, two_fit
from tedsl.schedules.gpu.gemm.gemm import depths, product_of
from tedsl.schedules.gpu.gemm.mainloop import LEAST, contract_inner, longest
from tedsl.schedules.gpu.gemm.operand_layouts import lay_out_operands
from tedsl.schedules.gpu.launch import pick_warps
from tedsl.schedules.knobs import flip, pick
from tedsl.schedules.trial import takes
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp

SIDES = (16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Folded:
    """A contraction, the pointwise stages that its readers read it through, the one that stores its
    elements, the reductions (earlier ones first) with the axis that each goes along, and whether
    they are cascaded."""

    name: str
    between: tuple[str, ...]
    stored: str | None
    folds: Mapping[str, Axis]
    chained: bool


@dataclass(frozen=True, slots=True)
class Tiles:
    """The axes of the contraction that are tiled, the size of the tiles, and how many rows of them
    are a group of the swizzle."""

    row: Axis
    column: Axis
    bm: int
    bn: int
    group: int

    def side(self, axis: Axis) -> int:
        """The size of a tile along one of both axes."""
        return self.bm if axis is self.row else self.bn


def schedule_statistics(s: Schedule, taken: Collection[str] = ()) -> list[str]:
    """Schedule the contractions, none of them `taken`, that only reductions of their elements, and
    at most one stage that stores them, read, by the knob `statistics`; returns the stages that are
    scheduled then, of which what combines the parts is none."""
    done: list[str] = []
    for name in list(definitions(s)):
        view = definitions(s)
        found = None if name in (*taken, *done) else _found(s, view, name, (*taken, *done))
        if found is None or not _possible(s, found):
            continue
        if flip(s, f"{name}.statistics", not _is_split(s, view[name], name)):
            done += _schedule(s, found)
    return done


def _found(s: Schedule, view: View, name: str, taken: Collection[str]) -> Folded | None:
    """The contraction `name` and its readers, if they are such."""
    op = view[name]
    shape = contraction(op) if is_reduction(op) else None
    if shape is None or len(shape.folded) != 1:
        return None
    outputs = {s[t].name for t in s.outputs}
    if name in outputs or not s[name].plan.placement.at_root:
        return None
    if product_of(s, s[name], name, op, shape) is None:
        return None
    tiled = longest(shape.rows), longest(shape.columns)
    links, late, stored = [op], list[ComputeOp](), list[str]()
    folds: dict[str, Axis] = {}
    chained = False
    for user, reader in view.items():
        read = reads(*reader.bodies)
        after = any(r.tensor.op is each for r in read for each in late)
        mine = [r for r in read if any(r.tensor.op is link for link in links)]
        late += [reader] if after else []
        if not mine:
            continue
        if user in taken or not s[user].plan.placement.at_root:
            return None
        whole = not is_reduction(reader) and all(same_axes(plain(r), reader.axes) for r in mine)
        if whole and user not in outputs and len(reader.bodies) == 1:
            links.append(reader)
        elif whole and not after:
            stored.append(user)
        elif (axis := _along(reader, mine, links)) is not None and among(axis, tiled):
            folds[user] = axis
            chained = chained or after
            late += [] if after else [reader]
        else:
            return None
    ways = {id(axis) for axis in folds.values()}
    if not folds or len(stored) > 1 or (chained and (stored or len(ways) > 1)):
        return None
    between = tuple(n for n, link in view.items() if any(link is each for each in links[1:]))
    return Folded(name, between, next(iter(stored), None), folds, chained)


def _along(fold: ComputeOp, mine: Sequence[TensorRead], links: Sequence[ComputeOp]) -> Axis | None:
    """The axis of the contraction, the first of `links`, that a reduction of them goes along: its
    only one, others being its results in their order."""
    if not is_reduction(fold) or len(fold.reduce_axes) != 1 or not any_order(fold):
        return None
    (folded,) = fold.reduce_axes
    found: set[int] = set()
    for read in mine:
        indices = plain(read) or ()
        kept = [axis for axis in indices if axis is not folded]
        if len(kept) + 1 != len(indices) or not same_axes(kept, fold.axes):
            return None
        found.add(next(n for n, axis in enumerate(indices) if axis is folded))
    return links[0].axes[found.pop()] if len(found) == 1 else None


def _is_split(s: Schedule, op: ComputeOp, name: str) -> bool:
    """True for a deep contraction of few tiles, of which split-K makes parts: nothing can be folded
    of a tile before all of them are there."""
    shape = contraction(op)
    product = None if shape is None else product_of(s, s[name], name, op, shape)
    return product is not None and pays_in_parts(product)


def _possible(s: Schedule, found: Folded) -> bool:
    """True when the primitives accept it."""
    if not found.chained:
        return True
    last = list(found.folds)[-1]
    trial = s.copy(decided=False)
    for name in reversed(found.between):
        trial[name].compute_inline()
    if sorted([*folds_before(trial, last), last]) != sorted(found.folds):
        return False
    return takes(s, (_possible, found.name, last), lambda each: _schedule(each, found))


def _schedule(s: Schedule, found: Folded) -> list[str]:
    """One kernel for the tiles; returns the stages in it."""
    known = {stage.name for stage in s.stages}
    for name in reversed(found.between):
        s[name].compute_inline()
    gpu = gpu_of(s)
    if gpu.has_tma:
        lay_out_operands(s, found.name, [found.name])
    tiles, stages, bk = _sizes(s, found.name)
    if found.chained:
        lead, place = _chain_parts(s, found, tiles)
    else:
        lead, place = _parts(s, found, tiles)
    contract_inner(s, [s[found.name]], lead, place, bk, stages)
    elements, padded = tiles.bm * tiles.bn, max(tiles.bm, LEAST) * max(tiles.bn, LEAST)
    warps = pick_warps(s, s[found.name], (4, 8), 8 if elements > two_fit(gpu) else 4, padded // 8)
    lead.launch(num_warps=warps, num_stages=stages)
    made = [stage.name for stage in s.stages if stage.name not in known]
    return [found.name, *found.between, *([found.stored] if found.stored else []), *made]


def _sizes(s: Schedule, name: str) -> tuple[Tiles, int, int]:
    """The tiles, `num_stages` and BLOCK_K."""
    op, gpu = definitions(s)[name], gpu_of(s)
    shape, shared = contraction(op), gpu.multiplies_shared
    product = None if shape is None else product_of(s, s[name], name, op, shape)
    if shape is None or product is None:
        raise ScheduleError(f"{name} is no contraction of constant extents")
    bm, bn = best_tile(product if shared else replace(product, most=two_fit(gpu)))
    most = [pow2_at_least(e) for e in (product.m, product.n, product.k)]
    bm = pick(s, f"{name}.bm", SIDES, bm, most[0])
    bn = pick(s, f"{name}.bn", SIDES, bn, most[1])
    bk = pick(s, f"{name}.bk", depths(shape, most[2]), product.step, most[2])
    fitting = min(-(-product.k // bk), 1 + gpu.shared_block // (bk * (bm + bn) * product.nbytes))
    deep = ahead(product, bm, bn, stays=False) if shared else 3
    stages = pick(s, f"{name}.stages", (1, 2, 3, 4, 5), deep, fitting)
    down = -(-product.m // bm)
    group = pick(s, f"{name}.group", (1, 2, 4, 8, 16), 8 if down % 8 == 0 else 1, down)
    return Tiles(longest(shape.rows), longest(shape.columns), bm, bn, group), stages, bk


def _parts(s: Schedule, found: Folded, tiles: Tiles) -> tuple[Stage, Axis]:
    """Parts of independent reductions beside what stores the elements: the leader and its loop
    around one tile."""
    source = definitions(s)[found.name].axes
    lead: tuple[Stage, Axis] | None = None
    if found.stored is not None:
        stage = s[found.stored]
        own = dict(zip(source, definitions(s)[stage.name].axes, strict=True))
        lead = stage, _programs(stage, own, tiles)
    for name, along in found.folds.items():
        fold = s[name]
        part, _ = fold.split(reduce_axes(fold)[0], factor=tiles.side(along))
        partial = s[first(s.rfactor(fold.op.outputs[0], part))]
        tile = _programs(partial, _axes_of_part(s, partial, source, along), tiles, along)
        if lead is None:
            lead = partial, tile
        else:
            partial.compute_with(lead[0], lead[1])
    assert lead is not None
    return lead


def _chain_parts(s: Schedule, found: Folded, tiles: Tiles) -> tuple[Stage, Axis]:
    """Parts of cascaded reductions, all of them in one online step: the last of them and that
    step."""
    *_, (name, along) = found.folds.items()
    fold = s[name]
    source = definitions(s)[found.name].axes
    part, _ = fold.split(reduce_axes(fold)[0], factor=tiles.side(along))
    last = s[first(s.split_online(fold.op.outputs[0], part, casts=True))]
    (folded,) = reduce_axes(last)
    step, lanes = last.split(folded, factor=tiles.side(along))
    _programs(last, _axes_of_part(s, last, source, along), tiles, along, (step, lanes))
    follow(last, step)
    return last, step


def _axes_of_part(
    s: Schedule, partial: Stage, source: Sequence[Axis], along: Axis
) -> dict[Axis, Axis]:
    """For each axis of the contraction that of its parts: the number of the part, then the rest."""
    number, *rest = definitions(s)[partial.name].axes
    kept = [axis for axis in source if axis is not along]
    return {along: number, **dict(zip(kept, rest, strict=True))}


def _programs(
    stage: Stage,
    axes: Mapping[Axis, Axis],
    tiles: Tiles,
    along: Axis | None = None,
    folded: Sequence[Axis] = (),
) -> Axis:
    """Bind a program to each tile, in swizzled order; `along` is the axis that parts are numbered
    on, and `folded` the loops over one of them.

    Returns:
        The loop around one tile.
    """
    outer: dict[Axis, Axis] = {}
    lanes: list[Axis] = []
    for axis in (tiles.row, tiles.column):
        if axis is along:
            outer[axis] = axes[axis]
            continue
        outer[axis], lane = stage.split(axes[axis], factor=tiles.side(axis))
        lanes.append(lane)
    order = [own for axis, own in axes.items() if axis not in outer]
    down, across = outer[tiles.row], outer[tiles.column]
    if tiles.group > 1:
        group, down = stage.split(down, factor=tiles.group)
        order += [group, across, down]
    else:
        order += [down, across]
    steps, last = (folded[:-1], folded[-1:]) if folded else ((), reduce_axes(stage))
    lanes += last
    stage.reorder(*order, *steps, *lanes)
    tile = stage.fuse(*order)
    stage.bind(tile, "blockIdx.x")
    for lane in lanes:
        stage.vectorize(lane)
    return tile
