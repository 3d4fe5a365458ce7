"""Run a tutorial as its reader would, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).resolve().parents[2] / "tutorials"
NEEDS = {
    "02_blur_compute_at.py": "matplotlib",
    "12_train_a_digit_classifier.py": "sklearn",
    "solutions/12_train_a_digit_classifier.py": "sklearn",
}
"""The package without which a script ends at once, saying so."""


def run_tutorial(name: str, folder: Path, *options: str) -> str:
    """What a tutorial, or a solution (`solutions/...`), prints; no records of earlier searches.
    The test is skipped without the package that it needs.

    Raises:
        AssertionError: it failed; the end of what it printed is the message.
    """
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    environment = {**os.environ, "XDG_DATA_HOME": str(folder), "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, str(TUTORIALS / name), *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def rows_of(text: str, heading: str) -> dict[str, str]:
    """The rows of the table under a heading, by their first cell."""
    assert heading in text, f"no table {heading!r}"
    found: dict[str, str] = {}
    for line in text.split(heading, 1)[1].splitlines():
        if line.startswith("│"):
            found[line.split("│")[1].strip()] = line
        elif line.startswith("└"):
            break
    return found
