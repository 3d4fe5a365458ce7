"""What a search gives back.  Imports `outcome` and `runtime`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tedsl import saving
from tedsl.autotune.measure.paired_ratios import Ratio
from tedsl.autotune.outcome import Trial
from tedsl.autotune.report.events import Event
from tedsl.autotune.search_space.space import Candidate
from tedsl.cost.roofline import Roofline
from tedsl.errors import TuneError
from tedsl.runtime.kernel import Kernel
from tedsl.slips import suggests

if TYPE_CHECKING:
    from tedsl.autotune.report.report import Report


@suggests(TuneError)
@dataclass(frozen=True, slots=True, eq=False)
class TuneResult:
    """What a search found.

    Attributes:
        kernel: the winner, built.
        winner: its trial; its time is that of the closing comparison where there was one.
        trials: everything tried, in order (only the winner when it came from the records).
        rejected: how many candidates failed, by way of failing.
        replayed: True when the records answered and nothing was measured.
        interrupted: True when Ctrl-C ended the search.
        exhausted: True when the whole space was tried.
        seconds: time the call took.
        summary: the table of the search as text.
        idle: the share of the search in which the device had nothing to do.
        compile_seconds: time of all compilations, added up over the workers.
        measure_seconds: time in which the measuring worker had work.
        against: the winner's time over that of the default (or the earlier winner), with its
            confidence interval, where both were compared at the end.
        stopped: why no further batch was tried; empty when the search was cut short.
        events: what happened, in order, without what was only proposed or compiled.
        searched: the trials with the times that they had before the closing comparison.
        roofline: what any schedule needs at least; None where the device is not known.
        workers: processes that compiled.
        named: what the schedule itself calls a knob.
        sizes: values of symbolic sizes that were tuned for, by name.
        verified: how many more calls of the winner were right, on poisoned outputs: 300 where the
            time allowed; after 150 a fault that one call in fifty has was met with 95 %.
    """

    kernel: Kernel
    winner: Trial
    trials: tuple[Trial, ...]
    rejected: Mapping[str, int]
    replayed: bool = False
    interrupted: bool = False
    exhausted: bool = False
    seconds: float = 0.0
    summary: str = ""
    idle: float = 0.0
    compile_seconds: float = 0.0
    measure_seconds: float = 0.0
    against: Ratio | None = None
    stopped: str = ""
    events: tuple[Event, ...] = ()
    searched: tuple[Trial, ...] = ()
    roofline: Roofline | None = None
    workers: int = 1
    named: Callable[[str], str] = str
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    verified: int = 0

    @property
    def tried(self) -> int:
        """Candidates that were tried beside the default; 0 of what came from the records."""
        return sum(trial.candidate.origin != "default" for trial in self.trials)

    @property
    def speedup(self) -> float | None:
        """How much faster than the default the winner is; None when either time is not known."""
        first = self.trials[0]
        known = first.candidate.origin == "default" and first.outcome.seconds
        return first.seconds / self.winner.seconds if known else None

    def text(self, candidate: Candidate) -> str:
        """A candidate by the names of the schedule's own knobs."""
        knobs = tuple(replace(knob, name=self.named(knob.name)) for knob in candidate.knobs)
        return str(replace(candidate, knobs=knobs))

    @property
    def report(self) -> Report:
        """What was learnt: print it, or let a notebook show it."""
        module: Any = importlib.import_module("tedsl.autotune.report.report")
        report: Report = module.report_of(self)
        return report

    def plot(self, path: str | Path) -> Path:
        """Draw the tuning curve and the roofline to a file: .svg, .png or .pdf.

        Returns:
            The path.

        Raises:
            TuneError: nothing was measured, matplotlib is missing, or it cannot write such a file.
        """
        module: Any = importlib.import_module("tedsl.autotune.report.plots")
        return Path(module.plot(self, Path(path)))

    def save(self, path: str | Path) -> Path:
        """Write it to a file.

        Args:
            path: `.svg`, `.png` or `.pdf` for the tuning curve and the roofline (`plot`), `.html`
                or `.txt` for the report.

        Returns:
            The path.

        Raises:
            TuneError: another ending, nothing to draw, or a file that cannot be written.
        """
        html, plain = saving.text(self.report.to_html), saving.text(lambda: f"{self.report}\n")
        writers: dict[str, saving.Writer] = dict.fromkeys((".svg", ".png", ".pdf"), self.plot)
        writers |= {".html": html, ".txt": plain}
        return saving.save(path, "what a search learnt", writers, TuneError)

    def _repr_html_(self) -> str:
        return self.report.to_html()
