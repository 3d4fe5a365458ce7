"""Groups of stages that move together, and TVM's `normalize`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from tedsl.errors import ScheduleError
from tedsl.expr.nodes import Axis
from tedsl.late import late
from tedsl.scheduling.plan import Inlined, Plan
from tedsl.scheduling.plan.graph import tensors_read
from tedsl.scheduling.primitives.call import Call, StageName, caller
from tedsl.scheduling.primitives.schedule_handle import ScheduleHandle
from tedsl.slips import suggests
from tedsl.tensor.tensor import ComputeOp, Operation, Tensor

if TYPE_CHECKING:
    from tedsl.scheduling.handles.schedule import Schedule
    from tedsl.scheduling.handles.stage import Stage
    from tedsl.scheduling.plan import scan_structure as scans
    from tedsl.scheduling.primitives.placement import rewrite as places
else:
    scans = late("tedsl.scheduling.plan.scan_structure")
    places = late("tedsl.scheduling.primitives.placement.rewrite")

Move = Callable[[Plan, str], tuple[Call, Plan]]


@suggests(ScheduleError)
@dataclass(frozen=True, slots=True)
class Group:
    """Stages that are attached together; made by `s.create_group`.

    Each move is one primitive call per stage in the trace, for all of them or for none.  Stages
    that are inlined, or attached at a loop of another member, stay with it.
    """

    schedule: Schedule
    names: tuple[str, ...]

    @property
    def group(self) -> Group | None:
        """The smallest group that has all of its stages and more."""
        return smallest(self.schedule, self.names, apart=True)

    @property
    def attach_ivar(self) -> Axis | None:
        """The loop that the stages which stand by themselves are computed in; None at root."""
        return self._end.attach_ivar

    @property
    def attach_stage(self) -> Stage | None:
        """The stage of that loop."""
        return self._end.attach_stage

    @property
    def num_child_stages(self) -> int:
        """How many stages and groups are in this group, and in no smaller one."""
        inner = [smallest(self.schedule, (name,)) for name in self.names]
        groups = (group.group for group in self.schedule.groups)
        return sum(group == self for group in (*inner, *groups))

    @property
    def _end(self) -> Stage:
        return self.schedule[self._free("group", ("", 0))[-1]]

    @property
    def members(self) -> tuple[Stage, ...]:
        """The stages, producers before readers."""
        return tuple(self.schedule[name] for name in self.names)

    def compute_at(self, stage: Stage | Tensor | Operation | str, axis: Axis) -> None:
        """Compute all stages of the group inside a loop of another.

        Args:
            stage: a stage outside the group, as for `Stage.compute_at`.
            axis: a loop of it.

        Requires: the stages can move one after the other, in some order, so that `compute_at` is
            legal for each when its turn comes; otherwise nothing moves.
        """
        site = caller(1)
        target = self.schedule.resolve(stage, "compute_at", site)
        shown = (("", StageName(str(self))), ("at", axis))
        args = (StageName(target), axis)

        def move(plan: Plan, name: str) -> tuple[Call, Plan]:
            call = Call("compute_at", name, args, {}, *site, shown)
            return call, places.compute_at(plan, call, target, axis)

        # Inward, readers go first; outward, what they read does.
        self._move(tuple(reversed(self._free("compute_at", site))), move)

    def compute_root(self) -> None:
        """Compute each stage of the group by itself, a kernel of its own.

        Requires: as for `compute_at`.
        """
        site = caller(1)

        def move(plan: Plan, name: str) -> tuple[Call, Plan]:
            call = Call("compute_root", name, (), {}, *site, (("", StageName(str(self))),))
            return call, places.compute_root(plan, call)

        self._move(self._free("compute_root", site), move)

    def _move(self, names: Sequence[str], move: Move) -> None:
        """Move all, each when it can be; the first that cannot says why nothing moves."""
        plan, left = self.schedule.plan, list(names)
        done: list[tuple[Call, Plan]] = []
        while left:
            refusal: ScheduleError | None = None
            for name in left:
                try:
                    call, plan = move(plan, name)
                except ScheduleError as error:
                    refusal = refusal or error
                    continue
                done.append((call, plan))
                left.remove(name)
                break
            else:
                if refusal is not None:
                    raise refusal
        self.schedule.commit_all(done)

    def _free(self, primitive: str, site: tuple[str, int]) -> tuple[str, ...]:
        """The members that stand by themselves; all are still there."""
        for name in self.names:
            self.schedule.resolve(name, primitive, site)
        own = frozenset(self.names)
        found: list[str] = []
        for name in self.names:
            place = self.schedule.plan.stage(name).placement
            if place.host not in own and not isinstance(place, Inlined):
                found.append(name)
        return tuple(found)

    def __str__(self) -> str:
        return f"group [{', '.join(self.names)}]"


class GroupMethods(ScheduleHandle):
    """What concerns several stages at once.

    Attributes:
        group_names: the stages of each group that was made.
    """

    group_names: tuple[tuple[str, ...], ...] = ()

    def create_group(
        self,
        outputs: Tensor | Operation | Stage | str | Sequence[Tensor | Operation | Stage | str],
        inputs: Tensor | Operation | Stage | str | Sequence[Tensor | Operation | Stage | str] = (),
        include_inputs: bool = False,
    ) -> Group:
        """The stages between some tensors and others, as a group to be attached together.

        Args:
            outputs: where the group ends; these stages are in it.
            inputs: where it begins: stages that outputs are computed from, directly or not.
                Without any, all computed stages that the outputs need are in the group.
            include_inputs: have the stages of `inputs` in the group too.

        Returns:
            The group, which changes nothing by itself.
        """
        site = caller(1)
        ends = self._stages(outputs, site)
        begins = self._stages(inputs, site)
        found = _between(self.plan, ends, begins, include_inputs)
        if not found:
            shown = (("", StageName(", ".join(ends))), ("inputs", StageName(", ".join(begins))))
            call = Call("create_group", "", (), {}, *site, shown)
            raise call.refuse(
                self.plan,
                f"no stage lies between {', '.join(begins) or 'the inputs'} and "
                f"{', '.join(ends) or 'nothing'}",
                facts=[("stages", ", ".join(stage.name for stage in self.plan.stages))],
                hint="name outputs that are computed from the inputs given",
            )
        made = Group(cast("Schedule", self), found)
        self.group_names = (*self.group_names, found)
        return made

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups: those of `create_group`, and the stages of the steps of each scan."""
        own = cast("Schedule", self)
        return tuple(Group(own, each) for each in (*scans.steps(self.plan), *self.group_names))

    def normalize(self) -> Schedule:
        """The schedule itself: here axes always start at 0, and there is nothing to normalize."""
        return cast("Schedule", self)

    def _stages(self, given: object, site: tuple[str, int]) -> tuple[str, ...]:
        many = isinstance(given, (list, tuple))
        items = cast("Sequence[object]", given if many else (given,))
        return tuple(self.resolve(item, "create_group", site) for item in items)


def smallest(schedule: Schedule, names: Sequence[str], apart: bool = False) -> Group | None:
    """The smallest group that has these stages, and others as well where they are a group."""
    wanted = set(names)
    around = [
        group
        for group in schedule.groups
        if wanted <= set(group.names) and not (apart and wanted == set(group.names))
    ]
    return min(around, key=lambda group: len(group.names), default=None)


def _between(
    plan: Plan, ends: Sequence[str], begins: Sequence[str], include: bool
) -> tuple[str, ...]:
    """Names of the stages on a way from `begins` to `ends`, in plan order."""
    needed = set(ends)
    for stage in reversed(plan.stages):
        if stage.name in needed and stage.name not in begins:
            needed.update(plan.stage_of(tensor.op).name for tensor in tensors_read(stage.op))
    reached = set(begins)
    for stage in plan.stages:
        if not begins or any(
            plan.stage_of(tensor.op).name in reached for tensor in tensors_read(stage.op)
        ):
            reached.add(stage.name)
    return tuple(
        stage.name
        for stage in plan.stages
        if stage.name in needed
        and stage.name in reached
        and isinstance(stage.op, ComputeOp)
        and (include or stage.name not in begins)
    )
