"""Rows run in processes that may hang, die or raise; one at a time has the device."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from runner import Plan, Row, Runner

HERE = Path(__file__).parent


def outcomes(plan: Plan, names: list[str]) -> tuple[dict[str, Row], list[str]]:
    """What became of the rows, and those for which there was no time."""
    found: dict[str, Row] = {}
    left = Runner(plan, lambda row: found.update({row["name"]: row})).run(names)
    return found, left


def plan(mode: str = "check", **more: object) -> Plan:
    settings: dict[str, object] = {"mode": mode, "suite": "fault_rows", "jobs": 2, **more}
    settings.setdefault("settings", {"target": "cpu"})
    return Plan(**settings)  # type: ignore[arg-type]


@pytest.mark.cpu
def test_failures_are_rows() -> None:
    names = ["raises", "aborts", "leaves", "hangs", "wrong", "fine", "lacking"]
    found, left = outcomes(plan(prepare=8.0), names)
    assert not left and list(found) != names and set(found) == set(names)
    assert found["raises"]["failed"] == "ValueError: no such schedule"
    assert "signal SIGABRT while preparing" in found["aborts"]["failed"]
    assert "_abort" in found["aborts"]["log"]
    assert "status 3" in found["leaves"]["failed"]
    assert "did not end within 8 s of preparing" in found["hangs"]["failed"]
    assert "relative error" in found["wrong"]["failed"]
    assert found["fine"]["error"] < 1e-6
    assert found["lacking"]["lacks"] == "a word for it"


def test_one_at_a_time_has_the_device() -> None:
    names = [f"sleeps {n}" for n in range(4)]
    found, left = outcomes(plan("turns", jobs=3), names)
    assert not left
    turns = sorted((row["begin"], row["end"]) for row in found.values())
    assert all(end <= begin for (_, end), (begin, _) in pairwise(turns))
    assert all("prepared_seconds" in row for row in found.values())


def test_each_device_measures_one_at_a_time() -> None:
    names = [f"sleeps {n}" for n in range(6)]
    found, left = outcomes(plan("turns", jobs=4, devices=["4", "7"]), names)
    assert not left
    turns = {
        device: sorted(
            (row["begin"], row["end"]) for row in found.values() if row["device"] == device
        )
        for device in ("4", "7")
    }
    assert sorted(map(len, turns.values())) == [3, 3]
    for each in turns.values():
        assert all(end <= begin for (_, end), (begin, _) in pairwise(each))


def test_a_turn_that_hangs_ends() -> None:
    found, left = outcomes(plan("turns", measure=1.0), ["hangs", "aborts", "sleeps 0"])
    assert not left
    assert "did not end within 1 s of measuring" in found["hangs"]["failed"]
    assert "SIGABRT while measuring" in found["aborts"]["failed"]
    assert "begin" in found["sleeps 0"]


def test_the_budget_ends_a_run() -> None:
    many = plan("turns", jobs=1, seconds=10.0, measure=12.0)  # the first starts within them
    found, left = outcomes(many, ["hangs", *["sleeps 1"] * 3])
    assert "failed" in found["hangs"] and left == ["sleeps 1"] * 3
    found, left = outcomes(plan(jobs=2, seconds=0.5), ["hangs", "fine"])
    assert "hangs" in left and "hangs" not in found


def test_a_run_leaves_its_rows_on_disk(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "run.py"), "--check", "--check-target", "cpu"]
    command += ["--suite", "fault_rows", "--only", "raises", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    report = json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))
    assert [row["failed"] for row in report["rows"]] == ["ValueError: no such schedule"]
    assert report["machine"]["commit"] and not report["left_out"]
