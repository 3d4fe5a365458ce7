"""`python -m tedsl view`: the page of a thing in a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from tedsl.cli.main import main

SCRIPT = """
import tedsl as te

x = te.placeholder((64, 1 << 21), "float32", name="x")
y = te.compute((64, 1 << 21), lambda i, j: x[i, j] + 1.0, name="y")
z = te.compute((64, (1 << 21) - 1), lambda i, j: y[i, j] + y[i, j + 1], name="z")
s = te.create_schedule(z)
s[y].compute_at(s[z], s[z].op.axis[0])
s[z].vectorize(s[z].op.axis[1])  # a tile of more elements than Triton has
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(SCRIPT, encoding="utf-8")
    return "model.py"


@pytest.mark.cpu
def test_the_page_of_a_tensor_has_the_code_of_its_kernel(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", f"{script}:z", "--target", "cpu"]) == 0
    assert capsys.readouterr().out == "z.html\n"
    page = Path("z.html").read_text(encoding="utf-8")
    assert '"subject":"kernel"' in page
    assert "LLVM IR" in page


def test_the_page_of_a_schedule_says_why_it_cannot_be_lowered(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["view", script, "--target", "cuda:sm_90", "-o", "other.html"]
    assert main([*asked, "--no-code"]) == 0
    assert capsys.readouterr().out == "other.html\n"
    assert '"refusal":"LowerError: ' in Path("other.html").read_text(encoding="utf-8")
    assert main(asked) == 1, "what cannot be built has no code to show"
    assert "LowerError: " in capsys.readouterr().err


def test_open_shows_the_page(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main(["view", f"{script}:y", "--target", "cpu", "--no-code", "--open"]) == 0
    assert opened == [Path("y.html").resolve().as_uri()]
