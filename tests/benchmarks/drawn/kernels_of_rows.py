"""What each kernel of drawn rows takes, by PyTorch's profiler, beside what the model predicts.

    python tests/benchmarks/drawn/kernels_of_rows.py --seed 7 --numbers 12 140 --out FOLDER

A row is built by the default rules and called until its data is where it stays; then each launch of
some calls is measured.  One that takes much longer than predicted is where the model, or the
schedule, is wrong.  With `--decisions '{"T.warps": 16}'`, by the default rules with these.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "helpers"))

from kinds import row_of
from run_drawn import RESULTS, machine

import tedsl as te

torch: Any = importlib.import_module("torch")
tensors: Any = importlib.import_module("tensors")
front: Any = importlib.import_module("tedsl.torch")
DTYPES = ["float32", "bfloat16", "float16"]
CALLS = 20


def main() -> None:
    """Measure the rows, print them and write them down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--numbers", type=int, nargs="+", required=True)
    parser.add_argument("--decisions", type=json.loads, default={}, help="of the rules, as JSON")
    parser.add_argument("--name", default="kernels_of_rows", help="of the file of results")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    found = dict[str, Any]()
    for number in options.numbers:
        row = row_of(options.seed, number, "cuda", DTYPES, [])
        try:
            found[row.name] = measured(row, options.decisions)
        except te.TedslError as error:
            found[row.name] = {"failed": str(error)[:400]}
        print(row.name, json.dumps(found[row.name]), flush=True)
        path = options.out / f"{options.name}.json"
        kept = {"machine": machine("cuda"), "decisions": options.decisions, "rows": found}
        path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def measured(row: Any, decisions: dict[str, Any]) -> Any:
    """Microseconds of each kernel of a row, and what is predicted for it."""
    space = dict[str, Any]()
    exec(row.source(), space)
    given = tensors.on_device(tensors.made(row, "cpu"), "cuda")
    with torch.no_grad():
        program = front.trace(space["f"], *given)
        schedule = te.schedule_for(program.outputs, "cuda", decisions or None)
        call = program.build(schedule)
        took = launches(call, given)
    costs = call.kernel.explain().kernels
    return {
        "kernels": {
            each.name: {
                "us": round(took.pop(f"{each.name}_kernel", 0.0), 2),
                "predicted": round(each.seconds * 1e6, 2),
                "memory": round(each.memory_seconds * 1e6, 2),
                "compute": round(each.compute_seconds * 1e6, 2),
            }
            for each in costs
        },
        "others": {name: round(us, 2) for name, us in took.items()},
    }


def launches(call: Callable[..., Any], given: Sequence[Any]) -> dict[str, float]:
    """Microseconds of one call by kernel."""
    for _ in range(3):
        call(*given)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(CALLS):
            call(*given)
        torch.cuda.synchronize()
    events = profile.key_averages()
    return {each.key: each.device_time_total / CALLS for each in events if each.device_time_total}


if __name__ == "__main__":
    main()
