"""ruff and pyright run clean over the package, the tests and the tutorials."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from sources import ROOT
from typecheck import typecheck


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=["check", "format"])
def test_ruff(command: list[str]) -> None:
    if importlib.util.find_spec("ruff") is None:
        pytest.skip("ruff is not installed (it comes with the test extra)")
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "--no-cache", "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright() -> None:
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is not installed (it comes with the test extra)")
    status, report = typecheck()
    assert status == 0, report
