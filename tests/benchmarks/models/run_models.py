"""Problems and models of PyTorch through `torch.compile(backend="tedsl")`, against eager and
Inductor.

    python tests/benchmarks/models/run_models.py --device cuda --devices 4 --out FOLDER
    ... --of problems|models|all    which of `problems.py` and `published.py`
    ... --dtype bfloat16 --train    of all floats; a step forward and backward

Each is compiled first, in as many processes as there are processors, and its results are compared
with eager's and with double precision; those that are right are timed afterwards from the caches
on disk, one at a time on each of `--devices` GPUs, by the clock of the wall.  `tedsl` leaves
products and convolutions to PyTorch where the backend does so by default, `products` takes them;
`channels_first` and `channels_last` say how images lie.
A process that hangs or crashes is killed, and its row counted.  FOLDER gets `NAME.jsonl` at once
and `NAME.json` at the end.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "helpers"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "drawn"))

import run_drawn
from problems import PROBLEMS
from published import MODELS
from run_drawn import Child, commit, machine

Answer = dict[str, Any]
HERE = Path(__file__).resolve().parent
OURS = ("tedsl", "products", "channels_first", "channels_last")
PEERS = ("eager", "compile")


class Run(run_drawn.Run):
    """One run: rows are prepared by several processes, then timed by one for each device."""

    def child(self, number: int) -> Child:
        """The process of this number, on a device of its own if there are so many."""
        options = self.options
        command = [sys.executable, str(HERE / "models_child.py"), "--device", options.device]
        command += ["--dtype", options.dtype, "--contestants", options.contestants]
        command += ["--turns", str(options.turns), *(["--train"] if options.train else [])]
        return self.started(command, number)

    def note(self, number: Any, job: str, found: Answer) -> None:
        """Keep an answer, and write it down."""
        with self.lock:
            earlier = self.answers.get(number, {})
            if job == "time":  # seconds to the first result are those without a cache
                found |= {key: earlier[key] for key in ("first", "wrong") if key in earlier}
            self.answers[number] = {"name": number, "job": job, **found}
            with self.log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(self.answers[number]) + "\n")

    def results(self) -> Answer:
        """All that is kept of the run."""
        options = self.options
        asked = ("device", "of", "dtype", "train", "contestants", "turns", "devices")
        rows = sorted(self.answers.values(), key=lambda each: ratio(each, "tedsl") or math.inf)
        return {
            "asked": {name: getattr(options, name) for name in asked},
            "machine": {**machine(options.device), "commit": options.commit or commit()},
            "seconds": round(time.monotonic() - self.begin),
            **{ours: distribution(rows, ours) for ours in _ours(options)},
            "rows": rows,
        }


def ratio(answer: Answer, ours: str) -> float | None:
    """How many times as fast as the best peer; None without times."""
    times = answer.get("milliseconds", {})
    peers = [times[name] for name in PEERS if name in times]
    return min(peers) / times[ours] if ours in times and peers else None


def distribution(rows: Sequence[Answer], ours: str) -> Answer:
    """The distribution of ratios."""
    found = sorted(r for each in rows if (r := ratio(each, ours)) is not None)
    if len(found) < 2:
        return {"timed": len(found)}
    tenth = statistics.quantiles(found, n=10, method="inclusive")[0]
    return {
        "timed": len(found),
        "geomean": round(math.exp(statistics.fmean(map(math.log, found))), 3),
        "tenth": round(tenth, 3),
        "worst": round(found[0], 3),
        "below 0.8": sum(each < 0.8 for each in found),
    }


def told(results: Answer) -> str:
    """The rows, slowest first, and the distributions."""
    lines = list[str]()
    named = [name for name in OURS if name in results]
    for each in results["rows"]:
        both = [f"{r:6.2f}" if (r := ratio(each, name)) else "     -" for name in named]
        wrong = f"{each.get('wrong') or ''} {each.get('message', '')}".strip()
        times = each.get("milliseconds", "")
        lines.append(f"{' '.join(both)} {each['name']:40}{each['status']:8}{times} {wrong[:300]}")
        lines[-1] += f" {each.get('first', '')}"
    return "\n".join([*lines, *(f"{name}: {results[name]}" for name in named)])


def _ours(options: Any) -> list[str]:
    """The contestants that are tedsl."""
    return [name for name in options.contestants.split(",") if name in OURS]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print the distribution, keep it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--devices", type=int, default=1, help="GPUs that time rows at once")
    parser.add_argument("--of", choices=("problems", "models", "all"), default="all")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--contestants", default="eager,compile,tedsl,products")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=1800.0, help="of the whole run")
    parser.add_argument("--commit", default="")
    parser.add_argument("--name", default="models_cuda")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    names = [*(MODELS if options.of != "problems" else ())]
    names += PROBLEMS if options.of != "models" else ()
    chosen = [each for each in options.only.split(",") if each]
    names = [name for name in names if not chosen or name in chosen]
    with tempfile.TemporaryDirectory(prefix="models-") as folder:
        made = Run(options, Path(folder))
        made.each(names, "prepare", options.jobs, made.begin + 0.7 * options.seconds)
        right = [name for name, each in made.answers.items() if each["status"] == "right"]
        made.each(right, "time", options.devices, made.begin + options.seconds)
        results = made.results()
    path = options.out / f"{options.name}.json"
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(told(results) + "\n")


if __name__ == "__main__":
    main()
