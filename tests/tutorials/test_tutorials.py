"""The tutorials run to their end and print what they promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tutorial import TUTORIALS
from tutorial import run_tutorial as run


@pytest.mark.cpu
def test_fuse_by_hand_and_by_search(tmp_path: Path) -> None:
    text = run("01_fuse_by_hand_and_by_search.py", tmp_path, "--quick")
    for table in ("MLP block, 32 tokens, float32", "softmax, 32 tokens, float32"):
        rows = text.split(table)[1].splitlines()
        for schedule in ("unfused ", "by hand ", "default rules ", "search", "NumPy "):
            assert any(f" {schedule}" in row and " ms " in row for row in rows), text
    assert "the loop nest by hand" in text
    assert text.count("moves the fewest bytes") == 2
    for problem in ("mlp", "softmax"):
        assert (tmp_path / "pictures" / f"01_{problem}.png").stat().st_size > 10_000
    assert "the schedule as Python" in text
    assert "the loop IR" in text


@pytest.mark.ptxas
def test_gpu_schedules_agree_in_the_interpreter(tmp_path: Path) -> None:
    text = run("01_fuse_by_hand_and_by_search.py", tmp_path, "--target", "triton-interpret")
    assert "MLP block: unfused, by hand, default rules agree with NumPy" in text
    assert "softmax: unfused, by hand, default rules agree with NumPy" in text
    assert "tl.dot(" in text


@pytest.mark.cpu
def test_blur_compute_at(tmp_path: Path) -> None:
    text = run("02_blur_compute_at.py", tmp_path, "--quick", "--out", "pictures")
    rows = text.split("memory of rows")[1].splitlines()
    places = ("at root", "inlined", "at each row", "at strips of 64 rows", "at tiles of 32 x 256")
    for place in (*places, "default rules", "found by search", "NumPy"):
        assert timed(place, rows), place
    assert "rows: float32[40, 256], local" in text
    assert (tmp_path / "pictures" / "02_blur.png").stat().st_size > 10_000


@pytest.mark.cpu
def test_from_tvm(tmp_path: Path) -> None:
    text = run("11_from_tvm.py", tmp_path, "--quick", "--out", "pictures")
    assert text.count("agrees with NumPy") == 16, text
    for part in ("race", "give factor", "told apart", "is missing", "unknown target 'metal'"):
        assert part in text.split("what is refused")[1], part
    assert "makes a PrimFunc" in text.split("names that are gone")[1]
    assert "targets as TVM writes them: cpu" in text and "[0. 1. 2. 3.] (4,)" in text
    assert "step 2, vectorize(G.y.inner): cpu, triton-interpret (a smaller copy)" in text
    rows = text.split("vs blocked")[1].splitlines()
    for name in ("blocked", "packed", "default rules", "search", "NumPy"):
        assert timed(name, rows), name


def timed(name: str, rows: list[str]) -> bool:
    """True when one of the rows of a table has the name and a time."""
    return any(re.search(rf" {re.escape(name)} .* [0-9.]+ (us|ms|s) ", row) for row in rows)


@pytest.mark.cpu
def test_softmax_to_attention_online(tmp_path: Path) -> None:
    text = run("09_softmax_to_attention_online.py", tmp_path, "--quick", "--out", "pictures")
    assert text.count("repair     h(t) = t * exp(m - m')") >= 3
    assert "deferred   the factor 1.0 / l" in text
    assert "mixes   sigmoid(x[k] - m)" in text
    for table, names in {
        "attention, 2 heads": ("unfused", "at blocks of queries", "online", "default rules"),
        "one query": ("one loop", "in parts"),
    }.items():
        rows = text.split(f"\n{table}")[1].splitlines()
        for name in names:
            assert timed(name, rows), name


@pytest.mark.ptxas
def test_attention_for_a_gpu_agrees_in_the_interpreter(tmp_path: Path) -> None:
    text = run("09_softmax_to_attention_online.py", tmp_path, "--target", "triton-interpret")
    assert "float32: unfused, online, default rules agree with NumPy" in text
    assert "one query, 1000 keys, depth 16: one loop, in parts agree with NumPy" in text


@pytest.mark.cpu
def test_the_tuner(tmp_path: Path) -> None:
    text = run("10_the_tuner.py", tmp_path, "--quick", "--out", "pictures")
    assert text.count("replayed: True") == 2
    assert "pins no schedule for this computation" in text
    assert "def choose(n):" in text
    rows = text.split("distance to the nearest")[1].splitlines()
    for name in ("unfused", "by hand", "default rules", "search", "model only", "NumPy"):
        assert timed(name, rows), name


@pytest.mark.cpu
def test_train_a_digit_classifier(tmp_path: Path) -> None:
    text = run("12_train_a_digit_classifier.py", tmp_path, "--quick", "--out", "pictures")
    rows = text.split("a step of training")[1].splitlines()
    for name in ("unfused", "by hand", "default rules", "NumPy"):
        assert timed(name, rows), name
    accuracy = re.search(r"test accuracy ([0-9.]+)% of 360", text)
    assert accuracy is not None
    assert float(accuracy[1]) >= 97.0


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["01", "02", "09", "10", "11", "12"])
def test_solutions_of_exercises(tmp_path: Path, name: str) -> None:
    (path,) = (TUTORIALS / "solutions").glob(f"{name}_*.py")
    text = run(f"solutions/{path.name}", tmp_path)
    for number in (1, 2, 3):
        assert f"exercise {number}" in text
