"""What a stage is, under TVM's names: for scripts that look at a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tedsl.expr.nodes import Axis
from tedsl.scheduling.plan import Mark, Relation
from tedsl.scheduling.plan.graph import is_output
from tedsl.scheduling.plan.relations import extents
from tedsl.scheduling.primitives.placement.groups import Group, smallest
from tedsl.scheduling.primitives.stage_handle import Axes, StageHandle
from tedsl.tensor.tensor import Operation

if TYPE_CHECKING:
    from tedsl.scheduling.handles.stage import Stage

_ROOT, _INLINE, _SCOPE = 1, 2, 4


class FactMethods(StageHandle):
    """What a stage is; nothing here changes it."""

    __slots__ = ()

    @property
    def origin_op(self) -> Operation:
        """The operation as it was defined: that of the schedule's definition with this name, or
        `op` of a stage that a primitive made."""
        first = self.schedule.plans[0]
        return first.stage(self.name).op if first.has(self.name) else self.op

    @property
    def all_iter_vars(self) -> Axes:
        """The axes of the definition and those that splits and fuses made."""
        return Axes(extents(self.plan))

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The splits and fuses, in the order of the calls; each has `parent`, `outer`, `inner`,
        or `outer`, `inner`, `fused`."""
        return self.plan.relations

    @property
    def iter_var_attrs(self) -> Mapping[Axis, Mark]:
        """How each loop runs."""
        return {axis: self.plan.mark(axis) for axis in (*self.plan.leaf_axes, *self.plan.marks)}

    @property
    def attach_ivar(self) -> Axis | None:
        """The loop that the stage is computed in; None at root."""
        return self.plan.placement.axis

    @property
    def attach_stage(self) -> Stage | None:
        """The stage of that loop."""
        host = self.plan.placement.host
        return self.schedule[host] if host else None

    @property
    def attach_type(self) -> int:
        """TVM's number for the place: 1 at root, 2 inlined, 4 inside a loop."""
        place = self.plan.placement
        return _INLINE if place.inlined else _ROOT if place.axis is None else _SCOPE

    @property
    def scope(self) -> str:
        """Where the result is stored: `"global"`, `"local"` or `"shared"`."""
        return self.plan.scope.value

    @property
    def is_output(self) -> bool:
        """Whether the schedule was made for it."""
        return is_output(self.schedule.plan, self.op)

    @property
    def num_child_stages(self) -> int:
        """0: groups have stages, stages have none."""
        return 0

    @property
    def group(self) -> Group | None:
        """The smallest group that it is in: of `create_group`, or of the steps of a scan."""
        return smallest(self.schedule, (self.name,))
