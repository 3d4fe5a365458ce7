"""Replays searches on recorded spaces, many seeds each, and writes figures and curves.

    python tests/benchmarks/search_replay.py --seeds 50                   # all that is compared
    python tests/benchmarks/search_replay.py --only portfolio --spaces gemm --seeds 10

Writes `results/search_replay.json` and, with matplotlib, a plot beside it, or where `--out` says;
with `--add` what the file has already stays.  `score` is the Kernel Tuner score: (baseline - found)
/ (baseline - best), random search being the baseline, averaged over evaluations 1 to 150.  Kept are
the results of the four published spaces and, in another file, of the three recorded on an H200.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one process per core, one thread each
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
replaying: Any = importlib.import_module("replaying")
numpy: Any = importlib.import_module("numpy")
recorded: Any = importlib.import_module("tedsl.autotune.search.simulate.recorded_space")

HERE = Path(__file__).resolve().parent / "results"
WITHIN = 400
CURVE = 150
EVERY = 3
LOADED: dict[str, Any] = {}


def one(job: tuple[str, str, int, int]) -> tuple[str, str, tuple[float, ...]]:
    """One replayed search: the best ratio after each evaluation.

    It goes on for `CURVE` evaluations, and from there until 5 % of the best are reached.
    """
    path, strategy, seed, most = job
    strategies, depth = replaying.STRATEGIES[strategy]
    space = LOADED.get(path)
    if space is None:
        space = LOADED[path] = recorded.read_space(Path(path))
    run = replaying.replay(
        space,
        seed,
        strategies=strategies,
        trials=most,
        depth=depth,
        least=CURVE,
        target=1.05,
    )
    return space.name, strategy, run.ratios


def table(ratios: list[Any]) -> dict[str, float]:
    """The figures of the runs of one strategy on one space."""
    runs = [replaying.Run(tuple(r), "") for r in ratios]
    found = {"runs": len(runs), **replaying.figures(runs, 1.05, WITHIN)}
    for count in (16, 48, 64, 120):
        found[f"ratio after {count}"] = float(numpy.median([r.after(count) for r in runs]))
    return {key: round(value, 4) for key, value in found.items()}


def curve(ratios: list[Any]) -> Any:
    """Mean over runs of the best ratio after 1, 2, ... evaluations; failures count as tenfold."""
    full = numpy.full((len(ratios), CURVE), 10.0)
    for row, found in zip(full, ratios, strict=True):
        row[: len(found)] = found[:CURVE]
        row[len(found) :] = found[-1]
    return numpy.minimum(full, 10.0).mean(axis=0)


def add_scores(report: dict[str, dict[str, Any]]) -> None:
    """The Kernel Tuner score of every curve."""
    for mine in report.values():
        if "random" in mine:
            baseline = numpy.array(mine["random"]["curve"])
            span = numpy.maximum(baseline - 1.0, 1e-9)
            for row in mine.values():
                gained = (baseline - numpy.array(row["curve"])) / span
                row["score"] = round(float(numpy.mean(gained)), 4)


def plot(report: dict[str, dict[str, Any]], path: Path) -> None:
    """One panel per space, one line per strategy."""
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, panels = pyplot.subplots(1, len(report), figsize=(5 * len(report), 4), squeeze=False)
    for panel, (space, mine) in zip(panels[0], report.items(), strict=True):
        for strategy, row in mine.items():
            panel.plot(range(1, CURVE + 1, EVERY), row["curve"], label=strategy)
        panel.set(title=space, xlabel="evaluations", yscale="log", ylim=(0.99, 4))
        panel.set_yticks([1, 1.05, 1.2, 1.5, 2, 3], ["1", "1.05", "1.2", "1.5", "2", "3"])
        panel.axhline(1.05, color="grey", linewidth=0.5)
    panels[0][0].set_ylabel("time / best time of the space (mean)")
    panels[0][-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def collect(found: Iterable[tuple[str, str, tuple[float, ...]]]) -> dict[str, dict[str, list[Any]]]:
    """Runs by space and strategy, with a line now and then."""
    runs: dict[str, dict[str, list[Any]]] = {}
    begin = time.monotonic()
    for number, (space, strategy, ratios) in enumerate(found):
        runs.setdefault(space, {}).setdefault(strategy, []).append(ratios)
        if number % 50 == 49:
            sys.stderr.write(f"{number + 1} runs, {time.monotonic() - begin:.0f} s\n")
    return runs


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--spaces", default="", help="parts of the names of the files")
    parser.add_argument("--only", default="", help="strategies, separated by commas")
    parser.add_argument("--trials", type=int, default=WITHIN)
    parser.add_argument("--processes", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--add", action="store_true", help="keep what is in the file")
    parser.add_argument("--out", type=Path, default=HERE / "search_replay.json")
    options = parser.parse_args()
    parts = options.spaces.split(",")
    found = sorted(replaying.SPACES.glob("*.csv.gz"))
    files = [str(path) for path in found if any(part in path.name for part in parts)]
    names = options.only.split(",") if options.only else list(replaying.STRATEGIES)
    seeds = range(options.first, options.first + options.seeds)
    jobs = [(f, n, s, options.trials) for n in names for f in files for s in seeds]
    with ProcessPoolExecutor(options.processes) as pool:
        runs = collect(pool.map(one, jobs))
    report: dict[str, dict[str, Any]] = {}
    if options.add and options.out.exists():
        report = json.loads(options.out.read_text(encoding="utf-8"))
    for space, mine in runs.items():
        for name, ratios in mine.items():
            row = {**table(ratios), "curve": [round(v, 4) for v in curve(ratios)[::EVERY].tolist()]}
            report.setdefault(space, {})[name] = row
    add_scores(report)
    text = json.dumps(report, indent=1)
    text = re.sub(r"\n\s+(?=[-0-9.]+[,\n])(?<!:)|(?<=\d)\n\s+(?=\])", " ", text)
    options.out.write_text(text + "\n", encoding="utf-8")
    for space, mine in report.items():
        for name, row in mine.items():
            cells = "  ".join(f"{key} {value:g}" for key, value in row.items() if key != "curve")
            sys.stdout.write(f"{space:24} {name:24} {cells}\n")
    if importlib.util.find_spec("matplotlib"):
        plot(report, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
