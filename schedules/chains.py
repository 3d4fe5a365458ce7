"""Chains of dependent reductions: which of a kernel can go along in one loop, and letting them."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.errors import ScheduleError
from tedsl.expr.nodes import Axis
from tedsl.schedules.analysis import Group, definitions, is_reduction, reduce_axes
from tedsl.scheduling.chain import chain_of
from tedsl.scheduling.schedule import Schedule
from tedsl.scheduling.stage import Stage

# How far a maximum moves before what depends on it is repaired: a factor of e**5.5.
LAZY = 5.5


def chain_ends(s: Schedule, group: Group) -> list[str]:
    """The reductions of a kernel, last first, with whose loop others of it can go along.

    Each is the end of a chain for which a repair was derived and proved; no reduction is in two.
    """
    view = definitions(s)
    trial = s.copy()
    inline_between(trial, group.inner)
    found: list[str] = []
    taken: set[str] = set()
    for name in reversed(group.inner):
        if name in taken or not is_reduction(view[name]):
            continue
        members = [stage.name for stage in chain_of(trial.plan, trial[name].plan).members]
        if not members or not taken.isdisjoint(members) or not set(members) <= set(group.inner):
            continue
        if follows(trial, name):
            found.append(name)
            taken.update((name, *members))
    return found


def follows(s: Schedule, name: str) -> bool:
    """True when the reductions that one depends on can go along with its loop."""
    trial = s.copy()
    stage = trial[name]
    axes = reduce_axes(stage)
    if len(axes) != 1:
        return False
    outer, _ = stage.split(axes[0], factor=2)
    try:
        follow(stage, outer)
    except ScheduleError:
        return False
    return True


def inline_between(s: Schedule, names: Sequence[str]) -> None:
    """Substitute those of some stages that are no reductions."""
    for name in reversed(names):
        if not reduce_axes(s[name]):
            s[name].compute_inline()


def follow(stage: Stage, axis: Axis, lazy: bool = False) -> None:
    """Let the reductions that a stage depends on go along with its loop `axis`; with `lazy` what is
    folded is repaired only where a maximum has moved far."""
    if lazy:
        stage.online(axis, casts=True, rescale_threshold=LAZY)
    else:
        stage.online(axis, casts=True)


def may_be_lazy(s: Schedule, name: str, axis: Axis) -> bool:
    """True when the repairs of a chain are factors that may wait."""
    try:
        follow(s.copy(decided=False)[name], axis, lazy=True)
    except ScheduleError:
        return False
    return True
