"""`python -m tedsl space`: what there is to choose for something in a script."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tedsl.autotune.frontend.space_summary import list_space
from tedsl.build import default_target
from tedsl.cli.program import add_program, load


def add(commands: Any) -> None:
    """Declare the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "space",
        help="print the choices that a search has",
        description="Print the knobs of the search space, their choices and defaults, and its "
        "size. Needs no GPU.",
    )
    add_program(command)
    command.add_argument("--json", action="store_true", help="as one JSON object")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the space."""
    program = load(options)
    target = options.target or default_target()
    found = list_space(program.outputs, target, program.schedule)
    sys.stdout.write(f"{found.to_json() if options.json else found}\n")
    return 0
