"""Schedules of few primitives that are called often.

A few primitives are drawn first, those of two to four families at most, which are the folders of
`tedsl/scheduling/primitives`, beside one or two of any as often as all schedules have them; then up
to twenty calls of them, on a definition on which each of the families has something to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import choices as st
from choices import Draw
from drawn_chains import again, fuse_chain
from drawn_schedules import PRIMITIVES, Primitive, attempt, started, steps
from strategies import Case

import tedsl as te
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.primitives.stage_handle import primitives_of

CALLS = 20
DEFINITIONS = 4
"""How many are drawn before one on which a family has nothing to do is taken."""


def _families() -> dict[str, str]:
    """The family of each primitive: the folder that its method is in."""
    found: dict[str, str] = {}
    for handle in (te.Stage, te.Schedule):
        for name in sorted(primitives_of(handle)):
            found[name] = getattr(handle, name).__module__.split(".")[-2]
    return found


FAMILIES = _families()


def online(draw: Draw, s: Schedule, stage: Stage) -> None:
    """In one pass, or in parts, whichever stage was drawn."""
    fuse_chain(draw, s)


def split_online(draw: Draw, s: Schedule, stage: Stage) -> None:
    """Also of what was made by one before."""
    again(draw, s, stage, {"casts": True})


def _names(code: CodeType) -> Iterator[str]:
    """The names that a function and the functions in it use."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _drawn() -> dict[Primitive, tuple[str, ...]]:
    """What draws a call, and its families: that of the primitive that it is named for, or those of
    all that it calls."""
    found: dict[Primitive, tuple[str, ...]] = {}
    for drawer in dict.fromkeys((*PRIMITIVES, online, split_online)):
        name = drawer.__name__
        names = [name] if name in FAMILIES else _names(drawer.__code__)
        if families := tuple(sorted({FAMILIES[each] for each in names if each in FAMILIES})):
            found[drawer] = families
    return found


DRAWERS = _drawn()


class Focus:
    """Primitives, the families that are in focus, and whether the rules schedule before them."""

    def __init__(self, draw: Draw) -> None:
        first = _several(draw, list(DRAWERS), 2, 4)
        self.families = tuple(sorted({family for each in first for family in DRAWERS[each]}))
        self.drawers = [*first, *_several(draw, list(PRIMITIVES), 0, 2)]
        self.by_rules = draw(st.integers(0, 2)) == 2
        self.draw = draw
        self.left = DEFINITIONS

    @property
    def ended(self) -> bool:
        """Whether no other definition is to be drawn."""
        return self.left == 0

    def start(self, case: Case, rules: Callable[[Case], Schedule]) -> Schedule:
        """What the primitives are called on."""
        return rules(case) if self.by_rules else started(case.outputs, case.sizes)

    def call(self, schedule: Schedule) -> None:
        """Call them, of all stages or mostly of one and of what is made meanwhile."""
        draw, before = self.draw, len(schedule.trace)
        names = {stage.name for stage in schedule.stages}
        others = names - {draw(st.sampled_from(sorted(names)))} if draw(st.booleans()) else set()
        for _ in steps(draw, CALLS):
            attempt(draw, schedule, self.drawers, others if draw(st.integers(0, 3)) else set())
        called = {step.primitive for step in schedule.trace.steps[before:]}
        accepted = {FAMILIES[each] for each in called if each in FAMILIES}
        self.left = 0 if accepted >= set(self.families) else self.left - 1


def _several(draw: Draw, among: list[Primitive], least: int, most: int) -> list[Primitive]:
    """Different ones, in the order in which they are drawn."""
    left, found = list(among), list[Primitive]()
    for _ in range(min(len(left), draw(st.integers(least, most)))):
        found.append(left.pop(draw(st.integers(0, len(left) - 1))))
    return found
