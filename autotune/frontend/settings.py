"""What a search was told, and what follows from it: trials, limits of workers, and its time.

Imports `local_executor` for its limits, and what `Options` name.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from tedsl.autotune.cluster.cluster import MakeExecutor
from tedsl.autotune.frontend.sizes import OneSize, Sizes
from tedsl.autotune.report.events import Listener
from tedsl.autotune.search.budget import BUDGETS, trials_of
from tedsl.autotune.search_space.problem import ScheduleFunction
from tedsl.autotune.workers.protocol import Limits
from tedsl.autotune.workers.worker_main import COMMAND
from tedsl.errors import TuneError
from tedsl.expr.nodes import Var
from tedsl.processor import usable_cores
from tedsl.slips import no_keyword
from tedsl.tensor.signatures import fits, meaning, refusal

DEFAULT_TRIALS = BUDGETS["normal"]
ENDLESS = 1_000_000
MOST_SECONDS = 1e6
"""What one candidate may take at most: beyond it, waiting overflows."""
SHORT = 5.0
"""Seconds below which one worker compiles on a CPU."""
FEW = 16
"""Trials below which a CPU has better to do than to look at candidates that are not tried."""
THINKING = 0.3
"""Of the time that is left, what a search may think before it tries something."""
VERIFYING = 0.05
"""Of a limited time, what calling the winner again may take."""
GRACE, SLACK = 4.0, 0.1
"""Seconds, and the share of the time, after its end in which what is under way may still end."""
CLOSING_SECONDS, CLOSING = 1.0, 0.15
"""Seconds, and the share of the time, that comparing, calling again and building may take: they are
taken from what is there for trying."""


@dataclass(slots=True)
class Options:
    """Everything that `tune` may be told; see `tedsl.autotune.autotune`."""

    budget: str | None = None
    trials: int | None = None
    seconds: float | None = None
    seed: int | None = None
    schedule: ScheduleFunction | None = None
    records: str | Path | bool | None = None
    progress: bool | None = None
    events: str | Path | Listener | None = None
    sizes: OneSize | Sizes = field(default_factory=dict[str | Var, int])
    within: float = 0.05
    kernels: int = 8
    devices: Sequence[int] | None = None
    executor: Executor | MakeExecutor | None = None
    fresh: bool = False
    candidate_seconds: float = 30.0
    lock: str | Path | None = None
    frozen: bool = False
    command: Sequence[str] = COMMAND

    @property
    def asked(self) -> int | None:
        """The trials that are asked for, by number or by the name of a budget."""
        return self.trials if self.budget is None else trials_of(self.budget)


def options_of(given: Mapping[str, object]) -> Options:
    """The options that were given by name.

    Raises:
        TuneError: a name that no option has (a TypeError, too), or a value of another type.
    """
    known = {each.name: each.type for each in fields(Options)}
    public = [name for name in known if name != "command"]
    for name, value in given.items():
        if name not in known:
            raise no_keyword("autotune", f"there is no option {name!r}", given, public, TuneError)
        hint = meaning(known[name], globals())
        if not fits(value, hint):
            raise refusal("autotune", name, value, hint, TuneError)
    return Options(**cast("dict[str, Any]", dict(given)))


@dataclass(frozen=True, slots=True)
class Time:
    """The wall-clock time of a search.

    Attributes:
        end: when nothing new is tried any more, on the clock of `time.monotonic`; None without one.
        latest: when nothing is waited for any more.
        seconds: the whole time.
    """

    end: float | None = None
    latest: float | None = None
    seconds: float | None = None

    @staticmethod
    def of(begin: float, seconds: float | None) -> Time:
        """So many seconds from `begin`."""
        if seconds is None:
            return Time()
        end = begin + seconds - min(CLOSING_SECONDS, CLOSING * seconds)
        return Time(end, begin + seconds + min(GRACE, SLACK * seconds), seconds)

    @property
    def is_over(self) -> bool:
        """True when nothing new is to be begun."""
        return self.end is not None and time.monotonic() > self.end

    def thinking(self) -> float | None:
        """Until when a search may think of what to try next."""
        now = time.monotonic()
        return None if self.end is None else now + THINKING * max(0.0, self.end - now)

    def verifying(self) -> float:
        """Seconds for calling the winner again: few of a short search, whatever it has used."""
        return math.inf if self.seconds is None else VERIFYING * self.seconds

    def left(self, most: float) -> float:
        """Seconds until the latest, at most so many; 0 when that is past."""
        if self.latest is None:
            return most
        return min(most, max(0.0, self.latest - time.monotonic()))


def pays_to_describe(options: Options, gpu: bool) -> bool:
    """Whether a look at a hundred candidates is little beside what is to be measured: on a CPU it
    takes the cores that measure."""
    few = options.trials is not None and options.trials < FEW
    return gpu or options.budget is not None or not few


def limits_of(options: Options, gpu: bool) -> Limits:
    """On a GPU one core is left to whatever feeds the device; on the CPU measuring waits."""
    each = options.candidate_seconds
    cores = usable_cores()
    workers = max(1, min(32, cores - 1)) if gpu else max(1, min(8, cores))
    if options.seconds is not None and options.seconds < SHORT and not gpu:
        workers = 1  # to start another takes a processor a large part of the time
    return Limits(compile=each, measure=each, workers=workers, overlap=gpu)
