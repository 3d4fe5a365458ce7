"""What holds of every schedule, whatever the calls were: a table of questions about a plan.

Asked of the plan as it would be after a call, before it is taken over, and of each place that a
stage could be at, for the list of legal places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tedsl.scheduling.call import Call
from tedsl.scheduling.checks.across import across_legal, require_across
from tedsl.scheduling.checks.atomics import atomics_legal, require_atomics
from tedsl.scheduling.checks.computed import computed_legal, require_computed
from tedsl.scheduling.checks.counts import require_counts
from tedsl.scheduling.checks.inlined import inlining_possible, require_possible_inlining
from tedsl.scheduling.checks.intrinsics import intrinsics_match, require_match
from tedsl.scheduling.checks.last import last_legal, require_last
from tedsl.scheduling.checks.pieces import pieces_legal, require_pieces
from tedsl.scheduling.checks.sized import require_sizes, sizes_legal
from tedsl.scheduling.checks.storage import require_storage, storage_legal
from tedsl.scheduling.checks.together import joins_legal, require_joins
from tedsl.scheduling.plan import Plan


@dataclass(frozen=True, slots=True)
class Invariant:
    """A question about a plan: whether it `holds` (None where the place of a stage does not
    matter), and the check that refuses a call after which it would not (`requires`: the plan
    before the call, the call, the plan after it)."""

    holds: Callable[[Plan], bool] | None
    requires: Callable[[Plan, Call, Plan], None]


# In this order: each may take for granted that those before it hold, and legal places.
INVARIANTS = (
    Invariant(None, require_counts),
    Invariant(inlining_possible, require_possible_inlining),
    Invariant(joins_legal, require_joins),
    Invariant(last_legal, require_last),
    Invariant(across_legal, require_across),
    Invariant(storage_legal, require_storage),
    Invariant(computed_legal, require_computed),
    Invariant(sizes_legal, require_sizes),
    Invariant(atomics_legal, require_atomics),
    Invariant(intrinsics_match, require_match),
    Invariant(pieces_legal, require_pieces),
)


def require_invariants(before: Plan, call: Call, after: Plan) -> None:
    """Refuse a call after which one of them would not hold."""
    for each in INVARIANTS:
        each.requires(before, call, after)


def all_hold(plan: Plan) -> bool:
    """True when all of them hold.  Requires: legal places."""
    return all(each.holds is None or each.holds(plan) for each in INVARIANTS)
