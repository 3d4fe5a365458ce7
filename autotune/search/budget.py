"""Budgets by name, what a trial costs, and why a search ended.  Imports `outcome` and `errors`."""

from __future__ import annotations

from enum import StrEnum

from tedsl.autotune.outcome import Outcome
from tedsl.errors import TuneError

BUDGETS = {"none": 0, "quick": 16, "normal": 64, "full": 256}
"""Measurements of each budget.  `none` measures nothing: the model alone chooses."""


class Stop(StrEnum):
    """Why no further batch comes.

    `BUDGET`: all trials are used.  `EXHAUSTED`: everything legal has been proposed.  `BOUND`: the
    best is as near to the floor as was asked for.  `GAIN`: the next batch is expected to save less
    than it costs.  `TIME`: it was over before anything was found to propose.
    """

    BUDGET = "budget"
    EXHAUSTED = "exhausted"
    BOUND = "bound"
    GAIN = "gain"
    TIME = "time"


def trials_of(budget: str) -> int:
    """How many measurements a named budget allows.

    Raises:
        TuneError: no such budget.
    """
    if budget not in BUDGETS:
        raise TuneError(
            f"budget={budget!r} is unknown",
            subject="autotune",
            facts=[("allowed", ", ".join(f"{name} ({n})" for name, n in BUDGETS.items()))],
            hint="name one of these, or give trials= or seconds=",
        )
    return BUDGETS[budget]


def cost_of(outcome: Outcome) -> float:
    """Seconds that a trial took: its compilation and its measured calls, as far as recorded.

    It is read from the outcome, not from a clock, so that a resumed or replayed search decides
    alike.
    """
    compiled = outcome.resources.get("compile_seconds", 0.0)
    return compiled + sum(outcome.samples)
