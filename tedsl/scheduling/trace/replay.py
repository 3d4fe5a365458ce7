"""Replaying a trace: the same primitive calls on a new schedule, of any shape; and what is left of
a trace where some of its calls no longer apply.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tedsl.errors import ScheduleError
from tedsl.expr.nodes import Axis, Expr
from tedsl.scheduling.handles.schedule import Schedule, create_schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.plan.graph import runtime_sizes
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.links import places
from tedsl.scheduling.primitives.stage_handle import primitives_of
from tedsl.scheduling.trace.as_python import call_text
from tedsl.scheduling.trace.trace import (
    AxisRef,
    MapRef,
    SizeRef,
    SizeTree,
    StageRef,
    Step,
    TensorRef,
    Trace,
    Value,
    size_expr,
)
from tedsl.tensor.tensor import Outputs

SCHEDULE_PRIMITIVES = primitives_of(Schedule)
STAGE_PRIMITIVES = primitives_of(Stage)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A step that was left out: its number (from 1), the call, why, and what would help.

    `because` are the numbers of the skipped steps whose results it uses, if that is why.
    """

    number: int
    text: str
    reason: str
    hint: str = ""
    because: tuple[int, ...] = ()

    def __str__(self) -> str:
        first = f"step {self.number}, {self.text}: {self.reason}"
        return f"{first}\n  do      {self.hint}" if self.hint else first


@dataclass(frozen=True, slots=True)
class Report:
    """What became of the steps of a trace.

    `refused` is why `target` cannot carry out the schedule that is left, where that is so.
    """

    total: int
    skipped: tuple[Skipped, ...] = ()
    target: str = ""
    refused: str = ""

    @property
    def complete(self) -> bool:
        """True when every step applies, and the target can carry out the schedule."""
        return not self.skipped and not self.refused

    def __str__(self) -> str:
        lines = [f"{self.total - len(self.skipped)} of {self.total} steps apply"]
        lines += [str(step) for step in self.skipped]
        if self.refused:
            lines.append(f"{self.target} cannot carry out what is left: {self.refused}")
        return "\n".join(lines)


def replay(
    outputs: Outputs, trace: Trace, decisions: Mapping[str, object] | None = None
) -> Schedule:
    """A schedule of `outputs` made by the calls of `trace`.

    Args:
        outputs: as for `create_schedule`; stages and axes need the names that the trace uses.
        trace: the calls.
        decisions: as for `create_schedule`.

    Returns:
        The schedule; its trace equals `trace`.

    Raises:
        ScheduleError: a step that does not apply, with its number and why.
    """
    schedule = create_schedule(outputs, decisions)
    names = _Names(schedule)
    for number, step in enumerate(trace.steps, 1):
        try:
            made = _apply(schedule, names, step)
            if made != step.results:
                raise ScheduleError(
                    f"it made {', '.join(made)} where the trace has {', '.join(step.results)}",
                    hint="replay on a computation whose stages and axes have the names of the "
                    "trace",
                )
        except ScheduleError as error:
            raise ScheduleError(
                f"does not apply: {error.reason}",
                subject=f"step {number} of the trace, {call_text(step)}",
                primitive=step.primitive,
                stage=error.stage or step.stage,
                axis=error.axis,
                facts=error.facts,
                hint=error.hint,
            ) from error
    return schedule


def replay_what_applies(
    outputs: Outputs,
    trace: Trace,
    decisions: Mapping[str, object] | None = None,
    without: Mapping[int, str] | None = None,
) -> tuple[Schedule, Report]:
    """A schedule of `outputs` made by those calls of `trace` that apply.

    A call is left out when it is refused, or when it uses what a call that was left out had made.

    Args:
        outputs: as for `replay`.
        trace: the calls.
        decisions: as for `create_schedule`.
        without: numbers of steps to leave out anyway, each with the reason.

    Returns:
        The schedule, and the steps that were left out.
    """
    schedule = create_schedule(outputs, decisions)
    names = _Names(schedule)
    skipped: list[Skipped] = []
    for number, step in enumerate(trace.steps, 1):
        reason, hint = (without or {}).get(number, ""), ""
        because = names.lost_by(step)
        if because:
            which = ", ".join(str(each) for each in because)
            reason = f"it uses what step{'s' * (len(because) > 1)} {which} would have made"
        elif not reason:
            try:
                _apply(schedule, names, step)
                continue
            except ScheduleError as error:
                reason, hint = error.reason, error.hint
        names.lose(step, number)
        skipped.append(Skipped(number, call_text(step), reason, hint, because))
    return schedule, Report(len(trace), tuple(skipped))


def apply_step(schedule: Schedule, step: Step) -> tuple[str, ...]:
    """Make one call on a schedule.

    Args:
        schedule: is changed.
        step: names stages and axes as they are called in the schedule.

    Returns:
        The names of the axes or stages that it made.

    Raises:
        ScheduleError: the call was refused.
    """
    return _apply(schedule, _Names(schedule), step)


