"""Search a row's schedule and keep the winner, in one process that has its device to itself.

What is kept is a lock file, from which `job_measure` takes the winner: it is measured there, beside
its peers, in another process.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from workload import Workload, buildable

import tedsl as te
from tedsl.autotune import tune
from tedsl.autotune.frontend.lockfile import LockFile
from tedsl.autotune.outcome import Status, Trial
from tedsl.autotune.records.machine import context_of
from tedsl.autotune.search_space.problem import Problem
from tedsl.workload.workload import Workload as Computation

Settings = Mapping[str, Any]
SHOWN = 8
"""How many candidates that ended badly are reported."""
TAIL = 300


def run(load: Workload, settings: Settings, wait: Callable[[], None]) -> dict[str, Any]:
    """What was tried, how fast the default and the winner were, and what was decided."""
    outputs = buildable(load.outputs())
    if isinstance(outputs, te.Schedule):
        raise ValueError(f"{load.name} has a written schedule: there is nothing to search")
    wait()
    take_cores(settings)
    begin = time.monotonic()
    found = tune(
        outputs,
        load.target,
        trials=settings.get("trials") or None,
        seconds=settings.get("seconds"),
        records=False,
        fresh=True,
        lock=lock_of(load, settings),
        progress=False,
    )
    default = next((t for t in found.trials if t.number == 0), None)
    bad = [t for t in found.trials if t.outcome.status not in (Status.OK, Status.PRUNED)]
    return {
        "line": load.line,
        "tuned": {
            "seconds": round(time.monotonic() - begin, 1),
            "measured": sum(t.outcome.status is Status.OK for t in found.trials),
            "rejected": dict(found.rejected),
            "default_us": None if default is None else microseconds(default.outcome.seconds),
            "winner_us": microseconds(found.winner.seconds),
            "winner": found.winner.number,
            "decisions": found.winner.candidate.decisions,
            "idle": round(found.idle, 3),
            "ended badly": [described(trial) for trial in bad[:SHOWN]],
        },
    }


def described(trial: Trial) -> dict[str, Any]:
    """How a candidate ended, and which it was."""
    outcome = trial.outcome
    how = f"{outcome.status.value}: {outcome.reason} {outcome.error[-TAIL:]}".strip()
    return {"how": how, "decisions": trial.candidate.decisions}


def microseconds(seconds: float | None) -> float | None:
    """Rounded, for a table."""
    return None if seconds is None else round(seconds * 1e6, 2)


def take_cores(settings: Settings) -> None:
    """This device's share of the processors: the others are for the searches beside this one."""
    devices = int(settings.get("devices") or 1)
    if devices < 2:
        return
    place = int(os.environ.get("CUDA_VISIBLE_DEVICES", "0") or 0)
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // devices
    os.sched_setaffinity(0, cores[place * each : (place + 1) * each])


def lock_of(load: Workload, settings: Settings) -> Path:
    """The lock file of a row's target."""
    return Path(settings["records"]) / f"{load.target}.lock"


def kept(load: Workload, settings: Settings) -> te.Kernel | None:
    """The winner that is kept for this row on this device; None where there is none, or the rules
    no longer lead to it."""
    lock = LockFile(lock_of(load, settings))
    outputs = buildable(load.outputs())
    if not len(lock) or isinstance(outputs, te.Schedule):
        return None
    computation = Computation.of(outputs)
    problem = Problem(computation.outputs, load.target)
    context = context_of(computation, load.target, problem.space().name, json.dumps({}))
    winner = lock.pinned(context, problem.space(), frozen=False)
    if winner is None:
        return None
    return te.build(problem.schedule(winner.decisions), load.target)
