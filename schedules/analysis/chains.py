"""Cascaded reductions (online softmax, the softmax inside attention): which reductions of a kernel
can share one online loop, where accumulators are rescaled when a running statistic such as the
maximum changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tedsl.errors import ScheduleError
from tedsl.expr.nodes import Axis
from tedsl.expr.visit import reads
from tedsl.schedules.analysis.groups import Group
from tedsl.schedules.analysis.nests import (
    Contraction,
    any_order,
    cost,
    in_step,
    is_reduction,
    long_axes,
    reduce_axes,
)
from tedsl.schedules.analysis.views import View, definitions, extent_of
from tedsl.schedules.knobs import flip
from tedsl.schedules.loops import fused
from tedsl.schedules.trial import remembered, takes
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.primitives.online.chain import chain_of
from tedsl.tensor.tensor import ComputeOp


@dataclass(frozen=True, slots=True)
class Chained:
    """A contraction in a cascade of reductions, for example the second GEMM of attention.

    `last` is the contraction, `members` the reductions that it depends on (running maximum and
    sum), `inner` the contractions whose elements they reduce (the first GEMM), `root` the stage
    that stores the result.
    """

    last: str
    root: str
    members: tuple[str, ...]
    inner: tuple[str, ...]
    shape: Contraction


def chain_ends(s: Schedule, group: Group) -> list[str]:
    """The reductions of a kernel, last first, each of which ends a cascade that can run as one
    loop.

    A rescaling was derived and proved for each; no reduction is in two cascades.
    """
    inner = tuple(group.inner)
    return list(remembered(s, (chain_ends, inner), lambda trial: _chain_ends(trial, inner)))


def _chain_ends(s: Schedule, inner: Sequence[str]) -> tuple[str, ...]:
    """The ends of cascades among some stages, found on a copy of the schedule."""
    view = definitions(s)
    inline_between(s, inner)
    found: list[str] = []
    taken: set[str] = set()
    for name in reversed(inner):
        if name in taken or not is_reduction(view[name]):
            continue
        members = folds_before(s, name)
        if not members or not taken.isdisjoint(members) or not set(members) <= set(inner):
            continue
        if follows(s, name):
            found.append(name)
            taken.update((name, *members))
    return tuple(found)


def folds_before(s: Schedule, name: str) -> list[str]:
    """The reductions of the cascade that ends in `name`, but for that."""
    return [stage.name for stage in chain_of(s.plan, s[name].plan).members]


def depended_on(s: Schedule, view: View, name: str) -> tuple[str, ...]:
    """The reductions that one depends on, if all of them combine in any order; else none."""
    members = folds_before(s, name)
    return tuple(members) if all(any_order(view[member]) for member in members) else ()


def follows(s: Schedule, name: str) -> bool:
    """True when the reductions that one depends on can share its loop, online."""

    def pieces(trial: Schedule) -> None:
        outer, _ = trial[name].split(fused(trial[name], reduce_axes(trial[name])), factor=2)
        follow(trial[name], outer)

    return takes(s, (follows, name), pieces)


def parts_follow(
    s: Schedule, name: str, question: tuple[object, ...], split: Callable[[Schedule], str]
) -> bool:
    """True when a part of the cascade that ends in `name` can be one online loop too, of as many
    reductions: where one of them counts once, at the end, its own parts would be left over.
    `question` is for `remembered`; `split` makes the parts, and names the last one's stage.
    """

    def one_loop(trial: Schedule) -> bool:
        whole = len(folds_before(trial, name))
        try:
            part = split(trial)
        except ScheduleError:
            return False
        return len(folds_before(trial, part)) == whole and follows(trial, part)

    return remembered(s, question, one_loop)


def inline_between(s: Schedule, names: Sequence[str]) -> None:
    """Inline those of some stages that are no reductions."""
    for name in reversed(names):
        if not reduce_axes(s[name]):
            s[name].compute_inline()


def follow(stage: Stage, axis: Axis) -> None:
    """Let the reductions that a stage depends on share its loop `axis`, online."""
    stage.online(axis, casts=True)


def inner_folds(
    s: Schedule, view: View, chain: tuple[str, ...], fits: Callable[[ComputeOp], bool]
) -> tuple[str, ...]:
    """The fitting reductions that only stages of the cascade read, directly or through pointwise
    stages, among them one that depends on no other: for attention, the first GEMM.  What only the
    last stage or an inner reduction reads, such as projected keys, would be computed again for each
    tile.
    """
    readers = {name: {user for user, _ in found} for name, found in view.readers.items()}
    outputs = {s[t].name for t in s.outputs}
    inside, followed = set(chain), set(chain[:-1])
    found: list[str] = []
    for name in reversed(list(view)):
        mine = readers[name]
        if name in inside or name in outputs or not mine or not mine <= inside:
            continue
        folds, reached = is_reduction(view[name]), not mine.isdisjoint(followed)
        if folds and not (reached and fits(view[name])):
            continue
        if folds and len(view[name].axes) <= max(len(view[n].axes) for n in chain[:-1]):
            continue
        inside.add(name)
        if folds:
            found.append(name)
        elif reached:
            followed.add(name)
    return tuple(found)


def take_chains(
    s: Schedule,
    find: Callable[[Schedule, View, str], Chained | None],
    rule: Callable[[Schedule, Chained], list[str]],
) -> list[str]:
    """Schedule with `rule` the cascades that `find` matches, by the knob `chain`: by default where
    a contraction feeds the reductions, as in attention.  Returns the stages that are scheduled
    then."""
    taken: list[str] = []
    view = definitions(s)
    for name in reversed(list(view)):
        found = None if name in taken else find(s, view, name)
        if found is None or not possible(s, found, rule):
            continue
        if flip(s, f"{found.root}.chain", bool(found.inner)):
            taken += rule(s, found)
            view = definitions(s)
    return taken


def possible(s: Schedule, found: Chained, rule: Callable[[Schedule, Chained], list[str]]) -> bool:
    """True when the primitives accept the cascade as `rule` schedules it, and it does."""

    def done(trial: Schedule) -> bool:
        try:
            return bool(rule(trial, found))
        except ScheduleError:
            return False

    return remembered(s, (rule, found.last), done)


def root_of(s: Schedule, view: View, name: str) -> str:
    """The last of the pointwise consumers of a result, one after another: the end of its
    epilogue."""
    outputs = {s[t].name for t in s.outputs}
    while name not in outputs:
        users = view.readers[name]
        if len(users) != 1:
            break
        user, read = users[0]
        step = view[user]
        if is_reduction(step) or len(step.bodies) > 1 or not in_step(read, step.axes):
            break
        name = user
    return name


def in_terms_of(root: ComputeOp, fold: ComputeOp) -> dict[Axis, Axis]:
    """The axes of a reduction, each with that of the end of its epilogue (`root_of`); without those
    of one element where the two have not the same shape."""
    if [extent_of(a) for a in fold.axes] == [extent_of(a) for a in root.axes]:
        return dict(zip(fold.axes, root.axes, strict=True))
    return dict(zip(long_axes(fold.axes), long_axes(root.axes), strict=True))


def inline_around(s: Schedule, found: Chained) -> list[str]:
    """Inline the pointwise stages of the kernel, but for those that two reductions read: they are
    computed once, as tiles.  Returns all of them."""
    inside = {found.last, found.root, *found.members, *found.inner}
    outputs = {s[t].name for t in s.outputs}
    met: list[str] = []
    for name in reversed(list(definitions(s))):
        view = definitions(s)
        users = _users(view, name)
        if name in inside or name in outputs or is_reduction(view[name]) or not users:
            continue
        if not users <= inside.union(met) or len(view[name].bodies) > 1:
            continue
        after = not _above(view, name).isdisjoint((*found.members, *found.inner, found.last))
        if after or (cost(view[name]) <= 1 and len(users) == 1):
            met.append(name)
            if len(users) < 2 or cost(view[name]) <= 1:
                s[name].compute_inline()
    return met


def _users(view: View, name: str) -> set[str]:
    """The stages that read `name`."""
    return {user for user, _ in view.readers[name]}


def _above(view: View, name: str) -> set[str]:
    """The reductions that `name` reads, directly or through pointwise stages."""
    names = view.names
    found: set[str] = set()
    for read in reads(*view[name].bodies):
        source = names.get(read.tensor.op) if isinstance(read.tensor.op, ComputeOp) else None
        if source is not None:
            found |= {source} if is_reduction(view[source]) else _above(view, source)
    return found
