"""Drawn rows: the same for the same seed, every class among them, and right on the CPU; and the
script that runs them counts those that do not end."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import run_drawn
from distribution import kept, ratio, shown, summary, worst
from drawn_child import Worker
from grammar import KINDS
from kinds import row_of
from run_drawn import Child, options_of

SEED = 5
SCALES = {"cpu": ["float32"], "cuda": ["float32", "bfloat16", "float16"], "tiny": ["float32"]}


@pytest.mark.parametrize("scale", list(SCALES))
def test_every_class_is_drawn_and_again_the_same(scale: str) -> None:
    rows = [row_of(SEED, n, scale, SCALES[scale]) for n in range(2 * len(KINDS))]
    again = [row_of(SEED, n, scale, SCALES[scale]) for n in range(2 * len(KINDS))]
    assert rows == again
    assert {row.kind for row in rows} == set(KINDS)
    for row in rows:
        compile(row.source(), row.name, "exec")
        assert all(size > 0 for each in row.inputs for size in each.shape)
    assert len({row.source() for row in rows}) > 0.9 * len(rows)


def test_seeds_draw_layouts_and_types_that_differ() -> None:
    rows = [row_of(seed, n, "cuda", SCALES["cuda"]) for seed in range(8) for n in range(len(KINDS))]
    inputs = [each for row in rows for each in row.inputs]
    assert {"float32", "bfloat16", "float16", "int64", "int8"} <= {each.dtype for each in inputs}
    assert any(each.order for each in inputs)
    assert any(each.step > 1 for each in inputs)
    sizes = {size for each in inputs for size in each.shape}
    assert any(size % 2 for size in sizes if size > 8)


@pytest.mark.cpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(len(KINDS)), ids=list(KINDS))
def test_a_row_of_every_class_is_right(number: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tedsl.torch")
    asked = {"target": "cpu", "scale": "tiny", "dtypes": "float32", "kinds": "", "seed": SEED}
    more = {"threads": 0, "turns": 1, "peer": "none", "folder": tmp_path}
    worker = Worker(argparse.Namespace(**asked, **more), lambda _: None)
    found = worker.asked(number, "prepare")
    if found["status"] == "not taken":
        pytest.skip(found["message"])
    assert found["status"] == "right", found


@pytest.mark.filterwarnings("ignore")
def test_wrong_results_are_noticed() -> None:
    torch: Any = pytest.importorskip("torch")
    wrong: Any = importlib.import_module("tensors").wrong
    exact = torch.linspace(-2, 2, 100, dtype=torch.float64)
    eager = exact.float()
    assert not wrong(eager, eager, exact)
    off = eager.clone()
    off[7] += 1e-3
    assert "off by" in wrong(off, eager, exact) and not wrong(off, eager, exact, 2.0**-10)
    off[7] = torch.nan
    assert "finite" in wrong(off, eager, exact)
    largest = torch.tensor([65504.0], dtype=torch.float16)
    beyond, above = largest * 2, torch.tensor([65530.0], dtype=torch.float64)
    assert not wrong(beyond, largest, above) and not wrong(largest, beyond, above)
    assert "finite" in wrong(beyond - beyond, largest, above)
    assert "integers" in wrong(torch.tensor([1, 2]), torch.tensor([1, 3]), torch.tensor([1, 3]))
    assert "result 0 is" in wrong(eager[:5], eager, exact)


FAULTY = """
import json, os, signal, sys, time
for line in sys.stdin:
    number = json.loads(line)["number"]
    print(json.dumps({"step": "build"}), flush=True)
    if number == 1:
        sys.stderr.write("what it said last")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 2:
        time.sleep(60)
    print(json.dumps({"status": "right"}), flush=True)
"""


def test_processes_that_crash_or_hang_are_named(tmp_path: Path, monkeypatch: Any) -> None:
    program = tmp_path / "faulty.py"
    program.write_text(FAULTY, encoding="utf-8")
    monkeypatch.setitem(run_drawn.LIMITS, "build", 1.0)
    child = Child([sys.executable, str(program)], {})
    try:
        found = [child.ask({"number": n, "job": "prepare"}, float("inf")) for n in range(4)]
    finally:
        child.close()
    assert [each["status"] for each in found] == ["right", "crash", "hang", "right"]
    assert found[1]["at"] == found[2]["at"] == "build"
    assert "SIGSEGV: what it said last" in found[1]["message"]
    assert child.ask({"number": 2, "job": "time"}, 0.0)["status"] == "no time"


SEEING = """
import json, os, sys, time
for line in sys.stdin:
    time.sleep(0.05)
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    print(json.dumps({"status": "right", "device": seen, "process": os.getpid()}), flush=True)
"""


def test_rows_are_timed_by_one_process_for_each_device(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "drawn_child.py").write_text(SEEING, encoding="utf-8")
    monkeypatch.setattr(run_drawn, "HERE", tmp_path)
    monkeypatch.setattr(run_drawn, "machine", lambda _: {})
    options = ["--target", "cuda", "--count", "40", "--jobs", "6", "--devices", "2", "--quiet"]
    found = run_drawn.run(options_of([*options, "--commit", "a", "--out", str(tmp_path)]))
    assert (found["asked"]["devices"], found["machine"]["commit"]) == (2, "a")
    lines = (tmp_path / "drawn_cuda.jsonl").read_text(encoding="utf-8").splitlines()
    answers = [json.loads(line) for line in lines]
    for job, processes in (("prepare", 6), ("time", 2)):
        own = [each for each in answers if each["job"] == job]
        assert sorted(each["number"] for each in own) == list(range(40))
        assert {each["device"] for each in own} == {"0", "1"}
        assert len({each["process"] for each in own}) == processes


def test_the_distribution() -> None:
    def answer(kind: str, ours: float, **more: Any) -> dict[str, Any]:
        times = {"tedsl": [ours] * 3, "eager": [2.0, 2.0, 9.0], "compile": [4.0] * 3}
        return {"name": kind, "kind": kind, "status": "right", "milliseconds": times, **more}

    rows = [answer("a", 1.0), answer("b", 4.0, schedule="s", text="t"), answer("a", 2.0)]
    rows.append({"name": "c", "kind": "c", "status": "not taken", "message": "no converter"})
    assert [ratio(each) for each in rows] == [2.0, 0.5, 1.0, None]
    told = summary(rows)
    assert told["geomean"] == 1.0
    assert told["worst"] == 0.5
    assert told["counts"] == {"right": 3, "not taken": 1}
    assert told["unmet"] == {"c": {"not taken": 1}}
    assert [each["kind"] for each in worst(rows)] == ["b", "a", "a"]
    assert kept(rows[1], whole=True)["schedule"] == "s"
    assert "schedule" not in kept(rows[1], whole=False)
    assert "geomean 1.0, worst 0.5" in shown(told)
    json.dumps([told, *(kept(each, whole=True) for each in rows)])


def test_defaults_of_the_command_line(tmp_path: Path) -> None:
    options = options_of(["--target", "cuda", "--out", str(tmp_path)])
    assert (options.scale, options.name) == ("cuda", "drawn_cuda")
    assert options.dtypes == "float32,bfloat16,float16"
