"""Toy search spaces and a fake machine for tests of the tuner: no compiler, no hardware."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.search.portfolio import Search
from tedsl.autotune.search_space.space import (
    Candidate,
    Choice,
    Decisions,
    Knob,
    Realised,
    Rejected,
    Space,
    read_found,
    written,
)
from tedsl.errors import ScheduleError

POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Recorder:
    """What a schedule offers to a schedule function: `knob`."""

    def __init__(self, decisions: Decisions) -> None:
        self.decisions = decisions
        self.knobs: list[Knob] = []

    def knob(self, name: str, choices: Sequence[Choice], default: Choice = None) -> Choice:
        """The decision for `name`, else the default, else the first choice."""
        chosen = self.decisions.get(name, default if default is not None else choices[0])
        if chosen not in choices:
            raise ScheduleError(
                f"knob {name}: {chosen!r} is no choice", primitive="knob", subject=f"knob({name!r})"
            )
        self.knobs.append(Knob(name, tuple(choices), chosen))
        return chosen


def toy(function: Callable[[Recorder], object], name: str = "toy") -> Space:
    """The space of `function`; what it returns stands for the trace."""

    def build(decisions: Decisions) -> Realised:
        recorder = Recorder(decisions)
        result = function(recorder)
        return Realised(tuple(recorder.knobs), "" if result is None else json.dumps(result))

    return Space(build, name)


class Others:
    """Stand-ins for other processes that make candidates of `tiles`, which travel as text; of every
    `silent` asked for nothing is heard of one."""

    def __init__(self, width: int, silent: int = 0) -> None:
        self.width = width
        self.silent = silent
        self.asked = 0

    def realise(self, wanted: Sequence[Decisions]) -> list[Candidate | Rejected | None]:
        """What they answer."""
        found: list[Candidate | Rejected | None] = []
        for decisions in json.loads(json.dumps([dict(each) for each in wanted])):
            self.asked += 1
            if self.silent and self.asked % self.silent == 0:
                found.append(None)
                continue
            made = toy(tiles).candidate(decisions, "random")
            found.append(read_found(json.loads(json.dumps(written(made)))))
        return found


def tiles(s: Recorder) -> None:
    """A tree: the knobs below `fuse` exist only when it says so, and one corner is illegal."""
    x = s.knob("tile_x", POWERS, 8)
    y = s.knob("tile_y", POWERS, 8)
    if isinstance(x, int) and isinstance(y, int) and x * y > 16384:
        raise ScheduleError("tile of more than 16384 elements", primitive="vectorize")
    if s.knob("fuse", ("inline", "root", "attach"), "inline") == "attach":
        s.knob("at", (0, 1, 2), 0)
    s.knob("warps", (1, 2, 4, 8), 4)


def tile_cost(decisions: Decisions) -> float:
    """Seconds of a candidate of `tiles`; the best is x=32, y=128, attached at 1, 8 warps."""
    x, y, warps = (float(str(decisions[name])) for name in ("tile_x", "tile_y", "warps"))
    cost = 1.0 + 0.2 * abs(math.log2(x / 32)) + 0.15 * abs(math.log2(y / 128))
    cost += 0.1 * abs(math.log2(warps / 8))
    cost += {"inline": 0.8, "root": 1.2, "attach": 0.3}[str(decisions["fuse"])]
    return 1e-3 * (cost - (0.3 if decisions.get("at") == 1 else 0.0))


def judge(candidate: Candidate) -> Outcome:
    """The fake machine: `tile_cost`, with failures at fixed places."""
    decisions = candidate.decisions
    if decisions["tile_x"] == 1 and decisions["warps"] == 8:
        return Outcome(Status.CRASH, reason="signal 11")
    if decisions["tile_y"] == 1:
        return Outcome(Status.WRONG, reason="wrong", seconds=None)
    seconds = tile_cost(decisions)
    return Outcome(Status.OK, seconds, (seconds,) * 3)


def drive(search: Search, judge: Callable[[Candidate], Outcome]) -> list[str]:
    """Run a search to its end against a fake machine; the keys in the order tried."""
    while batch := search.ask():
        search.tell(batch, [judge(candidate) for candidate in batch.candidates])
    return [trial.candidate.key for trial in search.done]
