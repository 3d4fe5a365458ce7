"""`python -m tedsl roofline`: something in a script beside what the machine can do at most."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tedsl.autotune.report.plots import FORMATS, check_plot
from tedsl.cli.program import add_sizes, sizes_of
from tedsl.cli.script import add_script, load_named
from tedsl.explaining.chart import roofline


def add(commands: Any) -> None:
    """Declare the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "roofline",
        help="how far a program is from what the machine can do",
        description="Measure the machine's memory bandwidth and matrix products (once; they are "
        "kept), run the program fused and unfused, and print how far each is from the roof. "
        "For a GPU that is not here the figures of its data sheet are taken, and nothing is run.",
    )
    add_script(command)
    add_sizes(command, " (1024)")
    command.add_argument(
        "--save", "--plot", type=Path, metavar="FILE", help="draw it to an .svg, .png or .pdf file"
    )
    command.add_argument(
        "--fresh", action="store_true", help="measure the machine again, whatever is known of it"
    )
    command.add_argument("--predict", action="store_true", help="run nothing, predict only")
    command.add_argument("--json", action="store_true", help="as one JSON object")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure, print, draw."""
    if options.save is not None and options.save.suffix in FORMATS:
        check_plot(options.save)
    named = load_named(options)
    what = list(named.value) if isinstance(named.value, tuple) else named.value
    chart = roofline(
        {named.name: what},
        options.target,
        measure=False if options.predict else None,
        sizes=sizes_of(options.size),
        fresh=options.fresh,
    )
    sys.stdout.write(f"{chart.to_json() if options.json else chart}\n")
    if options.save is not None:
        how = "drawn" if options.save.suffix in FORMATS else "written"
        sys.stderr.write(f"{how} to {chart.save(options.save)}\n")
    return 0
