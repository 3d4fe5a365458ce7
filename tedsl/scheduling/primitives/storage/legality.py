"""Where an attached stage may be stored: outside where it is computed, with serial loops between.

Asked of the plan as it would be after a call, for all stages that are stored elsewhere.
"""

from __future__ import annotations

from tedsl.errors import ScheduleError
from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.kernels.tree import loops_around
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.labels import axis_text, owner
from tedsl.scheduling.plan.links import special
from tedsl.scheduling.plan.relations import ranks
from tedsl.scheduling.plan.scan_structure import scan_of
from tedsl.scheduling.plan.unshare_axes import own_nests
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.loops.legality import mark_text
from tedsl.scheduling.primitives.stage_facts import Problem
from tedsl.scheduling.regions.infer import loops_between, moving

SEQUENTIAL = (LoopKind.SERIAL, LoopKind.UNROLLED)


def storage_problem(plan: Plan, stage: StagePlan) -> Problem | None:
    """What is wrong with where `stage` is stored; None when it is legal."""
    kept = stage.placement.kept
    if kept is None:
        return None
    if scan_of(plan, stage.op) is not None:
        return Problem(
            f"{stage.name} belongs to the steps of a scan, which keep what they need",
            "make what a later step reads a state of the scan",
        )
    if kept.axis is not None and kept.axis not in ranks(loops_around(plan, stage)):
        names = ", ".join(axis_text(plan, axis) for axis in loops_around(plan, stage))
        return Problem(
            f"{axis_text(plan, kept.axis)} is no loop around {stage.name} (they are {names})",
            f"name one of the loops around {stage.name}",
        )
    shown = own_nests(plan)  # each axis is a loop of one stage there
    own = shown.stage(stage.name)
    for axis in loops_between(shown, own):
        host = owner(shown, axis)
        mark = None if host is None else host.mark(axis)
        if mark is not None and mark.descending and mark.kind in SEQUENTIAL:
            return Problem(
                f"{axis_text(shown, axis)}, between the storage of {stage.name} and where it is "
                f"computed, is {mark_text(mark)}: an iteration computes what the one before it "
                "has not, and the first one all of it",
                f"store {stage.name} inside {axis_text(shown, axis)}, or undo the mark of it",
            )
        if mark is not None and (mark.kind not in SEQUENTIAL or mark.num_stages > 1):
            return Problem(
                f"{axis_text(shown, axis)}, between the storage of {stage.name} and where it is "
                f"computed, is {mark_text(mark)}: iterations that run at once would write the "
                "same storage, which is a race",
                f"store {stage.name} inside {axis_text(shown, axis)}, or undo the mark of it",
            )
    if kept.rolling:
        found = moving(shown, own)
        if isinstance(found, str):
            return Problem(
                f"the storage of {stage.name} cannot be folded: {found}",
                f"call s[{stage.name}].store_at without rolling_buffer, or compute {stage.name} at "
                "a loop along which it moves on steadily",
            )
    return None


def stored_problem(
    plan: Plan, before: Plan | None = None, called: str = ""
) -> tuple[StagePlan, Problem] | None:
    """The first stage that is not stored at a legal place.  Requires: legal places."""
    for stage in special(plan):
        problem = storage_problem(plan, stage)
        if problem is not None:
            return stage, problem
    return None


def refuse_stored(
    before: Plan, call: Call, after: Plan, stage: StagePlan, problem: Problem
) -> ScheduleError:
    axis = None if stage.placement.kept is None else stage.placement.kept.axis
    facts = [("around", ", ".join(axis_text(after, each) for each in loops_around(after, stage)))]
    if stage.name == call.stage:
        return call.refuse(before, problem.reason, axis=axis, facts=facts, hint=problem.hint)
    where = "outside all loops" if axis is None else f"at {axis_text(before, axis)}"
    return call.refuse(
        before,
        f"{stage.name} is stored {where}, and would no longer be at a legal place: "
        f"{problem.reason}",
        axis=axis,
        facts=facts,
        hint=f"first call s[{stage.name}].compute_at again, which stores it where it is computed",
    )
