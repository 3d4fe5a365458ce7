"""Faults made by hand are noticed (see `helpers/mutate.py`), and what judges drawn ones tells who
noticed (`helpers/random_faults.py`)."""

from __future__ import annotations

import shutil
from pathlib import Path

import mutate
import pytest
import random_faults


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package and its tests, to be broken."""
    folder = tmp_path_factory.mktemp("mutated")
    mutate.layout(folder)
    return folder


def test_each_fault_changes_one_place() -> None:
    assert len(mutate.FAULTS) >= 20
    for fault in mutate.FAULTS:
        text = (mutate.ROOT / "tedsl" / fault.file).read_text(encoding="utf-8")
        assert text.count(fault.old) == 1, f"{fault.name}: write it anew for {fault.file}"
        assert fault.old != fault.new


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("fault", mutate.FAULTS, ids=lambda fault: fault.name)
def test_faults_are_noticed(fault: mutate.Fault, copy: Path) -> None:
    assert mutate.caught(fault, copy), f"a test is missing: {fault.name}"


SUITE = """
import os, time
import pytest
from tedsl.fault_switch import on

def test_that_fails_by_itself():
    assert not on(0) and not on(1) and "TEDSL_FAULT_HITS" in os.environ

def test_that_sees_nothing():
    on(0), on(1), on(2)

def test_that_notices_one():
    assert not on(0)

def test_that_dies_of_another():
    if on(1):
        os._exit(7)

def test_that_hangs_under_a_third():
    while on(2):
        time.sleep(0.1)
"""


def test_the_test_that_notices_a_fault_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tedsl", "tests/helpers", "hits"):
        (tmp_path / name).mkdir(parents=True)
    helpers = Path(random_faults.__file__).parent
    shutil.copy(helpers / "fault_switch.py", tmp_path / "tedsl")
    shutil.copy(helpers / "fault_notes.py", tmp_path / "tests/helpers")
    (tmp_path / "tedsl/__init__.py").touch()
    (tmp_path / "tests/test_it.py").write_text(SUITE, encoding="utf-8")
    monkeypatch.setattr(random_faults, "GRACE", 4.0)
    suite = random_faults.Suite(tmp_path, limit=10, ptxas=True)
    faults = [random_faults.Fault(n, "lowering", "tedsl/it.py", 1, "a", "b") for n in range(4)]
    found = random_faults.look(suite, (), 2, faults)
    names = list(found["seconds"])
    assert len(names) == 5
    told: list[tuple[str, str]] = []
    for fault, reached in zip(faults, found["reached"], strict=True):
        fault.tests = [names[number] for number in reached]
        suite.judge(fault, found["seconds"])
        told.append((fault.verdict, fault.noticed_by.rpartition("::")[2]))
    assert told == [
        ("noticed", "test_that_notices_one"),
        ("noticed", "test_that_dies_of_another"),
        ("noticed", "test_that_hangs_under_a_third"),
        ("reached by none", ""),
    ]
