"""No kernel that is wrong wins, however rarely or for whichever inputs it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import spoilt_kernels
from spoilt_kernels import KINDS, Spoilt, sometimes, tail

import tedsl as te
from tedsl.autotune.measure.bench import Bench
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload

pytestmark = pytest.mark.cpu


def test_of_a_hundred_spoilt_kernels_none_wins():
    found = list(spoilt_kernels.winners())
    assert len(found) - len(spoilt_kernels.problems()) >= 100
    assert len(KINDS) >= 20
    wrong = [(name, kind) for name, kind, won in found if won != (kind == "sound")]
    assert wrong == []


def test_a_fault_of_one_call_in_fifty_is_found_with_95_percent(tmp_path: Path):
    workload = Workload.of(spoilt_kernels.problems()["function"])
    bench = Bench(workload, Extents(workload, {}), "cpu", 3, tmp_path)
    real = te.build(list(workload.outputs), "cpu")
    fault = sometimes(0.02, tail(7))
    kernels = [Spoilt(real, fault, seed) for seed in range(200)]
    won = sum(bench.verify(kernel)[1] is None for kernel in kernels)  # pyright: ignore[reportArgumentType]
    assert won <= 10


def test_how_often_a_kernel_was_called_again_is_said(tmp_path: Path):
    workload = Workload.of(spoilt_kernels.problems()["sum"])
    bench = Bench(workload, Extents(workload, {}), "cpu", 3, tmp_path)
    real = te.build(list(workload.outputs), "cpu")
    assert bench.verify(real) == (300, None)
    calls, finding = bench.verify(real, 1_000_000_000, 0.05)
    assert finding is None
    assert 0 < calls < 1_000_000_000
