"""`python -m tedsl replay`: search recorded spaces, without hardware."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tedsl.autotune.search.simulate.recorded_space import read_space
from tedsl.autotune.search.simulate.simulate import STRATEGIES, figures, replay
from tedsl.errors import TuneError


def add(commands: Any) -> None:
    """Declare the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "replay",
        help="search recorded spaces, without hardware",
        description="Search spaces of which every point has been measured, with many seeds, and "
        "print how many evaluations it took to come near the best.",
    )
    command.add_argument("space", type=Path, nargs="+", help="a recorded space, *.csv.gz")
    command.add_argument("--seeds", type=int, default=10, metavar="N", help="searches (10)")
    command.add_argument("--trials", type=int, default=400, metavar="N", help="of each (400)")
    command.add_argument(
        "--within", type=float, default=5.0, metavar="PERCENT", help="of the best (5)"
    )
    command.add_argument(
        "--strategy", choices=sorted(STRATEGIES), default="portfolio", help="(portfolio)"
    )
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Replay, and print one line for each space."""
    if options.seeds < 1 or options.trials < 1 or options.within <= 0:
        raise TuneError(
            f"--seeds {options.seeds} --trials {options.trials} --within {options.within:g}",
            hint="all of them are above 0",
        )
    factor = 1.0 + options.within / 100.0
    strategies, depth = STRATEGIES[options.strategy]
    for path in options.space:
        if not path.is_file():
            raise TuneError(f"there is no file {path}", hint="name recorded spaces, *.csv.gz")
        space = read_space(path)
        runs = [
            replay(
                space,
                seed,
                strategies=strategies,
                depth=depth,
                trials=options.trials,
                target=factor,
            )
            for seed in range(options.seeds)
        ]
        found = figures(runs, factor, options.trials)
        sys.stdout.write(
            f"{space.name}: {len(space)} points, best {space.best * 1e6:.1f} us; within "
            f"{options.within:g} % after {found['median']:.0f} evaluations at the median, "
            f"{found['p90']:.0f} at the 90th percentile, in {found['success']:.0%} of "
            f"{options.seeds} searches\n"
        )
    return 0
