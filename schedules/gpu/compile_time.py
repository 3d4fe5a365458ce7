"""Compile time of GPU kernels: where the default choices would take Triton and ptxas too long,
smaller ones, by an estimate made before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from tedsl.backends.triton.compile import compile_time
from tedsl.errors import LowerError, ScheduleError
from tedsl.lower import pipeline
from tedsl.scheduling.handles.schedule import Knob, Schedule
from tedsl.target import Target

# Greedy steps; each takes the one change of a knob that helps most.
ROUNDS = 12
# Every choice that is tried schedules and lowers all stages: above this many it is not worth it.
STAGES = 64

Rules = Callable[[Mapping[str, object]], Schedule]


def in_time(
    s: Schedule, target: Target, stages: Collection[str], rules: Rules
) -> dict[str, object]:
    """Choices of the rules with which each kernel compiles in `compile_time.LIMIT` seconds, or as
    fast as a greedy search, which changes one knob at a time, gets; none where no choice helps, or
    there are too many stages to try one.

    Args:
        s: what the rules make, with a kernel that takes too long.
        target: what it is for.
        stages: whose knobs are changed, those of that kernel.
        rules: from decisions, beside those that were made, to their schedule.
    """
    best, said = s, _seconds(s, target)
    decisions: dict[str, object] = {}
    for _ in range(ROUNDS if len(s.stages) <= STAGES else 0):
        if said <= compile_time.LIMIT:
            break
        found: list[tuple[float, str, object, Schedule]] = []
        for name, choice in _changes(best.knobs, stages):
            other = _made(rules, {**decisions, name: choice})
            seconds = said if other is None else _seconds(other, target)
            if other is not None and seconds < said:
                found.append((seconds, name, choice, other))
            if seconds <= compile_time.LIMIT:
                break
        if not found:
            break
        said, name, choice, best = min(found, key=lambda each: each[0])
        decisions[name] = choice
    return decisions


def _changes(knobs: tuple[Knob, ...], stages: Collection[str]) -> Iterator[tuple[str, object]]:
    """Each knob of the stages with the neighbours of the chosen value; all other values where they
    have no order."""
    for knob in knobs:
        if not any(knob.name.startswith(f"{name}.") for name in stages):
            continue
        place = next(n for n, choice in enumerate(knob.choices) if choice is knob.chosen)
        numbers = all(isinstance(c, int) and not isinstance(c, bool) for c in knob.choices)
        near = (place - 1, place + 1) if numbers else range(len(knob.choices))
        for n in near:
            if n != place and 0 <= n < len(knob.choices):
                yield knob.name, knob.choices[n]


def _made(rules: Rules, decisions: Mapping[str, object]) -> Schedule | None:
    try:
        return rules(decisions)
    except ScheduleError:
        return None


def _seconds(s: Schedule, target: Target) -> float:
    """The compile time of the slowest kernel of a schedule; infinite for one that cannot be
    lowered, or whose tiles do not stay in registers."""
    try:
        module = pipeline.lower(s.plan, target)
    except LowerError:
        return float("inf")
    if any(buffer.private for buffer in module.workspaces):
        return float("inf")
    return compile_time.slowest(module)[1]


__all__ = ["in_time"]
