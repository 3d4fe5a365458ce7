"""What holds of every schedule, whatever the calls were: a table of questions about a plan.

Asked of the plan as it would be after a call, before it is taken over, and of each place that a
stage could be at, for the list of legal places; each only where what it concerns occurs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from tedsl.errors import ScheduleError
from tedsl.once import once
from tedsl.scheduling.invariants.computed_indices import computed_problem, refuse_computed
from tedsl.scheduling.invariants.inlined_growth import growth_problem, refuse_growth
from tedsl.scheduling.invariants.size_limits import count_problem, refuse_count
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.plan.links import (
    follower_names,
    guest_names,
    inlined_names,
    online_names,
    special,
)
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.graph_rewrites.divide_legality import pieces_problem, refuse_piece
from tedsl.scheduling.primitives.kernel_fusion.grid_barrier import across_problem, refuse_across
from tedsl.scheduling.primitives.kernel_fusion.horizontal import refuse_join, together_problem
from tedsl.scheduling.primitives.kernel_fusion.last_block import last_problem, refuse_last
from tedsl.scheduling.primitives.marks.atomic import atomic_problem, refuse_atomic
from tedsl.scheduling.primitives.online.slices import refuse_slices, slices_problem
from tedsl.scheduling.primitives.storage.legality import refuse_stored, stored_problem
from tedsl.scheduling.primitives.tensorize.legality import match_problem, refuse_match

Found = tuple[Any, ...]


class Concern(Enum):
    """What may occur in a plan."""

    ANYTHING = auto()
    INLINED = auto()
    ATTACHED = auto()
    TOGETHER = auto()
    LAST_BLOCK = auto()
    COOPERATIVE = auto()
    STORED_OUTSIDE = auto()
    ONLINE = auto()
    ATOMIC = auto()
    TENSORIZED = auto()
    PARTITIONED = auto()


@dataclass(frozen=True, slots=True)
class Invariant:
    """What must hold of a plan in which `concern` occurs.

    `problem` gives what is wrong with a plan, None where nothing is: of the plan, of one before it
    in which nothing was wrong, if there is one, and the name of the stage that is called.  `refuse`
    makes the error of that: of the plan before the call, the call, the plan after it, and the
    problem.
    """

    concern: Concern
    problem: Callable[[Plan, Plan | None, str], Found | None]
    refuse: Callable[..., ScheduleError]


# In this order: each may take for granted that those before it hold, and legal places.
INVARIANTS = (
    Invariant(Concern.ANYTHING, count_problem, refuse_count),
    Invariant(Concern.INLINED, growth_problem, refuse_growth),
    Invariant(Concern.TOGETHER, together_problem, refuse_join),
    Invariant(Concern.LAST_BLOCK, last_problem, refuse_last),
    Invariant(Concern.COOPERATIVE, across_problem, refuse_across),
    Invariant(Concern.STORED_OUTSIDE, stored_problem, refuse_stored),
    Invariant(Concern.ANYTHING, computed_problem, refuse_computed),
    Invariant(Concern.ONLINE, slices_problem, refuse_slices),
    Invariant(Concern.ATOMIC, atomic_problem, refuse_atomic),
    Invariant(Concern.TENSORIZED, match_problem, refuse_match),
    Invariant(Concern.PARTITIONED, pieces_problem, refuse_piece),
)


@once
def occurring(plan: Plan) -> frozenset[Concern]:
    """What occurs in a plan."""
    found = {Concern.ANYTHING}
    if inlined_names(plan):
        found.add(Concern.INLINED)
    if guest_names(plan):
        found.add(Concern.ATTACHED)
    if follower_names(plan):
        found.add(Concern.TOGETHER)
    if online_names(plan):
        found.add(Concern.ONLINE)
    for stage in special(plan):
        place = stage.placement
        if place.of:
            found.add(Concern.LAST_BLOCK)
        if place.program is not None:
            found.add(Concern.COOPERATIVE)
        if place.kept is not None:
            found.add(Concern.STORED_OUTSIDE)
        if stage.atomic or stage.scatters:
            found.add(Concern.ATOMIC)
        if place.head:
            found.add(Concern.PARTITIONED)
        for mark in stage.marks.values():
            if mark.tensorized is not None:
                found.add(Concern.TENSORIZED)
    return frozenset(found)


def require_invariants(before: Plan, call: Call, after: Plan) -> None:
    """Refuse a call after which one of them would not hold."""
    concerns = occurring(after)
    for each in INVARIANTS:
        if each.concern in concerns:
            found = each.problem(after, before, call.stage)
            if found is not None:
                raise each.refuse(before, call, after, *found)


def all_hold(plan: Plan) -> bool:
    """True when all of them hold.  Requires: legal places."""
    return first_broken(plan) is None


def first_broken(plan: Plan) -> tuple[Concern, Found] | None:
    """What the first that does not hold concerns, and what is wrong.  Requires: legal places."""
    concerns = occurring(plan)
    for each in INVARIANTS:
        if each.concern in concerns:
            found = each.problem(plan, None, "")
            if found is not None:
                return each.concern, found
    return None
