"""`replay`: the calls of a trace on other sizes and for another target, with a report of those that
no longer apply.

Beside `build` in the pipeline: it asks the lowering whether a target can carry a schedule out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast, overload

from tedsl.errors import LowerError, ScheduleError
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.trace.replay import Report, replay_what_applies
from tedsl.scheduling.trace.replay import replay as replay_all
from tedsl.scheduling.trace.trace import Trace
from tedsl.target import Target
from tedsl.tensor.tensor import Outputs


class Replayed(NamedTuple):
    """A schedule made by those steps of a trace that apply, and what became of the others."""

    schedule: Schedule
    report: Report


@overload
def replay(
    outputs: Outputs,
    trace: Trace,
    decisions: Mapping[str, object] | None = None,
    *,
    on_refusal: Literal["raise"] = "raise",
    target: str | Target | None = None,
) -> Schedule: ...
@overload
def replay(
    outputs: Outputs,
    trace: Trace,
    decisions: Mapping[str, object] | None = None,
    *,
    on_refusal: Literal["skip"],
    target: str | Target | None = None,
) -> Replayed: ...
def replay(
    outputs: Outputs,
    trace: Trace,
    decisions: Mapping[str, object] | None = None,
    *,
    on_refusal: Literal["raise", "skip"] = "raise",
    target: str | Target | None = None,
) -> Schedule | Replayed:
    """Make the calls of a trace again: on other sizes, or for another target.

    Args:
        outputs: tensors of a computation whose stages and axes have the names in the trace.
        trace: `s.trace` of a schedule, or `Trace.from_json` of what `to_json` wrote.
        decisions: values for knobs, as for `te.create_schedule`.
        on_refusal: `"raise"` stops at the first step that does not apply; `"skip"` leaves it out,
            and with it the steps that use its results.
        target: also see to it that this target can carry the schedule out; no device is needed.
            With `"skip"` the steps that it cannot carry out are left out as well: a single one
            (and what depends on it) if that is enough, otherwise every one after which it refuses
            what was made so far.

    Returns:
        The schedule; with `"skip"` a pair `(schedule, report)`, the report with each step that was
        left out, by number, and why.

    Raises:
        ScheduleError: a step that does not apply, with `on_refusal="raise"`.
        LowerError: the target cannot carry the schedule out, with `on_refusal="raise"`.
    """
    chosen = None if target is None else Target.parse(target)
    if on_refusal == "raise":
        schedule = replay_all(outputs, trace, decisions)
        refusal = None if chosen is None else refused(schedule, chosen)
        if refusal is not None:
            raise refusal
        return schedule
    if on_refusal != "skip":
        raise ScheduleError(
            f"unknown on_refusal {on_refusal!r}",
            subject="replay",
            facts=[("allowed", '"raise", "skip"')],
            hint='"skip" leaves out what does not apply, and returns (schedule, report)',
        )

    def attempt(without: Mapping[int, str]) -> Replayed:
        return Replayed(*replay_what_applies(outputs, trace, decisions, without))

    return attempt({}) if chosen is None else _fitted(attempt, trace, chosen)


def refused(schedule: Schedule, target: Target) -> LowerError | None:
    """Why the target cannot carry the schedule out, or None: found without a compiler or device."""
    module = importlib.import_module("tedsl.lower.pipeline")
    try:
        lowered = cast("Callable[..., Any]", module.lower)(schedule.plan, target)
        if target.is_triton:
            importlib.import_module("tedsl.backends.triton.emit.module").emit(lowered, target)
    except LowerError as error:
        return error
    return None


def _fitted(
    attempt: Callable[[Mapping[int, str]], Replayed], trace: Trace, target: Target
) -> Replayed:
    """What is left of a trace when a target has its say."""
    found = attempt({})
    refusal = refused(found.schedule, target)
    if refusal is None:
        return _for(found, target, None)
    why = f"{target} cannot carry it out: {refusal.reason}"
    gone = {step.number for step in found.report.skipped}
    best: Replayed | None = None
    for number in range(len(trace), 0, -1):
        less = attempt({number: why}) if number not in gone else found
        fewer = best is None or len(less.report.skipped) < len(best.report.skipped)
        if less is not found and fewer and refused(less.schedule, target) is None:
            best = less
    if best is not None:
        return _for(best, target, None)
    left_out: dict[int, str] = {}
    for number in range(1, len(trace) + 1):
        rest = {later: "not tried yet" for later in range(number + 1, len(trace) + 1)}
        found = attempt({**left_out, **rest})
        refusal = refused(found.schedule, target)
        if refusal is not None:
            left_out[number] = f"{target} cannot carry it out: {refusal.reason}"
    found = attempt(left_out)
    return _for(found, target, refused(found.schedule, target))


def _for(found: Replayed, target: Target, refusal: LowerError | None) -> Replayed:
    why = "" if refusal is None else str(refusal)
    return Replayed(found.schedule, replace(found.report, target=str(target), refused=why))
