"""Candidate schedules of benchmark rows beside each other: what the scripts `*_variants.py` share.

A script has a function that names the candidates of a row (`job_variants` finds it by the script's
name); here are its command line, the run over the rows, and the report on disk.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import suite
from runner import Plan, Row, Runner

Summary = Callable[[Row], str]
Decisions = dict[str, object]
Choices = tuple[Decisions, ...]


def listed(names: str, *values: tuple[int, ...], **more: object) -> Choices:
    """Decisions about knobs of these names, a tuple of choices each, with `more` that all share."""
    return tuple(more | dict(zip(names.split(), each, strict=True)) for each in values)


def named(root: str, choices: Sequence[Decisions]) -> dict[str, Decisions]:
    """Decisions about the stage `root`, by what they are."""
    return {
        ", ".join(f"{key} {value}" for key, value in each.items()): {
            f"{root}.{key}": value for key, value in each.items()
        }
        for each in choices
    }


class Report:
    """What has been found so far, on disk after each row."""

    def __init__(self, path: Path, summary: Summary) -> None:
        self.rows: dict[str, Row] = {}
        self._path = path
        self._summary = summary
        self._begin = time.monotonic()

    def add(self, row: Row) -> None:
        """Keep a row; one that failed does not replace what a first run has found."""
        if "failed" not in row or "failed" in self.rows.get(row["name"], row):
            self.rows[row["name"]] = row
        self.write([])
        print(f"{time.monotonic() - self._begin:6.0f} s {self._summary(row)}", flush=True)

    def write(self, left: list[str]) -> None:
        """All rows, and those for which there was no time."""
        found = {"rows": list(self.rows.values()), "left_out": left}
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        part.replace(self._path)


def main(doc: str | None, script: str, families: Sequence[str], summary: Summary) -> None:
    """Run the rows of some classes, and once more those that failed, without candidates.

    Args:
        doc: the script's docstring.
        script: its name, which is that of the report.
        families: the classes.
        summary: a row as text.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--only", nargs="+", default=[], help="rows whose name contains one of")
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0)) - 2))
    parser.add_argument("--tuned", action="store_true", help="torch.compile max-autotune, too")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    report = Report(options.out / f"{script}.json", summary)
    loads = suite.in_turn(suite.chosen(suite.workloads(), "cuda", options.only, families))
    names = [load.name for load in loads]
    settings: dict[str, Any] = {"candidates": script, "tuned": options.tuned}
    left: list[str] = []
    for _ in range(2):
        remaining = options.seconds - (time.monotonic() - begin)
        plan = Plan(
            mode="variants",
            settings=settings,
            jobs=options.jobs,
            prepare=options.seconds / 2,
            measure=30.0,
            seconds=remaining,
            variables={"TORCHINDUCTOR_COMPILE_THREADS": "1"},
        )
        left += Runner(plan, report.add).run(names)
        names = [name for name, row in report.rows.items() if "failed" in row]
        settings = {"tuned": False}
    report.write(left)
