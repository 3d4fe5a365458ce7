"""Schedules of few primitives that are called often.

A family of primitives, which is a folder of `tedsl/scheduling/primitives`, and one of its own
are drawn first, and one to four others; then a definition that suits them, which is one on which
they are accepted; then up to twenty calls, most of them of these.  An even focus draws the first
one among all primitives alike, and a definition on which this one is accepted however seldom it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from types import CodeType

import choices as st
from choices import Draw
from drawn_calls import lay_out, steps
from drawn_chains import again, fuse_chain
from drawn_schedules import LAID_OUT, PRIMITIVES, Primitive, attempt, started
from strategies import Case

import tedsl as te
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.primitives.stage_handle import primitives_of

CALLS = 20
TRIES, SEARCHED = 3, 8
"""How often arguments are drawn for a call before it is given up, and for the first call."""
DEFINITIONS, MANY = 6, 24
"""Of how many the one is taken on which the first primitives are accepted, and of an even focus."""


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
    if draw(st.booleans()):
        again(draw, s, stage, {"casts": True})
    else:
        fuse_chain(draw, s)


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


def _calling() -> dict[str, list[Primitive]]:
    """What draws calls of each primitive: what is named for it, else all that it occurs in."""
    named = {drawer.__name__: [drawer] for drawer in DRAWERS}
    found = {
        name: named.get(name) or [d for d in DRAWERS if name in _names(d.__code__)]
        for name in sorted(FAMILIES)
    }
    return {name: drawers for name, drawers in found.items() if drawers}


CALLING = _calling()


class Focus:
    """The primitives, their families, and whether the rules schedule before them.

    Args:
        draw: draws them.
        even: the first one among all primitives alike, not among families.
    """

    def __init__(self, draw: Draw, even: bool = False) -> None:
        self.wanted: str = draw(st.sampled_from(list(CALLING))) if even else ""
        family = draw(st.sampled_from(sorted(set(FAMILIES.values()))))
        suited = CALLING.get(self.wanted) or [d for d, own in DRAWERS.items() if family in own]
        first = draw(st.sampled_from(suited))
        self.drawers = [first, *_several(draw, [d for d in DRAWERS if d is not first], 1, 4)]
        self.families = tuple(sorted({each for d in self.drawers for each in DRAWERS[d]}))
        self.by_rules = draw(st.integers(0, 2)) == 2
        self.draw = draw

    def start(self, case: Case, rules: Callable[[Case], Schedule]) -> Schedule:
        """What the primitives are called on."""
        if self.by_rules:
            return rules(case)
        schedule = started(case.outputs, case.sizes)
        if self.draw(st.integers(0, LAID_OUT)) == LAID_OUT:
            lay_out(self.draw, schedule)
        return schedule

    def accepted(self, schedule: Schedule, drawer: Primitive, but: Set[str] = frozenset()) -> bool:
        """Whether a call was, and not only what prepares it."""
        name, made = drawer.__name__, attempt(self.draw, schedule, drawer, but)
        if self.wanted and drawer is self.drawers[0]:
            return self.wanted in made
        return name in made if name in FAMILIES else bool(made)

    @property
    def definitions(self) -> int:
        """How many are tried."""
        return MANY if self.wanted else DEFINITIONS

    def suits(self, schedule: Schedule) -> list[bool]:
        """Call each once, as soon as arguments are found that are accepted; which were not, of
        which the first counts most, and in an even focus alone."""
        missed: list[bool] = []
        for drawer in self.drawers:
            found = False
            for _ in range(SEARCHED):
                if self.draw(st.integers(0, 2)) == 2:
                    attempt(self.draw, schedule)  # it may be what makes the one legal
                if found := self.accepted(schedule, drawer):
                    break
            missed.append(not found)
            if self.wanted and missed[0]:
                break
        return missed

    def call(self, schedule: Schedule) -> None:
        """Call them, of all stages or mostly of one and of what is made meanwhile, and now and then
        another."""
        draw = self.draw
        names = {stage.name for stage in schedule.stages}
        others = names - {draw(st.sampled_from(sorted(names)))} if draw(st.booleans()) else set()
        for _ in steps(draw, CALLS):
            among = self.drawers if draw(st.integers(0, 3)) else PRIMITIVES
            drawer = draw(st.sampled_from(among))
            for _ in range(TRIES):
                stages = others if draw(st.integers(0, 3)) else set[str]()
                if self.accepted(schedule, drawer, stages):
                    break


def _several(draw: Draw, among: list[Primitive], least: int, most: int) -> list[Primitive]:
    """Different ones, in the order in which they are drawn."""
    left, found = list(among), list[Primitive]()
    for _ in range(min(len(left), draw(st.integers(least, most)))):
        found.append(left.pop(draw(st.integers(0, len(left) - 1))))
    return found
