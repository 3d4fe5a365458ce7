"""A pytest plugin of `random_faults.py`: processors, the order of tests, and how each of them went.

Every process keeps to two processors, as many as there are where the suite is run otherwise: with
dozens of processes each would take all of them for its kernels.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
PLACE = int(WORKER or os.environ.get("TEDSL_FAULT_PLACE") or 0)
REPORTS = os.environ.get("TEDSL_FAULT_REPORTS", "")
ORDER = os.environ.get("TEDSL_FAULT_ORDER", "")

if hasattr(os, "sched_setaffinity"):
    _cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {_cores[(2 * PLACE + more) % len(_cores)] for more in range(2)})


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As `TEDSL_FAULT_ORDER` lists them."""
    if ORDER:
        names = Path(ORDER).read_text(encoding="utf-8").splitlines()
        order = {name: n for n, name in enumerate(names)}
        items.sort(key=lambda item: order.get(item.nodeid, len(order)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Each part of each test; once, where several processes run them."""
    if REPORTS and not WORKER:
        with Path(REPORTS).open("a", encoding="utf-8") as file:
            line = [report.nodeid, report.when, report.outcome, report.duration]
            file.write(json.dumps(line) + "\n")
