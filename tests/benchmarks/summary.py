"""From times to verdicts: the ratio of a row to its bars, and the geometric mean of each line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import suite
from expected import bars_of
from workload import LINES, OURS, TOGETHER, Bar, Workload

Row = Mapping[str, Any]
DISTURBED = 0.1
"""Spread of samples from which something else has had a part in them."""
BESIDE: Mapping[str, tuple[str, float]] = {"copy": (OURS, 1.5), "cuDNN": ("SDPA flash", 2.0)}
"""A peer that takes so many times as long as another was not itself, however alike its samples are:
what moves as many bytes is hardly faster than a copy, and cuDNN is faster than flash elsewhere."""


def seconds_of(times: Mapping[str, Mapping[str, float]], peer: str) -> float | None:
    """Milliseconds of a peer, or of the fastest of several; None where none was measured."""
    names = TOGETHER.get(peer, (peer,))
    return min((times[name]["ms"] for name in names if name in times), default=None)


def ratio(times: Mapping[str, Mapping[str, float]], peer: str) -> float | None:
    """How many times as fast as a peer we are."""
    theirs = seconds_of(times, peer)
    return None if theirs is None else theirs / times[OURS]["ms"]


def is_steady(times: Mapping[str, Mapping[str, float]], peer: str) -> bool:
    """True when the samples of ours and of a peer (of the fastest of several) agree, and the peer
    was itself."""
    names = [name for name in TOGETHER.get(peer, (peer,)) if name in times]
    fastest = min(names, key=lambda name: times[name]["ms"], default=OURS)
    other, most = BESIDE.get(fastest, (fastest, 1.0))
    if other in times and times[fastest]["ms"] > most * times[other]["ms"]:
        return False
    return all(times[name].get("spread", 0.0) <= DISTURBED for name in (OURS, fastest))


def bars(load: Workload, times: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """A row's bars that can be judged: what is asked of the row, and what it reaches."""
    found: list[dict[str, Any]] = []
    for bar in bars_of(load):
        got = ratio(times, bar.peer)
        if got is not None:
            asked = bar.least or bar.geomean
            met = got >= asked
            found.append({"peer": bar.peer, "ratio": asked, "got": round(got, 4), "met": met})
    return found


def lines(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each line of the table with its bars: met, missed, or not measured."""
    found: list[dict[str, Any]] = []
    for line in LINES:
        own = [row for row in rows if row["line"] == line.key]
        if not own:
            continue
        found.append(
            {
                "line": line.key,
                "class": line.family,
                "title": line.title,
                "rows": len(own),
                "failed": sum("failed" in row for row in own),
                "lacking": sum("lacks" in row for row in own),
                "disturbed": sum(
                    not all(is_steady(row["times"], bar.peer) for bar in line.bars)
                    for row in own
                    if "times" in row
                ),
                "bars": [_judged(bar, own) for bar in line.bars],
            }
        )
    return found


def as_judged_now(report: dict[str, Any]) -> dict[str, Any]:
    """The recorded times under the lines and the bars of today."""
    if not report.get("summary"):
        return report
    loads = {load.name: load for load in suite.workloads()}
    rows: list[dict[str, Any]] = []
    for recorded in report["rows"]:
        row: dict[str, Any] = dict(recorded)
        load = loads.get(row["name"])
        if load is not None:
            row |= {"line": load.line, "class": suite.family_of(load)}
            if "times" in row:
                row["bars"] = bars(load, row["times"])
        rows.append(row)
    return {**report, "rows": rows, "summary": lines(rows)}


def _judged(bar: Bar, rows: Sequence[Row]) -> dict[str, Any]:
    """A bar over the rows of its line that were not disturbed, undecided where these are fewer than
    half; a row that failed is a bar that is missed."""
    ratios = {
        row["name"]: got
        for row in rows
        if "times" in row and is_steady(row["times"], bar.peer)
        if (got := ratio(row["times"], bar.peer)) is not None
    }
    found: dict[str, Any] = {"peer": bar.peer, "asked": bar.geomean, "least": bar.least}
    if not ratios:
        return {**found, "verdict": "not measured"}
    worst = min(ratios, key=lambda name: ratios[name])
    mean = math.exp(sum(math.log(r) for r in ratios.values()) / len(ratios))
    met = mean >= bar.geomean and ratios[worst] >= bar.least
    met = met and all("times" in row for row in rows)
    timed = sum(ratio(row["times"], bar.peer) is not None for row in rows if "times" in row)
    verdict = "disturbed" if 2 * len(ratios) < timed else "met" if met else "missed"
    return {
        **found,
        "geomean": round(mean, 4),
        "worst": round(ratios[worst], 4),
        "worst_row": worst,
        "verdict": verdict,
    }
