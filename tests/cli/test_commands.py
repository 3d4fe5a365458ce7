"""The command line: what it prints, what it refuses, what it leaves behind."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from replaying import SPACES

from tedsl.cli.main import main

SCRIPT = """
import tedsl as te

n = te.size_var("n")
x = te.placeholder((n,), "float32", name="x")
y = te.compute((n,), lambda i: te.exp(x[i] * 0.5), name="y")

def both():
    a = te.placeholder((64, 64), "float32", name="a")
    return [te.nn.softmax(a)]

def pieces(s):
    stage = s["y"]
    _, inner = stage.split(stage.op.axis[0], factor=s.knob("piece", (8, 16), 8))
    stage.vectorize(inner)

number = 3
if __name__ == "__main__":
    raise SystemExit("the script was run")
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.mark.cpu
def test_a_search_is_reported_drawn_and_told(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("matplotlib")
    events, picture = tmp_path / "events.jsonl", tmp_path / "search.svg"
    asked = ["tune", f"{script}:y", "--schedule", "pieces", "--target", "cpu", "--size", "n=3000"]
    asked += ["--budget", "quick", "--records", str(tmp_path / "r.sqlite"), "--events", str(events)]
    assert main([*asked, "--report", "--plot", str(picture)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("s = te.create_schedule(y)")
    assert "which limit binds" in printed.err
    assert "drawn to" in printed.err and picture.exists()
    kinds = [json.loads(line)["event"] for line in events.read_text().splitlines()]
    assert kinds[0] == "started" and kinds[-1] == "finished"
    assert main([*asked, "--plot", "search.bmp"]) == 1
    assert "allowed .svg, .png, .pdf" in capsys.readouterr().err
    assert main([*asked, "--trials", "3"]) == 1
    assert "two budgets" in capsys.readouterr().err


@pytest.mark.cpu
def test_tune_then_records(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = str(tmp_path / "r.sqlite")
    asked = ["tune", f"{script}:y", "--schedule", "pieces", "--target", "cpu", "--size", "n=3000"]
    asked += ["--trials", "2", "--records", file, "--quiet", "--lock", str(tmp_path / "tedsl.lock")]
    assert main(asked) == 0
    source = capsys.readouterr().out
    assert source.startswith("s = te.create_schedule(y)")
    assert main(asked) == 0
    assert capsys.readouterr().out == source
    assert main(["records", "--records", file, "list"]) == 0
    line = capsys.readouterr().out
    assert "done" in line or "exhausted" in line
    assert "2 tried,   0 failed" in line
    assert re.match(r"[0-9a-f]{8}  20\d\d-\d\d-\d\d \d\d:\d\d  ", line)
    assert main(["records", "--records", file, "list", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["counts"] == {"ok": 2} and row["target"] == "cpu"
    assert abs(time.time() - row["started"]) < 600
    assert main(["records", "--records", file, "show", row["id"][:8]]) == 0
    assert '"piece":16' in capsys.readouterr().out
    lines, other = str(tmp_path / "all.jsonl"), str(tmp_path / "o.sqlite")
    assert main(["records", "--records", file, "export", lines]) == 0
    assert main(["records", "--records", other, "import", lines]) == 0
    assert main(["records", "--records", other, "merge", file]) == 0
    said = capsys.readouterr().err
    assert "3 rows written" in said and "3 new rows from" in said and "0 new rows from" in said
    assert main(["records", "--records", other, "drop", row["id"]]) == 0
    assert main(["records", "--records", other, "list"]) == 0
    assert capsys.readouterr().out == ""


def test_space_of_rules_and_of_a_function(script: str, capsys: pytest.CaptureFixture[str]):
    assert main(["space", f"{script}:y", "--schedule", "pieces", "--target", "cpu"]) == 0
    assert "piece" in capsys.readouterr().out
    assert main(["space", f"{script}:both", "--target", "cuda"]) == 0
    assert "warps" in capsys.readouterr().out
    assert main(["space", f"{script}:both", "--target", "cuda", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["knobs"]


def test_replay_of_a_recorded_space(capsys: pytest.CaptureFixture[str]):
    space = str(SPACES / "softmax.csv.gz")
    assert main(["replay", space, "--seeds", "2", "--within", "1", "--trials", "60"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("softmax: 1934 points, best 67.9 us; within 1 % after ")
    assert said.endswith("in 100% of 2 searches\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["space", "nowhere.py:y"], "there is no file nowhere.py"),
        (["space", "model.py"], "names no tensor"),
        (["space", "{}:z"], "there is no 'z'"),
        (["space", "{}:number"], "is int, which cannot be computed"),
        (["space", "{}:y", "--schedule", "number"], "is int, not a function"),
        (["tune", "{}:y", "--target", "cpu", "--size", "n"], "--size 'n' is no size"),
        (["records", "--records", "nowhere.sqlite", "list"], "there is no record file"),
        (["replay", "nowhere.csv.gz"], "there is no file nowhere.csv.gz"),
        (["replay", "{}"], "is no recorded space"),
        (["view", "{}:y", "-o", "/dev/null/page.html"], "/dev/null"),
        (["replay", "nowhere.csv.gz", "--seeds", "0"], "all of them are above 0"),
    ],
)
def test_refusals(
    script: str, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
):
    assert main([text.format(script) for text in arguments]) == 1
    said = capsys.readouterr().err
    assert complaint in said
    assert "Traceback" not in said


def test_the_module_runs_and_explains_itself():
    command = [sys.executable, "-P", "-m", "tedsl"]
    helped = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=120)
    assert helped.returncode == 0
    assert "examples:" in helped.stdout
    wrong = subprocess.run([*command, "tuen"], capture_output=True, text=True, timeout=120)
    assert wrong.returncode == 2
    assert "invalid choice" in wrong.stderr
