"""Replaying a trace: the same primitive calls on a new schedule, of any shape."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tedsl.errors import ScheduleError
from tedsl.expr.nodes import Axis, Expr
from tedsl.expr.tensor import Operation, Tensor
from tedsl.scheduling.graph import runtime_sizes
from tedsl.scheduling.methods.handle import primitives_of
from tedsl.scheduling.schedule import Schedule, create_schedule
from tedsl.scheduling.source import call_text
from tedsl.scheduling.stage import Stage
from tedsl.scheduling.trace import (
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

SCHEDULE_PRIMITIVES = primitives_of(Schedule)
STAGE_PRIMITIVES = primitives_of(Stage)


def replay(
    outputs: Tensor | Operation | Sequence[Tensor | Operation],
    trace: Trace,
    decisions: Mapping[str, object] | None = None,
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
    for number, step in enumerate(trace.steps, 1):
        try:
            _apply(schedule, step)
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


def _apply(schedule: Schedule, step: Step) -> None:
    method = _method(schedule, step)
    args = [_value(schedule, value) for value in step.args]
    kwargs = {key: _value(schedule, value) for key, value in step.kwargs}
    try:
        inspect.signature(method).bind(*args, **kwargs)
    except TypeError as error:
        raise ScheduleError(
            f"it has other arguments than {step.primitive}: {error}",
            hint="the trace is of another version: make it again",
        ) from error
    method(*args, **kwargs)
    made = schedule.trace.steps[-1].results
    if made != step.results:
        raise ScheduleError(
            f"it made {', '.join(made)} where the trace has {', '.join(step.results)}",
            hint="replay on a computation whose stages and axes have the names of the trace",
        )


def _method(schedule: Schedule, step: Step) -> Callable[..., Any]:
    if step.primitive in SCHEDULE_PRIMITIVES:
        return getattr(schedule, step.primitive)
    if step.primitive in STAGE_PRIMITIVES:
        return getattr(schedule[step.stage], step.primitive)
    raise ScheduleError(
        f"unknown primitive {step.primitive!r}",
        facts=[("known", ", ".join(sorted(SCHEDULE_PRIMITIVES | STAGE_PRIMITIVES)))],
        hint="the trace is of another version: make it again",
    )


def _value(schedule: Schedule, value: Value) -> object:
    match value:
        case AxisRef(stage=stage, axis=axis):
            return schedule[stage].axis(axis)
        case StageRef(stage=stage):
            return schedule[stage]
        case TensorRef(stage=stage, index=index):
            outputs = schedule[stage].op.outputs
            if index < len(outputs):
                return outputs[index]
            raise ScheduleError(
                f"{stage} has no output {index}",
                stage=stage,
                hint="replay on a computation with the outputs of the traced one",
            )
        case SizeRef(tree=tree):
            return _size(schedule, tree, {})
        case MapRef(parameters=parameters, trees=trees):

            def mapped(*axes: Axis) -> list[Expr]:
                if len(axes) != len(parameters):
                    raise ScheduleError(
                        f"the stage has {len(axes)} data axes, the map takes {len(parameters)}",
                        hint="replay on a computation with the dimensions of the traced one",
                    )
                known = dict(zip(parameters, axes, strict=True))
                return [_size(schedule, tree, known) for tree in trees]

            return mapped
        case tuple():
            return [_value(schedule, item) for item in value]
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
