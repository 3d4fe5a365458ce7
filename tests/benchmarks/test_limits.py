"""Which rows fall short, what is said of them, and that each missed line says what was tried."""

from __future__ import annotations

import argparse
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import expected
import limits
import limits_on_device
import limits_page
import pytest
import suite
import summary
import tried
from workload import BEST_COMPILED, COMPILED, COPY, EAGER, FLEX, OURS, TUNED

HERE = Path(__file__).parent
LOADS = {load.name: load for load in suite.workloads()}
RECORDED: dict[str, Any] = json.loads((HERE / "results" / "cuda.json").read_text(encoding="utf-8"))
LONG, SQUARE = "softmax, bf16 1024x131072", "matmul, bf16 4096x4096x4096"
ODD = "matmul, bf16 1000x3000x2000"


def row(name: str, spread: float = 0.01, **times: float) -> dict[str, Any]:
    taken = {KEYS[key]: {"ms": ms, "spread": spread} for key, ms in times.items()}
    found = {"name": name, "line": LOADS[name].line, "class": "", "how": "default rules"}
    return {**found, "times": taken, "schedule": "s = te.create_schedule(out)\n"}


KEYS = {
    "ours": OURS, "eager": EAGER, "compiled": COMPILED, "tuned": TUNED, "copy": COPY, "flex": FLEX,
}  # fmt: skip


def report(*rows: dict[str, Any]) -> dict[str, Any]:
    machine = {"gpu": "NVIDIA H200", "commit": "abc1234"}
    return {"machine": machine, "rows": list(rows), "summary": summary.lines(rows)}


def test_a_row_below_the_mean_that_its_line_missed_falls_short() -> None:
    (short,) = limits.shortfalls(report(row(LONG, ours=0.2, compiled=0.3, tuned=0.28, copy=0.13)))
    (missed,) = short.missed
    assert (missed.peer, missed.asked) == (BEST_COMPILED, 1.8)
    assert missed.reached == pytest.approx(1.4) and missed.peer_ms == 0.28
    assert not limits.shortfalls(report(row(LONG, ours=0.1, compiled=0.3, tuned=0.28)))


def test_where_the_mean_is_met_only_rows_below_their_least_fall_short() -> None:
    fast, low = row(SQUARE, ours=1.0, eager=1.5), row(ODD, ours=1.0, eager=0.9)
    assert [each.name for each in limits.shortfalls(report(fast, low))] == [ODD]
    slow = row(SQUARE, ours=1.0, eager=1.0)
    assert [each.name for each in limits.shortfalls(report(slow, low))] == [SQUARE, ODD]
    near = row(ODD, ours=1.0, eager=0.95)
    assert not limits.shortfalls(report(fast, near))


def test_rows_that_were_disturbed_are_left_out_and_rows_that_failed_are_not() -> None:
    low = row(SQUARE, ours=1.0, eager=0.9)
    found = limits.shortfalls(report(low, row(ODD, spread=0.3, ours=1.0, eager=0.5)))
    assert [each.name for each in found] == [SQUARE]
    failed = {"name": ODD, "line": "gemm", "class": "gemm", "failed": "the process | hung"}
    made = report(row(SQUARE, ours=1.0, eager=2.0), failed)
    assert [each.missed[0].reached for each in limits.shortfalls(made)] == [None]
    assert f"| {ODD} | 0.93x torch eager | failed |" in limits_page.page(made, {}, {})


def test_the_floor_is_of_bytes_or_of_operations() -> None:
    for name, what in ((LONG, "as a copy"), (SQUARE, "760 TFLOP/s")):
        floor = limits.floor_of(LOADS[name])
        assert what in floor.what and floor.ms == 1e3 * expected.floor(LOADS[name])
    tiny = next(load for load in LOADS.values() if load.line == "launch")
    assert limits.floor_of(tiny).what == "no call is shorter"


