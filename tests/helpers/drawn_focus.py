"""Schedules of few primitives that are called often.

Two to five primitives are drawn first, of all families alike, which are the folders of
`tedsl/scheduling/primitives`; then up to twenty calls, most of them of these, on a definition that
suits them: one on which they are accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType

import choices as st
from choices import Draw
from drawn_calls import steps
from drawn_chains import again, fuse_chain
from drawn_schedules import PRIMITIVES, Primitive, attempt, started
from strategies import Case

import tedsl as te
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.primitives.stage_handle import primitives_of

CALLS = 20
TRIES = 3
"""How often arguments are drawn for a call before it is given up."""
DEFINITIONS = 3
"""Of how many the one is taken for which most of the primitives have been accepted."""


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
    """The primitives, their families, and whether the rules schedule before them."""

    def __init__(self, draw: Draw) -> None:
        self.drawers = _several(draw, list(DRAWERS), 2, 5)
        self.families = tuple(sorted({each for d in self.drawers for each in DRAWERS[d]}))
        self.by_rules = draw(st.integers(0, 2)) == 2
        self.draw = draw

    def start(self, case: Case, rules: Callable[[Case], Schedule]) -> Schedule:
        """What the primitives are called on."""
        return rules(case) if self.by_rules else started(case.outputs, case.sizes)

    def call(self, schedule: Schedule) -> int:
        """Call them, of all stages or mostly of one and of what is made meanwhile; now and then
        another, which may be what makes one of them legal.

        Returns:
            of how many no call was accepted.
        """
        draw, missed = self.draw, set(self.drawers)
        names = {stage.name for stage in schedule.stages}
        others = names - {draw(st.sampled_from(sorted(names)))} if draw(st.booleans()) else set()
        for _ in steps(draw, CALLS):
            among = self.drawers if draw(st.integers(0, 3)) else PRIMITIVES
            drawer = draw(st.sampled_from(among))
            for _ in range(TRIES):
                stages = others if draw(st.integers(0, 3)) else set[str]()
                if attempt(draw, schedule, drawer, stages):
                    missed.discard(drawer)
                    break
        return len(missed)


def _several(draw: Draw, among: list[Primitive], least: int, most: int) -> list[Primitive]:
    """Different ones, in the order in which they are drawn."""
    left, found = list(among), list[Primitive]()
    for _ in range(min(len(left), draw(st.integers(least, most)))):
        found.append(left.pop(draw(st.integers(0, len(left) - 1))))
    return found
