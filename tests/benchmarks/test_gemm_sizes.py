"""The comparison of many sizes stops in time, and says what is missing."""

import json
import sys
from pathlib import Path
from typing import Any

import gemm_sizes
import pytest

pytestmark = pytest.mark.cpu


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *more: str) -> dict[str, Any]:
    asked = ["--target", "cpu", "--trials", "2", "--each", "2", "--sizes", "2", "--rounds", "2"]
    monkeypatch.setattr(sys, "argv", ["gemm_sizes.py", *asked, "--out", str(out), *more])
    gemm_sizes.main()
    return json.loads(out.read_text())


def test_all_sizes_and_what_they_come_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    found = run(monkeypatch, tmp_path / "out.json")
    assert found["complete"] is True
    assert [row["m"] for row in found["rows"]] == [m for m, _, _ in gemm_sizes.SMALL[:2]]
    assert found["geomean"] > 0


def test_it_stops_in_time_with_what_it_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    found = run(monkeypatch, tmp_path / "out.json", "--seconds", "0.1")
    assert found["complete"] is False
    assert found["rows"] == []
    assert found["geomean"] is None
    assert 1 <= found["kernels"] <= 2
