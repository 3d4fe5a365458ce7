"""One of several sizes of a search: its problem, its place in the records, what was found there.

Imports `tuner`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from tedsl.autotune.cluster.cluster import Share
from tedsl.autotune.outcome import Outcome
from tedsl.autotune.search_space.problem import Problem
from tedsl.autotune.search_space.space import Candidate, Space
from tedsl.autotune.tuner import Tuner
from tedsl.workload.workload import Workload


@dataclass(slots=True, eq=False)
class Case:
    """One size: its problem, its place in the records, and what was found there.

    Attributes:
        times: seconds of each candidate that ran correctly, by the key of the shared candidate.
        own: the candidate that a shared one is at this size, by the same key.
        asked: keys of the candidates that were to be tried here.
        waits: number and key of the candidates of a batch that are tried here, by batch.
        missing: how many of them are not done yet.
    """

    sizes: dict[str, int]
    weight: float
    workload: Workload
    problem: Problem
    space: Space
    tuner: Tuner
    share: Share
    run: str = ""
    times: dict[str, float] = field(default_factory=dict[str, float])
    own: dict[str, Candidate] = field(default_factory=dict[str, Candidate])
    outcomes: dict[str, Outcome] = field(default_factory=dict[str, Outcome])
    asked: set[str] = field(default_factory=set[str])
    waits: dict[int, list[tuple[int, str]]] = field(
        default_factory=dict[int, list[tuple[int, str]]]
    )
    missing: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def best(self) -> float:
        """The least time."""
        return min(self.times.values(), default=math.inf)

    def known(self, candidate: Candidate) -> Outcome | None:
        """What an earlier run found of a candidate here."""
        record = self.tuner.known.get(candidate.key)
        if record is None or record.trace != candidate.trace:
            return None
        return record.outcome

    @property
    def label(self) -> str:
        """`m=64, n=512`."""
        return ", ".join(f"{name}={value}" for name, value in self.sizes.items())


def reasons_at(case: Case) -> list[str]:
    """How candidates failed at a size."""
    counts = Counter(f"{o.status}: {o.reason}" for o in case.outcomes.values())
    return [f"{count} {reason}" for reason, count in counts.most_common(8)]
