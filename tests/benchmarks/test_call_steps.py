"""The steps of a call are those of the function that was written for it."""

from __future__ import annotations

import importlib
from typing import Any

import pytest


def test_steps_of_every_workload_are_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    steps: Any = importlib.import_module("call_steps")
    loads = steps.class_launch.workloads()
    monkeypatch.setattr("sys.argv", ["call_steps.py", "--rounds", "1"])
    steps.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": call ")[0] for line in lines] == [load.name for load in loads]
    for line in lines:
        figures = [part.rpartition(" ") for part in line.partition(": call ")[2].split(", ")]
        assert len(figures) == 7 and all(float(figure) >= 0 for *_, figure in figures)
