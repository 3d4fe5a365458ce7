"""Spaces over real computations: the default rules, or a user's schedule function.

Inside a space knobs have name-free names (see `naming`), so that its candidates mean the same for
every program that computes the same.  Imports `scheduling` and, by name, `schedules`.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, cast

from tedsl.autotune.search_space.anonymous_names import Naming, number_trace
from tedsl.autotune.search_space.space import Decisions, Knob, Realised, Space, canonical, freeze
from tedsl.devices import Device
from tedsl.errors import ScheduleError, TuneError
from tedsl.schedules import schedule_for
from tedsl.scheduling.handles.schedule import Schedule, create_schedule
from tedsl.tensor.tensor import Tensor

HERE_ONLY = ("tensorize",)
"""Primitives that need what only this process knows: a declared intrinsic is code."""
ScheduleFunction = Callable[[Schedule], object]


def _taking_one(function: ScheduleFunction) -> ScheduleFunction:
    """The function of a user, which is called with a schedule.

    Raises:
        TuneError: it cannot be.
    """
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise TuneError(
            f"the schedule function cannot be called with a schedule: {error}",
            hint="write def schedule(s): ..., with one argument",
        ) from error
    except ValueError:  # code without a signature
        return function
    return function


class Problem:
    """The outputs to compute, the target, and who writes the schedule.

    Args:
        outputs: tensors.
        target: `cpu` or `cuda`.
        function: the user's schedule function; None for the default rules.
        device: what it is for, where that is not the device of the target here.
    """

    def __init__(
        self,
        outputs: Sequence[Tensor],
        target: str,
        function: ScheduleFunction | None = None,
        device: Device | None = None,
    ) -> None:
        self.outputs = tuple(outputs)
        self.target = target
        self.function = None if function is None else _taking_one(function)
        self.device = device
        self.naming = Naming.of(self.outputs)
        self._last: tuple[str, Schedule] | None = None
        self._default: tuple[str, Schedule] | None = None

    @property
    def name(self) -> str:
        """Which space this is: `rules`, or a digest of the user's function."""
        return "rules" if self.function is None else f"function {function_digest(self.function)}"

    def schedule(self, decisions: Decisions) -> Schedule:
        """The schedule that `decisions` (by name-free names) lead to."""
        asked = canonical(decisions)
        if self._default is not None and self._default[0] == asked:
            return self._default[1].copy()
        if self._last is None or self._last[0] != asked:
            self._last = (asked, self._made(decisions))
        return self._last[1].copy()

    def _made(self, decisions: Decisions) -> Schedule:
        named = self.naming.named_all(decisions)
        if self.function is None:
            return schedule_for(self.outputs, self.target, named, self.device)
        plan, target = create_schedule(self.outputs).plan, self.target.partition(":")[0]
        schedule = Schedule(plan, named, target, self.device)
        self.function(schedule)
        return schedule

    def realise(self, decisions: Decisions) -> Realised:
        """What `decisions` lead to, in name-free terms."""
        schedule = self.schedule(decisions)
        realised = self._realised(schedule)
        if not decisions:  # often what is built in the end, when others have been tried
            chosen = {knob.name: knob.chosen for knob in realised.knobs}
            self._default = (canonical(chosen), schedule)
        return realised

    def _realised(self, schedule: Schedule) -> Realised:
        for step in schedule.trace.steps:
            if step.primitive in HERE_ONLY:
                raise ScheduleError(
                    f"{step.args[-1]!r} was declared in this process, and the processes that try "
                    "candidates do not know it",
                    primitive=step.primitive,
                    stage=step.stage,
                    hint="schedules that use it can be built and timed (te.build, te.runtime), not "
                    "tuned: leave the call out of the schedule function",
                )
        knobs = tuple(
            Knob(
                self.naming.anonymous(knob.name),
                tuple(freeze(choice, knob.name) for choice in knob.choices),
                freeze(knob.chosen, knob.name),
            )
            for knob in schedule.knobs
        )
        return Realised(knobs, number_trace(schedule.trace.to_json()))

    def space(self) -> Space:
        """All candidates of the problem."""
        return Space(self.realise, self.name, self.naming.named)


def function_digest(function: Callable[..., object]) -> str:
    """16 hex digits that change when the function's code, defaults or captured numbers change.

    Raises:
        TuneError: not a Python function.
    """
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        raise TuneError(
            f"schedule={function!r} is no Python function",
            hint="pass a function of one argument, the schedule: def f(s): ...",
        )
    digest = hashlib.sha256()
    _digest_code(code, digest.update)
    defaults: Any = getattr(function, "__defaults__", None)
    cells: Any = getattr(function, "__closure__", None) or ()
    captured = [_plain(cell.cell_contents) for cell in cells]
    digest.update(repr((_plain(defaults), captured)).encode())
    return digest.hexdigest()[:16]


def _digest_code(code: CodeType, update: Callable[[bytes], object]) -> None:
    update(code.co_code)
    update(repr((code.co_names, code.co_varnames)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _digest_code(constant, update)
        elif isinstance(constant, frozenset):
            items = cast("frozenset[object]", constant)
            update(repr(sorted(map(repr, items))).encode())
        else:
            update(repr(constant).encode())


def _plain(value: object) -> object:
    """A value when it is plain data, else only its type: tensors are in the workload's hash."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in cast("Sequence[object]", value)]
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value)
        return {str(key): _plain(item) for key, item in pairs.items()}
    return type(value).__qualname__
