"""Which rows of a run fall short of what is asked, by how much, and what their floor is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import expected
import suite
import summary
from workload import LINES, OURS, Bar, Line, Workload, line_of

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Missed:
    """A bar that a row is below: `asked` and `reached` are times as fast as `peer`, `reached` is
    None where the row failed."""

    peer: str
    asked: float
    reached: float | None
    ours_ms: float
    peer_ms: float


@dataclass(frozen=True)
class Shortfall:
    """A row below a bar of its line or of its own, and how it was measured."""

    load: Workload
    row: Row
    missed: tuple[Missed, ...]

    @property
    def name(self) -> str:
        """That of the row."""
        return self.load.name

    @property
    def line(self) -> Line:
        """That of the row."""
        return line_of(self.load.line)


def shortfalls(report: Mapping[str, Any]) -> list[Shortfall]:
    """The rows that are below a bar, those of a line beside each other.

    A row counts where its line has missed a bar and it is below that bar itself: below the asked
    mean where the mean is what was missed, below the least of each row where that was; and where it
    is below a bar of its own.  Rows that were disturbed are not judged, here as there.
    """
    rows = summary.as_judged_now(dict(report))["rows"]
    loads = {load.name: load for load in suite.workloads()}
    found: list[Shortfall] = []
    for line in LINES:
        own = [row for row in rows if row["line"] == line.key and row["name"] in loads]
        judged = {bar["peer"]: bar for each in summary.lines(own) for bar in each["bars"]}
        asked = [
            (bar.peer, least)
            for bar in line.bars
            if (least := threshold(bar, judged.get(bar.peer, {}))) is not None
        ]
        for row in own:
            load = loads[row["name"]]
            wanted = [*asked, *((bar.peer, bar.least or bar.geomean) for bar in load.bars)]
            missed = tuple(
                each for peer, least in wanted if (each := below(row, peer, least)) is not None
            )
            if missed:
                found.append(Shortfall(load, row, missed))
    return found


def threshold(bar: Bar, judged: Mapping[str, Any]) -> float | None:
    """What each row of a line has to reach for it to have met a bar that it missed; None where it
    has not missed it."""
    if judged.get("verdict") != "missed":
        return None
    if "geomean" not in judged or judged["geomean"] < bar.geomean:
        return bar.geomean
    return bar.least or bar.geomean


def below(row: Row, peer: str, asked: float) -> Missed | None:
    """How a row misses a bar; None where it does not or is not judged."""
    if "times" not in row:
        return Missed(peer, asked, None, math.nan, math.nan) if "failed" in row else None
    times = row["times"]
    theirs, got = summary.seconds_of(times, peer), summary.ratio(times, peer)
    if theirs is None or got is None or got >= asked or not summary.is_steady(times, peer):
        return None
    return Missed(peer, asked, got, times[OURS]["ms"], theirs)


def lines_missed(report: Mapping[str, Any]) -> list[Line]:
    """The lines with a bar that is missed."""
    judged = summary.as_judged_now(dict(report))["summary"]
    keys = {line["line"] for line in judged for bar in line["bars"] if bar["verdict"] == "missed"}
    return [line for line in LINES if line.key in keys]


@dataclass(frozen=True)
class Floor:
    """The least time of a row at the measured ceilings, and what sets it."""

    ms: float
    what: str


def floor_of(load: Workload) -> Floor:
    """Bytes at the speed of a copy, operations at a good rate, or the least of a call."""
    seconds = expected.floor(load)
    if seconds == load.moved / expected.COPIED:
        what = f"{load.moved / 1e6:.0f} MB at {expected.COPIED / 1e12:.2f} TB/s, as a copy"
    elif seconds == expected.CALL:
        what = "no call is shorter"
    else:
        rate = load.flops / seconds / 1e12
        what = f"{load.flops / 1e9:.0f} GFLOP at {rate:.0f} TFLOP/s"
    return Floor(seconds * 1e3, what)


def named(found: Sequence[Shortfall], parts: Sequence[str]) -> list[Shortfall]:
    """Those whose name contains one of `parts`; all where there is none."""
    return [each for each in found if not parts or any(part in each.name for part in parts)]
