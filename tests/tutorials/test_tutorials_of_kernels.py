"""Tutorials 3 to 8 and their exercises, all tutorials for a GPU, and what they share.

Each script checks its results against NumPy itself; here it runs to its end, prints a row for every
schedule that it speaks of, and leaves its pictures.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tutorial import TUTORIALS, rows_of, run_tutorial

import tedsl as te
from tedsl.runtime.timing import Stats, compare

SCRIPTS = {
    "03_counting_bytes": {
        "chain, float32": ("unfused", "by hand", "default rules", "search", "NumPy"),
        "chain, float16": ("unfused", "by hand", "default rules"),
        "\nx + x.T  ": ("along rows", "blocks of 1 x 1", "blocks of 8 x 8", "default rules"),
        "embedding  ": ("unfused", "by hand", "default rules", "NumPy"),
    },
    "04_reductions": {
        "sum of squares of rows": ("as written", "looped, 64 lanes", "whole row", "default rules"),
        "sum of squares of 4096 numbers": ("one thread", "rfactor, 8 parts", "default rules"),
        "sum of squares of columns": ("lanes along k", "lanes are 64 columns", "search"),
        "relative error of the sum": ("one thread", "NumPy, pairwise", "one chain (np.cumsum)"),
    },
    "05_matmul_step_by_step": {
        "128 x 128 x 128": ("as written", "+ lanes", "+ block in registers", "+ unrolled",
                            "+ packed", "+ threads", "default rules", "search", "NumPy"),
        "gain of each step": ("+ lanes", "+ threads"),
    },
    "06_epilogues_and_prologues": {
        "relu(A @ B + bias) + x, 64 x 32": ("unfused", "epilogue by hand", "default rules"),
        "relu(A @ B + bias) + x, 64 x 128": ("unfused", "epilogue by hand", "default rules"),
        "(silu(g) * u) @ B, 64": ("at root", "inlined", "at a block", "default rules", "search"),
    },
    "07_conv_scale_relu": {
        "conv 3x3": ("unfused", "padded at root", "padded inlined", "padded at a row", "search"),
    },
    "08_horizontal_fusion": {
        "above and below zero": ("unfused", "by hand", "default rules", "search", "NumPy"),
        "two sums over rows, 64 x 128 float32  ": ("unfused", "by hand", "default rules"),
        "Adam, 3 tensors": ("unfused", "a loop for each tensor", "one launch", "default rules"),
    },
}  # fmt: skip
PICTURES = {
    "03_counting_bytes": ("03_chain", "03_transpose", "03_bytes"),
    "04_reductions": ("04_rows", "04_everything", "04_columns"),
    "05_matmul_step_by_step": ("05_matmul",),
    "06_epilogues_and_prologues": ("06_epilogue_32_deep", "06_prologue"),
    "07_conv_scale_relu": ("07_conv",),
    "08_horizontal_fusion": ("08_two_results", "08_two_sums", "08_adam"),
}
INTERPRETED = {
    "02_blur_compute_at": ("unsharp mask, 192 x 256 float32",),
    "03_counting_bytes": ("chain, float16", "x + x.T", "embedding"),
    "04_reductions": ("sum of squares of columns, 256 x 64 float32",),
    "05_matmul_step_by_step": ("128 x 128 x 128, float32",),
    "06_epilogues_and_prologues": ("(silu(g) * u) @ B, 64 x 64 x 64 float32",),
    "07_conv_scale_relu": ("conv 3x3, 1x8x8x16 -> 32 float32",),
    "08_horizontal_fusion": ("Adam, 3 tensors, 3111 parameters",),
    "11_from_tvm": ("matrix product, 128 x 128 x 128 float32",),
}
COMPILED = {
    "01_fuse_by_hand_and_by_search": ("unfused", "by hand", "default rules"),
    "02_blur_compute_at": (
        "at root",
        "inlined",
        "at blocks, in memory",
        "at blocks, a product",
        "default rules",
    ),
    "03_counting_bytes": ("along rows", "blocks of 64 x 64", "unfused", "by hand"),
    "04_reductions": ("whole row", "one thread", "the same in one launch", "lanes along k"),
    "05_matmul_step_by_step": ("blocks of 32", "+ descriptors", "default rules"),
    "06_epilogues_and_prologues": ("epilogue by hand", "at root", "inlined", "default rules"),
    "07_conv_scale_relu": ("unfused", "padded at root", "padded inlined", "default rules"),
    "08_horizontal_fusion": ("unfused", "a loop for each tensor", "one launch", "default rules"),
    "09_softmax_to_attention_online": ("unfused", "online", "one loop", "in parts"),
    "10_the_tuner": ("unfused", "by hand", "default rules"),
    "11_from_tvm": ("blocked", "packed", "thread blocks", "default rules"),
    "12_train_a_digit_classifier": ("unfused", "by hand", "default rules"),
}
"""The schedules in the tables of what kernels ask of a GPU, by tutorial."""
LONG = ("01", "06", "07", "08", "09", "12")
"""Tutorials of many kernels that take long to compile."""


def load(path: Path) -> ModuleType:
    """A module of the tutorials, which are no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