def counted(name: str) -> dict[str, Any]:
    kernel = {
        "kernel": "softmax_kernel", "ms": 0.2, "dram": 88.0, "registers": 31.0, "local_bytes": 0.0,
        "shared": 1024.0, "grid": 1024.0, "waves": 0.97, "occupancy": 71.0,
        "stalls": {"long_scoreboard": 70.0, "selected": 20.0, "barrier": 10.0},
    }  # fmt: skip
    return {"name": name, "ms": 0.21, "schedule": "s = found()\n", "counted": [kernel]}


def test_the_page_without_counters_says_so() -> None:
    made = report(row(LONG, ours=0.2, compiled=0.3, tuned=0.28, copy=0.13))
    resources = {"name": "k", "registers": 40, "spills": 8, "shared": 2048, "warps": 4}
    static = {"rows": [{"name": LONG, "kernels": [resources]}]}
    text = limits_page.page(made, {}, static)
    assert "have not been run on the device yet" in text and "limits_h200.json" in text
    assert f"| {LONG} | 1.8x best torch.compile | 1.40x | 2.24x | 0.2000 | 0.1249 | 62% |" in text
    assert "not counted yet" in text
    assert "`k` 40 registers a thread, 8 B of stack, 2 KiB shared, 4 warps" in text
    assert "s = te.create_schedule(out)" in text and "<details>" in text


def test_the_page_with_counters_says_what_limits() -> None:
    made = report(row(LONG, ours=0.2, compiled=0.3, tuned=0.28, copy=0.13))
    found = {"machine": {"gpu": "NVIDIA H200", "commit": "def5678"}, "notes": ["no x__y.sum"]}
    text = limits_page.page(made, {**found, "rows": [counted(LONG)]}, {})
    assert "have not been run" not in text and "80% busy" in text.replace("\n", " ")
    assert "memory 88% busy; warps wait most for data from memory" in text
    assert "s = found()" in text and "no x__y.sum" in text
    assert "| `softmax_kernel` | 0.2000 | 88 |" in text
    lost = {**found, "rows": [{"name": LONG, "ms": 0.2, "not_counted": "status 1: refused"}]}
    assert "not counted: status 1: refused" in limits_page.page(made, lost, {})


def test_a_mean_beyond_the_floor_is_called_so() -> None:
    name = "matmul -> sums of squares, bf16 4096x4096x4096"
    text = limits_page.page(report(row(name, ours=0.19, eager=0.29, compiled=0.192)), {}, {})
    assert "the line would be at 1.06x; a mean of 1.15x" in text
    assert "more than any schedule reaches" in text
    text = limits_page.page(report(row(LONG, ours=0.2, compiled=0.28)), {}, {})
    assert "more than any schedule reaches" not in text


def test_every_line_that_is_missed_says_what_was_tried() -> None:
    lines = limits.lines_missed(RECORDED)
    assert lines
    assert not [line.key for line in lines if not tried.NOTES.get(line.key)]
    for found in tried.NOTES.values():
        assert all(each.what and each.figure and each.source for each in found)
    assert set(tried.NOTES) <= {load.line for load in LOADS.values()}


def test_every_row_that_falls_short_is_on_the_recorded_page() -> None:
    text = (HERE / "results" / "limits.md").read_text(encoding="utf-8")
    short = limits.shortfalls(RECORDED)
    assert short and all(f"### {each.name}\n" in text for each in short)
    assert text.count("\n### ") == len(short)


