"""What no ordinary run does: the mutation suite, the hundred kills, the hundred spoilt kernels.

    python tests/helpers/faults_noticed.py                       # an hour and a half on two cores
    python tests/helpers/faults_noticed.py --only kills spoilt --out /tmp/faults.json

Counts go, with the commit, to `tests/benchmarks/results/faults_noticed.json`: what is not noticed,
lost or refused there is a test, or a fault, to be seen to.  Parts that are left out keep what an
earlier run has written of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mutate
import spoilt_kernels

ROOT = mutate.ROOT
OUT = ROOT / "tests" / "benchmarks" / "results" / "faults_noticed.json"
KILLS = "tests/autotune/test_sharing.py::test_a_search_killed_a_hundred_times_goes_on"
Part = dict[str, Any]


def mutations() -> Part:
    """Each fault made by hand in a copy of the package, and the test that notices it."""
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        mutate.layout(folder)
        for fault in mutate.FAULTS:
            found = mutate.caught(fault, folder)
            sys.stdout.write(f"{'noticed' if found else 'NOT NOTICED':<12} {fault.name}\n")
            sys.stdout.flush()
            if not found:
                missed.append(fault.name)
    count = len(mutate.FAULTS)
    return {"faults": count, "noticed": count - len(missed), "not noticed": missed}


def kills() -> Part:
    """A search killed a hundred times at random moments, and resumed each time."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "slow", "-p", "no:cacheprovider", KILLS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout[-2000:])
    passed = done.returncode == 0 and "1 passed" in done.stdout
    return {"kills": 100, "went on with all that was on record": passed}


def spoilt() -> Part:
    """Wrong kernels that would win, and right ones that would not."""
    found = list(spoilt_kernels.winners())
    wrong = [f"{name}: {kind}" for name, kind, won in found if won and kind != "sound"]
    right = [name for name, kind, won in found if not won and kind == "sound"]
    count = sum(kind != "sound" for _, kind, _ in found)
    return {"kernels": count, "of kinds": len(spoilt_kernels.KINDS), "win": wrong, "refused": right}


PARTS: Mapping[str, Callable[[], Part]] = {
    "mutations": mutations,
    "kills": kills,
    "spoilt": spoilt,
}


def is_good(parts: Mapping[str, Part]) -> bool:
    """True when nothing went unnoticed in the parts that there are."""
    clean = not parts.get("mutations", {}).get("not noticed")
    clean &= parts.get("kills", {}).get("went on with all that was on record", True)
    return clean and not any(parts.get("spoilt", {}).get(name) for name in ("win", "refused"))


def commit() -> str:
    """What is checked out; with a mark where it was changed."""
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main() -> int:
    """Run the parts asked for and write their counts; 1 when something went unnoticed."""
    parser = argparse.ArgumentParser(description="Run what no ordinary run does, and write counts.")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    parts: dict[str, Part] = {}
    if options.out.exists():
        parts = json.loads(options.out.read_text(encoding="utf-8"))
    for name in options.only:
        begin = time.perf_counter()
        found = PARTS[name]()
        seconds = round(time.perf_counter() - begin, 1)
        parts[name] = {"commit": commit(), **found, "seconds": seconds}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(f"{name}: {json.dumps(parts[name])}\n")
    return 0 if is_good(parts) else 1


if __name__ == "__main__":
    sys.exit(main())
