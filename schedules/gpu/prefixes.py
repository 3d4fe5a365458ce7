"""Scans on the GPU: prefixes of an associative combination as tiles (`tl.associative_scan`), in
blocks where one tile cannot hold all steps or there are too few of them.

    for blocks: total[b] = fold(k)(x[b, k])
    before = the scan of these
    for tiles: prefix[t] = fold(k <= t)(x[b, k]); y[t] = f(before[b] . prefix[t])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tedsl.cost.devices import Weights
from tedsl.dtypes import DType
from tedsl.expr.nodes import Axis
from tedsl.expr.visit import axes_of, reads
from tedsl.lower.passes.carry_states import PREFETCH
from tedsl.schedules.analysis.groups import Group
from tedsl.schedules.analysis.nests import (
    computed,
    cost,
    is_reduction,
    padded,
    pow2_at_least,
    reduce_axes,
    triangle,
)
from tedsl.schedules.analysis.views import View, definitions, extent_of, volume
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.candidates import quickest
from tedsl.schedules.gpu.launch import bind_all, pick_warps
from tedsl.schedules.knobs import pick
from tedsl.schedules.loops import lay_in_order
from tedsl.schedules.trial import takes
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.plan.graph import readers
from tedsl.target import Target
from tedsl.tensor.scan_body import body_of
from tedsl.tensor.tensor import ComputeOp, ScanOp

# Steps that one tile holds, where they lie along rows in memory and where they cross them (where
# these are short, as many elements as along a row); and those of a block, where a tile does not
# hold all.
ALONG, ACROSS = 8192, 512
BLOCK_ALONG, BLOCK_ACROSS = 2048, 128
BLOCKS = (64, 128, 256, 512, 1024, 2048, 4096)
# Elements of a tile, and bytes of a row of one that crosses rows.
TILE, LINE = 4096, 128
# Elements of a tile for each warp, and of one that crosses rows: there a warp combines what all
# others found in rows of their own, for each of its elements.
EACH, EACH_ACROSS = 512, 2048
# How many times fewer rows or columns the smaller tiles have.
FEWER = (4, 16)
# How often a prefix across rows combines each element, but for the other warps: for the total of a
# block, in a thread, in its warp, and with what lies before the block.
COMBINED = 4
# Cycles from one operation to one that needs it.
LATENCY = 6


def by_prefixes(s: Schedule, name: str) -> bool:
    """Make the scan `name` a prefix, if its steps combine terms in any order; False if they do not,
    and it is still a scan.

    The knob `NAME.steps` is how many a tile has, 0 for all of them.
    """
    op = s[name].op
    if not isinstance(op, ScanOp):
        return False
    if not takes(s, (by_prefixes, name), lambda trial: trial.associative_scan(trial[name])):
        return False
    place = _place(s, op)
    crossed = place < len(op.axes) - 1
    rows = extent_of(op.axes[0])
    steps = None if rows is None else max(1, rows - 1)  # a given row may be no term
    columns = (padded(extent_of(op.axes[-1])) or ALONG) if crossed else 1
    most, usual = max(ACROSS, ALONG // columns), max(BLOCK_ACROSS, BLOCK_ALONG // columns)
    whole = steps is not None and steps <= most
    if crossed and steps and _quicker_in_order(s, op, steps, steps if whole else usual):
        return False
    choices = [n for n in BLOCKS if n <= 2 * usual and (steps is None or n < steps)]
    if steps is not None and steps <= most:
        choices = [0, *choices]
    block = pick(s, f"{name}.steps", choices, 0 if whole else usual, most)
    s.associative_scan(s[name], block or None, place)
    return True


def _quicker_in_order(s: Schedule, op: ScanOp, steps: int, block: int) -> bool:
    """True where columns that keep their state in registers take less time, one step after the
    other, than blocks of steps: they combine each element once, and store all that they combined
    for what reads it."""
    gpu, columns = gpu_of(s), volume(op.axes[1:])
    if columns is None:
        return False
    updates = [update.op for update in op.updates if isinstance(update.op, ComputeOp)]
    terms = {r.tensor for u in updates for r in reads(*u.bodies)} - {*op.states}
    loaded = sum(tensor.dtype.nbytes for tensor in terms)
    kept = sum(state.dtype.nbytes for state in op.states)
    work = sum(map(cost, updates))
    operations = work * 2 * steps * columns / gpu.fma[DType.float32]
    byte = steps * columns / gpu.bandwidth
    chain = steps * max(work * LATENCY / gpu.clock, Weights().latency / (PREFETCH - 1))
    in_order = max(operations, chain, (loaded + kept) * byte) + kept * byte + gpu.launch
    combined = COMBINED + block * LINE // (kept * EACH_ACROSS)
    return in_order < combined * operations + (1 if block >= steps else 2) * loaded * byte


def _place(s: Schedule, op: ScanOp) -> int:
    """Where the steps are among the dimensions: as in what reads the scan, else as in what it
    reads; the last, where they are contiguous there."""
    last = len(op.axes) - 1
    own = {s.plan.stage_of(inner).name for inner in body_of(op)}
    for stage in readers(s.plan, op):
        if isinstance(stage.op, ComputeOp) and stage.name not in own:
            axes = list(stage.op.axes)
            for read in reads(*stage.op.bodies):
                here = axes_of(*read.indices[:1])
                if read.tensor.op is op and axes and here:
                    found = [n for n, axis in enumerate(axes) if axis in here]
                    return found[0] if len(found) == 1 and found[0] < last else last
    steps = [u.op for u in op.updates if isinstance(u.op, ComputeOp)]
    terms = [(u, r) for u in steps for r in reads(*u.bodies) if r.tensor not in op.states]
    along = any(r.indices and u.axes[0] in axes_of(r.indices[-1]) for u, r in terms)
    return last if along else 0


def running(view: View, group: Group) -> Axis | None:
    """The axis of the root along which all reductions of a kernel are running folds, if they
    are."""
    found: set[Axis | None] = set()
    for name in group.inner:
        if is_reduction(view[name]):
            row = triangle(view[name])
            found.add(None if row is None else group.axes[name].get(row))
    return found.pop() if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class Tile:
    """The rule by which a program has all steps of so many rows or columns `beside` one another."""

    beside: int
    warps: int

    def __call__(self, s: Schedule, group: Group) -> None:
        _scan_tiles(s, group, self)


def scan_tiles(s: Schedule, group: Group, target: Target) -> None:
    """A tile of steps, and of what lies beside them in memory, for each program."""
    tiles = _tiles(s, group)
    known = volume(definitions(s)[group.root].axes) is not None
    usual = quickest(s, group, tiles, target) if known and len(tiles) > 1 else tiles[0]
    usual(s, group)


def _tiles(s: Schedule, group: Group) -> list[Tile]:
    """The usual tile, one of other warps, and smaller ones: a warp combines what each of the others
    came to, and few programs leave processors idle."""
    view, axes = definitions(s), definitions(s)[group.root].axes
    along, steps = running(view, group), _steps(s, group)
    others = [axis for axis in axes if axis is not along]
    crossed = axes[-1] is not along
    usual, each = max(1, TILE // steps), EACH_ACROSS if crossed else EACH
    if crossed:
        usual = max(usual, LINE // max(body.dtype.nbytes for body in view[group.root].bodies))
    usual = min(usual, 64, padded(extent_of(others[-1])) or 64) if others else 1
    less = EACH if crossed else 2 * EACH
    sizes = [(usual, each), (usual, 2 * EACH), *((-(-usual // n), less) for n in FEWER)]
    sizes.append((-(-usual // FEWER[-1]), 4 * EACH))
    return list(dict.fromkeys(Tile(n, min(16, max(1, steps * n // m))) for n, m in sizes))


def _steps(s: Schedule, group: Group) -> int:
    folds = [name for name in group.inner if is_reduction(definitions(s)[name])]
    return pow2_at_least(max(extent_of(reduce_axes(s[name])[0]) or 1 for name in folds))


def _scan_tiles(s: Schedule, group: Group, tile: Tile) -> None:
    root, view = s[group.root], definitions(s)
    along, steps = running(view, group), _steps(s, group)
    assert along is not None  # as the folds of the group are running ones
    folds = [name for name in group.inner if is_reduction(view[name])]
    for name in reversed(group.inner):
        if name not in folds:
            s[name].compute_inline()
    axes = view[group.root].axes
    others = [axis for axis in axes if axis is not along]
    inner, beside = [(along, steps)], 1
    if others:
        most = padded(extent_of(others[-1]))
        choices = (1, 2, 4, 8, 16, 32, 64)
        beside = pick(s, f"{group.root}.beside", choices, tile.beside, most)
        pair = (others[-1], beside)
        inner = [*inner, pair] if axes[-1] is not along else [pair, *inner]
    outers, lanes = dict[Axis, Axis](), list[Axis]()
    for axis, size in inner:
        outers[axis], lane = root.split(axis, factor=size)
        lanes.append(lane)
    around = [outers.get(axis, axis) for axis in axes]
    root.reorder(*around, *lanes)
    grid = bind_all(root, around)
    for lane in lanes:
        root.vectorize(lane)
    for name in folds:
        fold = s[name]
        _in_order_of(fold, axes, group.axes[name])
        fold.compute_at(root, grid)
        for axis in (*fold.op.axis, *reduce_axes(fold)):
            fold.vectorize(axis)
    warps = max(1, tile.warps * beside // tile.beside)
    choices = (1, 2, 4, 8, 16)
    root.launch(num_warps=pick_warps(s, root, choices, min(16, warps), steps * beside))


def _in_order_of(fold: Stage, axes: Sequence[Axis], known: Mapping[Axis, Axis]) -> None:
    """Lay the tile of a fold out as the root is."""
    own, place = computed(fold).axes, {axis: n for n, axis in enumerate(axes)}
    places = sorted(range(len(own)), key=lambda n: place[known[own[n]]] if own[n] in known else -1)
    if places != list(range(len(own))):
        lay_in_order(fold, places)
