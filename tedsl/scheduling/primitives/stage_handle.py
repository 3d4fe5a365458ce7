"""What all handles on a stage share, and the mark of a primitive.  Imports plan and calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from sys import maxsize
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar, cast

from tedsl.deep import room
from tedsl.errors import ScheduleError
from tedsl.expr.nodes import Axis
from tedsl.late import late
from tedsl.scheduling.handles.auto import auto
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.primitives.call import Call, caller
from tedsl.slips import NoFunction, Numbered
from tedsl.tensor.signatures import PLAIN, refused, respelt
from tedsl.tensor.tensor import ComputeOp, ExternOp, PlaceholderOp

if TYPE_CHECKING:
    from tedsl.scheduling.handles import auto_choices as automatic
    from tedsl.scheduling.handles.schedule import Schedule
else:
    automatic = late("tedsl.scheduling.handles.auto_choices")

Made = TypeVar("Made", bound=tuple[Axis, ...])
Method = TypeVar("Method", bound=Callable[..., Any])

_PRIMITIVES: set[str] = set()


def primitive(method: Method) -> Method:
    """Mark a method as a primitive: one call of it is one step of the trace, which replays it.

    An argument of it may be `te.auto`, for which a choice is put.
    """
    _PRIMITIVES.add(method.__qualname__)

    @wraps(method)
    def primitive_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            kwargs = respelt(method.__name__, kwargs)
        with room:
            for value in (*args, *kwargs.values()):
                if value is auto:
                    return automatic.decide(self, method, args, kwargs)
            try:
                return method(self, *args, **kwargs)
            except PLAIN as found:
                refusal = refused(method, (self, *args), kwargs, ScheduleError)
                if refusal is None:
                    raise
                raise refusal from found

    return cast("Method", primitive_call)


def primitives_of(handle: type) -> frozenset[str]:
    """Names of the primitives that a class of handles has, its bases included."""
    return frozenset(
        name
        for base in handle.__mro__
        for name, value in vars(base).items()
        if getattr(value, "__qualname__", "") in _PRIMITIVES
    )


class Axes(Numbered[Axis]):
    """Axes, each of which is equal to itself alone."""

    __slots__ = ()

    def __contains__(self, axis: object) -> bool:
        return any(each is axis for each in self)

    def index(self, value: Axis, start: SupportsIndex = 0, stop: SupportsIndex = maxsize) -> int:
        """The place of an axis.

        Raises:
            ValueError: it is none of them.
        """
        return [id(each) for each in self].index(id(value), start, stop)


@dataclass(frozen=True, slots=True)
class StageHandle(NoFunction):
    """A stage of a schedule, by name; what it is follows the schedule's plan."""

    schedule: Schedule
    name: str

    @property
    def plan(self) -> StagePlan:
        """What has been decided, as data."""
        name = self.schedule.resolve(self, f"s[{self.name}]", ("", 0))
        return self.schedule.plan.stage(name)

    @property
    def op(self) -> ComputeOp | PlaceholderOp | ExternOp:
        """The operation as it is now; `.axis` and `.reduce_axis` are its root axes."""
        return self.plan.op

    @property
    def leaf_iter_vars(self) -> Axes:
        """The loops, outermost first; `axis in s[T].leaf_iter_vars` asks for the axis itself."""
        return Axes(self.plan.leaf_axes)

    def axis(self, label: str) -> Axis:
        """The axis called `label` in traces and printed loop nests, e.g. `i.outer`."""
        known = {text: axis for axis, text in labels(self.plan).items()}
        if label in known:
            return known[label]
        call = self._call("axis", (label,))
        raise call.refuse(
            self.schedule.plan,
            f"{self.name} has no axis {label!r}",
            facts=[("axes", ", ".join(known))],
            hint="use one of the axes listed",
        )

    def _call(self, primitive: str, args: tuple[object, ...], **kwargs: object) -> Call:
        """The call of a primitive of this stage, made by the caller of the method that asks."""
        file, line = caller(2)
        given = {key: value for key, value in kwargs.items() if value is not None}
        return Call(primitive, self.name, args, given, file, line)

    def _commit(self, call: Call, plan: Plan, made: Made = ()) -> Made:
        """Take the plan that a primitive made, and its new axes."""
        return self.schedule.commit(call, plan, made)

    def __repr__(self) -> str:
        return f"Stage({self.name})"
