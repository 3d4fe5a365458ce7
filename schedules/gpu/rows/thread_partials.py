"""Per-lane online softmax: in a loop of cascaded reductions each lane of the tile keeps running
statistics of its own, which are combined once after the loop.

    for pieces of k: m' = max(m, max(x)); l = l * exp(m - m') + sum(exp(x - m'))     (all lanes)
    --> for pieces of k, in each lane: the same of its own elements
        m = max over lanes; l = sum over lanes of l * exp(m_lane - m)

No iteration has a reduction across threads, and a lane rescales once for all the elements that it
takes in an iteration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import axes_of, reads
from tedsl.schedules.analysis.chains import folds_before, follow, parts_follow
from tedsl.schedules.analysis.nests import first, in_memory_order, neighbours, reduce_axes
from tedsl.schedules.analysis.views import extent_of, volume
from tedsl.schedules.gpu.rows.aligned_pieces import ACCESS, Skewed
from tedsl.schedules.loops import fold_at_once, fused_folds
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp

# Elements that a lane takes in an iteration, for all of which it rescales once; where accesses are
# vectors of at least half as many, those of one.
SPREAD = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """What is reduced in an iteration: elements; how many of them one vector access holds
    wherever a row starts; `num_stages`; and how pieces are skewed so that they start at vector
    boundaries."""

    block: int
    together: int
    ahead: int
    skew: Skewed | None = None


def run_of(op: ComputeOp) -> int | None:
    """How many elements that a reduction reads are neighbours in memory, in all that it reads by
    element: what stays the same along the last axis (a value for each channel) is in no vector."""
    axes = in_memory_order(op)
    walked = [read for read in reads(*op.bodies) if axes[-1] in axes_of(*read.indices)]
    return volume(neighbours(axes, walked)[-1])


def in_one_access(length: int | None, nbytes: int) -> int:
    """Elements that one vector access holds, wherever `length` neighbours of them start."""
    return 1 if length is None else math.gcd(max(1, ACCESS // nbytes), length)


@dataclass(frozen=True, slots=True)
class Lanes:
    """A cascade with results per lane: its reductions, which combine the lanes, the last stage of
    the lanes, how many elements a lane takes in an iteration, and the pieces."""

    chain: tuple[str, ...]
    partial: str
    own: int
    piece: Piece


def may_have_lanes(s: Schedule, name: str, block: int, skew: Skewed | None = None) -> bool:
    """True when each lane may have results of its own in the cascade that ends in `name`, and keeps
    them for some iterations of the loop."""
    length = volume(reduce_axes(s[name]))
    if length is None or length < 2 * block:
        return False

    def lanes(trial: Schedule) -> str:
        return _split(trial, name, block, 1, skew)

    return parts_follow(s, name, (may_have_lanes, name, block, skew), lanes)


def split_in_lanes(s: Schedule, name: str, piece: Piece) -> Lanes:
    """Make the results of lanes stages of their own (`split_online`): of the cascade that ends in
    `name`, whose loops are not marked; all lanes together take a piece in an iteration."""
    length = volume(reduce_axes(s[name])) or 1
    near = math.gcd(piece.together, length) if piece.skew is None else piece.skew.together
    near = min(near, piece.block // 2)
    chain = (*folds_before(s, name), name)
    if near >= SPREAD // 2 or piece.skew is not None:
        return Lanes(chain, _split(s, name, piece.block, near, piece.skew), near, piece)
    # Neighbours that are loaded one by one are those of neighbouring lanes.
    return Lanes(chain, _split(s, name, piece.block // SPREAD, 1, None), SPREAD, piece)


def fold_lanes(s: Schedule, lanes: Lanes, stage: Stage, place: Axis) -> None:
    """Reduce per lane and combine the lanes, inside the loop `place` of `stage`, which may be the
    last reduction of the cascade: it stores its results then."""
    if lanes.chain[-1] == stage.name:
        _merge_stored(stage)
    else:
        for each in reversed(lanes.chain):
            fold_at_once(s[each], stage, place)
    partial = s[lanes.partial]
    partial.compute_at(stage, place)
    lane, *rows = partial.op.axis
    turn, mine = partial.split(reduce_axes(partial)[0], factor=lanes.own)
    partial.reorder(turn, lane, *rows, mine)
    follow(partial, turn)
    for axis in (lane, *rows, mine):
        partial.vectorize(axis)
    if lanes.piece.ahead > 1:
        partial.pipeline(turn, num_stages=lanes.piece.ahead)
    if lanes.piece.skew is not None:
        partial.partition(turn, "ends")


def _merge_stored(stage: Stage) -> None:
    """Combine the lanes of a cascade whose results are stored: its stages share an online loop of
    one iteration, which takes all lanes."""
    (lanes,) = reduce_axes(stage)
    turn, lane = stage.split(lanes, factor=extent_of(lanes) or 1)
    follow(stage, turn)
    stage.vectorize(lane)


def _split(s: Schedule, name: str, block: int, own: int, skew: Skewed | None) -> str:
    """Make the results of lanes stages of their own, `own` neighbours of each piece to a lane;
    returns the last of the stages, whose first axis is over the lanes."""
    stage = s[name]
    whole = fused_folds(s, stage)
    if skew is None:
        turn, piece = stage.split(whole, factor=block)
    else:
        turn, piece = skew.split(stage, whole, block)
    lane, mine = stage.split(piece, factor=own)
    stage.reorder(lane, turn, mine)
    stage.fuse(turn, mine)
    return s[first(s.split_online(stage.op.outputs[0], lane, casts=True))].name
