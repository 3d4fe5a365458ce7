"""What the user sees while a search runs: a live panel on a terminal, plain lines elsewhere.

Made of events alone.  The panel is drawn again at most a few times a second, and only when the
tuner has something to say or has waited for a second: no thread of its own takes a core from what
is being measured.  rich is loaded only to draw; without it, plain lines.  Imports `events`.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TextIO

from tedsl.autotune.report.events import (
    Compared,
    Compiled,
    Event,
    Finished,
    Interrupted,
    NewBest,
    Phase,
    Proposed,
    Refused,
    Stage,
    Started,
    Tried,
)
from tedsl.runtime.timing import format_seconds

PLAIN_EVERY = 5.0
PATIENCE = 10.0
"""Seconds between the lines of a search that is not shown because there is no terminal."""
"""Seconds between plain lines."""
DRAW_EVERY = 0.25
"""Seconds between two drawings of the panel."""
SHARE = 0.01
"""Of the time that drawing may take: what is slow to draw is drawn less often."""
RECENT = 16
"""Trials by whose pace the time left is told."""
REASONS = 4
"""Lines of reasons."""
BAR = 24


@dataclass(slots=True, eq=False)
class Picture:
    """What is known of a search by now, from its events."""

    begin: float = field(default_factory=time.monotonic)
    started: Started | None = None
    stage: Stage = Stage.SETUP
    proposed: int = 0
    compiled: int = 0
    tried: int = 0
    recorded: int = 0
    best: float | None = None
    candidate: str = ""
    default: float | None = None
    idle: float | None = None
    interrupted: str = ""
    finals: str = ""
    bad: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    ends: deque[float] = field(default_factory=lambda: deque[float](maxlen=RECENT))
    waiting: set[int] = field(default_factory=set[int])

    def take(self, event: Event) -> None:
        """Note one event."""
        match event:
            case Started():
                self.started = event
                self.begin = time.monotonic() - event.at
            case Phase():
                self.stage = event.stage
            case Proposed():
                self.proposed += 1
            case Refused():
                self.bad["illegal", event.reason] += 1
            case Compiled():
                self.waiting.add(event.number)
            case Tried():
                self._tried(event)
            case NewBest():
                self.best, self.candidate = event.time, event.candidate
            case Compared():
                self.finals = f"{len(event.finalists)} compared, {len(event.ties)} equal"
            case Interrupted():
                self.interrupted = event.reason
            case Finished():
                self.idle = event.idle
                if event.time is not None:
                    self.best, self.candidate = event.time, event.candidate
            case _:
                pass

    def _tried(self, event: Tried) -> None:
        self.idle = event.idle
        self.waiting.discard(event.number)
        if event.number == 0 and event.time is not None:
            self.default = event.time
        if event.again:
            return
        self.tried += 1
        self.recorded += event.recorded
        if not event.recorded:
            self.ends.append(event.at)
        if event.time is None:
            self.bad[event.status, event.reason] += 1
        elif self.best is None or event.time < self.best:
            self.best, self.candidate = event.time, event.candidate

    @property
    def elapsed(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self.begin

    @property
    def left(self) -> float | None:
        """Seconds that the rest of the budget takes, at the pace of the last trials."""
        started = self.started
        if started is None or self.stage is not Stage.SEARCH:
            return None
        found: list[float] = []
        if started.seconds is not None:
            found.append(max(0.0, started.seconds - self.elapsed))
        if started.trials is not None and len(self.ends) > 1:
            pace = (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)
            found.append(max(0.0, (started.trials - self.tried) * pace))
        return min(found, default=None)

    def budget(self) -> str:
        """`12/64 trials, 3/30 s`."""
        started = self.started
        trials = "" if started is None or started.trials is None else f"/{started.trials}"
        seconds = "" if started is None or started.seconds is None else f"/{started.seconds:g}"
        return f"{self.tried}{trials} trials, {self.elapsed:.0f}{seconds} s"

    def quality(self) -> Iterator[str]:
        """What the best is beside the default and the roofline."""
        if self.best is None:
            return
        if self.default is not None:
            yield f"{self.default / self.best:.2f}x the default"
        floor = 0.0 if self.started is None else self.started.floor
        if floor:
            yield f"{100 * min(1.0, floor / self.best):.0f} % of the roofline"

    def kinds(self) -> Counter[str]:
        """How many candidates ended in each way but well."""
        counts: Counter[str] = Counter()
        for (status, _), count in self.bad.items():
            counts[status] += count
        return counts

    def line(self) -> str:
        """`tuning 12/64 trials, 3 s | best 1.2 ms (1.8x the default) | rejected 2: 1 wrong ...`."""
        parts = [f"tuning {self.budget()}"]
        if self.stage is not Stage.SEARCH:
            parts.append(self.stage.value)
        if self.best is not None:
            detail = ", ".join(self.quality())
            parts.append(f"best {format_seconds(self.best)}" + (f" ({detail})" if detail else ""))
        bad = self.kinds()
        if bad:
            detail = ", ".join(f"{count} {name}" for name, count in sorted(bad.items()))
            parts.append(f"rejected {sum(bad.values())}: {detail}")
        if self.left is not None:
            parts.append(f"about {duration(self.left)} left")
        return " | ".join(parts)


class Display:
    """Shows a search on a stream.  A listener, and a context while something may be drawn.

    Args:
        show: False for silence.
        stream: where to.
        live: draw a panel in place; else write lines.
        patient: of a search that is not shown, write a line now and then all the same: nobody is to
            wait for minutes without a word.
    """

    def __init__(self, show: bool, stream: TextIO, live: bool, patient: bool = False) -> None:
        self.patient = patient and not show
        self.shown = show
        self.stream = stream
        self.picture = Picture()
        self._wants_panel = show and live
        self._live: Any = None
        self._open = False
        self._next = 0.0

    def __enter__(self) -> Display:
        self._open = True
        if self.patient:
            self._next = time.monotonic() + PATIENCE
        if self._wants_panel:
            self._live = _live(self.stream)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._open = False

    def __call__(self, event: Event) -> None:
        """Note an event, and draw when it is time."""
        self.picture.take(event)
        if not self.shown:
            self.tick()
            return
        if isinstance(event, Interrupted):
            self.write(f"the search ends early: {event.reason}")
        elif isinstance(event, Finished):
            self.stop()
        elif isinstance(event, (Phase, Compared)) and self._live is not None:
            self._draw(force=True)
        elif isinstance(event, (Tried, NewBest, Compiled)) or self._live is not None:
            self._draw()

    def tick(self) -> None:
        """Draw since time has passed."""
        now = time.monotonic()
        if self.shown:
            self._draw()
        elif self.patient and self._open and now >= self._next and self.picture.started is not None:
            self.stream.write(self.picture.line() + "\n")
            self.stream.flush()
            self._next = now + PATIENCE

    def write(self, text: str) -> None:
        """Lines of text, above the panel while there is one."""
        if not self.shown:
            return
        if self._live is not None:
            self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            self.stream.write(text + "\n")
            self.stream.flush()

    def stop(self) -> None:
        """Take the panel away."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _draw(self, force: bool = False) -> None:
        now = time.monotonic()
        if not self._open or (now < self._next and not force):
            return
        if self._live is None:
            if self.picture.started is not None and self.picture.tried:
                self.write(self.picture.line())
                self._next = now + PLAIN_EVERY
            return
        self._live.update(panel(self.picture), refresh=True)
        took = time.monotonic() - now
        self._next = now + max(DRAW_EVERY, took / SHARE)