lesson = load(TUTORIALS / "lesson.py")


@pytest.mark.cpu
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_schedule_has_its_row_on_the_cpu(name: str, tmp_path: Path) -> None:
    text = run_tutorial(f"{name}.py", tmp_path, "--quick")
    for heading, schedules in SCRIPTS[name].items():
        rows = rows_of(text, heading)
        for each in schedules:  # a search without time to try anything says so in its row
            assert any(row.startswith(each) for row in rows), f"{each}: {sorted(rows)}"
    if importlib.util.find_spec("matplotlib") is not None:
        for picture in PICTURES[name]:
            assert (tmp_path / "pictures" / f"{picture}.png").stat().st_size > 5_000, picture


@pytest.mark.ptxas
@pytest.mark.parametrize("name", INTERPRETED)
def test_gpu_schedules_agree_with_numpy_in_the_interpreter(name: str, tmp_path: Path) -> None:
    text = run_tutorial(f"{name}.py", tmp_path, "--target", "triton-interpret")
    for heading in INTERPRETED[name]:
        said = [line for line in text.splitlines() if line.startswith(f"{heading}: ")]
        assert said and said[0].endswith("agree with NumPy"), text[-2000:]
    if name.startswith("05"):
        assert "tl.dot(" in text and "_desc.load(" in text
    if name.startswith("02"):
        assert 'tl.dot(band, rows, input_precision="ieee")' in text
    if name.startswith("11"):
        assert text.count("agrees with NumPy") == 16


SPILLS = {("11_from_tvm", "default rules"): 512}
"""Bytes that a row may spill: steps of a line of float32, 5% faster on an H200 for all that."""


@pytest.mark.ptxas
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n.startswith(LONG) else ()) for n in COMPILED],
)
def test_gpu_schedules_compile_at_full_size_without_spills(name: str, tmp_path: Path) -> None:
    text = run_tutorial(f"{name}.py", tmp_path, "--target", "cuda:sm_90")
    found: dict[str, set[str]] = {}
    for table in text.split(", compiled for cuda:sm_90")[1:]:
        for line in table.partition("└")[0].splitlines():
            if line.startswith("│"):
                cells = [cell.strip() for cell in line.strip("│").split("│")]
                found.setdefault(cells[0], set()).add(cells[3])
    assert set(COMPILED[name]) <= set(found), sorted(found)
    for row, bytes_spilt in found.items():
        most = SPILLS.get((name, row), 0)
        assert all(int(spilt) <= most for spilt in bytes_spilt), found


@pytest.mark.gpu
@pytest.mark.parametrize("name", COMPILED)
def test_every_tutorial_runs_on_a_gpu(name: str, tmp_path: Path) -> None:
    text = run_tutorial(f"{name}.py", tmp_path, "--target", "cuda", "--quick")
    assert "default rules" in text and "--- done in" in text


