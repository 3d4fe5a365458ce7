"""Faults made by hand are noticed (see `helpers/mutate.py`)."""

from __future__ import annotations

from pathlib import Path

import mutate
import pytest


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