@dataclass(slots=True)
class _Names:
    """What the names in the trace stand for in the schedule that is made.

    They may differ from the names there once steps have been left out.  `lost` are results of steps
    that were left out: stages, or axes as (stage, axis), each with the step's number.
    """

    schedule: Schedule
    stages: dict[str, str] = field(default_factory=dict[str, str])
    axes: dict[tuple[str, str], Axis] = field(default_factory=dict[tuple[str, str], Axis])
    lost: dict[str | tuple[str, str], int] = field(default_factory=dict[str | tuple[str, str], int])

    def stage(self, name: str) -> Stage:
        """The stage that the trace calls `name`."""
        return self.schedule[self.stages.get(name, name)]

    def axis(self, stage: str, label: str) -> Axis:
        """The axis that the trace calls `label`."""
        host = self.stage(stage)
        made = self.axes.get((stage, label))
        return made if made is not None and made in labels(host.plan) else host.axis(label)

    def keep(self, step: Step, made: tuple[str, ...]) -> None:
        """Note what an accepted step made, under the names of the trace."""
        stages = places(self.schedule.plan).by_name
        for name, actual in zip(step.results, made, strict=True):
            if step.primitive in SCHEDULE_PRIMITIVES and actual in stages:
                self.stages[name] = actual
                self.lost.pop(name, None)
            else:
                self.axes[step.stage, name] = self.stage(step.stage).axis(actual)
                self.lost.pop((step.stage, name), None)

    def lose(self, step: Step, number: int) -> None:
        """Note that a step was left out, and with it what it makes."""
        for name in step.results:
            self.lost[step.stage, name] = number
            if step.primitive in SCHEDULE_PRIMITIVES:
                self.lost[name] = number

    def lost_by(self, step: Step) -> tuple[int, ...]:
        """The numbers of steps left out whose results `step` uses."""
        used = [step.stage, *_used(step.args), *(key for _, v in step.kwargs for key in _used(v))]
        return tuple(sorted({self.lost[key] for key in used if key in self.lost}))


def _used(value: Value) -> Iterator[str | tuple[str, str]]:
    match value:
        case AxisRef(stage=stage, axis=axis):
            yield stage
            yield stage, axis
        case StageRef(stage=stage) | TensorRef(stage=stage):
            yield stage
        case tuple():
            for item in value:
                yield from _used(item)
        case _:
            pass


def _apply(schedule: Schedule, names: _Names, step: Step) -> tuple[str, ...]:
    """Make the call of a step; what it made, by the names in the schedule."""
    method = _method(schedule, names, step)
    args = [_value(names, value) for value in step.args]
    kwargs = {key: _value(names, value) for key, value in step.kwargs}
    try:
        inspect.signature(method).bind(*args, **kwargs)
    except TypeError as error:
        raise ScheduleError(
            f"it has other arguments than {step.primitive}: {error}",
            hint="the trace is of another version: make it again",
        ) from error
    method(*args, **kwargs)
    made = schedule.last_made
    if len(made) != len(step.results):
        schedule.undo()
        raise ScheduleError(
            f"it made {', '.join(made) or 'nothing'} where the trace has "
            f"{', '.join(step.results) or 'nothing'}",
            hint="replay on a computation with the dimensions of the traced one",
        )
    names.keep(step, made)
    return made


def _method(schedule: Schedule, names: _Names, step: Step) -> Callable[..., Any]:
    if step.primitive in SCHEDULE_PRIMITIVES:
        return getattr(schedule, step.primitive)
    if step.primitive in STAGE_PRIMITIVES:
        return getattr(names.stage(step.stage), step.primitive)
    raise ScheduleError(
        f"unknown primitive {step.primitive!r}",
        facts=[("known", ", ".join(sorted(SCHEDULE_PRIMITIVES | STAGE_PRIMITIVES)))],
        hint="the trace is of another version: make it again",
    )


def _value(names: _Names, value: Value) -> object:
    match value:
        case AxisRef(stage=stage, axis=axis):
            return names.axis(stage, axis)
        case StageRef(stage=stage):
            return names.stage(stage)
        case TensorRef(stage=stage, index=index):
            outputs = names.stage(stage).op.outputs
            if index < len(outputs):
                return outputs[index]
            raise ScheduleError(
                f"{stage} has no output {index}",
                stage=stage,
                hint="replay on a computation with the outputs of the traced one",
            )
        case SizeRef(tree=tree):
            return _size(names.schedule, tree, {})
        case MapRef(parameters=parameters, trees=trees):

            def mapped(*axes: Axis) -> list[Expr]:
                if len(axes) != len(parameters):
                    raise ScheduleError(
                        f"the stage has {len(axes)} data axes, the map takes {len(parameters)}",
                        hint="replay on a computation with the dimensions of the traced one",
                    )
                known = dict(zip(parameters, axes, strict=True))
                return [_size(names.schedule, tree, known) for tree in trees]

            return mapped
        case tuple():
            return [_value(names, item) for item in value]
        case _:
            return value


def _size(schedule: Schedule, tree: SizeTree, known: Mapping[str, Expr]) -> Expr:
    """The expression of a tree over runtime sizes and what is `known` by name."""
    sizes = runtime_sizes(schedule.plan)
    try:
        return size_expr(tree, {**sizes, **known})
    except KeyError as error:
        raise ScheduleError(
            f"the computation has no size {error.args[0]!r}",
            facts=[("sizes", ", ".join(sizes) or "none")],
            hint="replay on a computation with the sizes of the traced one",
        ) from error
