"""The rules' schedule of every computation gives the oracle's numbers, under any decisions."""

from __future__ import annotations

import random

import every_kernel
import numpy as np
import pytest
from rule_checks import compiled, drawn, interpreted
from rule_corpus import corpus

import tedsl as te
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


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("shape", "folded"), [((1 << 18,), 0), ((2, 1 << 19), 1), ((1 << 14, 64), 0)]
)
def test_long_folds_of_what_is_inlined(shape: tuple[int, ...], folded: int) -> None:
    """Found with losses: what is folded in parts may be computed where it is read."""
    x = te.placeholder(shape, name="x")
    twice = te.compute(shape, lambda *i: x(*i) * 2.0, name="twice")
    k = te.reduce_axis((0, shape[folded]), name="k")
    rest = shape[:folded] + shape[folded + 1 :]
    total = te.compute(
        rest, lambda *i: te.sum(twice(*i[:folded], k, *i[folded:]), axis=k), name="total"
    )
    kernel = te.build(total, target="cpu", cache=False)
    assert "total.rf" in str(kernel.schedule) or "total.local.rf" in str(kernel.schedule)
    values = np.random.default_rng(1).random(shape, np.float32)
    np.testing.assert_allclose(kernel(values), 2 * values.sum(folded, np.float64), rtol=1e-4)


@pytest.mark.ptxas
@pytest.mark.parametrize("name", SAMPLE)
def test_kernel_in_tritons_interpreter(name: str) -> None:
    compiled(CASES[name], "triton-interpret")


@pytest.mark.timeout(900)  # many kernels go through ptxas
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
        if tried % 3:
            every_kernel.forget()  # ptxas takes one in three
        every_kernel.compile_noted()
    assert tried > 30
    assert len(refused) * 50 <= tried, "\n".join(refused)
