"""What the ratios of drawn rows look like: all together, by class, and the worst of them."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

Answer = dict[str, Any]
WORST = 10


def ratio(answer: Answer) -> float | None:
    """How many times as fast as the best peer: the median over turns, each of which compares its
    own blocks; None of a row that was not timed."""
    times = answer.get("milliseconds")
    if not times:
        return None
    ours, peers = times["tedsl"], [name for name in times if name != "tedsl"]
    best = min(peers, key=lambda name: statistics.median(times[name]))
    return statistics.median(b / a for a, b in zip(ours, times[best], strict=True))


def geomean(ratios: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


def summary(answers: Sequence[Answer]) -> Answer:
    """Counts by what became of rows, the distribution, and each class."""
    counts = Counter(each["status"] for each in answers)
    by_kind: dict[str, list[float]] = {}
    unmet: dict[str, Counter[str]] = {}
    for each in answers:
        found = ratio(each)
        if found is not None:
            by_kind.setdefault(each["kind"], []).append(found)
        elif each["status"] != "right":
            unmet.setdefault(each["kind"], Counter())[each["status"]] += 1
    ratios = sorted(r for found in by_kind.values() for r in found)
    told: Answer = {"drawn": len(answers), "counts": dict(counts), "timed": len(ratios)}
    told["without a compiled peer"] = sum("peer" in each for each in answers)
    slow = [each.get("build", 0.0) for each in answers]
    told["built within 20 s"] = sum(0 < each <= 20 for each in slow)
    if ratios:
        cuts = statistics.quantiles(ratios, n=10) if len(ratios) > 1 else ratios * 9
        told |= {"geomean": round(geomean(ratios), 3), "worst": round(ratios[0], 3)}
        told["deciles"] = [round(each, 3) for each in cuts]
    told["classes"] = {
        kind: {
            "rows": len(found),
            "geomean": round(geomean(found), 3),
            "worst": round(min(found), 3),
        }
        for kind, found in sorted(by_kind.items(), key=lambda each: geomean(each[1]))
    }
    told["unmet"] = {kind: dict(found) for kind, found in unmet.items()}
    return told


def worst(answers: Sequence[Answer], count: int = WORST) -> list[Answer]:
    """The slowest rows by their ratio, slowest first."""
    timed = [each for each in answers if ratio(each) is not None]
    return sorted(timed, key=lambda each: ratio(each) or 0.0)[:count]


def shown(told: Answer) -> str:
    """A summary as text."""
    lines = [f"{told['drawn']} drawn: {told['counts']}; {told['timed']} timed"]
    lines.append(f"{told['built within 20 s']} built within 20 s")
    if told["without a compiled peer"]:
        lines.append(f"{told['without a compiled peer']} against eager alone")
    if "geomean" in told:
        lines.append(f"geomean {told['geomean']}, worst {told['worst']}")
        lines.append(f"deciles {told['deciles']}")
    for kind, found in told["classes"].items():
        lines.append(
            f"  {kind:28}{found['rows']:4}  {found['geomean']:6.2f}  {found['worst']:6.2f}"
        )
    for kind, found in told["unmet"].items():
        lines.append(f"  {kind:28}{found}")
    return "\n".join(lines)


def kept(answer: Answer, whole: bool) -> Answer:
    """What is kept of a row: medians, and of the worst its text and schedule."""
    times = answer.get("milliseconds", {})
    found = {
        key: answer[key]
        for key in ("name", "kind", "status", "build", "kernels", "message")
        if key in answer
    }
    found["milliseconds"] = {k: round(statistics.median(v), 4) for k, v in times.items()}
    if (speed := ratio(answer)) is not None:
        found["ratio"] = round(speed, 3)
    for key in ("peer", "at", "fallbacks"):
        if answer.get(key):
            found[key] = answer[key]
    if whole:
        found |= {key: answer[key] for key in ("text", "schedule") if key in answer}
    return found
