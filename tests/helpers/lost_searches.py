"""Short searches around which things go wrong, and records for them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from small_problems import N, chain, pieces

from tedsl.autotune import tune
from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.records.database import Records
from tedsl.autotune.records.record_key import Context
from tedsl.autotune.search_space.space import Candidate, Knob

SCHEDULE = pieces(8, 16, 32, 64)


def search(**options: Any) -> Any:
    """A short search whose winner is right."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = tune(chain(), "cpu", trials=2, schedule=SCHEDULE, progress=False, **options)
    x = np.linspace(-2, 2, N, dtype=np.float32)
    np.testing.assert_allclose(found.kernel(x), np.tanh(x * 2 + 1) * np.exp(-x), rtol=1e-5)
    assert found.winner.outcome.seconds is not None
    return found, [str(each.message) for each in caught]


def about(texts: list[str], word: str) -> list[str]:
    return [text for text in texts if word in text]


def fill(records: Records, count: int) -> list[str]:
    """So many runs with a winner each."""
    runs: list[str] = []
    for _ in range(count):
        runs.append(records.start(context(), seed=0, trials=1, seconds=None))
        won = candidate(len(runs))
        records.add(runs[-1], 0, won, Outcome(Status.OK, 1.0 + len(runs), (1.0,)))
        records.finish(runs[-1], "done", won)
    return runs


def context() -> Context:
    return Context("w", "f", "[]", "[]", "cpu", "some cpu", "", "tools", "code")


def candidate(number: int) -> Candidate:
    return Candidate((Knob("n", (number,), number),), f"trace {number}", "random")
