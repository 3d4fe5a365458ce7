"""What the user sees while a search runs and after it."""

import io

import pytest
from toy_spaces import judge, tiles, toy

from tedsl.autotune.report import Budget, Progress, failures, reasons, summary
from tedsl.autotune.search import Outcome, Search, Status


def searched(trials: int = 60) -> Search:
    search = Search(toy(tiles), trials=trials, seed=1)
    while batch := search.ask():
        search.tell([judge(candidate) for candidate in batch])
    return search


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_plain_lines_hold_budget_best_and_rejections():
    stream = io.StringIO()
    progress = Progress(Budget(60, None), True, stream)
    search = searched()
    progress.update(search)
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("tuning 60/60 trials, 0 s | best ")
    assert "x the default)" in line
    assert "rejected" in line
    assert "illegal" in line


def test_lines_are_not_written_too_often():
    stream = io.StringIO()
    progress = Progress(Budget(60, 30.0), True, stream)
    search = searched(4)
    for _ in range(10):
        progress.update(search, [None, Outcome(Status.OK, 1e-6)])
    assert len(stream.getvalue().splitlines()) == 1
    assert "5/60 trials, 0/30 s | best 1 us" in stream.getvalue()


def test_silence():
    for show, stream in ((False, Terminal()), (None, io.StringIO())):
        progress = Progress(Budget(60, None), show, stream)
        progress.update(searched(4))
        progress.write("text")
        progress.stop()
        assert stream.getvalue() == ""


def test_a_terminal_gets_a_live_line():
    stream = Terminal()
    progress = Progress(Budget(4, None), None, stream)
    progress.update(searched(4))
    progress.stop()
    assert "tuning" in stream.getvalue()
    assert "\x1b[" in stream.getvalue()


def test_without_rich_plain_lines_are_written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "rich.live", None)
    stream = Terminal()
    progress = Progress(Budget(4, None), None, stream)
    progress.update(searched(4))
    assert stream.getvalue().startswith("tuning 4/4 trials")


def test_summary_table():
    search = searched()
    assert search.best is not None
    text = summary(search, search.best, str, 1.5)
    lines = text.splitlines()
    assert lines[1].startswith("*")
    assert any("(default)" in line for line in lines)
    assert "60 candidates in 1.5 s" in text
    assert any("illegal: vectorize: tile of more" in line for line in lines)


def test_reasons_are_counted_most_frequent_first():
    search = searched()
    counts = [int(line.split()[0]) for line in reasons(search)]
    assert counts == sorted(counts, reverse=True)
    bad = failures((t.outcome for t in search.done), len(search.rejected))
    assert sum(counts) == sum(bad.values())
