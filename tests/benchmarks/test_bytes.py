"""What the model predicts now, against what an H200 counted and took: results/bytes_h200.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bytes_on_device
import pytest

import tedsl as te
from tedsl.schedules import default_schedule

RECORDED = json.loads(
    (Path(__file__).parent / "results" / "bytes_h200.json").read_text(encoding="utf-8")
)
ROWS: dict[str, dict[str, Any]] = {row["name"]: row for row in RECORDED["rows"]}


def test_ten_classes_are_recorded() -> None:
    assert sorted(ROWS) == sorted(bytes_on_device.CASES)
    assert all("error" in row and "measured" in row for row in ROWS.values())


@pytest.mark.parametrize("name", bytes_on_device.CASES)
def test_predictions_are_near_what_was_counted(name: str) -> None:
    row = ROWS[name]
    schedule = default_schedule([bytes_on_device.CASES[name]()], "cuda")
    found = te.explain(schedule, "cuda", device="NVIDIA H200")
    counted = row["counted_read"] + row["counted_written"]
    assert abs((found.reads + found.writes) / counted - 1) <= bytes_on_device.WITHIN
    assert abs(found.seconds / row["measured"] - 1) <= bytes_on_device.TIME_WITHIN
