"""What the user sees: a progress line while the search runs, and a table when it is done.

With rich on a terminal the line is live; else plain lines are written now and then.  rich is
loaded only to draw.  Writes to standard error.  Imports `search`.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from tedsl.autotune.search import Outcome, Search, Status, Trial
from tedsl.autotune.space import Candidate
from tedsl.runtime.timing import format_seconds

PLAIN_EVERY = 5.0
"""Seconds between plain lines."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent."""

    trials: int | None
    seconds: float | None

    def used(self, trials: int, seconds: float) -> str:
        """How much of it is gone, as text."""
        of_trials = f"/{self.trials}" if self.trials is not None else ""
        of_seconds = f"/{self.seconds:g}" if self.seconds is not None else ""
        return f"{trials}{of_trials} trials, {seconds:.0f}{of_seconds} s"


def failures(outcomes: Iterable[Outcome], rejected: int = 0) -> Counter[str]:
    """How many candidates ended in each way but `ok`, schedules that were refused included."""
    counts = Counter(o.status.value for o in outcomes if o.status is not Status.OK)
    if rejected:
        counts[Status.ILLEGAL.value] += rejected
    return counts


class Progress:
    """The line that shows how far a search is.

    Args:
        budget: what may be spent.
        show: False for silence; None for a live line on a terminal only; True for plain lines too.
        stream: where it goes.
    """

    def __init__(self, budget: Budget, show: bool | None, stream: TextIO | None = None) -> None:
        self.budget = budget
        self.stream = sys.stderr if stream is None else stream
        terminal = self.stream.isatty()
        self.shown = terminal if show is None else show
        self.begin = time.monotonic()
        self._last = 0.0
        self._live: Any = None
        if self.shown and terminal:
            self._live = _live_line(self.stream)

    def update(self, search: Search, current: Sequence[Outcome | None] = ()) -> None:
        """Show the state of the search; `current` are outcomes it has not been told yet."""
        if not self.shown:
            return
        now = time.monotonic()
        if self._live is not None:
            self._live.update(self.line(search, current), refresh=now - self._last > 0.1)
        elif now - self._last >= PLAIN_EVERY or not self._last:
            self.write(self.line(search, current))
        else:
            return
        self._last = now

    def line(self, search: Search, current: Sequence[Outcome | None] = ()) -> str:
        """`tuning 12/64 trials, 3 s | best 1.2 ms (1.8x the default) | rejected 2: 1 wrong ...`."""
        fresh = [outcome for outcome in current if outcome is not None]
        outcomes = [t.outcome for t in search.done] + fresh
        times = [o.seconds for o in outcomes if o.status is Status.OK and o.seconds is not None]
        spent = self.budget.used(len(outcomes), time.monotonic() - self.begin)
        parts = [f"tuning {spent}"]
        if times:
            first = outcomes[0]
            gain = ""
            if first.status is Status.OK and first.seconds:
                gain = f" ({first.seconds / min(times):.2f}x the default)"
            parts.append(f"best {format_seconds(min(times))}{gain}")
        bad = failures(outcomes, len(search.rejected))
        if bad:
            detail = ", ".join(f"{count} {name}" for name, count in sorted(bad.items()))
            parts.append(f"rejected {sum(bad.values())}: {detail}")
        return " | ".join(parts)

    def stop(self) -> None:
        """Take the live line away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def write(self, text: str) -> None:
        """A line of text."""
        if self.shown:
            self.stream.write(text + "\n")
            self.stream.flush()


def summary(
    search: Search,
    winner: Trial,
    show: Callable[[Candidate], str],
    seconds: float,
    notes: Sequence[str] = (),
) -> str:
    """The table after a search: the fastest candidates, the default, and how the rest ended."""
    ranked = search.ranking()
    rows = [winner, *(t for t in ranked if t is not winner)][:5]
    default = search.done[0]
    if default not in rows and default.outcome.status is Status.OK:
        rows.append(default)
    base = default.seconds if default.outcome.status is Status.OK else None
    lines = [f"{'':2}{'time':>10}  {'vs default':>10}  candidate"]
    for trial in rows:
        gain = f"{base / trial.seconds:.2f}x" if base else "-"
        mark = "*" if trial is winner else " "
        name = f"{show(trial.candidate)}{' (default)' if trial is default else ''}"
        lines.append(f"{mark:2}{format_seconds(trial.seconds):>10}  {gain:>10}  {name}")
    lines.append(f"{len(search.done)} candidates in {seconds:.1f} s, {len(ranked)} ran correctly")
    lines.extend(reasons(search))
    return "\n".join([*lines, *notes])


def reasons(search: Search, most: int = 8) -> list[str]:
    """One line for each way in which candidates failed, most frequent first."""
    counts: Counter[tuple[str, str]] = Counter()
    for trial in search.done:
        if trial.outcome.status is not Status.OK:
            counts[trial.outcome.status.value, trial.outcome.reason] += 1
    for refused in search.rejected:
        counts[Status.ILLEGAL.value, refused.reason] += 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    lines = [f"  {count:>4} {status}: {reason}" for (status, reason), count in ordered[:most]]
    if len(ordered) > most:
        lines.append(f"  ... and {len(ordered) - most} other reasons")
    return lines


def _live_line(stream: TextIO) -> Any:
    """A rich live display, started; None without rich."""
    try:
        live: Any = importlib.import_module("rich.live")
        console: Any = importlib.import_module("rich.console")
    except ImportError:
        return None
    display = live.Live(
        "", console=console.Console(file=stream, markup=False), transient=True, auto_refresh=False
    )
    display.start()
    return display
