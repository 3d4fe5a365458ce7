"""`python -m tedsl records`: look at the record file, share it, clear it."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from tedsl.autotune.outcome import Status
from tedsl.autotune.records.database import Records, Run, default_path
from tedsl.errors import TuneError
from tedsl.runtime.timing import format_seconds


def add(commands: Any) -> None:
    """Declare the command and its own commands."""
    command: argparse.ArgumentParser = commands.add_parser(
        "records",
        help="list, show, export, import, merge or drop what has been tuned",
        description="The record file holds one row for each search and each candidate tried.",
    )
    command.add_argument(
        "--records", type=Path, metavar="FILE", help="the record file (the user's, by default)"
    )
    kinds = command.add_subparsers(title="commands", dest="kind", required=True)
    listed = kinds.add_parser("list", help="all searches, newest first")
    listed.add_argument("--json", action="store_true", help="one JSON object per line")
    listed.set_defaults(run=list_runs)
    shown = kinds.add_parser("show", help="the candidates of one search")
    shown.add_argument("id", help="the search, by the first letters of its id")
    shown.set_defaults(run=show)
    exported = kinds.add_parser("export", help="write JSON lines")
    exported.add_argument("file", type=Path)
    exported.add_argument("--winners", action="store_true", help="the winners only")
    exported.set_defaults(run=export)
    imported = kinds.add_parser("import", help="take JSON lines that export wrote")
    imported.add_argument("file", type=Path, nargs="+")
    imported.set_defaults(run=import_lines)
    merged = kinds.add_parser("merge", help="take all rows of other record files")
    merged.add_argument("file", type=Path, nargs="+")
    merged.set_defaults(run=merge)
    dropped = kinds.add_parser("drop", help="forget searches")
    dropped.add_argument("id", nargs="+", help="searches, by the first letters of their ids")
    dropped.set_defaults(run=drop)


def list_runs(options: argparse.Namespace) -> int:
    """One line per search."""
    with closing(_open(options)) as records:
        for run in records.all_runs():
            found = records.candidates(run.id)
            counts = Counter(record.outcome.status for record in found)
            best = next((r.outcome.seconds for r in found if r.key == run.winner), None)
            if options.json:
                row = {
                    **{name: getattr(run.context, name) for name in run.context.__slots__},
                    **{"id": run.id, "seed": run.seed, "started": run.started},
                    **{"state": run.state, "seconds": best},
                    "counts": {status.value: n for status, n in counts.items()},
                }
                sys.stdout.write(json.dumps(row, sort_keys=True) + "\n")
            else:
                time = "-" if best is None else format_seconds(best)
                sys.stdout.write(
                    f"{run.id[:8]}  {began(run)}  {run.state:11}  {time:>9}  {len(found):4} tried, "
                    f"{len(found) - counts[Status.OK]:3} failed  {run.context.target:4}  "
                    f"{run.context.device}  {run.context.sizes} {run.context.dtypes}\n"
                )
    return 0


def began(run: Run) -> str:
    """The minute in which a search began, here: `2026-11-27 16:20`."""
    if run.started is None:
        return f"{'-':16}"
    return datetime.fromtimestamp(run.started).isoformat(" ", "minutes")


def show(options: argparse.Namespace) -> int:
    """The candidates of one search, fastest first, and failures with their reasons."""
    with closing(_open(options)) as records:
        run = _find(records, options.id)
        for name in run.context.__slots__:
            sys.stdout.write(f"{name:10} {getattr(run.context, name)}\n")
        sys.stdout.write(f"{'started':10} {began(run)}\n")
        sys.stdout.write(f"{'state':10} {run.state}, seed {run.seed}\n\n")
        found = records.candidates(run.id)
        for record in sorted(found, key=lambda r: (r.outcome.seconds or float("inf"), r.key)):
            outcome = record.outcome
            took = "" if outcome.seconds is None else format_seconds(outcome.seconds)
            mark = "*" if record.key == run.winner else " "
            sys.stdout.write(
                f"{mark} {outcome.status.value:14} {took:>9}  {record.key}  {outcome.reason}\n"
            )
    return 0


def export(options: argparse.Namespace) -> int:
    """Write JSON lines."""
    with closing(_open(options)) as records:
        count = records.export(options.file, winners_only=options.winners)
    sys.stderr.write(f"{count} rows written to {options.file}\n")
    return 0


def import_lines(options: argparse.Namespace) -> int:
    """Take JSON lines."""
    with closing(_open(options, new=True)) as records:
        for path in options.file:
            sys.stderr.write(f"{records.load(_existing(path))} new rows from {path}\n")
    return 0


def merge(options: argparse.Namespace) -> int:
    """Take the rows of other record files."""
    with closing(_open(options, new=True)) as records:
        for path in options.file:
            with closing(Records(_existing(path))) as other:
                sys.stderr.write(f"{records.merge(other)} new rows from {path}\n")
    return 0


def drop(options: argparse.Namespace) -> int:
    """Forget searches; all that are named must be there, or none is dropped."""
    with closing(_open(options)) as records:
        runs = [_find(records, prefix).id for prefix in options.id]
        sys.stderr.write(f"{records.drop(runs)} searches dropped\n")
    return 0


def _open(options: argparse.Namespace, *, new: bool = False) -> Records:
    """The record file; only what adds rows may make a new one."""
    path = options.records or default_path()
    return Records(path if new else _existing(path))


def _existing(path: Path) -> Path:
    if not path.exists():
        raise TuneError(
            f"there is no record file {path}", hint="name one with --records, or tune something"
        )
    return path


def _find(records: Records, prefix: str) -> Run:
    found = [run for run in records.all_runs() if run.id.startswith(prefix)]
    if len(found) != 1:
        raise TuneError(
            f"{len(found) or 'no'} searches have an id that begins with {prefix!r}",
            hint="`python -m tedsl records list` shows them",
        )
    return found[0]
