"""How long compilations and measurements take, and what the next of them are given.

A hang must not cost what a slow compiler is allowed, so limits follow what was seen.  Imports
`machine` and `protocol`.
"""

from __future__ import annotations

import statistics

from tedsl.autotune.records.machine import pressure
from tedsl.autotune.workers.protocol import Job, Limits

FEW = 8
"""Measurements and compilations after which their own times bound the next."""
COMPILE_FLOOR = 5.0
STALL_FLOOR = 1.0
"""The least that a compilation gets when everything waits for it."""
MEASURE_FLOOR = 0.5
"""The least that a measurement gets on a machine that is not overloaded."""
FIRST_FLOOR = 10.0


class Pace:
    """Time limits that follow from what was seen.

    Args:
        limits: those of a search that has seen nothing.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._compiled: list[float] = []
        self._measured: dict[str, list[float]] = {}

    def compiled(self, seconds: float) -> None:
        """A compilation has taken so long."""
        self._compiled.append(seconds)

    def measured(self, job: Job, seconds: float) -> None:
        """A measurement has taken so long."""
        self._measured.setdefault(job.problem, []).append(seconds)

    def compile_limit(self, *, settled: bool) -> float:
        """Three times what nearly all compilations took, once some have been seen."""
        if len(self._compiled) < FEW or not settled:
            return self.limits.compile
        usual = statistics.quantiles(self._compiled, n=10)[-1]
        return min(self.limits.compile, max(COMPILE_FLOOR, 3 * usual))

    def stalled_limit(self) -> float:
        """What a compilation gets when there is nothing else to do, once some have been seen."""
        if len(self._compiled) < FEW:
            return self.limits.compile
        return max(STALL_FLOOR, 3 * statistics.quantiles(self._compiled, n=10)[-1])

    def measure_limit(self, job: Job, *, settled: bool) -> float:
        """Five times what nearly all measurements of a problem took, once some have been seen; more
        for the first of a worker, which wakes the device and makes the inputs, and for a check,
        which may be the first at its sizes, or with inputs that have to be brought there."""
        times = self._measured.get(job.problem, [])
        if not times or "inputs" in job.left:
            return self.limits.measure
        if len(times) < FEW or not settled or job.measured is not None:
            return min(self.limits.measure, max(FIRST_FLOOR, 10 * max(times)))
        usual = statistics.quantiles(times, n=10)[-1]
        floor = MEASURE_FLOOR * pressure() * (1 if self.limits.overlap else 2)
        return min(self.limits.measure, max(floor, 5 * usual))
