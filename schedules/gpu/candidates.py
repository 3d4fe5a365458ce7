"""Candidate rules for one kernel, compared by the cost model: what each of them makes of the kernel
alone is lowered, and the time of that estimated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tedsl.cost.estimate import estimate
from tedsl.errors import LowerError, ScheduleError
from tedsl.lower.pipeline import lower
from tedsl.schedules.analysis.groups import Group
from tedsl.schedules.analysis.views import alone, definitions, reads_of
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.gemm.split_floats import split_floats
from tedsl.schedules.trial import remembered
from tedsl.scheduling.handles.schedule import Schedule, create_schedule
from tedsl.target import Target

Rule = Callable[[Schedule, Group], None]
Rules = Callable[[Schedule], object]
Names = Mapping[str, str]


def quickest(
    s: Schedule, group: Group, rules: Sequence[Rule], target: Target, doubtful: float = 1.0
) -> Rule:
    """The rule by which a kernel of constant extents takes the shortest time, all knobs at their
    defaults; of equal ones the first.  Any other has to be so many times as quick where its
    prediction is `doubtful`."""
    names = (*group.inner, group.root)
    if len(rules) == 1:
        return rules[0]

    def times(trial: Schedule) -> list[float]:
        return [seconds_of(trial, group, rule, target) for rule in rules]

    first, *others = remembered(s, (quickest, str(target), *rules), times, names)
    found = [first, *(doubtful * each for each in others)]
    return rules[found.index(min(found))]


def seconds_of(s: Schedule, group: Group, rule: Rule, target: Target) -> float:
    """The time that is predicted for a kernel alone, scheduled by a rule."""

    def done(trial: Schedule, names: Names) -> None:
        inner = [names[name] for name in group.inner]
        own = {names[name]: dict(axes) for name, axes in group.axes.items() if name in names}
        rule(trial, replace(group, root=names[group.root], inner=inner, axes=own))

    return seconds_alone(s, (*group.inner, group.root), done, target)


def seconds_alone(
    s: Schedule, stages: Sequence[str], rule: Callable[[Schedule, Names], object], target: Target
) -> float:
    """The time that is predicted for a kernel of some stages, producers first, alone; infinite
    where it cannot be carried out.  `rule` schedules them, told what each is called there."""
    trial, names = by_themselves(s, stages, target)
    trial.in_registers = True

    def done(trial: Schedule) -> None:
        rule(trial, names)
        split_floats(trial)

    return seconds(trial, done, target)


def seconds_decided(
    s: Schedule, stages: Sequence[str], knob: str, choice: object, rules: Rules, target: Target
) -> float:
    """The time that is predicted for some stages, producers first, alone, by all rules, where the
    `knob` of the last of them has this choice; infinite where they cannot be carried out."""
    first, names = by_themselves(s, stages, target)
    decisions = {f"{names[stages[-1]]}.{knob}": choice}
    return seconds(Schedule(first.plan, decisions, target, gpu_of(s)), rules, target)


def by_themselves(
    s: Schedule, stages: Sequence[str], target: Target
) -> tuple[Schedule, dict[str, str]]:
    """Some stages, producers first, as a computation of their own, which has the results of those
    that no other reads; what each is called there."""
    view = definitions(s)
    ops, _ = alone([view[name] for name in stages])
    read = {read.tensor.op for op in ops for read in reads_of(op)}
    ends = [tensor for op in ops if op not in read for tensor in op.outputs]
    trial = Schedule(create_schedule(ends).plan, {}, target, gpu_of(s))
    return trial, {name: trial[op.outputs[0]].name for name, op in zip(stages, ops, strict=True)}


def seconds(trial: Schedule, rules: Rules, target: Target) -> float:
    """The time that is predicted for a schedule by some rules; infinite without one."""
    try:
        rules(trial)
        module = lower(trial.plan, target)
    except (ScheduleError, LowerError):
        return math.inf
    return estimate(module, gpu_of(trial)).seconds
