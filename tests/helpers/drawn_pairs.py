"""A computation and how it is scheduled, drawn: one pair of those that scripts run by thousands.

The seed of a pair, or the numbers that were drawn for it, make it again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import choices as st
from choices import Draw, Recorder
from drawn_chains import chain_schedules, chains
from drawn_focus import Focus
from drawn_matrices import matrices
from drawn_schedules import attempt, schedules, tensorize
from guarded import Form
from scan_strategies import prefixes, recurrences
from strategies import LARGE, SMALL, Case, by_group, computes, products

from tedsl.errors import ScheduleError
from tedsl.schedules import schedule_for
from tedsl.scheduling.handles.schedule import Schedule


@dataclass
class Pair:
    """`twice`: it is called again, `torch`: with tensors of PyTorch where it could be arrays of
    NumPy.  `decisions`: of the rules' knobs, where the rules made the schedule.  `families`: of the
    primitives in focus.  `error`: what ended the making of the schedule, which then is not there or
    is as it was before."""

    case: Case
    forms: list[Form] = field(default_factory=list[Form])
    twice: bool = False
    torch: bool = False
    schedule: Schedule | None = None
    decisions: dict[str, object] = field(default_factory=dict[str, object])
    families: tuple[str, ...] = ()
    noted: list[int] = field(default_factory=list[int])
    error: Exception | None = None


def pair(
    kind: str,
    target: str,
    seed: int | str = 0,
    given: Sequence[int] | None = None,
    extents: str = "small",
    aligned: bool = False,
) -> Pair:
    """Draw a pair.

    Args:
        kind: "schedules" for drawn primitives, "rules" for default rules with drawn decisions,
            "focused" for many calls of few primitives, after the rules or after nothing, "even"
            for the same with each primitive as often as any other among the first ones.
        target: what the rules schedule for.
        seed: of what is drawn.
        given: the numbers to draw instead.
        extents: "small"; "large", of which accesses are vectorised, beside odd ones; or "mixed",
            which is "large" one time in three.
        aligned: all arrays, whatever is drawn.
    """
    draw = Recorder(seed, given)
    large = draw(st.integers(0, 2)) == 2 if extents == "mixed" else extents == "large"
    if kind in ("focused", "even"):
        return _focused(draw, Focus(draw, kind == "even"), cases(large, 2), target, aligned)
    found = Pair(draw(cases(large)), noted=draw.noted)
    _called(draw, found, aligned)
    try:
        if kind == "rules":
            found.schedule = by_rules(draw, found.case, target, found.decisions)
        else:
            found.schedule = draw(_schedules(found.case))
    except Exception as error:  # the caller counts it
        found.error = error
    return found


def _called(draw: Draw, found: Pair, aligned: bool) -> None:
    """How it is called."""
    found.twice, found.torch = (draw(st.integers(0, 3)) == 3 for _ in range(2))
    unaligned = draw(st.integers(0, 2)) == 2
    count = len(found.case.inputs) + len(found.case.outputs)
    forms = [draw(_forms()) if unaligned else Form() for _ in range(count)]
    found.forms = [Form()] * count if aligned else forms


def _focused(draw: Recorder, focus: Focus, cases: Any, target: str, aligned: bool) -> Pair:
    """With the definitions after the primitives, which they are to suit."""
    found = Pair(Case(), families=focus.families, noted=draw.noted)
    best = tried = found
    least: list[bool] | None = None
    try:
        for _ in range(focus.definitions):
            tried = replace(found, case=draw(cases))
            tried.schedule = focus.start(tried.case, lambda c: by_rules(draw, c, target, {}))
            missed = focus.suits(tried.schedule)
            if least is None or missed < least:
                best, least = tried, missed
            if not any(missed[:1] if focus.wanted else missed):
                break
        tried = best
        if tried.schedule is not None:
            focus.call(tried.schedule)
    except Exception as error:  # the caller counts it
        tried.error = error
        return tried
    _called(draw, tried, aligned)
    return tried


@st.composite
def cases(draw: Draw, large: bool, share: int = 5) -> Case:
    """A computation of any kind; of those with a generator of their own, one in `share` + 6."""
    sizes = LARGE if large else SMALL
    kinds: list[Any] = [computes(sizes=sizes)] * share
    kinds += [chains(large=large), matrices(large=large), recurrences(), products()]
    kinds += [by_group(), prefixes()]
    return draw(draw(st.sampled_from(kinds)))


@st.composite
def _forms(draw: Draw) -> Form:
    shift = draw(st.sampled_from((0, 1, 2, 3, 4, 5, 8, 11)))
    return Form(shift, draw(st.booleans()))


@st.composite
def _schedules(draw: Draw, case: Case) -> Schedule:
    if case.finite:
        return draw(chain_schedules(case))
    schedule: Schedule = draw(schedules(case.outputs, sizes=case.sizes))
    if draw(st.integers(0, 9)) == 9:
        with contextlib.suppress(ScheduleError):
            tensorize(draw, schedule, schedule.stages[-1])
        attempt(draw, schedule)
    return schedule


def by_rules(draw: Draw, case: Case, target: str, decided: dict[str, object]) -> Schedule:
    """The rules' schedule, each of whose knobs is drawn as it is met, or left as it is; what was
    `decided` is filled in."""
    met: set[str] = set()
    plain = draw(st.integers(0, 4)) == 0
    real = Schedule.knob

    def knob(self: Schedule, name: str, choices: Sequence[Any], default: Any = None) -> Any:
        options = tuple(choices)
        if "" not in self.__dict__["_decisions"]:
            return real(self, name, options, default)  # a trial of a rule, which decides nothing
        if options and not plain and name not in met:
            met.add(name)
            place = draw(st.integers(0, len(options)))
            if place:
                decided[name] = options[place - 1]
        return real(self, name, options, decided.get(name, default))

    with patch.object(Schedule, "knob", knob):
        schedule_for(case.outputs, target, {"": True})
    return schedule_for(case.outputs, target, decided)
