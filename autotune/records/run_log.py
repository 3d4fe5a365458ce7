"""What one run writes down: each outcome under the number of its candidate, as soon as it comes.

What an earlier run here has written is left to that: a search that is killed and resumed again and
again writes each candidate once, and once more those that it compares in the end.

Imports `database`, `protocol` and `search`.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from tedsl.autotune.outcome import Outcome, Trial
from tedsl.autotune.records.database import Records
from tedsl.autotune.search.portfolio import Batch
from tedsl.autotune.search_space.space import Candidate
from tedsl.autotune.workers.protocol import Done


class Ledger:
    """The batches of a run and their outcomes on record.

    Args:
        records: where to.

    Attributes:
        run: its id, once it has begun.
    """

    def __init__(self, records: Records) -> None:
        self.records = records
        self.run = ""
        self._batches: dict[int, Batch] = {}
        self._kept: dict[tuple[int, int], Done] = {}
        self._recorded: dict[str, Outcome] = {}
        self._left: set[str] = set()
        self._turn = threading.Lock()
        self._listens = True

    @property
    def is_empty(self) -> bool:
        """True as long as nothing was begun."""
        return not self._batches

    def begin(self, batch: Batch) -> None:
        """Outcomes of this batch are to come."""
        self._batches[batch.number] = batch

    def find(self, batch: int, position: int) -> tuple[int, Candidate] | None:
        """The number, of all of the run, and the candidate at a position of a batch; None where
        that batch is not the run's."""
        found = self._batches.get(batch)
        return None if found is None else (found.first + position, found.candidates[position])

    def keep(self, done: Done) -> None:
        """Record an outcome, unless it is on record; a second one of the same candidate (`again`)
        takes the place of the first."""
        place = done.batch, done.position
        if done.outcome is None or (place in self._kept and not done.again):
            return
        found = self.find(*place)
        if found is not None:
            number, candidate = found
            if self._recorded.get(candidate.key) is done.outcome:
                self._left.add(candidate.key)  # an earlier run has written it
            else:
                self.records.add(self.run, number, candidate, done.outcome)
                self._left.discard(candidate.key)
            self._kept[place] = done

    def recorded(self, candidate: Candidate, outcome: Outcome) -> None:
        """An earlier run has recorded this outcome: it need not be written again."""
        self._recorded[candidate.key] = outcome

    def ensure(self, trial: Trial) -> None:
        """Write a trial of this run that was left to an earlier one: it is more than one of many
        now."""
        if trial.candidate.key in self._left:
            self._left.discard(trial.candidate.key)
            self.records.add(self.run, trial.number, trial.candidate, trial.outcome)

    def hear(self, done: Done) -> None:
        """`keep`, for an engine, which calls it in its own thread while the search thinks."""
        with self._turn:
            if self._listens:
                self.keep(done)

    def close(self) -> list[Done]:
        """Hear no more: what comes now is not taken.  Returns the newest outcome of each candidate
        that is on record."""
        with self._turn:
            self._listens = False
        return [replace(done, again=False) for done in self._kept.values()]
