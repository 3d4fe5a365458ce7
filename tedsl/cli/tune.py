"""`python -m tedsl tune`: search for a fast schedule of something in a script, and print it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tedsl.autotune import tune
from tedsl.autotune.report.plots import FORMATS, check_plot
from tedsl.autotune.search.budget import BUDGETS
from tedsl.cli.program import add_program, add_sizes, load, sizes_of


def add(commands: Any) -> None:
    """Declare the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "tune",
        help="search for a fast schedule",
        description="Search for a fast schedule, record everything tried, print the winner as "
        "Python. A search that was cut short goes on where it was.",
    )
    add_program(command)
    command.add_argument(
        "--budget",
        choices=tuple(BUDGETS),
        help="how many candidates to try: "
        + ", ".join(f"{name} {count}" for name, count in BUDGETS.items())
        + " (normal)",
    )
    command.add_argument("--trials", type=int, metavar="N", help="candidates to try, as a number")
    command.add_argument("--seconds", type=float, metavar="S", help="how long to search")
    add_sizes(command, " to tune for")
    command.add_argument("--records", type=Path, metavar="FILE", help="the record file")
    command.add_argument("--seed", type=int, metavar="N", help="of the random choices")
    command.add_argument("--fresh", action="store_true", help="measure everything anew")
    command.add_argument("--lock", type=Path, metavar="FILE", help="pin the winner in this file")
    command.add_argument(
        "--frozen", action="store_true", help="fail rather than search for what is not pinned"
    )
    command.add_argument(
        "--events",
        type=Path,
        metavar="FILE",
        help="append what happens to this file, as JSON lines",
    )
    command.add_argument(
        "--save",
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw the search to an .svg, .png or .pdf file, or write its report to .html or .txt",
    )
    command.add_argument(
        "--report", action="store_true", help="print what was learnt, on standard error"
    )
    command.add_argument("--quiet", action="store_true", help="print the schedule only")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Tune, and print the schedule."""
    program = load(options)
    if options.save is not None and options.save.suffix in FORMATS:
        check_plot(options.save)
    found = tune(
        program.outputs,
        options.target,
        schedule=program.schedule,
        budget=options.budget,
        trials=options.trials,
        seconds=options.seconds,
        sizes=sizes_of(options.size),
        records=options.records,
        seed=options.seed,
        fresh=options.fresh,
        lock=options.lock,
        frozen=options.frozen,
        events=options.events,
        progress=False if options.quiet else None,
    )
    if found.replayed and not options.quiet:
        sys.stderr.write("from the records; nothing was measured\n")
    schedule = found.kernel.schedule
    if schedule is not None:
        sys.stdout.write(schedule.as_python() + "\n")
        sys.stdout.flush()
    if options.report:
        sys.stderr.write(f"{found.report}\n")
    if options.save is not None:
        how = "drawn" if options.save.suffix in FORMATS else "written"
        sys.stderr.write(f"{how} to {found.save(options.save)}\n")
    return 0
