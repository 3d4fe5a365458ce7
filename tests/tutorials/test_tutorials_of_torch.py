"""Tutorials 13 to 15 and their exercises: PyTorch's functions, models and operators."""

from __future__ import annotations

from pathlib import Path

import pytest
from tutorial import rows_of, run_tutorial

pytest.importorskip("torch")
pytestmark = pytest.mark.cpu


def test_a_pytorch_function_by_hand(tmp_path: Path) -> None:
    text = run_tutorial("13_a_pytorch_function_by_hand.py", tmp_path, "--quick")
    rows = rows_of(text, "gated norm of 64 rows")
    assert set(rows) >= {"PyTorch eager", "unfused", "by hand", "default rules"}
    assert "mean: float32[1], local" in text
    assert "d_result: float32[64, 128]" in text
    assert "as in the example" in text


def test_a_small_gpt(tmp_path: Path) -> None:
    text = run_tutorial("14_a_small_gpt.py", tmp_path, "--quick", "--seconds", "4")
    assert "left to PyTorch: aten.addmm.default" in text
    assert set(rows_of(text, "weights of attention")) >= {"default rules", "search"}
    assert "0 graphs compiled after the third" in text


def test_an_operator_of_your_own(tmp_path: Path) -> None:
    text = run_tutorial("15_an_operator_of_your_own.py", tmp_path, "--quick")
    assert text.count("SUCCESS") == 4
    assert set(rows_of(text, "forward, 64 rows")) >= {"default rules", "by hand"}
    assert "torch.ops.tutorial.neighbours" in text
    assert "vmap: agrees" in text


@pytest.mark.parametrize("name", ["13_a_pytorch_function_by_hand", "15_an_operator_of_your_own"])
def test_solutions(name: str, tmp_path: Path) -> None:
    assert "agrees" in run_tutorial(f"solutions/{name}.py", tmp_path)
