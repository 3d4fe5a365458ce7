"""`python -m tedsl view`: write the page of something in a script."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tedsl.cli.script import add_script, load_named


def add(commands: Any) -> None:
    """Declare the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "view",
        help="write an HTML page of a schedule or a kernel",
        description="Write one HTML file that shows the graph with what is fused, the loop nest "
        "after each step of the schedule, the loop IR after each pass, and the code. It needs no "
        "network. Prints where it is.",
    )
    add_script(command)
    command.add_argument(
        "-o",
        "--save",
        "--output",
        dest="output",
        type=Path,
        metavar="FILE",
        help="the file; by default NAME.html in this folder",
    )
    command.add_argument(
        "--no-code",
        action="store_true",
        help="build nothing: the schedule and its loop IR, or why it cannot be lowered",
    )
    command.add_argument("--open", action="store_true", help="also open it in the browser")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the page."""
    named = load_named(options)
    if options.no_code:
        schedule = named.schedule(options.target)
        view = schedule.view(options.output, target=options.target, show=options.open)
    else:
        view = named.kernel(options.target).view(options.output, show=options.open)
    sys.stdout.write(f"{view.path}\n")
    return 0
