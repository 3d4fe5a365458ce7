"""Stream-K for the last partial wave of a GEMM: where few tiles are left after whole waves, several
programs share each of them along K, and the last to arrive combines the parts.

    for tiles: C[i, j] = sum(A[i, k] * B[k, j]);  D[i, j] = f(C[i, j])
    --> for tiles before `at`:   C.head[i, j] = sum(...);  D.head[i, j] = f(C.head[i, j])
        for the others, parts p: P[p, i, j] = sum(of part p)
                                 the last p: D.tail[i, j] = f(sum(p)(P[p, i, j]))

All of it is one launch, which starts with the parts: they end at different times on different SMs,
and their combination is not behind everything else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import axes_of, reads
from tedsl.schedules.analysis.groups import Group
from tedsl.schedules.analysis.nests import among, first, reduce_axes
from tedsl.schedules.gpu.gemm.cost_model import best_parts, clocks, in_tails
from tedsl.schedules.gpu.gemm.mainloop import Loops, Work, contract_inner
from tedsl.schedules.gpu.gemm.shared_operand import turn
from tedsl.schedules.gpu.last_block import AT_ONCE, finish_last, tiles_like
from tedsl.schedules.gpu.launch import bind_all
from tedsl.schedules.knobs import knobs_of, pick
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.plan.graph import readers, tensors_read
from tedsl.tensor.tensor import ComputeOp


@dataclass(frozen=True, slots=True)
class Tail:
    """What computes the tiles of the last wave.

    Its root and the contractions there, where M and N are among the axes of these, how much of K is
    a part, and the axes of the last contraction in terms of those of the root; the stages between
    contractions and root; and the work of the `others`.
    """

    root: str
    folds: tuple[str, ...]
    places: tuple[int, int]
    part: int
    axes: dict[Axis, Axis]
    between: tuple[str, ...]
    others: Work


Chains = Mapping[bool, Mapping[str, int]]
"""By whether a result is divided across its rows: the stages that are, with which dimension."""


def chains_of(
    s: Schedule, group: Group, folds: Sequence[str], rows: Axis, columns: Axis
) -> dict[bool, dict[str, int]]:
    """Across which sides the stages of a kernel may be divided; none where it is a part already."""
    found: dict[bool, dict[str, int]] = {}
    for down, side in ((False, columns), (True, rows)):
        chain = None if group.in_parts else _chain(s, group, folds, side)
        if chain is not None:
            found[down] = chain
    return found


def divide_tail(
    s: Schedule, group: Group, folds: Sequence[str], work: Work, chains: Chains
) -> Tail | None:
    """With the knob `tail`, the number of parts, divide those stages of a kernel with the
    contractions `folds` that `chains` names: it is that of the other tiles then; returns what
    computes the rest, None where nothing is divided."""
    product, (bm, bn, bk) = work.product, work.tile
    if product is None:
        return None
    found = in_tails(product, bm, bn, bk, chains)
    usual = best_parts(clocks(product, bm, bn), found)
    name = f"{knobs_of(s, s[group.root])}.tail"
    parts = pick(s, name, (1, *found), usual, max(found, default=1))
    if parts == 1:
        return None
    part, (_, cut) = -(-product.k // (parts * bk)) * bk, found[parts]
    return _divided(s, group, folds, work, chains[cut.down], cut.at, part)


def _chain(s: Schedule, group: Group, folds: Sequence[str], side: Axis) -> dict[str, int] | None:
    """The stages from the root of a kernel to its contractions, with which dimension of each is the
    axis `side` of the root; None where one is read at anything but that."""
    plan, after = s.plan, set(folds)
    for stage in plan.stages:
        if not after.isdisjoint(plan.stage_of(t.op).name for t in tensors_read(stage.op)):
            after.add(stage.name)
    found = {group.root: _place_of(s[group.root].op.axis, side)}
    for stage in reversed(plan.stages):
        op = stage.op
        if stage.name not in found or stage.name in folds or not isinstance(op, ComputeOp):
            continue
        for read in reads(*op.bodies):
            name, axis = plan.stage_of(read.tensor.op).name, op.axes[found[stage.name]]
            if name not in after:
                continue
            places = [n for n, index in enumerate(read.indices) if axis in axes_of(index)]
            if len(places) != 1 or read.indices[places[0]] is not axis:
                return None
            if found.setdefault(name, places[0]) != places[0]:
                return None
    inside = {*folds, *group.inner} <= set(found)
    return (
        found
        if inside and all(_may_be_divided(plan, name, found, group.root) for name in found)
        else None
    )


def _may_be_divided(plan: Plan, name: str, found: Collection[str], root: str) -> bool:
    """True for a stage of which nothing is decided, and that no other kernel reads but the root."""
    stage = plan.stage(name)
    alone = all(each.name in found for each in readers(plan, stage.op))
    open_ = stage.placement.axis is None and not stage.relations and not stage.aligned
    return open_ and (alone or name == root)


def _place_of(axes: Sequence[Axis], axis: Axis) -> int:
    return next(n for n, each in enumerate(axes) if each is axis)


def _divided(
    s: Schedule,
    group: Group,
    folds: Sequence[str],
    work: Work,
    chain: Mapping[str, int],
    at: int,
    part: int,
) -> Tail:
    """Divide the stages of a kernel, consumers before producers."""
    root = s[group.root].op.axis
    known = {
        name: [_place_of(root, own[axis]) for axis in s[name].op.axis]
        for name, own in group.axes.items()
    }
    sides = [_place_of(root, side) for side in (work.rows[0], work.columns[0])]
    staged = "" if work.staged is None else s[work.staged].name
    heads: dict[str, str] = {}
    rest: dict[str, str] = {}
    for name in [each.name for each in reversed(s.plan.stages) if each.name in chain]:
        pieces = s.divide(s[name].op.outputs[0], s[name].op.axis[chain[name]], at)
        heads[name], rest[name] = (s[tensor].name for tensor in pieces)
    own, last = s[heads[group.root]].op.axis, folds[-1]
    group.axes = {
        heads[name]: dict(zip(s[heads[name]].op.axis, (own[n] for n in numbers), strict=True))
        for name, numbers in known.items()
    }
    others = replace(work, rows=(own[sides[0]],), columns=(own[sides[1]],))
    if staged:
        others = replace(others, staged=s[heads[staged]].op.outputs[0])
    under = s[rest[group.root]].op.axis
    axes = {a: under[n] for a, n in zip(s[rest[last]].op.axis, known[last], strict=True)}
    places = known[last].index(sides[0]), known[last].index(sides[1])
    between = tuple(rest[name] for name in chain if name not in (group.root, *folds))
    root_of_rest, parts_of = rest[group.root], tuple(rest[name] for name in folds)
    group.root, group.inner = heads[group.root], [heads[name] for name in group.inner]
    group.rows = None if group.rows is None else own
    return Tail(root_of_rest, parts_of, places, part, axes, between, others)


def fold_tail(s: Schedule, tail: Tail, like: Loops) -> Stage:
    """Schedule the tiles of the last wave as the others are: a program for each part of a tile, the
    last of which combines the parts and does the epilogue.

    Returns:
        The stage whose kernel that is.
    """
    for name in tail.between:
        if s[name].plan.placement.at_root:
            s[name].compute_inline()
    partials: list[Stage] = []
    for name in tail.folds:
        piece, _ = s[name].split(reduce_axes(s[name])[0], factor=tail.part)
        partials.append(s[first(s.rfactor(s[name].op.outputs[0], piece))])
    owns = [s[first(s.cache_write(each.op.outputs[0], "local"))] for each in partials]
    lead, *others = partials
    place, row, column = _tiles(lead, tail)
    for other in others:
        same = dict(zip(lead.op.axis, other.op.axis, strict=True))
        tiles_like(other, lead.plan, same)
        other.compute_with(lead, place)
    for own in owns if like.turned else ():
        turn(own, dict(zip(own.op.axis, lead.op.axis, strict=True)), row, column)
    for numbers, engine in zip(like.together, like.engine, strict=True):
        ours, bk = [owns[n] for n in numbers], tail.others.tile[2]
        contract_inner(s, ours, lead, place, bk, like.stages, engine=engine)
    finish_last(s, s[tail.root], tail.folds, lead, tail.axes, most=AT_ONCE)
    return lead


def _tiles(lead: Stage, tail: Tail) -> tuple[Axis, Axis, Axis]:
    """Tiles of the parts over the grid, those of one tile beside each other: the innermost loop,
    and the axes that are tiled."""
    bm, bn, _ = tail.others.tile
    number, *axes = lead.op.axis
    row, column = (axes[place] for place in tail.places)
    ro, ri = lead.split(row, factor=bm)
    co, ci = lead.split(column, factor=bn)
    tiles = [*(a for a in axes if not among(a, (row, column))), ro, co]
    lead.reorder(*tiles, number, ri, ci)
    place = bind_all(lead, [*tiles, number], apart=number)
    lead.vectorize(ri)
    lead.vectorize(ci)
    return place, row, column
