"""The suite under the oldest versions that the package says it works with, or the newest there are.

    python tests/helpers/oldest_versions.py FOLDER [--newest] [--python python3.11] [pytest's own]

Makes a virtual environment in FOLDER with the lower bounds of `pyproject.toml` (as each release of
the package is numbered: `numpy>=1.26` is 1.26.0) and the test tools, installs the package from this
checkout, and runs the suite.  Versions, counts and the commit go to
`tests/benchmarks/results/oldest_versions.json`, or `newest_versions.json`; a run of some tests only
says which.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as xml
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests" / "benchmarks" / "results"
TOOLS = ("pytest>=8", "pytest-xdist>=3", "pytest-timeout>=2", "hypothesis>=6.100", "setuptools>=77")
LIST = "import importlib.metadata as m; [print(d.name, d.version) for d in m.distributions()]"


def bounds() -> dict[str, str]:
    """The lower bound of each package that the package needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, str] = {}
    for need in project["dependencies"]:
        match = re.match(r"([\w.-]+)>=([\d.]+)", need)
        if match is None:
            raise ValueError(f"no lower bound in {need!r}")
        found[match.group(1)] = match.group(2)
    return found


def environment(folder: Path, python: str, newest: bool) -> Path:
    """A virtual environment with those versions; the path of its Python."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    own = folder / "bin" / "python"
    pip = [str(own), "-m", "pip", "install", "-q"]
    exact = [name if newest else f"{name}=={_first(bound)}" for name, bound in bounds().items()]
    subprocess.run([*pip, *exact, *TOOLS], check=True)
    subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT)], check=True, cwd=ROOT
    )
    return own


def _first(bound: str) -> str:
    """The first release of a version: `1.26` is `1.26.0`, `13` is `13.0.0`."""
    parts = bound.split(".")
    return ".".join([*parts, *["0"] * (3 - len(parts))])


def run_suite(python: Path, options: list[str], report: Path) -> dict[str, int]:
    """How many tests passed, failed and were skipped."""
    command = [str(python), "-m", "pytest", "-q", f"--junitxml={report}", *options]
    subprocess.run(command, cwd=ROOT, check=False)
    found = xml.parse(report).getroot().iter("testsuite")
    total: dict[str, int] = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for suite in found:
        for name in total:
            total[name] += int(suite.get(name, 0))
    return total


def main() -> int:
    """Make it, run, write down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the environment goes; kept for next time")
    parser.add_argument("--newest", action="store_true", help="what pip finds, in place of bounds")
    parser.add_argument("--python", default="python3.11")
    parser.add_argument("--out", type=Path, help="in place of the file among the results")
    options, own = parser.parse_known_args()
    folder = options.folder.resolve()
    python = folder / "bin" / "python"
    if not python.exists():
        python = environment(folder, options.python, options.newest)
    begin = time.monotonic()
    counts = run_suite(python, own, folder / "report.xml")
    listed = subprocess.run([python, "-c", LIST], capture_output=True, text=True, check=True)
    lines = (line.replace("-", "_").split() for line in listed.stdout.splitlines())
    versions = {name.lower(): version for name, version in lines}
    head = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=False)
    asked = subprocess.run([python, "-V"], capture_output=True, text=True, check=True)
    result = {
        "commit": commit.stdout.strip(),
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": asked.stdout.split()[1],
        "versions": {name: versions[name] for name in [*bounds(), "pytest", "hypothesis"]},
        "options": own,
        "counts": counts,
        "seconds": round(time.monotonic() - begin),
    }
    name = "newest_versions.json" if options.newest else "oldest_versions.json"
    path = options.out or RESULTS / name
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    return int(counts["failures"] + counts["errors"] > 0)


if __name__ == "__main__":
    sys.exit(main())
