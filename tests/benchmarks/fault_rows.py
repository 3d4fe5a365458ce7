"""Rows that fail, each in its own way: the suite that the runner is tested with."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import written
from workload import F, Workload

from tedsl.tensor.tensor import Tensor


def _hang(n: int) -> Sequence[Tensor]:
    while True:
        time.sleep(0.1)


def _abort(n: int) -> Sequence[Tensor]:
    os.abort()


def _leave(n: int) -> Sequence[Tensor]:
    os._exit(3)


def _raise(n: int) -> Sequence[Tensor]:
    raise ValueError("no such schedule")


def _sleep(n: int) -> Sequence[Tensor]:
    time.sleep(0.3)
    return written.short_chain(n)


def _wrong(n: int) -> Sequence[Tensor]:
    """A sum where the row asks for a chain."""
    x, y = written.given("x", n), written.given("y", n)
    return [x + y]


def workloads() -> list[Workload]:
    """One of each."""
    ways: dict[str, Any] = {
        "fine": written.short_chain,
        "hangs": _hang,
        "aborts": _abort,
        "leaves": _leave,
        "raises": _raise,
        "wrong": _wrong,
        **{f"sleeps {number}": _sleep for number in range(6)},
    }
    return [
        Workload(
            name=name,
            line="launch",
            function="short_chain",
            make=make,
            sizes={"n": 40},
            small={"n": 40},
            error=1e-5,
        )
        for name, make in ways.items()
    ] + [
        Workload(
            name="lacking",
            line="launch",
            function="short_chain",
            make=_raise,
            sizes={"n": 40, "dtype": F},
            small={"n": 40, "dtype": F},
            lacks="a word for it",
        )
    ]
