"""Last-block reduction: the last program to arrive at a tile combines the partial results of all,
in place of a second kernel (CUDA's threadFenceReduction).

It saves the launch of a second kernel and the time until that has its first data; it costs each
program a fence and an atomic count in memory, and the last ones of each tile an iteration while
others have ended.  On an H200 full reductions gain 1 to 3%, small ones 15%; column reductions gain
4 to 10% with few parts of aligned rows, and lose 6 to 20% with hundreds of parts or unaligned rows
(`rows_variants.py` and its sisters).  The knob `one_launch` is on where that gains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tedsl.expr.nodes import Axis
from tedsl.ir.nodes import LoopKind
from tedsl.schedules.analysis.nests import pow2_at_least, reduce_axes
from tedsl.schedules.analysis.views import definitions, volume
from tedsl.schedules.knobs import flip
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.plan import Fuse, Split, StagePlan
from tedsl.scheduling.plan.relations import constant, extents

GRID = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
# Elements of a tile of results and of its partial results that a program holds at once; with fewer
# partial results than that it adds up one after the other, each in the same threads.
AT_ONCE = 8192
FEW = 8


def one_launch(s: Schedule, name: str, default: bool = False) -> bool:
    """The knob `one_launch`: whether the last programs combine the partial results of `name`."""
    return flip(s, f"{name}.one_launch", default)


def finish_last(
    s: Schedule,
    root: Stage,
    inner: Sequence[str],
    partial: Stage,
    axes: Mapping[Axis, Axis],
    most: int | None = None,
) -> bool:
    """Compute `root`, which combines the partial results in `inner`, in the last programs of
    `partial`: for the tiles that its programs have, in pieces of `most` elements where that is
    given.  False, and nothing done, where no loop of that grid is over the parts alone.

    The axes of `partial` are the number of the part, then those of the last reduction, which `axes`
    give in terms of those of `root`; those of one element may lack.
    """
    number, *rest = definitions(s)[partial.name].axes
    found = partial.plan
    if found.mark(number).kind is not LoopKind.PROGRAM or number not in frozenset(found.leaf_axes):
        return False
    own = zip(rest, definitions(s)[inner[-1]].axes, strict=True)
    place, tile = tiles_like(root, found, {mine: axes[axis] for mine, axis in own if axis in axes})
    depth = AT_ONCE // max(tile, 1)
    if most is not None and tile > most:
        place = _in_pieces(root, tile // most)
    for name in reversed(inner):
        stage = s[name]
        for axis in reduce_axes(stage):
            if depth >= FEW:
                parts = pow2_at_least(volume([axis]) or depth)
                _, piece = stage.split(axis, factor=min(depth, parts))
                stage.vectorize(piece)
        stage.compute_at(root, place)
    root.compute_last(partial)
    return True


def _in_pieces(stage: Stage, pieces: int) -> Axis:
    """Split the last lanes of a tile into pieces, one after the other; returns the loop over
    them."""
    found = stage.plan
    lanes = [a for a in stage.leaf_iter_vars if found.mark(a).kind is LoopKind.VECTORIZED]
    loops = [a for a in stage.leaf_iter_vars if found.mark(a).kind is not LoopKind.VECTORIZED]
    *rest, last = lanes
    size = constant(extents(found)[last]) or pieces
    stage.serial(last)
    turn, piece = stage.split(last, factor=max(1, size // pieces))
    stage.vectorize(piece)
    stage.reorder(*loops, turn, *rest, piece)
    return turn


def tiles_like(stage: Stage, like: StagePlan, axes: Mapping[Axis, Axis]) -> tuple[Axis, int]:
    """Give `stage` the loops and annotations of another, whose axes stand for its own as `axes`
    say.

    Returns:
        Its innermost loop of the grid, and the elements of a tile.
    """
    known = dict(axes)
    for relation in like.relations:
        match relation:
            case Split(parent=parent, outer=outer, inner=inner) if parent in known:
                factor, nparts = constant(relation.factor), constant(relation.nparts)
                made = stage.split(known[parent], factor=factor, nparts=nparts)
                known[outer], known[inner] = made
            case Fuse(outer=outer, inner=inner, fused=made):
                own = [known[axis] for axis in (outer, inner) if axis in known]
                if own:
                    known[made] = own[0] if len(own) == 1 else _fused(stage, *own)
            case _:
                pass
    loops = [axis for axis in like.leaf_axes if axis in known]
    programs = [axis for axis in loops if like.mark(axis).kind is LoopKind.PROGRAM]
    if len(loops) > 1:
        stage.reorder(*(known[axis] for axis in loops))
    place = known[programs[-1]] if programs else stage.fuse()
    for axis in programs:
        stage.bind(known[axis], GRID[like.mark(axis).program])
    lanes = [known[axis] for axis in loops if like.mark(axis).kind is LoopKind.VECTORIZED]
    for axis in lanes:
        stage.vectorize(axis)
    sizes = extents(stage.plan)
    return place, prod(constant(sizes[axis]) or 1 for axis in lanes)


def _fused(stage: Stage, outer: Axis, inner: Axis) -> Axis:
    """Fuse two loops, wherever they stand."""
    leaves = [a for a in stage.leaf_iter_vars if a is not inner]
    place = next(n for n, axis in enumerate(leaves) if axis is outer)
    stage.reorder(*leaves[: place + 1], inner, *leaves[place + 1 :])
    return stage.fuse(outer, inner)