@pytest.mark.cpu
@pytest.mark.parametrize("name", SCRIPTS)
def test_solutions_of_exercises_run(name: str, tmp_path: Path) -> None:
    text = run_tutorial(f"solutions/{name}.py", tmp_path)
    for number in (1, 2, 3):
        assert f"--- exercise {number}: " in text
    script = (TUTORIALS / f"{name}.py").read_text(encoding="utf-8")
    exercises = script.split(f"# %% Exercises (solutions/{name}.py)")[1]
    assert all(f"# {number}. " in exercises for number in (1, 2, 3))


@pytest.mark.cpu
@pytest.mark.parametrize("limit", [0.0, 60.0], ids=["slow", "quick"])
def test_beside_a_gpu_numpy_is_timed_again_only_where_that_is_quick(
    limit: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU's host computes for the check alone may take half a minute."""

    def clock(calls: dict[str, Callable[[], object]], **given: Any) -> dict[str, Stats]:
        return compare(calls, repeats=3, warmup=0, max_seconds=given["max_seconds"])

    monkeypatch.setattr(lesson, "to_torch", lambda array, device: array)
    monkeypatch.setattr(lesson, "compare_cuda", clock)
    monkeypatch.setattr(lesson, "QUICK_ENOUGH", limit)
    x = te.placeholder((64,), "float32", name="x")
    kernel = te.build(te.compute((64,), lambda i: x[i] * 2.0, name="y"), "cpu")
    calls: list[int] = []

    def doubled(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        return x * 2

    here = lesson.Lesson("cuda", True, 1, 1.0, tmp_path)
    found = here.compare("doubled", {"unfused": kernel}, [here.normal(64)], doubled)
    assert list(found.rows) == ["unfused", "NumPy (on the CPU)"]
    assert (len(calls) == 1) is (limit == 0.0)


@pytest.mark.parametrize(
    "wrong",
    [np.array([1.0, 2.1]), np.array([1.0, np.nan]), np.array([1.0, np.inf])],
    ids=["off", "nan", "infinite"],
)
def test_a_wrong_result_is_never_timed(wrong: np.ndarray) -> None:
    right = np.array([1.0, 2.0])
    lesson.check("right", right, right, 1e-6)
    with pytest.raises(AssertionError, match=r"candidate: off by .*1e-06 is allowed"):
        lesson.check("candidate", wrong, right, 1e-6)


def test_a_missing_result_and_a_wrong_shape_are_seen() -> None:
    right = np.ones(3)
    with pytest.raises(ValueError, match="zip"):
        lesson.check("candidate", (right,), (right, right), 1e-6)
    with pytest.raises(AssertionError, match=r"result 1: \(2,\), not \(3,\)"):
        lesson.check("candidate", (right, np.ones(2)), (right, right), 1e-6)


def test_bytes_of_numpy_counts_what_its_operations_read_and_write() -> None:
    x = np.ones(100, np.float32)
    assert lesson.bytes_of_numpy(lambda x: (x + x) * 2, [x]) == 400 * 3 + 400 * 2


@pytest.mark.cpu
def test_a_search_that_tried_nothing_is_called_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = te.placeholder((64,), "float32", name="x")
    here = lesson.Lesson("cpu", True, 1, 1e-3, tmp_path)
    found = here.search(te.compute((64,), lambda i: x[i] * 2.0, name="y"))
    assert list(found) == ["search: 0 tried, the default"]
    assert "tried nothing in 0.001 s" in capsys.readouterr().out


def test_bars_of_time_say_how_far_samples_are_apart() -> None:
    calm, busy = Stats((1.0, 1.01, 1.02)), Stats((1.0, 2.0, 4.0))
    panel = lesson.times_of({"calm": calm, "busy": busy})
    assert panel.values == [("calm", 1.01), ("busy\n(disturbed)", 2.0)]
    assert panel.doubt == pytest.approx([0.005, 0.75])


def test_the_map_names_every_tutorial_and_every_solution() -> None:
    text = (TUTORIALS / "README.md").read_text(encoding="utf-8")
    for script in sorted(TUTORIALS.glob("[0-9][0-9]_*.py")):
        assert f"({script.name})" in text, script.name
    for solution in sorted((TUTORIALS / "solutions").glob("*.py")):
        assert (TUTORIALS / solution.name).exists(), solution.name
