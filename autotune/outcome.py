"""What the trial of a candidate gave: the words that search, engine and records share.

Imports only `space`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tedsl.autotune.search_space.space import Candidate
from tedsl.errors import TuneError
from tedsl.slips import suggests


class Status(StrEnum):
    """How the trial of one candidate ended.  Only `OK` may win.

    `CRASH` is a process that died; `DEVICE_FAULT` an error after which a device takes no more work
    from its process (an illegal access, say); `TIMEOUT` a compile or a run that did not end in
    time; `NONDETERMINISTIC` outputs that differ between two runs; `PRUNED` a candidate that was
    proved, before anything was compiled or run, to be one that cannot launch.
    """

    OK = "ok"
    WRONG = "wrong"
    NONDETERMINISTIC = "nondeterministic"
    CRASH = "crash"
    DEVICE_FAULT = "device_fault"
    TIMEOUT = "timeout"
    COMPILE_ERROR = "compile_error"
    ILLEGAL = "illegal"
    OUT_OF_MEMORY = "out_of_memory"
    PRUNED = "pruned"


@suggests(TuneError)
@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial gave.

    Attributes:
        seconds: median time of one call, for `OK` only.
        samples: all times taken, in seconds.
        reason: short text that groups like failures; `error` is the whole message.
        code: hash of the generated code, where it got that far.
        resources: facts about the code (registers, shared memory, compile seconds).
    """

    status: Status
    seconds: float | None = None
    samples: tuple[float, ...] = ()
    reason: str = ""
    error: str = ""
    code: str = ""
    resources: Mapping[str, float] = field(default_factory=dict[str, float])


@suggests(TuneError)
@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate and its outcome, numbered in the order proposed."""

    number: int
    candidate: Candidate
    outcome: Outcome

    @property
    def seconds(self) -> float:
        """Time of one call; infinite unless the trial is `OK`."""
        ok = self.outcome.status is Status.OK and self.outcome.seconds is not None
        return self.outcome.seconds if ok and self.outcome.seconds is not None else math.inf
