"""`python -m tedsl explain` and `roofline`."""

import json
from pathlib import Path

import pytest

from tedsl.cli.main import main

SCRIPT = """
import tedsl as te

n = te.size_var("n")
x = te.placeholder((n, 64), name="x")
y = te.compute((n, 64), lambda i, j: te.exp(x[i, j]), name="y")
z = te.compute((n, 64), lambda i, j: y[i, j] + 1.0, name="z")
s = te.create_schedule([y, z])
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text(SCRIPT)
    return str(path)


def test_explain_prints_json_and_a_page(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", f"{script}:s", "--target", "cuda", "--size", "n=4096"]) == 0
    said = capsys.readouterr().out
    assert "with n = 4096" in said and "not fused: z reads y from memory: illegal" in said
    assert main(["explain", script, "--target", "cuda", "--json", "--device", "NVIDIA H200"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["device"] == "NVIDIA H200" and data["sizes"] == {"n": 1024}
    page = tmp_path / "page.html"
    assert main(["explain", f"{script}:z", "--target", "cpu", "--html", str(page)]) == 0
    assert capsys.readouterr().out == "" and page.read_text().startswith("<!doctype html>")


def test_roofline_prints_and_draws(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "r.svg"
    asked = ["roofline", f"{script}:z", "--target", "cuda:sm_90", "--size", "n=8192"]
    assert main([*asked, "--plot", str(picture)]) == 0
    printed = capsys.readouterr()
    assert "(data sheet)" in printed.out and "% of the roof" in printed.out
    assert "drawn to" in printed.err and picture.exists()
    assert main([*asked, "--json", "--predict"]) == 0
    assert [p["name"] for p in json.loads(capsys.readouterr().out)["points"]] == ["unfused", "z"]
    assert main([*asked, "--plot", "r.bmp"]) == 1
    assert "allowed .svg, .png, .pdf" in capsys.readouterr().err


def test_refusals(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{script}:absent"]) == 1
    assert main(["explain", script, "--target", "cpu", "--size", "m=3"]) == 1
    said = capsys.readouterr().err
    assert "there is no 'absent'" in said and "has no size 'm'" in said
    assert "Traceback" not in said
