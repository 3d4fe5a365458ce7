"""What merges parts in the kernel of the parts: one launch instead of two, where that is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import rule_cases as c
from rule_cases import RuleCase
from rule_checks import interpreted

import tedsl as te
from tedsl.backends.triton.compile.offline import compile_offline
from tedsl.backends.triton.emit.module import emit
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.target import Target
from tedsl.tensor.tensor import Tensor

CUDA = Target.parse("cuda:sm_90")


def mean_squares(m: int, n: int) -> Tensor:
    x = c.p(m, n)
    i, j = te.reduce_axis((0, m), "i"), te.reduce_axis((0, n), "j")
    return te.compute((), lambda: te.sum(x[i, j] * x[i, j], axis=[i, j]) / float(m * n), name="y")


def total(n: int) -> Tensor:
    x = c.p(n)
    i = te.reduce_axis((0, n), "i")
    return te.compute((), lambda: te.max(x[i], axis=i), name="y")


def columns(m: int, n: int) -> Tensor:
    x = c.p(m, n)
    k = te.reduce_axis((0, m), "k")
    return te.compute((n,), lambda j: te.sum(x[k, j], axis=k), name="y")


def rows(m: int, n: int) -> Tensor:
    x = c.p(m, n)
    k = te.reduce_axis((0, n), "k")
    return te.compute((m,), lambda i: te.sum(x[i, k], axis=k) * 0.5, name="y")


def product(m: int, n: int, depth: int, element: str = "bfloat16") -> Tensor:
    a = te.placeholder((m, depth), element, name="a")
    b = te.placeholder((depth, n), element, name="b")
    bias = te.placeholder((n,), element, name="bias")
    k = te.reduce_axis((0, depth), "k")

    def of(i: te.Axis, j: te.Axis) -> te.Expr:
        return te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), axis=k)

    z = te.compute((m, n), of, name="z")
    return te.compute((m, n), lambda i, j: te.relu(z[i, j] + bias[j]).astype(element), name="y")


def log_sum_exp(m: int, n: int) -> Tensor:
    x = c.p(m, n)
    k, r = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "r")
    top = te.compute((m,), lambda i: te.max(x[i, k], axis=k), name="top")
    z = te.compute((m,), lambda i: te.sum(te.exp(x[i, r] - top[i]), axis=r), name="z")
    return te.compute((m,), lambda i: top[i] + te.log(z[i]), name="y")


CASES: dict[str, Callable[[], Tensor]] = {
    "mean squares": lambda: mean_squares(120, 1031),
    "largest": lambda: total(70_000),
    "columns": lambda: columns(1031, 70),
    "rows": lambda: rows(3, 40_000),
    "one row": lambda: rows(1, 40_000),
    "product": lambda: product(70, 40, 2048),
    "thin product": lambda: product(1, 300, 2048),
}
WHOLE = ("mean squares", "largest")
"""Folds of everything."""


def kernels(s: Schedule) -> int:
    return len(lower(s.plan, CUDA).funcs)


def chosen(outputs: Tensor | Sequence[Tensor], wanted: bool = True) -> dict[str, object]:
    """One launch, wherever that can be chosen, or none."""
    made = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    knobs = schedule_for(made, CUDA).knobs
    return {k.name: wanted for k in knobs if k.name.endswith(".one_launch")}


@pytest.mark.parametrize("name", CASES)
def test_one_launch_instead_of_two(name: str) -> None:
    case = RuleCase(name, CASES[name])
    assert len(chosen(CASES[name]())) == 1
    by_default = 1 if name in WHOLE else 2  # as was measured
    assert kernels(interpreted(case, "cuda")) == by_default
    assert kernels(interpreted(case, "cuda", chosen(CASES[name](), wanted=False))) == 2
    assert kernels(interpreted(case, "cuda", chosen(CASES[name]()))) == 1


def test_nothing_to_choose_without_parts() -> None:
    for make in (lambda: rows(4000, 128), lambda: product(2048, 2048, 64), lambda: total(500)):
        assert not chosen(make())


def test_two_folds_of_the_same_are_finished_by_the_same_program() -> None:
    """Their parts are one kernel; apart they are two, and no program is the last of both."""
    x = c.p(50_000)
    i, j = te.reduce_axis((0, 50_000), "i"), te.reduce_axis((0, 50_000), "j")
    low = te.compute((), lambda: te.min(x[i], axis=i), name="low")
    high = te.compute((), lambda: te.max(x[j], axis=j), name="high")
    y = te.compute((), lambda: high() - low(), name="y")
    assert chosen(y)
    s = schedule_for(y, "cuda:sm_90", {"low.along": False, "high.along": False})
    assert not [step for step in s.trace.steps if step.primitive == "compute_last"]


def test_dependent_folds_of_long_rows() -> None:
    """Parts are a choice of their own, and so is who merges them."""
    case = RuleCase("log_sum_exp", lambda: log_sum_exp(3, 20_000))
    assert kernels(interpreted(case, "cuda")) == 1, "a program for each row"
    assert kernels(interpreted(case, "cuda", {"y.parts": 4})) == 2
    merged = {"y.parts": 4, "y.one_launch": True}
    assert kernels(interpreted(case, "cuda", merged)) == 1
    assert kernels(interpreted(case, "cuda", {**merged, "y.part_lanes": False})) == 1


@pytest.mark.ptxas
@pytest.mark.parametrize("name", ["mean squares", "columns", "product", "thin product"])
def test_what_follows_costs_no_spills(name: str) -> None:
    y = CASES[name]()
    s = schedule_for([y], CUDA, chosen(y))
    (info,) = compile_offline(emit(lower(s.plan, CUDA), CUDA), "sm_90")
    assert info.stack == 0
    assert "atom.global.gpu.acq_rel.add.u32" in info.ptx
