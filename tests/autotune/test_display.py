"""What the user sees while a search runs, drawn from its events alone."""

import io
import time

import pytest

from tedsl.autotune.report import live_display as module
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
from tedsl.autotune.report.live_display import Picture, display_of, duration, panel

BEGUN = Started(
    at=0.1,
    outputs=("C",),
    target="cpu",
    device="a processor",
    workload="0" * 32,
    space="rules",
    trials=8,
    seconds=30.0,
    seed=1,
    floor=4e-4,
)


def story() -> list[Event]:
    """Some events of one search: a default, a better one, one wrong, one under way."""
    proposed = [
        Proposed(at=1.0, number=n, batch=0, candidate=f"tile={n}", origin="far") for n in range(4)
    ]
    return [
        BEGUN,
        Phase(at=0.2, stage=Stage.SETUP),
        Refused(at=0.9, candidate="tile=99", reason="tile of more than 64"),
        *proposed,
        *(Compiled(at=2.0, number=n, code="c") for n in range(3)),
        Phase(at=2.5, stage=Stage.SEARCH),
        Tried(at=2.5, number=0, candidate="tile=0", status="ok", time=1e-3, idle=0.5),
        Tried(at=3.0, number=1, candidate="tile=1", status="ok", time=5e-4, idle=0.4),
        NewBest(at=3.0, number=1, candidate="tile=1", time=5e-4, gain=2.0),
        Tried(at=3.5, number=2, candidate="tile=2", status="wrong", reason="wrong output"),
    ]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_picture_of_a_search():
    picture = Picture()
    for event in story():
        picture.take(event)
    assert (picture.tried, picture.proposed, picture.best) == (3, 4, 5e-4)
    assert picture.kinds() == {"illegal": 1, "wrong": 1}
    assert list(picture.quality()) == ["2.00x the default", "80 % of the roofline"]
    assert picture.left == pytest.approx(5 * 0.5)
    assert picture.line() == (
        "tuning 3/8 trials, 0/30 s | best 500 us (2.00x the default, 80 % of the roofline)"
        " | rejected 2: 1 illegal, 1 wrong | about 2 s left"
    )


def test_the_time_left_is_bounded_by_the_seconds():
    picture = Picture()
    for event in story():
        picture.take(event)
    picture.begin = time.monotonic() - 29.5
    assert picture.left == pytest.approx(0.5, abs=0.2)
    picture.take(Phase(at=30.0, stage=Stage.FINALS))
    assert picture.left is None


def test_plain_lines_are_not_written_too_often():
    stream = io.StringIO()
    display = display_of(True, stream)
    with display:
        for _ in range(3):
            for event in story():
                display(event)
                display.tick()
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("tuning 1/8 trials, 0/30 s | best 1 ms")


def test_how_it_ends_is_said_at_once():
    stream = io.StringIO()
    display = display_of(True, stream)
    display(BEGUN)
    display(Interrupted(at=1.0, reason="interrupted"))
    assert stream.getvalue() == "the search ends early: interrupted\n"


@pytest.mark.parametrize("show", [False, None])
def test_silence(show: bool | None):
    stream = io.StringIO() if show is None else Terminal()
    display = display_of(show, stream)
    with display:
        for event in story():
            display(event)
        display.tick()
        display.write("text")
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_panel_that_goes_away(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    display = display_of(None, stream)
    with display:
        for event in story():
            display(event)
        display(Phase(at=4.0, stage=Stage.FINALS))
        display(Compared(at=5.0, finalists=(1, 0), times=(5e-4, 1e-3), winner=1, ties=(1,)))
        drawn = stream.getvalue()
        display(
            Finished(
                at=5.0,
                state="done",
                stopped="budget",
                trials=3,
                winner=1,
                candidate="tile=1",
                time=5e-4,
                idle=0.3,
                compile_seconds=1.0,
                measure_seconds=2.0,
            )
        )
        display.write("the table")
    for text in ("tuning C on a processor", "comparing the fastest", "500 us", "1 compiling"):
        assert text in drawn
    assert stream.getvalue().endswith("the table\n")


def test_the_panel_is_drawn_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    drawn: list[Picture] = []
    monkeypatch.setattr(module, "panel", lambda p: drawn.append(p) or "panel")
    display = display_of(None, Terminal())
    with display:
        end = time.monotonic() + 0.6
        while time.monotonic() < end:
            display(story()[-1])
            display.tick()
    assert 1 <= len(drawn) <= 4


def test_a_narrow_terminal_cuts_the_lines(monkeypatch: pytest.MonkeyPatch):
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=40)
    picture = Picture()
    for event in story():
        picture.take(event)
    console.print(panel(picture))
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 9
    assert max(map(len, lines)) <= 40


def test_a_terminal_that_cannot_draw_gets_lines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with display_of(None, stream) as display:
        for event in story():
            display(event)
    assert stream.getvalue().startswith("tuning 1/8 trials")
    assert "\x1b" not in stream.getvalue()


def test_without_rich_plain_lines_are_written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "rich.live", None)
    stream = Terminal()
    with display_of(None, stream) as display:
        for event in story():
            display(event)
    assert stream.getvalue().startswith("tuning 1/8 trials")


def test_durations():
    assert [duration(s) for s in (0.4, 90, 185)] == ["0 s", "90 s", "3 min 5 s"]
