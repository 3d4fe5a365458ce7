"""Kernels of symbolic sizes: what a measuring process launches has been compiled by others."""

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
from jit_worker import LOG, joint_search, read_log

import tedsl as te

pytestmark = [
    pytest.mark.ptxas,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton"),
]
SIZES = [
    {"m": 16, "n": 64, "k": 32},
    {"m": 40, "n": 72, "k": 48},
    {"m": 1, "n": 64, "k": 32},
]


def product() -> Any:
    m, n, k = (te.size_var(name) for name in "mnk")
    a = te.placeholder((m, k), "bfloat16", name="A")
    b = te.placeholder((k, n), "bfloat16", name="B")
    return te.nn.matmul(a, b)


def test_the_measuring_process_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = tmp_path / "log"
    monkeypatch.setenv(LOG, str(log))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    with joint_search(product(), SIZES, workers=2, trials=2) as joint:
        found = joint.run()
        tried = [len(case.times) for case in joint.cases]
    assert all(math.isfinite(row.seconds) for row in found.table)
    assert min(tried) >= 1
    lines = read_log(log)
    measured = [line for line in lines if line["role"] == "measure"]
    called = [line["called"] for line in measured if "called" in line]
    for size in (*SIZES, {"m": 7, "n": 13, "k": 33}, {"m": 1, "n": 1, "k": 1}):
        assert size in called
    found_there = [line["found"] for line in measured if "found" in line]
    assert len(found_there) > len(SIZES)
    assert all(found_there), [line for line in measured if line.get("found") is False]
    assert any(not line["found"] for line in lines if line["role"] == "compile")
