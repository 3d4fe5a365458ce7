"""The scripts that compare predictions with a device, as far as none is needed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import bytes_on_device
import fusions_on_device
import pytest
from limited import run_limited

import tedsl as te

PRINTED = """==PROF== Connected to process 12
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","12","out_kernel","dram__bytes_read.sum","byte","2,147,500,000"
"0","12","out_kernel","dram__bytes_write.sum","byte","1,050,000,000"
"1","12","last","dram__bytes_read.sum","byte","100"
"1","12","last","dram__bytes_write.sum","byte","0"
"""


def test_what_the_profiler_prints_is_summed_by_launch() -> None:
    kernels = bytes_on_device.parse(PRINTED)
    assert [kernel["kernel"] for kernel in kernels] == ["out_kernel", "last"]
    row: dict[str, Any] = {"read": 2 << 30, "written": 1 << 30}
    found = bytes_on_device.compared(row, kernels)
    assert found["counted_read"] == 2147500100 and found["within"]
    assert found["error"] == pytest.approx(3 * (1 << 30) / 3197500100 - 1)
    assert bytes_on_device.parse("==ERROR== no permission") == []


@pytest.mark.parametrize("name", bytes_on_device.CASES)
def test_every_case_moves_at_least_its_outputs_well_beyond_the_cache(name: str) -> None:
    found = te.explain(bytes_on_device.CASES[name](), "cuda")
    assert found.nbytes > 10 * (50 << 20)
    assert found.nbytes > 0.45 * found.least_bytes  # masked sums leave half of it out
    assert sum(found.kernels[-1].writes.values()) > 0


@pytest.mark.uncompiled(
    "a device compiles them; the kernels of drawn graphs are compiled elsewhere"
)
def test_a_number_draws_one_graph_and_both_its_schedules_lower() -> None:
    made = [[how for how, _ in fusions_on_device.schedules(number)] for number in range(6)]
    assert made[0] and sum(map(len, made)) >= 9
    first, again = (fusions_on_device.Graph(3).outputs() for _ in range(2))
    assert [str(t.op) for t in first] == [str(t.op) for t in again]


def test_rows_are_summed_by_verdict() -> None:
    rows = [
        {"graph": 0, "verdict": "not worth it", "ratio": 1.5},
        {"graph": 0, "verdict": "not worth it", "ratio": 0.9},
        {"graph": 1, "verdict": "not worth it"},
        {"graph": 1, "verdict": "worth it", "ratio": 0.5},
    ]
    found = fusions_on_device.summary(rows)
    assert found["graphs"] == 2
    assert found["not worth it"] == {
        "judged": 3, "measured": 2, "slower": 1, "share": 0.5, "median": 1.5,
    }  # fmt: skip


def test_what_takes_too_long_is_killed_with_what_it_started(tmp_path: Path) -> None:
    body = "import subprocess, sys, time; subprocess.Popen(['sleep', '100']); time.sleep(100)"
    ended = run_limited([sys.executable, "-c", body], 1.0, tmp_path / "log")
    assert ended.code is None
    done = run_limited([sys.executable, "-c", "print('here')"], 60.0, tmp_path / "log")
    assert done.code == 0 and done.text == "here\n"
