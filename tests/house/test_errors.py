"""The page of each class of error: its code runs, and meets the error that it is about."""

from __future__ import annotations

import re
import textwrap

import pytest

import tedsl as te
from tedsl import errors
from tedsl.errors import PAGES, TedslError
from tedsl.ir.evaluate import Unwritten

ON_PURPOSE = [name for name in PAGES if name not in ("TedslError", "InternalError")]


def block(kind: type[TedslError], title: str) -> str:
    """The indented lines below `Title::` of a page."""
    found = re.search(rf"^{title}::\n\n((?:(?: {{4}}.*)?\n)+)", errors.page(kind), re.MULTILINE)
    assert found, f"{kind.__name__} has no {title}"
    return textwrap.dedent(found.group(1)).strip() + "\n"


def run(code: str) -> None:
    exec(compile(code, "page.py", "exec"), {"te": te})


def test_every_public_error_has_a_page() -> None:
    public = {name for name in te.__all__ if name.endswith("Error")}
    assert public == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_right_code_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(block(PAGES[name], "Right"))


@pytest.mark.parametrize("name", ON_PURPOSE)
def test_wrong_code_says_what_the_page_says(name: str) -> None:
    with pytest.raises(PAGES[name], match=r"do {6}") as caught:
        run(block(PAGES[name], "Wrong"))
    assert type(caught.value) is PAGES[name]
    lines = str(caught.value).splitlines()
    assert [line for line in lines if not line.startswith("  called")] == (
        block(PAGES[name], "Says").splitlines()
    )


@pytest.mark.parametrize("name", ["TedslError", "InternalError"])
def test_wrong_code_that_hides_errors_runs(name: str) -> None:
    run(block(PAGES[name], "Wrong"))


def test_pages_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    te.errors.explain("ScheduleError")
    text = capsys.readouterr().out
    assert text.startswith("ScheduleError: A schedule primitive that is not legal here.")
    caught = errors.ScheduleError("no", subject="split(B.i)")
    for what in (
        caught,
        errors.ScheduleError,
        "tedsl.errors.ScheduleError: split(B.i): no",
        " ScheduleError ",
    ):
        assert errors.page(what) == text
    assert errors.page(Unwritten).startswith("InternalError: ")
    for nothing in ("ValueError: no", "", "no such thing"):
        with pytest.raises(
            te.ExprError, match=r"no page about[\s\S]*allowed TedslError, ExprError"
        ):
            errors.page(nothing)
