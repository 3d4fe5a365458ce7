"""Are the fusions that are judged not worth it slower?  Each is forced and measured.

    python tests/benchmarks/fusions_on_device.py --out FOLDER [--graphs 40] [--first 0]
        [--seconds 540]

Draws computations of two to five stages of several kinds, with arrays of tens of megabytes, and
schedules each in two ways: by the default rules, and with every stage by itself.  For each pair of
kernels that `te.explain` judges, the best way to fuse it is forced, checked against the schedule as
it is, and both are timed in turn with cold caches.  Every graph runs in a child process with a
limit of its own; several runs beside each other (`--first`) measure one at a time.  Writes
FOLDER/fusions-FIRST.json after each, and prints what share of the fusions judged not worth it is
slower; those judged worth it, and those without a difference, are counted too.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

from limited import run_limited

import tedsl as te
from tedsl.autotune.workers.device_lock import FileLock
from tedsl.errors import TedslError
from tedsl.explaining.data import Verdict
from tedsl.explaining.running import calls_of
from tedsl.runtime.timing import compare_cuda
from tedsl.schedules import default_schedule
from tedsl.scheduling.handles.schedule import Schedule

CHILD = 100.0
PAIRS = 4
"""Pairs of one schedule that are measured: those judged not worth it first."""
SIZES = (1024, 2048, 4096)
FUNCTIONS: tuple[Callable[[Any], Any], ...] = (
    te.exp, te.tanh, te.sigmoid, te.sin, lambda v: te.log(te.abs(v) + 1.0),
    lambda v: te.erf(v) * te.cos(v), lambda v: te.sqrt(te.abs(v) + 1.0),
)  # fmt: skip


class Graph:
    """Draws a computation; the same number draws the same."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(number)
        self.count = 0
        rows, columns = self.random.choice(SIZES), self.random.choice(SIZES)
        self.shape = (rows, columns)
        self.known = [te.placeholder(self.shape, name="x")]

    def outputs(self) -> list[te.Tensor]:
        """The last stage, and now and then one before it."""
        kinds = [
            self.pointwise, self.stencil, self.stencil, self.normalised, self.product,
            self.shared, self.crossed,
        ]  # fmt: skip
        for _ in range(self.random.randint(2, 4)):
            self.known.append(self.random.choice(kinds)(self.known[-1]))
        found = [self.known[-1]]
        if len(self.known) > 2 and self.random.random() < 0.2:
            found.insert(0, self.known[-2])
        return found

    def name(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def heavy(self, value: Any) -> Any:
        """One to four functions, one after the other."""
        for _ in range(self.random.randint(1, 4)):
            value = self.random.choice(FUNCTIONS)(value * 0.5)
        return value

    def pointwise(self, x: te.Tensor) -> te.Tensor:
        return te.compute(self.shape, lambda i, j: self.heavy(x[i, j]), name=self.name())

    def stencil(self, x: te.Tensor) -> te.Tensor:
        """Reads several neighbours in a row or a column, wrapped around."""
        reach, down = self.random.choice((3, 5, 9, 17, 33)), self.random.random() < 0.5
        y = self.pointwise(x)
        rows, columns = self.shape

        def body(i: Any, j: Any) -> Any:
            total: Any = y[i, j]
            for n in range(1, reach):
                total += y[(i + n) % rows, j] if down else y[i, (j + n) % columns]
            return total / float(reach)

        return te.compute(self.shape, body, name=self.name())

    def normalised(self, x: te.Tensor) -> te.Tensor:
        """Rows or columns over what they sum up to."""
        along = self.random.randint(0, 1)
        y = self.pointwise(x)
        k = te.reduce_axis((0, self.shape[along]), name="k")

        def summed(i: Any) -> Any:
            return te.sum(te.abs(y[i, k] if along else y[k, i]), axis=k)

        s = te.compute((self.shape[1 - along],), summed, name=self.name())
        return te.compute(
            self.shape, lambda i, j: y[i, j] / (s[i if along else j] + 1.0), name=self.name()
        )

    def product(self, x: te.Tensor) -> te.Tensor:
        """A matrix product of what was computed so far, which it reads many times."""
        y = self.pointwise(x)
        h = te.compute(self.shape, lambda i, j: y[i, j].astype("bfloat16"), name=self.name())
        w = te.placeholder((self.shape[1], self.shape[1]), "bfloat16", name=f"w{self.count}")
        k = te.reduce_axis((0, self.shape[1]), name="k")
        return te.compute(
            self.shape,
            lambda i, j: te.sum(h[i, k].astype("float32") * w[k, j].astype("float32"), axis=k),
            name=self.name(),
        )

    def shared(self, x: te.Tensor) -> te.Tensor:
        """Two stages that read the same, of which one sums."""
        y = self.pointwise(x)
        k = te.reduce_axis((0, self.shape[1]), name="k")
        largest = te.compute((self.shape[0],), lambda i: te.max(y[i, k], axis=k), name=self.name())
        return te.compute(self.shape, lambda i, j: y[i, j] - largest[i], name=self.name())

    def crossed(self, x: te.Tensor) -> te.Tensor:
        """A costly stage and a reversed copy of it."""
        y = self.pointwise(x)
        rows = self.shape[0]
        return te.compute(self.shape, lambda i, j: y[i, j] + y[rows - 1 - i, j], name=self.name())


def apart(outputs: list[te.Tensor]) -> Schedule:
    """Every stage a kernel of its own, tiled and bound."""
    s = te.create_schedule(outputs)
    for stage in s.stages:
        axes, folded = stage.op.axis, getattr(stage.op, "reduce_axis", ())
        if not axes:
            continue
        if folded:
            block, row = stage.split(axes[0], 64 if len(axes) > 1 else 1)
            stage.bind(block, "blockIdx.x")
            stage.vectorize(row)
            _, chunk = stage.split(folded[0], 64 if len(axes) > 1 else 1024)
            if len(axes) > 1:
                column, lane = stage.split(axes[1], 64)
                stage.reorder(block, column, row, lane)
                stage.bind(column, "blockIdx.y")
                stage.vectorize(lane)
            stage.vectorize(chunk)
            continue
        outer, inner = stage.split(stage.fuse(*axes), 1024)
        stage.bind(outer, "blockIdx.x")
        stage.vectorize(inner)
    return s


def main() -> int:
    """Run all graphs, or one as a child."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--graphs", type=int, default=40)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=540.0, help="of the whole run")
    parser.add_argument("--judge", action="store_true", help="judge only: needs no GPU")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options.child, options.out, measured=not options.judge)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    end = time.monotonic() + options.seconds
    for number in range(options.first, options.first + options.graphs):
        left = end - time.monotonic()
        if left < 10:
            break
        answer = options.out / f"graph-{number}.jsonl"
        command = [sys.executable, __file__, "--child", str(number), "--out", str(answer)]
        command += ["--judge"] if options.judge else []
        done = run_limited(command, min(CHILD, left), options.out / "log")
        found = answer.read_text().splitlines() if answer.exists() else []
        last = {(row["how"], *row["pair"]): row for row in map(json.loads, found)}
        rows += last.values()
        answer.unlink(missing_ok=True)
        if done.code != 0:
            failed.append({"graph": number, "code": done.code, "text": done.text[-600:]})
        report = {**summary(rows), "failed": failed, "rows": rows}
        path = options.out / f"fusions-{options.first}.json"
        path.write_text(json.dumps(report, indent=1) + "\n")
    sys.stdout.write(json.dumps({**summary(rows), "failed": len(failed)}, indent=1) + "\n")
    return 0


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many fusions of each verdict were slower, and by how much at the median."""
    found: dict[str, Any] = {"graphs": len({row["graph"] for row in rows})}
    for verdict in (Verdict.WORSE, Verdict.EQUAL, Verdict.BETTER):
        timed = [r["ratio"] for r in rows if r["verdict"] == verdict.value and "ratio" in r]
        judged = sum(row["verdict"] == verdict.value for row in rows)
        found[verdict.value] = {
            "judged": judged,
            "measured": len(timed),
            "slower": sum(ratio > 1.0 for ratio in timed),
            "share": sum(ratio > 1.0 for ratio in timed) / len(timed) if timed else None,
            "median": sorted(timed)[len(timed) // 2] if timed else None,
        }
    return found


def child(number: int, out: Path, measured: bool) -> None:
    """Judge the pairs of one graph, force and time them; a line for each."""
    for how, schedule in schedules(number):
        found = te.explain(schedule, "cuda")
        order = {Verdict.WORSE: 0, Verdict.EQUAL: 1, Verdict.BETTER: 2}
        legal = sorted((p for p in found.pairs if p.best), key=lambda p: order[p.verdict])
        for pair in legal[:PAIRS]:
            row: dict[str, Any] = {
                "graph": number, "how": how, "pair": [pair.first, pair.second],
                "relation": pair.relation.value, "verdict": pair.verdict.value,
                "reason": pair.reason, "code": pair.best.code if pair.best else (),
                "predicted": ratio_of_predictions(pair, found),
            }  # fmt: skip
            note(out, row)  # what kills this process has been judged all the same
            if measured and pair.best is not None:
                note(out, row | times(schedule, pair.best.force(schedule)))


def note(out: Path, row: dict[str, Any]) -> None:
    """Append a line."""
    with out.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")


def schedules(number: int) -> Iterator[tuple[str, Schedule]]:
    """The two schedules of a graph that the target carries out."""
    for how in ("rules", "apart"):
        outputs = Graph(number).outputs()
        try:
            made = default_schedule(outputs, "cuda") if how == "rules" else apart(outputs)
            te.lower(made, "cuda")
        except TedslError as error:
            sys.stderr.write(f"graph {number}, {how}: {error}\n")
            continue
        yield how, made


def ratio_of_predictions(pair: Any, found: Any) -> float:
    """Predicted time of the fused program over that of the program as it is."""
    return pair.best.figures.seconds / found.now.seconds


def times(before: Schedule, after: Schedule) -> dict[str, Any]:
    """Both measured in turn on the same inputs; the difference of their results."""
    torch: Any = importlib.import_module("torch")
    calls: dict[str, Callable[[], object]] = {}
    for name, schedule in (("before", before), ("after", after)):
        torch.manual_seed(0)
        try:
            calls[name] = calls_of(te.build(schedule, target="cuda"), {})
        except (TedslError, RuntimeError) as error:
            return {"failed": f"{name}: {error}"[:600]}
    results: list[Any] = []
    for call in calls.values():
        made: Any = call()
        results.append(made if isinstance(made, tuple) else (made,))
    worst = max(
        float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1.0))
        for a, b in zip(*results, strict=True)
    )
    alone = FileLock(f"fusions on device {os.environ.get('CUDA_VISIBLE_DEVICES', '')}")
    alone.acquire()
    try:
        stats = compare_cuda(calls, repeats=25, max_seconds=8.0)
    finally:
        alone.close()
    seconds = {name: each.median for name, each in stats.items()}
    return {
        "seconds": seconds,
        "ratio": seconds["after"] / seconds["before"],
        "difference": worst,
        "agree": worst < 2e-2,
    }


if __name__ == "__main__":
    sys.exit(main())
