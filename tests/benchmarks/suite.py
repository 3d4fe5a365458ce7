"""All rows of the benchmark, and the order in which they are taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import class_attention
import class_convolution
import class_cpu
import class_gemm
import class_horizontal
import class_launch
import class_pointwise
import class_reductions
import class_rows
from workload import Workload, line_of

CLASSES = (
    class_pointwise,
    class_reductions,
    class_rows,
    class_gemm,
    class_attention,
    class_convolution,
    class_horizontal,
    class_launch,
    class_cpu,
)


def workloads() -> list[Workload]:
    """Every row of every class."""
    return [load for each in CLASSES for load in each.workloads()]


def family_of(load: Workload) -> str:
    """The class of a row."""
    return line_of(load.line).family


def chosen(
    rows: Iterable[Workload],
    target: str,
    only: Sequence[str] = (),
    families: Sequence[str] = (),
) -> list[Workload]:
    """The rows of a target whose name contains one of `only`, of some classes."""
    return [
        load
        for load in rows
        if load.target == target
        and (not only or any(part in load.name for part in only))
        and (not families or family_of(load) in families)
    ]


def in_turn(rows: Iterable[Workload]) -> list[Workload]:
    """A row of every line in turn, the first of each line before the second of any: a run that is
    ended early has rows of all of them."""
    waiting: dict[str, list[Workload]] = {}
    for load in rows:
        waiting.setdefault(load.line, []).append(load)
    ordered: list[Workload] = []
    while any(waiting.values()):
        ordered += [left.pop(0) for left in waiting.values() if left]
    return ordered
