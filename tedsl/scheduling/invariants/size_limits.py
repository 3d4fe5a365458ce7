"""Are loops and arrays still few and small enough to be counted?  Asked of the stages that a call
has changed, whatever primitive it is of.
"""

from __future__ import annotations

from tedsl.errors import ScheduleError
from tedsl.expr.index_arith import LARGEST, MAX_ELEMENTS, elements
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.differing import differing_stages
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.relations import constant, extents, ranks, steps
from tedsl.scheduling.primitives.call import Call


def count_problem(
    plan: Plan, before: Plan | None = None, called: str = ""
) -> tuple[str, str] | None:
    """What a call has made too large to be counted, and what is not: a loop by its own type, an
    array by its addresses."""
    if before is None:
        return None
    pairs, fresh = differing_stages(before, plan)
    faults = (_fault(new) for new in (*(b for a, b in pairs if not _as_large(a, b)), *fresh))
    return next((fault for fault in faults if fault is not None), None)


def refuse_count(before: Plan, call: Call, after: Plan, reason: str, allowed: str) -> ScheduleError:
    """The error for a call after which something would be too large to be counted."""
    return call.refuse(
        before,
        reason,
        facts=[("allowed", f"at most {allowed}")],
        hint="give smaller numbers, or make indices of int64: i.astype('int64')",
    )


def _as_large(old: StagePlan, new: StagePlan) -> bool:
    """True when a stage has the array and the loops that it had."""
    return (
        old.op.shape is new.op.shape
        and old.relations is new.relations
        and old.aligned is new.aligned
    )


def _fault(stage: StagePlan) -> tuple[str, str] | None:
    """What is too large to be counted, and what is not."""
    for place, extent in enumerate(stage.op.shape):
        size = constant(extent)
        if size is not None and size > extent.dtype.info.highest:
            reason = f"dimension {place} of {stage.name} would have {size} elements"
            return reason, f"{extent.dtype.info.highest} ({extent.dtype})"
    total = max(map(elements, stage.op.output_shapes)) + _padding(stage)
    if total > MAX_ELEMENTS:
        return f"{stage.name} would have {total} elements", "2**59"
    far = steps(stage)
    for axis, extent in extents(stage).items() if stage.relations else ():
        size, most = constant(extent), min(axis.dtype.info.highest, LARGEST)
        if size is None and far[axis] > LARGEST:
            return f"{labels(stage)[axis]} would go in steps of {far[axis]}", "2**62"
        if size is not None and size > most:
            return f"{labels(stage)[axis]} would have {size} iterations", f"{most} ({axis.dtype})"
    return None


def _padding(stage: StagePlan) -> int:
    """At most so many elements are added where rows are aligned."""
    places = ranks(stage.root_axes)
    return sum(
        elements(stage.op.shape[: places[each.axis] + 1]) * (each.factor + each.offset)
        for each in stage.aligned
    )
