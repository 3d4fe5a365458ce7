"""Which stages are to be one kernel, and what each kernel needs: several are only made one where
none would need itself, through others.

    kernels {a, b}, {c, d}: b reads c, and d reads a   neither can run first
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tedsl.schedules.analysis.groups import Group
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.kernels.tree import group_of
from tedsl.scheduling.plan.inline import needs_of_stage
from tedsl.scheduling.plan.links import follower_names, places


@dataclass(slots=True)
class Kernels:
    """What is decided of the kernels of a schedule, beside what its primitives have joined.

    Attributes:
        joined: for each stage that is to be in one kernel with others, all of these.  What only
            members of its kernel read may be left out.
    """

    joined: dict[str, set[str]] = field(default_factory=dict[str, set[str]])

    def join(self, names: Iterable[str]) -> None:
        """Note that some stages, and those they are joined to already, are one kernel."""
        together = set[str]()
        for name in names:
            together |= self.joined.get(name, {name})
        self.joined |= dict.fromkeys(together, together)

    def reach_behind(self, s: Schedule, name: str) -> bool:
        """True when a stage before `name` may need it: a kernel has stages on both sides of it."""
        place = places(s.plan).by_name
        led = (each for names in follower_names(s.plan).values() for each in names)
        return any(place[each] > place[name] for each in (*self.joined, *led))

    def needed(self, s: Schedule, names: Collection[str]) -> set[str]:
        """Some stages, and all those in kernels that these depend on, transitively."""
        found, waiting = set[str](), list(names)
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            found.add(name)
            stage = s.plan.stage(name)
            waiting += self._sources(s, name)
            waiting += self.joined.get(name, ())
            if stage.placement.host:
                waiting.append(stage.placement.host)
            if stage.placement.leader or name in follower_names(s.plan):
                waiting += [each.name for each in group_of(s.plan, stage)]
        return found

    def may_be_one(self, s: Schedule, names: Collection[str]) -> bool:
        """True when no dependence leads from a kernel of `names`, all its stages, through others
        back to it."""
        own = {name for each in names for name in self.joined.get(each, {each})}
        outside = {source for name in own for source in self._sources(s, name)} - own
        return own.isdisjoint(self.needed(s, outside))

    @staticmethod
    def _sources(s: Schedule, name: str) -> tuple[str, ...]:
        return needs_of_stage(s.plan, s.plan.stage(name).op)


def stages_of(group: Group) -> list[str]:
    """All the stages of a kernel."""
    return [group.root, *group.inner, *group.regions, *group.beside]


def kernels_of(groups: Iterable[Group]) -> Kernels:
    """The kernels of which others than the root are read outside."""
    found = Kernels()
    for group in groups:
        if group.beside:
            found.join(stages_of(group))
    return found
