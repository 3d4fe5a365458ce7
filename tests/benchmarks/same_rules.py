"""Write down what the default rules make of many computations, and compare that with before.

    python tests/benchmarks/same_rules.py write FILE [TARGET ...]
    python tests/benchmarks/same_rules.py compare FILE [TARGET ...]

The computations are the rule corpus, one of each rule at the size it is made for, products of many
sizes, and the rows of the benchmark.  Of each, for this CPU, for `cuda` and for `cuda:sm_90`, the
schedule as Python, its knobs with their choices, the loop IR and the Triton source are compared.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import rule_cases as c
import suite
from attentions import attention
from rule_corpus import corpus
from rule_shapes import SHAPES
from workload import buildable

import tedsl as te
from tedsl.backends.triton.emit.module import emit
from tedsl.errors import TedslError
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.target import Target

TARGETS = ("cpu", "cuda", "cuda:sm_90")
B = "bfloat16"
PRODUCTS = [
    (m, n, k)
    for m in (16, 200, 512, 1000, 2048, 4096, 8192)
    for n in (64, 1000, 4096, 11008)
    for k in (64, 128, 1024, 4096)
]


def computations() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names, and what makes the outputs."""
    for case in corpus():
        yield f"corpus {case.name}", case.outputs
    for name, make in SHAPES.items():
        yield f"shape {name}", make
    for m, n, k in PRODUCTS:
        yield f"product {m} {n} {k}", lambda m=m, n=n, k=k: c.matmul(m, n, k, B)
    for rows in (512, 2048, 8192):
        for causal in (False, True):
            yield (
                f"attention {rows} {causal}",
                lambda rows=rows, causal=causal: (
                    attention(32, rows, rows, 128, B, causal=causal).result
                ),
            )
    for load in suite.workloads():
        yield f"row {load.target} {load.name}", lambda load=load: buildable(load.outputs())


def described(make: Callable[[], Any], target: str) -> str:
    """A digest of all that the rules decide and of what is made of it; the error where it is
    refused."""
    outputs = make()
    if isinstance(outputs, te.Schedule):
        return "a schedule by hand"
    where = Target.parse(target)
    try:
        s = schedule_for(outputs, where)
        parts = [s.as_python(), repr([(k.name, k.choices, k.chosen) for k in s.knobs])]
        module = lower(s.plan, where)
        parts.append(str(module))
        if where.is_triton:
            parts.append(emit(module, where).source)
    except TedslError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def all_described(targets: Sequence[str]) -> dict[str, str]:
    """By computation and target."""
    return {
        f"{name} @ {target}": described(make, target)
        for name, make in computations()
        for target in targets
        if not name.startswith("row ") or target.startswith(name.split()[1])
    }


def main() -> None:
    """Write or compare."""
    what, path = sys.argv[1], Path(sys.argv[2])
    targets = sys.argv[3:] or TARGETS
    found = all_described(targets)
    if what == "write":
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        print(f"{len(found)} written")
        return
    known: dict[str, str] = json.loads(path.read_text())
    before = {name: text for name, text in known.items() if name.split(" @ ")[1] in targets}
    changed = [name for name in {**before, **found} if before.get(name) != found.get(name)]
    print(*changed, f"{len(changed)} of {len(before)} differ", sep="\n")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
