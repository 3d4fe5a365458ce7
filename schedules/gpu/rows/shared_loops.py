"""Reductions of long rows that do not need each other, in one loop over the pieces of a row: what
several of them read is loaded, and what they are computed of is computed, once.

    for pieces of k: a = sum(k)(f(x[k], m));  for pieces of k: b = sum(k)(g(x[k], m))
    --> for pieces of k: a = sum(k)(f(x[k], m)), b = sum(k)(g(x[k], m))
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tedsl.expr.nodes import Axis
from tedsl.schedules.analysis.nests import needs_one_of
from tedsl.schedules.analysis.views import View, definitions, reads_of, volume
from tedsl.schedules.knobs import flip
from tedsl.schedules.trial import takes
from tedsl.scheduling.handles.schedule import Schedule


def share_loops(s: Schedule, turns: Mapping[str, Axis]) -> None:
    """Let reductions run in the loops of earlier ones that fold as much and read the same, each by
    its knob `beside`.

    Args:
        s: the schedule.
        turns: the reductions, which are at one place and split alike, each with its loop over
            pieces.
    """
    view, leaders = definitions(s), dict[str, list[str]]()
    for name in (each for each in view if each in turns):
        for leader, members in leaders.items():
            free = _alike(view, leader, name) and not needs_one_of(view, name, members)
            question = (share_loops, name, leader)
            steps = partial(_share, name=name, leader=leader, turns=turns)
            if free and takes(s, question, steps) and flip(s, f"{name}.beside", True):
                _share(s, name, leader, turns)
                members.append(name)
                break
        else:
            leaders[name] = [name]


def _alike(view: View, one: str, other: str) -> bool:
    """True for folds of as many elements that read a tensor in common."""
    same = volume(view[one].reduce_axes) == volume(view[other].reduce_axes) is not None
    read = [{each.tensor for each in reads_of(view[name])} for name in (one, other)]
    return same and not read[0].isdisjoint(read[1])


def _share(s: Schedule, name: str, leader: str, turns: Mapping[str, Axis]) -> None:
    """One loop over pieces, outside of the loops of tiles."""
    for each in (leader, name):
        stage, turn = s[each], turns[each]
        stage.reorder(turn, *(axis for axis in stage.leaf_iter_vars if axis is not turn))
    s[name].compute_with(s[leader], turns[leader])
