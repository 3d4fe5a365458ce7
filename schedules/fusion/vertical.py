"""Vertical fusion: which stages are inlined, and which share a kernel as prologue, epilogue or
reduction; each decision of the default rules is a knob."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tedsl.expr.nodes import TensorRead
from tedsl.expr.visit import axes_of, reads
from tedsl.schedules.analysis.groups import Along, Group, crossed_row, find_groups
from tedsl.schedules.analysis.nests import (
    chooses,
    contraction,
    cost,
    in_step,
    in_windows,
    is_reduction,
    moves,
    plain,
    same_axes,
)
from tedsl.schedules.analysis.views import View, definitions, extent_of, reads_of, volume
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.fusion.recomputation import evaluations, mostly_one, recomputes
from tedsl.schedules.fusion.regrouped import regroup_rows
from tedsl.schedules.fusion.row_results import splits, store_in_rows
from tedsl.schedules.fusion.unflattened import unflatten_rows
from tedsl.schedules.gpu.candidates import Rules, seconds_decided
from tedsl.schedules.gpu.columns.columns import MANY_PROGRAMS
from tedsl.schedules.gpu.gemm.operand_layouts import copied_anyway
from tedsl.schedules.gpu.rows.rows import CROSSED_ROWS, MAX_SINGLE, MAX_TILE
from tedsl.schedules.knobs import asked, flip
from tedsl.schedules.scans import stored_for_scans
from tedsl.schedules.trial import remembered
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.plan.graph import extern_readers, loop_readers
from tedsl.scheduling.plan.graph import readers as plan_readers
from tedsl.scheduling.plan.inline import may_inline
from tedsl.target import Target
from tedsl.tensor.tensor import ComputeOp

TOGETHER = "together"
"""The knob for whether all reductions of few long rows are one kernel."""
NEAR = 1.1
"""How much longer one kernel may be predicted to take than several, as the model is not exact."""
# Recomputing a stage at every read of a loop, or in the K steps of a contraction, is cheap up to
# this much arithmetic per element.
CHEAP = 12
# Instructions for each element, beside the first time that it is computed, from which a core stores
# it: about what a store and a load take that no cache holds.
AGAIN = 48
# Elements for each of the rows that keep a device busy, from which splitting rows is worth a second
# pass over memory; and rows that run as one where they are neighbours in memory.
LONG = 8192
CROSSED = 32
# Elements along such rows that a program holds at once.
HELD = MAX_TILE // CROSSED_ROWS[0]


def fuse(
    s: Schedule,
    busy: int,
    taken: Collection[str] = (),
    loops: bool = False,
    rules: Rules | None = None,
) -> list[Group]:
    """Inline the pointwise stages and gather the rest into kernels.

    Args:
        s: a schedule.
        busy: how many rows that run by themselves keep the device busy.
        taken: the stages that are scheduled already.
        loops: whether kernels are loops over tiles (the CPU), which may compute the region of a
            producer that a tile reads, and skip points of a contraction one by one.
        rules: all rules, by which the cost model compares one kernel with several; without them
            thresholds decide.

    Returns:
        The kernels, producers first.

    A pointwise stage that several stages of one kernel read is kept there as a tile (computed once)
    where that is possible; a stage read at several shifted places may stay at root.
    """
    _repeat_results(s, taken)
    results = [s[tensor].name for tensor in s.outputs]
    fixed = [*stored_for_scans(s), *_read_whole(s), *_read_by_settled(s), *_read_by(s, taken)]
    outputs = list(dict.fromkeys([*results, *fixed]))
    within, along = list[str](), dict[str, Along]()
    kept = _inlined(s, taken, outputs, loops)
    regroup_rows(s, [name for name in _open(s, taken) if name not in fixed])
    if not loops:
        unflatten_rows(s, [name for name in _open(s, taken) if name not in outputs])
    cut: list[str] = []
    while True:
        view = _open(s, taken)
        groups = find_groups(view, outputs, loops, cut, along)
        if cut:
            outputs += cut
            while cut:
                kept.pop(cut.pop(), None)
            continue
        alone = [g.root for g in groups if g.root in kept]
        wasted = [n for g in groups for n in g.inner if n in kept and not _shares(view, g, n)]
        settled = not alone and not wasted
        apart = _apart(s, view, groups, busy, loops, rules) if settled else []
        stored = _stored(s, view, groups, outputs, kept, loops) if settled else []
        if settled and not apart and not stored:
            again = None if loops else store_in_rows(s, view, groups, outputs, along)
            if again is None:
                return _with_regions(view, groups, within)
            kept |= {name: definitions(s)[name] for name in again}
            continue
        for name in stored:
            s[name].compute_root()
            kept.pop(name, None)
        outputs += [*apart, *stored]
        for name in (*alone, *wasted):
            kept.pop(name)
        _placed(s, [*alone, *wasted], taken, outputs, within, loops)


def _inlined(
    s: Schedule, taken: Collection[str], outputs: list[str], loops: bool
) -> dict[str, ComputeOp]:
    """Inline what is read once, first what only moves elements, so that its readers are those of
    others; what cannot be inlined is added to `outputs`.  Returns what may be kept as tiles."""
    kept: dict[str, ComputeOp] = {}
    for first in (True, False):
        kept = _candidates(_open(s, taken), outputs, loops)
        for name, op in _open(s, taken).items():
            inlinable = len(op.bodies) == 1 and not is_reduction(op) and name not in outputs
            if inlinable and name not in kept and (moves(op) or not first):
                if may_inline(s.plan, name):
                    s[name].compute_inline()
                else:
                    outputs.append(name)
    return kept


def _placed(
    s: Schedule,
    names: Sequence[str],
    taken: Collection[str],
    outputs: list[str],
    within: list[str],
    loops: bool,
) -> None:
    """Inline stages or put them into `outputs`, those that are regions into `within` too."""
    view, larger = _open(s, taken), set[str]()
    for name in names:
        if name in larger:  # by what was inlined since the view was made
            view, larger = _open(s, taken), set[str]()
        free = loops and _may_be_region(view, name, within)
        place = _place(s, name, view, free, loops)
        if place == "inline":
            larger |= {user for user, _ in view.readers[name]}
            s[name].compute_inline()
            continue
        outputs.append(name)
        within += [name] if place == "tile" else []


def inline_indices(s: Schedule) -> None:
    """Inline what is computed from indices alone, such as the mask of causal attention, where that
    is cheap: nothing is loaded for it."""
    kept = {*(s[tensor].name for tensor in s.outputs), *stored_for_scans(s)}
    view = definitions(s)
    for name in list(view):
        op = view[name]
        free = not is_reduction(op) and len(op.bodies) == 1 and name not in kept
        if free and not reads_of(op) and cost(op) <= CHEAP and may_inline(s.plan, name):
            s[name].compute_inline()
            view = definitions(s)


def _repeat_results(s: Schedule, taken: Collection[str]) -> None:
    """Let results that read another result, element by element, compute that again (the knob
    `again`): both are then stored by one loop, which reads the inputs once and what it has stored
    not at all.

        for i: n[i] = f(x[i]);  for i: m[i] = g(x[i], n[i])
        --> for i: n[i] = f(x[i]), m[i] = g(x[i], f(x[i]))
    """
    view = _open(s, taken)
    results = [name for name in dict.fromkeys(s[t].name for t in s.outputs) if name in view]
    for name in results:
        op, users = view[name], view.readers[name]
        if is_reduction(op) or not users or len(op.bodies) > 1 or not may_inline(s.plan, name):
            continue
        in_step = all(_in_step(view, user, read, results) for user, read in users)
        in_step = in_step and all(same_axes(plain(r), op.axes) for r in reads(*op.bodies))
        if in_step and flip(s, f"{name}.again", True):
            s.recompute(s[name].op.outputs[0], list(dict.fromkeys(user for user, _ in users)))


def _in_step(view: View, user: str, read: TensorRead, results: Collection[str]) -> bool:
    """True for a pointwise result that reads the elements at its own places."""
    op = view[user]
    return user in results and not is_reduction(op) and same_axes(plain(read), op.axes)


def _open(s: Schedule, taken: Collection[str]) -> View:
    """The stages that are not scheduled yet."""
    return View({name: op for name, op in definitions(s).items() if name not in taken})


def _read_by(s: Schedule, taken: Collection[str]) -> list[str]:
    """The other stages that those in `taken` read."""
    view = definitions(s)
    found = (source for name in taken if name in view for source in view.sources(name))
    return [source for source in found if source not in taken]


def _read_by_settled(s: Schedule) -> list[str]:
    """The stages that settled ones read, from memory, themselves or in what is inlined there."""
    if not s.settled:
        return []
    computed = (each for each in s.plan.stages if isinstance(each.op, ComputeOp))
    stored = [e for e in computed if e.name not in s.settled and not e.placement.inlined]
    return [
        each.name
        for each in stored
        if any(user.name in s.settled for user in loop_readers(s.plan, each.op))
    ]


def _read_whole(s: Schedule) -> list[str]:
    """The stages that externs read, whole and from memory."""
    computed = (stage for stage in s.plan.stages if isinstance(stage.op, ComputeOp))
    return [stage.name for stage in computed if extern_readers(s.plan, stage.op)]


def _stored(
    s: Schedule,
    view: View,
    groups: list[Group],
    outputs: list[str],
    kept: Collection[str],
    masked: bool,
) -> list[str]:
    """Epilogues: the pointwise stages, inlined or kept as tiles, that a contraction in a kernel of
    its own, or a reduction whose results are narrower so or read at shifted places, should store in
    place of its accumulator.

    Their consumer has row reductions or windows, so nothing can be fused with it; stored after its
    epilogue, the result is no wider, and is read by whoever read the epilogue.
    """
    found: list[str] = []
    for group in groups:
        op = view[group.root]
        if group.root in outputs or not is_reduction(op):
            continue
        name = _epilogue(s, group.root, kept)
        if contraction(op, masked) is None and not (
            name is not None and (_narrower(s, name, op) or _read_shifted(s, name))
        ):
            continue
        known = name is None or name in found or name in outputs
        if name is not None and not known and flip(s, f"{group.root}.epilogue", True):
            found.append(name)
    return found


def _narrower(s: Schedule, name: str, op: ComputeOp) -> bool:
    """True when the results of a stage are of fewer bytes than those that it reads of `op`."""
    own = s.plan.stage(name).op.output_dtypes[0]
    return own.nbytes < op.output_dtypes[0].nbytes


def _read_shifted(s: Schedule, name: str) -> bool:
    """True when the results of a stage are read at shifted places."""
    op = s[name].op
    users = [each.op for each in plan_readers(s.plan, op) if isinstance(each.op, ComputeOp)]
    found = [read for user in users for read in reads_of(user)]
    return any(read.tensor.op is op and plain(read) is None for read in found)


def _epilogue(s: Schedule, name: str, kept: Collection[str]) -> str | None:
    """The one stage, inlined or in `kept`, that reads `name`, element by element, into no wider
    elements."""
    source = s[name].op
    readers: dict[str, TensorRead] = {}
    for stage in plan_readers(s.plan, source):
        if isinstance(stage.op, ComputeOp):
            for read in reads(*stage.op.bodies):
                if read.tensor.op is source:
                    readers[stage.name] = read
    if len(readers) != 1:
        return None
    ((reader, read),) = readers.items()
    stage = s.plan.stage(reader)
    free = stage.placement.inlined or reader in kept
    narrow = stage.op.output_dtypes[0].nbytes <= source.output_dtypes[0].nbytes
    return reader if free and narrow and in_step(read, stage.op.axis) else None


def _apart(
    s: Schedule,
    view: View,
    groups: list[Group],
    busy: int,
    loops: bool,
    rules: Rules | None,
) -> list[str]:
    """Reductions of few long rows that are to be kernels of their own, which can split them."""
    found: list[str] = []
    for group in groups:
        folds = [name for name in (*group.inner, group.root) if is_reduction(view[name])]
        rows = volume(group.rows or ())
        points = [volume((*view[name].axes, *view[name].reduce_axes)) for name in folds]
        if group.rows is None or group.contracts or rows is None or None in points:
            continue
        alone = len(folds) < 2 and same_axes(group.rows, view[group.root].axes)
        if alone or not folds:
            continue
        lane, enough = crossed_row(view, group), busy
        ends = is_reduction(view[group.root]) and lane is None
        if ends and loops:
            continue
        if not loops and splits(s, view, group):
            continue
        longest = 0 if loops else max(volume(view[name].reduce_axes) or 0 for name in folds)
        # A loop over rows that no tile holds has few loads in flight.
        if lane is not None:
            size = extent_of(lane) or 1
            rows = rows // size * -(-size // CROSSED)
            enough = MANY_PROGRAMS * gpu_of(s).sms if longest > HELD else busy
        elif longest > MAX_SINGLE:
            enough = gpu_of(s).sms
        long = max(n or 0 for n in points) >= busy * LONG
        together = ends or rows >= enough or not long
        if rows < 4 * enough and long:
            if rules is not None and lane is None and not asked(s, f"{group.root}.{TOGETHER}"):
                together = _one_is_quicker(s, group, rules, together)
            together = bool(s.knob(f"{group.root}.{TOGETHER}", (True, False), together))
        found += [] if together else _before_last(view, group, folds)
    return found


def _one_is_quicker(s: Schedule, group: Group, rules: Rules, usual: bool) -> bool:
    """Whether one kernel of rows is predicted to take about no longer than several, which split
    them; what is `usual` where the choice makes no difference by themselves."""
    target, names = Target.parse(s.target or "cuda"), (*group.inner, *group.beside, group.root)

    def times(trial: Schedule) -> list[float]:
        return [
            seconds_decided(trial, names, TOGETHER, choice, rules, target)
            for choice in (True, False)
        ]

    one, several = remembered(s, (_one_is_quicker, str(target)), times, names)
    return usual if one == several else one <= NEAR * several


def _before_last(view: View, group: Group, folds: Sequence[str]) -> list[str]:
    """The reductions of a kernel of rows less the one that ends it, of which each row has one
    result that the rest of the kernel is computed from."""
    met: dict[str, None] = {}
    waiting = [source for name in folds for source in view.sources(name)]
    while waiting:
        name = waiting.pop()
        if name not in met and name in group.inner:
            met[name] = None
            waiting += view.sources(name)
    ends = [name for name in folds if name not in met]
    single = len(ends) == 1 and same_axes(group.rows or (), view[group.root].axes)
    return [name for name in folds if not (single and name == ends[0])]


def _candidates(view: View, outputs: list[str], masked: bool) -> dict[str, ComputeOp]:
    """Pointwise stages that more than one read uses, windows do, or that feed a contraction (a
    prologue)."""
    readers = view.readers
    return {
        name: op
        for name, op in view.items()
        if not is_reduction(op) and name not in outputs and len(op.bodies) == 1
        if len(readers[name]) > 1
        or (not moves(op) and any(in_windows(view[n], read) for n, read in readers[name]))
        or _feeds_contraction(view, readers[name], masked)
    }


def _feeds_contraction(view: View, users: list[tuple[str, TensorRead]], masked: bool) -> bool:
    return any(contraction(view[user], masked) is not None for user, _ in users)


def _shares(view: View, group: Group, name: str) -> bool:
    """True when keeping a tile of `name` saves computing it more than once in the kernel."""
    users = {user for user, _ in view.readers[name]}
    return len(users) > 1 and group.rows is not None and cost(view[name]) > 0


def _with_regions(view: View, groups: list[Group], within: list[str]) -> list[Group]:
    """The stages in `within` as regions of the kernels that read them (`compute_at`)."""
    owners = {group.root: group for group in groups}
    for name in within:
        users = {user for user, _ in view.readers[name]}
        owner = owners.get(next(iter(users)))
        alone = not owners[name].inner  # else it is the epilogue of another kernel
        if alone and len(users) == 1 and owner is not None and _is_plain(view, owner):
            owner.regions.append(name)
    inside = {name for group in groups for name in group.regions}
    return [group for group in groups if group.root not in inside]


def _may_be_region(view: View, name: str, within: list[str]) -> bool:
    """True when one stage of the same rank reads `name`, and neither is nor has a region so far."""
    readers = view.readers
    users = {user for user, _ in readers[name]}
    hosts = {user for each in within for user, _ in readers[each]}
    if len(users) != 1 or name in hosts or not users.isdisjoint(within):
        return False
    reader = view[next(iter(users))]
    axes = view[name].axes
    return not is_reduction(reader) and len(reader.axes) == len(axes) >= 2


def _is_plain(view: View, group: Group) -> bool:
    """True for a pointwise kernel of one stage."""
    return group.rows is None and not group.inner and not is_reduction(view[group.root])


def _of_several(op: ComputeOp) -> bool:
    """True of a matrix that is computed from several as large: in the loop of a contraction each
    tile would load all of them, again and again."""
    size = volume(op.axes)
    found = [axes_of(*read.indices) for read in reads_of(op)]
    return sum(volume([a for a in op.axes if a in axes]) == size for axes in found) > 1


def _place(s: Schedule, name: str, view: View, regions: bool, loops: bool) -> object:
    """Where a producer is computed, the knob `place`: inline when it is cheap or nothing is
    computed twice; else a kernel of its own, or with `regions` the part that each tile of its one
    reader needs."""
    users = view.readers[name]
    op = view[name]
    repeated = len(users) > 1 or any(plain(read) is None for _, read in users)
    feeds = _feeds_contraction(view, users, loops)
    again = repeated or feeds
    # Statistics of rows that several kernels computed would be reduced in kernels of their own.
    several = not mostly_one(view, name)
    of_rows = several and any(is_reduction(view[each]) for each in view.sources(name))
    by_count = loops or feeds or of_rows
    far = cost(op) * len(users) > CHEAP if by_count else not recomputes(s, view, name)
    if loops and not feeds:  # as in the windows of a pool
        far = far or cost(op) * (evaluations(view, name) - 1) > AGAIN
    default = "root" if again and far else "inline"
    small = may_inline(s.plan, name)
    # A condition in the prologue of a contraction on the CPU is evaluated for each product.
    asked = loops and feeds and chooses(op)
    copied = not loops and cost(op) > 0 and copied_anyway(s, op, [user for user, _ in users])
    if feeds and (cost(op) > 1 or _of_several(op) or copied):
        default = "root"
    if not regions:
        # Data movement becomes the address and the mask of a load.
        default = "inline" if moves(op) else default
        default = "root" if asked else default
        return s.knob(f"{name}.place", ("inline", "root"), default) if small else "root"
    default = "tile" if default == "root" or not small else default
    choices = ("inline", "root", "tile") if small else ("root", "tile")
    return s.knob(f"{name}.place", choices, default)
