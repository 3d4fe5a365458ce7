"""The rules' schedule of every computation gives the oracle's numbers, under any decisions."""

from __future__ import annotations

import random

import pytest
from rule_checks import compiled, drawn, interpreted
from rule_corpus import corpus

from tedsl.errors import LowerError, ScheduleError

CASES = {case.name: case for case in corpus()}
# Triton's own interpreter is slow: one case of each family of nests.
SAMPLE = (
    "chain (33, 257)",
    "broadcast 7 33",
    "transpose_add 7 33",
    "row 33 257",
    "column 33 257",
    "long all",
    "fold (0, 2)",
    "argmax",
    "softmax middle",
    "layer_norm",
    "gathered_rows",
    "matmul (33, 17, 65)",
    "batched",
    "linear f16",
    "mlp",
    "several",
)


def test_the_names_of_cases_are_distinct() -> None:
    assert len(CASES) == len(corpus())


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", CASES)
def test_default_schedule(name: str, target: str) -> None:
    interpreted(CASES[name], target)


@pytest.mark.cpu
@pytest.mark.parametrize("name", list(CASES)[::2])
def test_kernel_on_the_cpu(name: str) -> None:
    compiled(CASES[name], "cpu")


@pytest.mark.ptxas
@pytest.mark.parametrize("name", SAMPLE)
def test_kernel_in_tritons_interpreter(name: str) -> None:
    compiled(CASES[name], "triton-interpret")


@pytest.mark.timeout(900)  # a hundred kernels go through ptxas
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_drawn_decisions(target: str) -> None:
    """A search meets almost nothing but schedules that work."""
    rng, refused, tried = random.Random(11), list[str](), 0
    for case in corpus()[:: 2 if target == "cuda" else 3]:
        decisions = drawn(case, target, rng)
        if not decisions:
            continue
        tried += 1
        try:
            interpreted(case, target, decisions)
        except (ScheduleError, LowerError) as error:
            refused.append(f"{case.name} {decisions}: {error}")
    assert tried > 30
    assert len(refused) * 50 <= tried, "\n".join(refused)