def display_of(show: bool | None, stream: TextIO | None = None) -> Display:
    """The display that `progress=` asks for: None shows a panel on a terminal and elsewhere a line
    every ten seconds, True plain lines where there is no terminal, False nothing."""
    where = sys.stderr if stream is None else stream
    terminal = where.isatty()
    return Display(terminal if show is None else show, where, terminal, patient=show is None)


def panel(picture: Picture) -> Any:
    """The panel as something that rich draws."""
    text: Any = importlib.import_module("rich.text").Text
    table: Any = importlib.import_module("rich.table").Table
    group: Any = importlib.import_module("rich.console").Group
    grid = table.grid(padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for name, value, style in _rows(picture):
        grid.add_row(text(name), text(value, style=style, overflow="ellipsis", no_wrap=True))
    return group(text(_head(picture), style="bold", overflow="ellipsis", no_wrap=True), grid)


def _head(picture: Picture) -> str:
    started = picture.started
    if started is None:
        return "tuning"
    return f"tuning {', '.join(started.outputs)} on {started.device}"


def _rows(picture: Picture) -> Iterator[tuple[str, str, str]]:
    """Name, text and style of each line of the panel."""
    time_left = "" if picture.left is None else f", about {duration(picture.left)} left"
    interrupted = " (ending)" if picture.interrupted else ""
    stage = picture.stage.value
    if picture.stage is Stage.BUILD and picture.finals:
        stage = f"{stage}: {picture.finals}"
    yield "  phase", f"{stage}{interrupted}, {duration(picture.elapsed)}{time_left}", ""
    yield "  trials", _trials(picture), ""
    if picture.best is not None:
        yield "  best", " · ".join([format_seconds(picture.best), *picture.quality()]), "green"
        yield "", picture.candidate, "dim"
        yield "  beside", _beside(picture), ""
    bad = picture.kinds()
    if bad:
        detail = ", ".join(f"{count} {name}" for name, count in bad.most_common())
        yield "  rejected", f"{sum(bad.values())}: {detail}", "yellow"
        for (status, reason), count in picture.bad.most_common(REASONS):
            yield "", f"{count} {status}: {reason}", "dim"


def _trials(picture: Picture) -> str:
    started = picture.started
    total = None if started is None else started.trials
    share = 0.0
    if total:
        share = picture.tried / total
    elif started is not None and started.seconds:
        share = picture.elapsed / started.seconds
    full = min(BAR, int(share * BAR))
    parts = [f"{'━' * full}{'╌' * (BAR - full)} {picture.tried}" + (f"/{total}" if total else "")]
    compiling = picture.proposed - picture.tried - len(picture.waiting)
    under_way = [(compiling, "compiling"), (len(picture.waiting), "for the device")]
    parts += [f"{count} {what}" for count, what in under_way if count > 0]
    if picture.recorded:
        parts.append(f"{picture.recorded} from records")
    if picture.idle is not None and picture.tried:
        parts.append(f"device idle {100 * picture.idle:.0f} %")
    return " · ".join(parts)


def _beside(picture: Picture) -> str:
    """The times that the best is measured by."""
    floor = 0.0 if picture.started is None else picture.started.floor
    parts: list[str] = []
    if picture.default is not None:
        parts.append(f"default {format_seconds(picture.default)}")
    if floor:
        parts.append(f"roofline {format_seconds(floor)}")
    return " · ".join(parts)


def duration(seconds: float) -> str:
    """`12 s`, `3 min 5 s`."""
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min {whole % 60} s"


def _live(stream: TextIO) -> Any:
    """A rich live display, started; None without rich, or where a line cannot be drawn again."""
    try:
        live: Any = importlib.import_module("rich.live")
        module: Any = importlib.import_module("rich.console")
    except ImportError:
        return None
    console = module.Console(file=stream, markup=False, highlight=False)
    if console.is_dumb_terminal:
        return None
    display = live.Live(
        console=console,
        transient=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    display.start()
    return display
