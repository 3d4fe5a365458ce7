"""The short form of `tests/benchmarks/chaos.py`: one candidate of each fault, real workers."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import chaos_faults
import pytest

FILE = Path(__file__).parent.parent / "benchmarks" / "chaos.py"


def load() -> Any:
    """The program as a module."""
    spec = importlib.util.spec_from_file_location("chaos", FILE)
    if spec is None or spec.loader is None:
        raise ImportError(str(FILE))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(report: dict[str, Any], per_kind: int) -> None:
    """Both searches find the fastest of what they measured, which is the same when neither lost a
    sound candidate: a machine that is busy with other work may let one take too long."""
    winners = [report["winner without faults"], report["winner with faults"]]
    assert winners == report["fastest measured"], report["reasons"]
    if all(set(each) == {"ok"} for each in report["others"]):
        assert winners == [chaos_faults.BEST, chaos_faults.BEST], report["reasons"]
    assert report["recorded"] == {
        fault: {status.value: per_kind} for fault, status in sorted(chaos_faults.FAULTS.items())
    }, report["reasons"]
    assert report["each by its kind"]
    assert report["processes left"] == []


@pytest.mark.cpu
def test_faults_change_nothing_but_the_time() -> None:
    check(load().compare("cpu", 1), 1)


@pytest.mark.gpu
def test_faults_of_a_real_device() -> None:
    report = load().compare("cuda", 1)
    check(report, 1)
    if os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") == "1":  # else other tests take memory too
        assert abs(report["GPU memory left (MiB)"]) < 64
