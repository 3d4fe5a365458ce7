"""Candidate rules for one kernel, compared by the cost model: what each of them makes of the kernel
alone is lowered, and the time of that estimated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tedsl.cost.estimate import estimate
from tedsl.errors import LowerError, ScheduleError
from tedsl.lower.pipeline import lower
from tedsl.schedules.analysis.groups import Group
from tedsl.schedules.analysis.views import alone, definitions
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.gemm.split_floats import split_floats
from tedsl.schedules.trial import remembered
from tedsl.scheduling.handles.schedule import Schedule, create_schedule
from tedsl.target import Target

Rule = Callable[[Schedule, Group], None]


def quickest(s: Schedule, group: Group, rules: Sequence[Rule], target: Target) -> Rule:
    """The rule by which a kernel takes the shortest time, all knobs at their defaults; of equal
    ones the first.

    Args:
        s: the schedule; it stays as it is.
        group: the kernel, of constant extents.
        rules: the candidates.
        target: as for the rules.
    """
    names = (*group.inner, group.root)

    def times(trial: Schedule) -> list[float]:
        return [_seconds(trial, group, rule, target) for rule in rules]

    found = remembered(s, (quickest, str(target), *rules), times, names)
    return rules[found.index(min(found))]


def _seconds(s: Schedule, group: Group, rule: Rule, target: Target) -> float:
    """The time of a kernel alone; infinite where the rule cannot be carried out."""
    view = definitions(s)
    ops, _ = alone([view[name] for name in (*group.inner, group.root)])
    trial = Schedule(create_schedule(ops[-1].outputs).plan, {}, target, gpu_of(s))
    trial.in_registers = True
    own = {name: dict(axes) for name, axes in group.axes.items()}
    try:
        rule(trial, replace(group, inner=list(group.inner), axes=own))
        split_floats(trial)
        module = lower(trial.plan, target)
    except (ScheduleError, LowerError):
        return math.inf
    return estimate(module, gpu_of(s)).seconds
