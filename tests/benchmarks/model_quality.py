"""How well the static model orders a recorded space: `python tests/benchmarks/model_quality.py`.

    python tests/benchmarks/model_quality.py gemm softmax attention --spaces FOLDER --device "H200"

Each recorded point is scheduled and lowered again, and estimated; nothing runs.  Printed are the
rank correlation with the measured times, how fast the model's first choice is (the best time over
its time), the best of its first 16, the default, and which points it gets most wrong.
`--weights name=value` tries other weights of the model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from record_space import PARTS

import tedsl as te
from tedsl.autotune.outcome import Status
from tedsl.autotune.search.simulate.recorded_space import RecordedSpace, read_space
from tedsl.autotune.search_space.problem import Problem
from tedsl.autotune.search_space.space import Decisions
from tedsl.cost.devices import WEIGHTS, Weights, device_for
from tedsl.cost.estimate import Estimate, estimate
from tedsl.errors import TedslError

SPACES = Path(__file__).parents[1] / "data" / "spaces"


def estimates(
    name: str, device: str, weights: Weights, rows: Sequence[Decisions]
) -> list[Estimate | None]:
    """The estimates of some points of a part of `record_space`."""
    part = PARTS[name]
    facts = device_for(part.target, device)
    problem = Problem([part.make()], part.target, part.schedule)
    found: list[Estimate | None] = []
    for decisions in rows:
        try:
            module = te.lower(problem.schedule(decisions), part.target)
        except TedslError:
            found.append(None)
            continue
        found.append(estimate(module, facts, weights=weights))
    return found


def ranks(values: Sequence[float]) -> np.ndarray:
    """The place of each value in their order."""
    places = np.empty(len(values))
    places[np.argsort(values, kind="stable")] = np.arange(len(values))
    return places


def report(name: str, space: RecordedSpace, found: Sequence[Estimate | None]) -> None:
    """Print how the estimates of all points order them."""
    default = space.row_of(space.default().decisions)
    pairs = [
        (row, one, outcome.seconds)
        for row, (one, outcome) in enumerate(zip(found, space.outcomes, strict=True))
        if one is not None and outcome.status is Status.OK and outcome.seconds is not None
    ]
    told = np.array([one.seconds for _, one, _ in pairs])
    taken = np.array([seconds for _, _, seconds in pairs])
    order = np.argsort(told, kind="stable")
    best = float(taken.min())
    # A point that ran, of which the model says that it cannot launch.
    refused = [row for row, one, _ in pairs if one.cannot_launch is not None]
    first = {row: place for place, (row, _, _) in enumerate(pairs)}
    print(f"{name}: {len(pairs)} of {len(found)} points, best {best * 1e6:.1f} us")
    places = ranks(told.tolist()), ranks(taken.tolist())
    print(f"  rank correlation      {np.corrcoef(*places)[0, 1]:.3f}")
    print(f"  first choice          {best / taken[order[0]]:.3f} of the best")
    print(f"  best of the first 16  {best / taken[order[:16]].min():.3f}")
    if default in first:
        print(f"  default               {best / taken[first[default]]:.3f}")
    print(f"  predicted / measured  {np.quantile(told / taken, (0.1, 0.5, 0.9)).round(2)}")
    print(f"  refused though it ran {len(refused)}")
    for place in (*order[:3], int(np.argmin(taken))):
        row, one, seconds = pairs[int(place)]
        shown = {k.rpartition(".")[2]: v for k, v in space.points().decisions(row).items()}
        print(
            f"    {seconds * 1e6:8.1f} us, told {one.seconds * 1e6:8.1f}: registers "
            f"{one.registers:.0f}, shared {one.shared}, occupancy {one.occupancy:.0f}  {shown}"
        )


def main() -> None:
    """Parse the options, estimate, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(PARTS), help="parts of record_space.py")
    parser.add_argument("--spaces", type=Path, default=SPACES, help="folder of NAME.csv.gz")
    parser.add_argument("--device", default="NVIDIA H200")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=int, default=0, help="look at so many points only")
    parser.add_argument("--weights", nargs="*", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    changed = {k: float(v) for k, _, v in (item.partition("=") for item in options.weights)}
    weights = replace(WEIGHTS, **changed)
    for name in options.names:
        space = read_space(options.spaces / f"{name}.csv.gz")
        count = min(len(space), options.limit or len(space))
        rows = [space.points().decisions(row) for row in range(count)]
        parts = [rows[n : n + 64] for n in range(0, count, 64)]
        begin = time.monotonic()
        with ProcessPoolExecutor(options.processes) as pool:
            work = partial(estimates, name, options.device, weights)
            found = [one for part in pool.map(work, parts) for one in part]
        found += [None] * (len(space) - count)
        report(name, space, found)
        print(f"  {(time.monotonic() - begin) / max(count, 1) * 1e3:.0f} ms a point")


if __name__ == "__main__":
    main()
