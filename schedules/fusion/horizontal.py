"""Horizontal fusion of pointwise kernels: several over the same elements as one loop, which loads a
shared input once, or several small ones in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from tedsl.expr.nodes import Axis
from tedsl.once import once
from tedsl.schedules.analysis.kernel_order import Kernels
from tedsl.schedules.analysis.nests import first, reduce_axes
from tedsl.schedules.analysis.views import View, definitions, extent_of, reads_of, volume
from tedsl.schedules.knobs import flip
from tedsl.schedules.loops import Tiles, fused, tile_loops
from tedsl.schedules.trial import accepts
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.plan.links import places
from tedsl.tensor.tensor import ComputeOp, PlaceholderOp, Tensor

# The most results that kernels in one launch store, each of which is an argument and has code to be
# compiled; and how many of the kernels that others may join are looked at, the latest of them.
TOGETHER = 128
LATEST = 16
# Neighbours in a tile along an axis that is read across.
ACROSS = 16


@dataclass(slots=True)
class Leader:
    """A kernel that others may be fused into: its stage, the elements of its tile, whether it is
    small, so that it leaves most of the device idle, and the stages in the fused kernel.

    It and those that joined it store so many `results` so far.  The tile is that of a flat loop, or
    of several, `tiles`.  A kernel of whole rows has `tile` rows in a program, the extents of its
    `rows`, and what is reduced along them, with how long that is.
    """

    name: str
    tile: int
    small: bool
    inside: set[str]
    rows: tuple[int | None, ...] | None = None
    folded: set[tuple[Tensor, int | None]] = field(default_factory=set[tuple[Tensor, int | None]])
    results: int = 1
    tiles: Tiles | None = None


@dataclass(frozen=True, slots=True)
class Sums:
    """A kernel of partial results of a full reduction of `size` elements, and what makes the same
    parts of another."""

    kernel: Leader
    size: int
    like: Callable[[Stage], Stage]


@dataclass(frozen=True, slots=True)
class Folds:
    """A kernel with a fold of tiles of columns in its loops: the stage of the fold, and how many
    results and elements there are, and how they are tiled."""

    kernel: Leader
    fold: str
    tiles: tuple[object, ...]


@dataclass(slots=True)
class Beside:
    """The kernels scheduled so far that others may be fused into: pointwise ones, and those of
    whole rows.

    Attributes:
        launches: whether kernels of different elements may share a launch.
        joins: who joins whom, and whether in its loops; done when all kernels are scheduled.
        ends: what the last programs of the kernel of a stage are to combine; done then, too.
        kernels: what runs in one kernel, by these joins or by others.
        sums: the partial results of full reductions that others may be reduced with.
        folds: of columns, that others may be folded with.
    """

    launches: bool
    leaders: list[Leader] = field(default_factory=list[Leader])
    joins: list[tuple[str, str, bool]] = field(default_factory=list[tuple[str, str, bool]])
    ends: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    kernels: Kernels = field(default_factory=Kernels)
    sums: list[Sums] = field(default_factory=list[Sums])
    folds: list[Folds] = field(default_factory=list[Folds])

    def flat(self) -> list[Leader]:
        """The leaders of one flat loop."""
        return [each for each in self.leaders if each.rows is None and each.tiles is None]

    def free(self, s: Schedule, among: Sequence[Leader], names: Sequence[str]) -> list[Leader]:
        """The latest of the leaders in `among` that the kernel of `names`, the first of which
        stores, can run with: no dependence, direct or through other kernels, leads from one to the
        other."""
        most = TOGETHER - s[names[0]].op.num_outputs
        found = [each for each in among if each.results <= most][-LATEST:]
        before = self.kernels.needed(s, names) if found else set[str]()
        found = [each for each in found if each.inside.isdisjoint(before)]
        if found and self.kernels.reach_behind(s, names[0]):
            found = [
                each for each in found if self.kernels.needed(s, each.inside).isdisjoint(names)
            ]
        return found

    def join(self, s: Schedule, names: Sequence[str], leader: Leader, loops: bool) -> None:
        """Note that the kernel of `names`, the first of which stores, is fused into another, in its
        loops or its launch."""
        leader.results += s[names[0]].op.num_outputs
        leader.inside.update(names)
        self.kernels.join(leader.inside)
        self.joins.append((names[0], leader.name, loops))


def lead(
    s: Schedule, beside: Beside, name: str, tile: int, small: bool, tiles: Tiles | None = None
) -> None:
    """Later kernels may be fused into `name`; into several loops only where they share an input."""
    if tiles is not None and not _inputs(definitions(s)[name]):
        return
    results = s[name].op.num_outputs
    beside.leaders.append(Leader(name, tile, small, {name}, results=results, tiles=tiles))


def tiled_together(s: Schedule, name: str, beside: Beside, across: Axis | None = None) -> bool:
    """Fuse a pointwise kernel into the loops of an earlier one of the same axes, which has tiles of
    several of them and reads the same input (the knob `in_tiles`); True when that was chosen.  One
    that reads `across` needs neighbours along that axis in a tile."""
    if not all_computed(s):
        return False
    view = definitions(s)
    if not _inputs(view[name]):
        return False
    axes = view[name].axes
    sizes = [extent_of(a) or 0 for a in axes]
    place = None if across is None else next(n for n, a in enumerate(axes) if a is across)
    alike = [
        each
        for each in beside.leaders
        if each.tiles is not None
        and [extent_of(a) for a in view[each.name].axes] == sizes
        and _share(view, name, each)
        and (place is None or each.tiles.along(place, sizes) >= min(ACROSS, sizes[place]))
    ]
    alike = [] if 0 in sizes else alike
    return join_first(s, beside, [name], alike, f"{name}.in_tiles", partial(_like, name=name))


def may_lead(s: Schedule, name: str) -> bool:
    """True where another kernel has as many elements and an input in common: it may run in the
    loops of `name`."""
    view = definitions(s)
    own = _inputs(view[name])
    others = (other for other in view.of_size(volume(view[name].axes)) if other != name)
    return any(not own.isdisjoint(_inputs(view[other])) for other in others)


def joined(s: Schedule, name: str, beside: Beside, small: bool) -> bool:
    """Fuse a pointwise kernel into an earlier one (the knob `beside`); True when that was chosen.

    The default is one loop where both read the same input, and one launch where both are small.
    """
    if all(each.rows is not None for each in beside.leaders) or not all_computed(s):
        return False
    view = definitions(s)
    free = beside.free(s, beside.flat(), [name])
    loops = _loops(view, name, free)
    grid = next(iter([e for e in free if e.small is small] or free), None)
    choices = ["alone"]
    choices += ["loops"] if loops is not None and _joins(s, name, loops) else []
    choices += ["grid"] if grid is not None and beside.launches else []
    if len(choices) == 1:
        return False
    default = "alone"
    if "loops" in choices and loops is not None and _share(view, name, loops):
        default = "loops"
    elif "grid" in choices and grid is not None and grid.small and small:
        default = "grid"
    chosen = s.knob(f"{name}.beside", choices, default)
    leader = loops if chosen == "loops" else grid if chosen == "grid" else None
    if leader is not None:
        shared = chosen == "loops"
        beside.join(s, [_like(s, leader, name, loops=shared)], leader, shared)
    return leader is not None


def read_by_flat(s: Schedule, name: str, beside: Beside) -> bool:
    """True where an earlier flat kernel of as many elements reads an input of `name`."""
    flat = beside.flat()
    if not flat or not all_computed(s):
        return False
    view = definitions(s)
    leader = _loops(view, name, beside.free(s, flat, [name]))
    return leader is not None and _share(view, name, leader)


def in_a_launch(s: Schedule, name: str, beside: Beside) -> None:
    """Let a kernel of one program run in the launch of an earlier kernel (the knob `beside`)."""
    if not beside.launches or not all_computed(s):
        return
    alone, knob = partial(_one_program, name=name), f"{name}.beside"
    join_first(s, beside, [name], beside.leaders, knob, alone, loops=False)


def in_parts_beside(s: Schedule, name: str, beside: Beside) -> bool:
    """Reduce what a pointwise kernel of as many elements, or one that reduces as many, reads too in
    its loops, a tile at a time (the knob `along`): it is read once; True when that was chosen.  A
    kernel of its own combines the partial results."""
    view = definitions(s)
    alike = [
        each
        for each in (beside.leaders if all_computed(s) else ())
        if _has_tiles(view, each, view[name]) and _share(view, name, each)
    ]
    return join_first(s, beside, [name], alike, f"{name}.along", partial(_parts, name=name))


def join_first(
    s: Schedule,
    beside: Beside,
    names: Sequence[str],
    leaders: Sequence[Leader],
    knob: str,
    prepare: Callable[[Schedule, Leader], str],
    *,
    loops: bool = True,
) -> bool:
    """Fuse the kernel of `names`, the first of which stores, into the first of some leaders for
    which the primitives accept it, or into the last for the launch, by a knob that is on by
    default; True when that was chosen.  `prepare` gives it loops, and says what stores then."""

    def steps(trial: Schedule, leader: Leader) -> None:
        join(trial, prepare(trial, leader), leader.name, loops=loops)

    free = beside.free(s, leaders, names)
    for leader in free if loops else reversed(free):
        if accepts(s, partial(steps, leader=leader)):
            if not flip(s, knob, True):
                return False
            beside.join(s, [prepare(s, leader), *names[1:]], leader, loops)
            return True
    return False


def lead_parts(beside: Beside, names: Sequence[str], tile: int) -> None:
    """Other reductions of everything may be fused into the kernel of the partial results `names`,
    one for each tile, the first of which stores."""
    beside.leaders.append(Leader(names[0], tile, False, set(names), rows=()))


def _has_tiles(view: View, leader: Leader, op: ComputeOp) -> bool:
    """True for a flat kernel of as many elements as are reduced, one of tiles of axes that are as
    long, and one of partial results of as many."""
    size, count = volume(op.reduce_axes) or 0, volume(view[leader.name].axes)
    if leader.tiles is not None:
        own, theirs = op.reduce_axes, view[leader.name].axes
        return [extent_of(a) for a in own] == [extent_of(a) for a in theirs]
    if leader.rows is None:
        return count == size
    return (
        not leader.rows and bool(view[leader.name].reduce_axes) and count == -(-size // leader.tile)
    )


def _parts(s: Schedule, leader: Leader, name: str) -> str:
    """Partial results of a full reduction, one for each tile; the name of their stage."""
    stage = s[name]
    if leader.tiles is None:
        part, _ = stage.split(fused(stage, reduce_axes(stage)), factor=leader.tile)
    else:
        part = fused(stage, tile_loops(stage, reduce_axes(stage), leader.tiles)[0])
    partial = s[first(s.rfactor(definitions(s)[name].outputs[0], part))]
    for lane in reduce_axes(partial):
        partial.vectorize(lane)
    return partial.name


def _one_program(s: Schedule, _: Leader, name: str) -> str:
    """A loop of one turn around all others is the grid."""
    loops = s[name].leaf_iter_vars
    program = s[name].fuse()
    s[name].reorder(program, *loops)
    s[name].bind(program, "blockIdx.x")
    return name


def all_computed(s: Schedule) -> bool:
    """True without scans and externs, whose dependences are not seen here."""
    return places(s.plan).computed


def _loops(view: View, name: str, free: Sequence[Leader]) -> Leader | None:
    """A kernel of as many elements, by preference one that shares an input."""
    size = volume(view[name].axes)
    same = [e for e in free if size is not None and volume(view[e.name].axes) == size]
    return next((e for e in same if _share(view, name, e)), same[0] if same else None)


def _share(view: View, name: str, leader: Leader) -> bool:
    return not _inputs(view[name]).isdisjoint(_inputs(view[leader.name]))


@once
def _inputs(op: ComputeOp) -> frozenset[PlaceholderOp]:
    found = (read.tensor.op for read in reads_of(op))
    return frozenset(each for each in found if isinstance(each, PlaceholderOp))


def _joins(s: Schedule, name: str, leader: Leader) -> bool:
    """True when the primitives accept the fusion of the loops."""
    return accepts(s, lambda t: join(t, _like(t, leader, name), leader.name, loops=True))


def _like(s: Schedule, leader: Leader, name: str, *, loops: bool = True) -> str:
    """Tiles of the same size as the leader's."""
    stage, axes = s[name], definitions(s)[name].axes
    if leader.tiles is not None:
        around, lanes = tile_loops(stage, axes, leader.tiles)
        fused(stage, around)
        for lane in lanes:
            stage.vectorize(lane)
        return name
    outer, inner = stage.split(fused(stage, axes), factor=leader.tile)
    stage.vectorize(inner)
    if not loops:
        stage.bind(outer, "blockIdx.x")
    return name


def join(s: Schedule, name: str, leader: str, *, loops: bool) -> None:
    """Let a kernel run in the outermost loop of another, or in its launch."""
    if loops:
        s[name].compute_with(s[leader], s[leader].leaf_iter_vars[0])
    else:
        s[name].compute_with(s[leader])


def join_all(s: Schedule, beside: Beside) -> None:
    """Fuse the kernels that were noted."""
    for name, leader, loops in beside.joins:
        join(s, name, leader, loops=loops)
    for name, leader in beside.ends:
        ends_in(s, s[name], s[leader])


def ends_in(s: Schedule, stage: Stage, kernel: Stage) -> bool:
    """Let the last programs of a kernel of partial results combine them, where they may."""
    ended = accepts(s, lambda trial: trial[stage.name].compute_last(trial[kernel.name]))
    if ended:
        stage.compute_last(kernel)
    return ended
