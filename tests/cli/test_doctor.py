"""The check-up: what works is tried, what does not is named with what to do."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tedsl.cli import doctor
from tedsl.cli.main import main
from tedsl.errors import BackendError
from tedsl.runtime.cache.disk import set_cache_dir

pytestmark = pytest.mark.cpu


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """A cache folder of the test's own."""
    set_cache_dir(tmp_path)
    yield tmp_path
    set_cache_dir(None)


def test_this_installation(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["packages", "machine", "targets", "places"]
    targets = {row["subject"]: row for row in found["targets"]}
    assert list(targets) == ["cpu", "triton-interpret", *doctor.COMPILED, "cuda"]
    assert targets["cpu"]["state"] == "works" and "right to" in targets["cpu"]["found"]
    assert targets["cuda"]["state"] == "works" or targets["cuda"]["do"]
    assert str(cache) in found["places"][0]["found"]


def test_what_is_missing_is_named(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(target: str) -> str:
        raise BackendError(f"no code for {target}", hint="use another")

    monkeypatch.setattr(doctor, "_version", lambda name: "" if name == "sympy" else "1")
    monkeypatch.setattr(doctor, "_runs", broken)
    monkeypatch.setattr(doctor, "_compiles", broken)
    cache.joinpath("code").mkdir()
    cache.joinpath("code").chmod(0o777)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert (
        "  sympy             absent\n                    do      python -m pip install sympy"
        in text
    )
    assert "  cpu               broken  no code for cpu\n" in text
    assert "  cuda              absent  no code for cuda\n" in text
    assert "others may write it" in text and "chmod 700" in text


def test_a_missing_package_alone_is_a_failure(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_runs", "_compiles"):
        monkeypatch.setattr(doctor, name, lambda target: f"{target} runs")
    assert main(["doctor"]) == 0
    monkeypatch.setattr(doctor, "_version", lambda name: "" if name == "llvmlite" else "1")
    assert main(["doctor"]) == 1
    monkeypatch.setattr(doctor, "_version", lambda name: "" if name == "torch" else "1")
    assert main(["doctor"]) == 0
    assert "python -m pip install 'torch>=2.6'" in capsys.readouterr().out
