"""The winners kept in `records/`: each is of a row of the benchmark, and the rules lead to it."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import suite
from workload import buildable

import tedsl as te
from tedsl.autotune.frontend.lockfile import LockFile
from tedsl.autotune.records.record_key import Context
from tedsl.autotune.search_space.problem import Problem
from tedsl.workload.workload import Workload

LOCK = Path(__file__).parent / "records" / "cuda.lock"
ROWS: list[dict[str, Any]] = json.loads(LOCK.read_text(encoding="utf-8"))["schedules"]


@functools.cache
def problems() -> dict[tuple[str, str], tuple[Workload, Problem]]:
    """The computations of all rows on a GPU, by what a lock file knows them by."""
    found: dict[tuple[str, str], tuple[Workload, Problem]] = {}
    for load in suite.workloads():
        if load.target != "cuda" or load.lacks:
            continue
        outputs = buildable(load.outputs())
        if not isinstance(outputs, te.Schedule):
            workload = Workload.of(outputs)
            problem = Problem(workload.outputs, "cuda")
            found[workload.hash, workload.sizes] = workload, problem
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['name']} {row['sizes'][:24]}")
def test_the_rules_still_lead_to_it(row: dict[str, Any]) -> None:
    workload, problem = problems()[row["workload"], row["sizes"]]
    context = Context(
        workload=workload.hash,
        family=workload.family,
        sizes=workload.sizes,
        dtypes=workload.dtypes,
        target="cuda",
        device=row["device"],
        features="",
        toolchain=row["tools"],
        codegen="",
        space=problem.space().name,
    )
    assert LockFile(LOCK).pinned(context, problem.space(), frozen=True) is not None
