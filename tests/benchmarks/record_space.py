"""Measure every point of a part of a search space, and keep it to be searched without hardware.

    python tests/benchmarks/record_space.py gemm softmax attention --out FOLDER

Each point is compiled, checked and timed by the search's own workers.  What comes out is read by
`tedsl.autotune.search.simulate.recorded_space.read_space`, and by `search_replay.py` beside this
file.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path

import tedsl as te
from tedsl.autotune.frontend.settings import Options
from tedsl.autotune.outcome import Status
from tedsl.autotune.records.database import Records
from tedsl.autotune.records.machine import context_of
from tedsl.autotune.search.simulate.recorded_space import write_space
from tedsl.autotune.search_space.problem import Problem
from tedsl.autotune.search_space.space import Candidate, Choice, Space
from tedsl.autotune.tuner import Tuner
from tedsl.processor import usable_cores
from tedsl.workload.workload import Workload

sys.path.append(str(Path(__file__).parents[1] / "helpers"))

from attentions import attention

B = "bfloat16"
Choices = Mapping[str, tuple[Choice, ...]]


@dataclass(frozen=True)
class Part:
    """A computation, who schedules it, and which choices of its knobs are measured.

    `only` names knobs by what follows the last dot; a knob that it does not name keeps its default.
    """

    make: Callable[[], te.Tensor]
    only: Choices
    schedule: Callable[[te.Schedule], object] | None = None
    target: str = field(default="cuda")


def gemm() -> te.Tensor:
    n = 4096
    a, b = (te.placeholder((n, n), B, name=name) for name in "ab")
    bias = te.placeholder((n,), B, name="bias")
    product = te.nn.matmul(a, b)
    return te.nn.gelu(te.compute((n, n), lambda i, j: product[i, j] + bias[j], name="biased"))


def softmax() -> te.Tensor:
    return te.nn.softmax(te.placeholder((4096, 8192), "float32", name="x"))


def causal_attention() -> te.Tensor:
    return attention(32, 2048, 2048, 64, B, causal=True).result


def schedule_attention(s: te.Schedule) -> None:
    """One pass over blocks of keys; every size and order open."""
    result, folded, shares, scaled, scores = (s[name] for name in ("out", "O", "P", "T", "S"))
    heads, rows, depth = result.op.axis
    block, inner_rows = result.split(rows, s.knob("rows", (32, 64, 128, 256), 64))
    grid = (heads, block) if s.knob("heads_outside", (True, False), True) else (block, heads)
    result.reorder(*grid, inner_rows, depth)
    result.bind(grid[0], "blockIdx.y")
    result.bind(grid[1], "blockIdx.x")
    shares.compute_inline()
    scaled.compute_inline()
    folded.compute_at(result, grid[1])
    (keys,) = folded.op.reduce_axis
    outer, inner = folded.split(keys, s.knob("keys", (16, 32, 64, 128), 64))
    folded.online(outer, casts=True)
    scores.compute_at(folded, outer)
    (along,) = scores.op.reduce_axis
    scores.vectorize(along)
    folded.dot(inner, finite=True)
    q, k, v = (s[name].op.outputs[0] for name in ("Q", "K", "V"))
    if s.knob("early_queries", (True, False), False):
        s[s.cache_read(q, "local", [scores.op])].compute_at(result, grid[1])
    if s.knob("descriptors", (True, False), False):
        s[s.cache_read(k, "shared", [scores.op])].compute_at(folded, outer)
        s[s.cache_read(v, "shared", [folded.op])].compute_at(folded, outer)
    stages = s.knob("stages", (1, 2, 3, 4, 5), 3)
    folded.pipeline(outer, stages)
    result.launch(num_warps=s.knob("warps", (2, 4, 8), 4))


PARTS = {
    "gemm": Part(
        gemm,
        {
            "bm": (64, 128, 256),
            "bn": (64, 128, 256),
            "bk": (64, 128),
            "group": (1, 4, 8),
            "resident": (0, 1),
            "stages": (2, 3, 4, 5),
            "warps": (4, 8),
            "descriptors": (True, False),
        },
    ),
    "softmax": Part(
        softmax,
        {
            "whole_row": (True, False),
            "online": (True, False),
            "rows": (1, 2, 4, 8),
            "resident": (0, 1, 2, 4, 8),
            "block": (512, 1024, 2048, 4096, 8192),
            "stages": (1, 2, 3, 4, 5),
            "ahead": (1, 2, 3, 4),
            "warps": (4, 8, 16, 32),
        },
    ),
    "attention": Part(
        causal_attention,
        {
            name: ()
            for name in (
                *("rows", "keys", "stages", "warps"),
                *("heads_outside", "early_queries", "descriptors"),
            )
        },
        schedule_attention,
    ),
}


def points(name: str) -> list[Candidate]:
    """Every candidate that a part allows, made by all processors: knobs are answered in the order
    in which they are met."""
    found: dict[str, Candidate] = {}
    with ProcessPoolExecutor(usable_cores(), mp_context=get_context("fork")) as processes:
        waiting: list[dict[str, Choice]] = [{}]
        while waiting:
            looks = processes.map(partial(look, name), waiting, chunksize=4)
            waiting = []
            for candidate, further in looks:
                waiting += further
                if candidate is not None:
                    found.setdefault(candidate.identity, candidate)
    return list(found.values())


def look(name: str, answers: dict[str, Choice]) -> tuple[Candidate | None, list[dict[str, Choice]]]:
    """What some answers lead to: a candidate, or the answers to the next knob."""
    only = PARTS[name].only
    found = space_of(name).candidate(answers, "record")
    if not isinstance(found, Candidate):
        return None, []
    for knob in found.knobs:
        short = knob.name.rpartition(".")[2]
        if knob.name in answers or short not in only:
            continue
        allowed = [c for c in knob.choices if not only[short] or c in only[short]]
        return None, [{**answers, knob.name: c} for c in allowed or [knob.chosen]]
    return found, []


@cache
def space_of(name: str) -> Space:
    """The space of a part, made once in each process."""
    part = PARTS[name]
    return Problem(Workload.of(part.make()).outputs, part.target, part.schedule).space()


def record(name: str, part: Part, options: argparse.Namespace) -> None:
    """Measure one part and write it."""
    begin = time.monotonic()
    workload = Workload.of(part.make())
    problem = Problem(workload.outputs, part.target, part.schedule)
    space = problem.space()
    default = space.default()
    found = [default, *(c for c in points(name) if c.identity != default.identity)]
    print(f"{name}: {len(found)} points in {time.monotonic() - begin:.0f} s", flush=True)
    context = context_of(workload, part.target, space.name, "{}")
    ignored = Options(schedule=problem.function, records=False, progress=False)
    with closing(Records(None)) as records:
        tuner = Tuner(problem, space, workload, context, records, ignored, {}, begin)
        outcomes = tuner.measure(found, begin + options.seconds)
    rows = [(c, o, None) for c, o in zip(found, outcomes, strict=True) if o is not None]
    path = options.out / f"{name}.csv.gz"
    write_space(path, rows, name=name, device=context.device, notice=context.toolchain)
    took = time.monotonic() - begin
    print(f"{name}: {len(rows)} of {len(found)} points in {took:.0f} s", flush=True)
    print(Counter(outcome.status.value for _, outcome, _ in rows))
    errors = {o.reason: o.error for _, o, _ in rows if o.status is not Status.OK}
    for reason, error in list(errors.items())[:5]:
        print(f"  {reason}: {error[:300]}")
    times = [o.seconds for _, o, _ in rows if o.status is Status.OK and o.seconds is not None]
    print(f"best {min(times, default=0.0) * 1e6:.1f} us, the default first: {times[:3]}")


def main() -> None:
    """Measure the parts named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=sorted(PARTS), choices=sorted(PARTS))
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the files")
    parser.add_argument("--seconds", type=float, default=600.0, help="time for each part")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.parts:
        record(name, PARTS[name], options)


if __name__ == "__main__":
    main()
