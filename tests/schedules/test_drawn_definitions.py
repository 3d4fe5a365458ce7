"""The default rules refuse no drawn definition, on any target, and what they make is right.

`tests/helpers/definition_runs.py` runs many, and compiles them for GPUs.
"""

from __future__ import annotations

import json
import sys
import time

import pytest
from definition_runs import TARGETS, Outcome, Plan, attempt, reproducer, run_seeds, summary
from drawn_definitions import Definition, draw

import tedsl as te

pytestmark = [pytest.mark.cpu, pytest.mark.uncompiled("definition_runs.py compiles them")]
GPUS = ("cuda:sm_80", "cuda:sm_90", "cuda:sm_100")


def _checked(seeds: range, targets: tuple[str, ...]) -> None:
    failed: list[str] = []
    for seed in seeds:
        for target in targets:
            outcome = attempt(seed, draw(seed), target, ptxas=False, run=True)
            failed += [reproducer(outcome)] if outcome.failed else []
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("part", range(2))
def test_drawn_definitions_build(part: int) -> None:
    seeds = range(part * 8, part * 8 + 8)
    _checked(seeds, ("cpu", GPUS[part]))


@pytest.mark.ptxas
def test_drawn_definitions_run_in_tritons_interpreter() -> None:
    _checked(range(100, 106), ("triton-interpret",))


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(20))
def test_many_drawn_definitions_build(part: int) -> None:
    _checked(range(1000 + part * 50, 1050 + part * 50), TARGETS)


def test_kinds_and_sizes_that_are_drawn() -> None:
    drawn = [draw(seed) for seed in range(200)]
    kinds = [definition.kind for definition in drawn]
    assert {"graph", "windows", "scan", "operator", "gradient"} == set(kinds)
    assert sum(len(definition.runs) > 1 for definition in drawn) > 20
    ranks = {len(tensor.shape) for definition in drawn for tensor in definition.outputs}
    assert ranks >= {0, 1, 2, 3, 4, 5, 6}


def test_what_goes_wrong_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies, one that hangs, a definition that is refused and some that are right."""
    monkeypatch.setattr("definition_runs.LIMIT", 4.0)
    plan = Plan(("cpu",), ptxas=False, run=True, generator=_bad)
    attempt(0, _bad(0), "cpu", ptxas=False, run=True)  # processes have what it loads
    found = list(run_seeds(range(6), plan, jobs=2))
    told = {each.seed: each.what for each in found}
    assert len(found) == 6
    assert told == {0: "agreed", 1: "died", 2: "refused", 3: "hung", 4: "agreed", 5: "agreed"}
    counts = summary(found)["counts"]["cpu"]
    assert counts["definitions"] == 6 and counts["agreed"] == 3
    assert [each["seed"] for each in summary(found)["failures"]] == [1, 2, 3]
    json.dumps(summary(found))


def test_a_run_ends_when_its_seconds_are_over() -> None:
    plan = Plan(("cpu",), ptxas=False, run=True, generator=_bad)
    assert len(list(run_seeds([0] * 100, plan, jobs=2, seconds=0.0))) == 2  # what was begun


def _bad(seed: int) -> Definition:
    a = te.placeholder((4,), name="A")
    made = te.compute((4,), lambda i: a[i] + 1.0, name="B")
    if seed == 1:
        sys.exit(3)
    if seed == 3:
        time.sleep(60)
    return Definition([a] if seed == 2 else [made], [{}])


def test_a_wrong_number_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    definition = _bad(0)
    a = te.placeholder((4,), name="A")
    other = te.compute((4,), lambda i: a[i] + 1.5, name="B")
    kernel = te.build(other, target="cpu")
    monkeypatch.setattr("definition_runs._built", lambda *_: (kernel, kernel.schedule))
    outcome: Outcome = attempt(0, definition, "cpu", ptxas=False, run=True)
    assert outcome.what == "wrong" and "4 of 4 elements differ" in outcome.detail
