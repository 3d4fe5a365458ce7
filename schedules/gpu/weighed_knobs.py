"""Defaults of a kernel's knobs by the cost model.

Rules choose tiles, parts and layouts by figures of their own.  Where a kernel by these is predicted
to take much longer than its bytes and its operations, the knobs of its structure are tried one
after the other (coordinate descent), and what is found is the default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tedsl.schedules.analysis.groups import Group
from tedsl.schedules.analysis.nests import contraction
from tedsl.schedules.analysis.views import definitions, elements_of, reads_of, volume
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.fusion.horizontal import Beside
from tedsl.schedules.gpu.candidates import by_themselves, seconds
from tedsl.schedules.gpu.gemm.split_floats import split_floats
from tedsl.schedules.gpu.select import schedule_group
from tedsl.schedules.trial import remembered
from tedsl.scheduling.handles.schedule import Knob, Schedule
from tedsl.target import Target

Decisions = dict[str, object]

# What a kernel may take of the time of its bytes and operations, in addition to a launch, before
# its knobs are weighed.
FAR = 1.5
# By how much a step has to shorten the time.
STEP = 0.97
# How many times as quick all steps together have to be predicted: of 44 schedules of drawn kernels,
# predicted to be so on an H200, 38 were quicker, four of the others kernels of two products.
GAIN = 1.1
# Knobs that are weighed: those of the structure.  Of 75 kernels of drawn rows on an H200, other
# parts and joined rows were 0.8 to 4 times as quick (1.3 in the mean), other tiles and numbers of
# warps 0.45 to 2.3 (1.0): these stay as the rules choose them, by what was measured.
WEIGHED = ("parts", "join_rows")
TURNED = "turn_"


def weigh(s: Schedule, group: Group, target: Target) -> None:
    """Make what is predicted to be quickest the default of a kernel's knobs."""
    names, view = (*group.inner, group.root), definitions(s)
    several = group.beside or group.regions or group.follows or group.in_parts or group.pairs
    if several or sum(contraction(view[name], grouped=True) is not None for name in names) > 1:
        return
    least = _least(s, names)
    if least < gpu_of(s).launch or math.isinf(least):
        return

    def find(trial: Schedule) -> list[tuple[int, str, object]]:
        return _weighed(trial, group, target, least)

    found = remembered(s, (weigh, str(target)), find, names)
    s.usual |= {f"{names[n]}{knob}": choice for n, knob, choice in found}


def _least(s: Schedule, names: Sequence[str]) -> float:
    """Seconds that the bytes of a kernel's operands and results take, or its operations;
    infinite where an extent is symbolic."""
    gpu, view = gpu_of(s), definitions(s)
    inside = {view[name] for name in names}
    read = {read.tensor for op in inside for read in reads_of(op) if read.tensor.op not in inside}
    moved, busy = 0, 0.0
    for tensor in (*read, *view[names[-1]].outputs):
        elements = elements_of(tensor)
        if not elements:
            return math.inf
        moved += elements * tensor.dtype.nbytes
    for op in inside:
        shape = contraction(op, grouped=True)
        if shape is not None and shape.unit is not None:
            points = volume((*op.axes, *op.reduce_axes))
            busy += math.inf if points is None else 2 * points / gpu.tensor[shape.unit]
    return max(moved / gpu.bandwidth, busy)


def _weighed(
    s: Schedule, group: Group, target: Target, least: float
) -> list[tuple[int, str, object]]:
    """What a kernel's knobs are to be: the stage they are called after, by its place in the kernel;
    the rest of the name; and the choice."""
    stages = (*group.inner, group.root)
    first, names = by_themselves(s, stages, target)
    inner = [names[name] for name in group.inner]
    own = {names[name]: dict(axes) for name, axes in group.axes.items() if name in names}
    alone = replace(group, root=names[group.root], inner=inner, axes=own)

    def rules(trial: Schedule) -> None:
        schedule_group(trial, replace(alone, inner=list(inner)), target, Beside(launches=False))
        split_floats(trial)

    def times(chosen: Decisions) -> tuple[float, Sequence[Knob]]:
        trial = Schedule(first.plan, chosen, target, gpu_of(s))
        trial.in_registers = True
        return seconds(trial, rules, target), trial.knobs

    usual, knobs = times({})
    if usual <= FAR * least + gpu_of(s).launch:
        return []
    chosen, best = _descended(times, usual, knobs, tuple(names.values()))
    if usual < GAIN * best:
        return []
    return [(*_named(knob, names, stages), choice) for knob, choice in chosen.items()]


def _descended(
    times: Callable[[Decisions], tuple[float, Sequence[Knob]]],
    best: float,
    knobs: Sequence[Knob],
    names: Sequence[str],
) -> tuple[Decisions, float]:
    """Decisions for knobs called after the stages `names`, and the time with them."""
    chosen: Decisions = {}
    seen = set[str]()
    while left := [k for k in knobs if k.name not in seen and _is_weighed(k, names)]:
        knob = left[0]
        seen.add(knob.name)
        for choice in _others(knob):
            trial = {**chosen, knob.name: choice}
            took, after = times(trial)
            if took >= STEP * best:
                break
            chosen, best, knobs = trial, took, after
    return chosen, best


def _is_weighed(knob: Knob, names: Sequence[str]) -> bool:
    """Whether a knob is weighed; none of copies of operands is."""
    owner, _, last = knob.name.rpartition(".")
    if not f"{owner}.".startswith(tuple(f"{name}." for name in names)):
        return False
    return last in WEIGHED or last.startswith(TURNED)


def _others(knob: Knob) -> tuple[object, ...]:
    """What is tried in place of a choice, as long as the time falls: larger numbers, or yes."""
    if isinstance(knob.chosen, bool):
        return () if knob.chosen else (True,)
    return knob.choices[knob.choices.index(knob.chosen) + 1 :]


def _named(knob: str, names: Mapping[str, str], stages: Sequence[str]) -> tuple[int, str]:
    """The stage of a kernel that a knob is called after, by its place, and the rest of its name."""
    fitting = [n for n, name in enumerate(stages) if knob.startswith(f"{names[name]}.")]
    place = max(fitting, key=lambda n: len(names[stages[n]]))
    return place, knob.removeprefix(names[stages[place]])