def test_candidates_of_the_scripts_are_condensed_by_row() -> None:
    times = {OURS: {"ms": 0.03}, EAGER: {"ms": 0.024}}
    rows = [
        {"name": "matmul 1000x3000x2000 | rules", "times": times},
        {"name": "matmul 1000x3000x2000 | 256x128", "times": {**times, OURS: {"ms": 0.029}}},
        {"name": "matmul 1x2x3 | rules", "times": times},
        {"name": "matmul 1000x3000x2000 | hung", "failed": "hung"},
    ]
    found = tried.condensed(rows)
    candidates = {"rules": [0.03, 0.024], "256x128": [0.029, 0.024]}
    assert found == {ODD: {"peer": EAGER, "tried": candidates}}
    beside = {
        "name": LONG,
        "times": {OURS: 0.2, "share 4": 0.3, COMPILED: 0.28, EAGER: 0.27},
        "decisions": {OURS: {}, "share 4": {}},
    }
    found = tried.condensed({"rows": [beside]})
    assert found[LONG] == {"peer": EAGER, "tried": {OURS: [0.2, 0.27], "share 4": [0.3, 0.27]}}


def test_candidates_that_are_kept_are_of_rows_of_the_benchmark() -> None:
    recorded = json.loads(tried.MEASURED.read_text(encoding="utf-8"))["runs"]
    assert all(name in LOADS for run in recorded for name in run["rows"])
    (search, *runs) = tried.measured("rms_norm(x + r), bf16 16384x8192")
    assert "17 schedules measured" in search.what and "0.2652 ms" in search.figure
    assert runs and "**the default** 0.2642" in runs[0].figure


FAKE = """#!{python}
import sys
if "--query-metrics" in sys.argv:
    sys.exit()
asked = sys.argv[sys.argv.index("--metrics") + 1].split(",")
for name in ("dram__bytes_read.sum", "dram__bytes_write.sum"):
    if name in asked:
        sys.exit("==ERROR== Failed to find metric " + name)
if sys.argv[sys.argv.index("--child") + 1].startswith("softmax"):
    print('"ID","Kernel Name","gpu__time_duration.sum"')
    print('"","","ns"')
    print('"0","k","5,000"')
else:
    print("it fell over")
    sys.exit(3)
"""


def test_a_metric_that_is_refused_is_left_out_and_a_child_that_fails_is_told(
    tmp_path: Path,
) -> None:
    profiler = tmp_path / "ncu"
    profiler.write_text(FAKE.format(python=sys.executable))
    profiler.chmod(profiler.stat().st_mode | stat.S_IXUSR)
    short = [each for each in limits.shortfalls(RECORDED) if each.name in (LONG, ODD)]
    made = limits_on_device.Report(tmp_path / "limits.json", short, {"gpu": "NVIDIA H200"})
    for each in short:
        made.add({"name": each.name, "ms": 0.2})
    options = argparse.Namespace(out=tmp_path, records=tmp_path)
    asked = ["gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum"]
    end = time.monotonic() + 60
    counting = limits_on_device.Counting(str(profiler), asked, made, options, end)
    assert counting.all_of([each.name for each in short], 2) == [ODD]
    found = json.loads((tmp_path / "limits.json").read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in found["rows"]}
    assert rows[LONG]["counted"] == [{"kernel": "k", "ms": pytest.approx(0.005)}]
    assert rows[ODD]["not_counted"] == "status 3: it fell over"
    assert rows[LONG]["floor_ms"] > 0 and rows[LONG]["recorded"][0]["asked"] == 1.8
    for name in asked[1:]:
        assert f"left out, refused by ncu: {name}" in found["notes"]
    late = limits_on_device.Counting(str(profiler), asked, made, options, time.monotonic())
    assert late.all_of([LONG], 1) == [LONG]
    assert "no time was left" in made.rows[LONG]["not_counted"]


def test_the_rows_can_be_listed_without_a_device(tmp_path: Path) -> None:
    script = str(HERE / "limits_on_device.py")
    command = [sys.executable, script, "--list", "--only", "softmax"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and f"{LONG}: asked 1.8x of best torch.compile" in done.stdout
    command = [sys.executable, script, "--only", "softmax"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--out FOLDER says where" in done.stderr
    command += ["--out", str(tmp_path)]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=hidden)
    assert done.returncode == 2 and "PyTorch sees no GPU here" in done.stderr
    assert not list(tmp_path.iterdir())
