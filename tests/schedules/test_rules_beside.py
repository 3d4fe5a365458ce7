"""Kernels of a result for each row, which run in the loops of another over the same rows."""

from __future__ import annotations

from typing import Any

import pytest
import rule_cases as c
from rule_cases import RuleCase
from rule_checks import compiled, interpreted

import tedsl as te
from tedsl.backends.triton.emit.module import emit
from tedsl.lower.pipeline import lower
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.target import Target
from tedsl.tensor.tensor import Tensor

CUDA = Target.parse("cuda:sm_90")


def kernels(s: Schedule) -> list[str]:
    return [func.name for func in lower(s.plan, CUDA).funcs]


def total(x: Tensor, rows: Any, length: Any, name: str, power: int = 1) -> Tensor:
    """The sum of the first `length` elements of each row, or of their squares."""
    k = te.reduce_axis((0, length), name="k")
    return te.compute(rows, lambda *at: te.sum(x[(*at, k)] ** power, axis=k), name=name)


def two(m: int, n: int, shorter: int | None = None) -> list[Tensor]:
    x = c.p(m, n)
    return [total(x, (m,), n, "first"), total(x, (m,), shorter or n, "second", 2)]


@pytest.mark.parametrize(("m", "n"), [(64, 128), (33, 100), (1, 17), (5, 1), (3000, 4)])
def test_sums_of_the_same_rows_are_one_kernel(m: int, n: int) -> None:
    case = RuleCase("two", lambda: two(m, n))
    assert kernels(interpreted(case, "cuda")) == ["first"]
    apart = interpreted(case, "cuda", {"second.beside": False})
    assert kernels(apart) == ["first", "second"]


@pytest.mark.ptxas
@pytest.mark.parametrize("decisions", [{}, {"first.rows": 4}, {"second.beside": False}])
def test_sums_of_the_same_rows_in_tritons_interpreter(decisions: dict[str, object]) -> None:
    compiled(RuleCase("two", lambda: two(37, 300)), "triton-interpret", decisions)


def test_the_shared_row_is_loaded_once_and_predicted_to_be() -> None:
    kernel = te.build(two(16384, 4096), "cuda:sm_90")
    assert kernel.source.count("tl.load(") == 1
    cost = kernel.explain()
    assert len(cost.kernels) == 1
    assert cost.nbytes == pytest.approx(cost.least_bytes, rel=0.01)


def test_batches_of_rows_and_three_of_them() -> None:
    x = c.p(3, 40, 64)

    def make() -> list[Tensor]:
        return [total(x, (3, 40), 64, name, power) for power, name in enumerate("abc", start=1)]

    assert kernels(interpreted(RuleCase("three", make), "cuda")) == ["a"]


def test_other_rows_and_other_inputs_stay_apart() -> None:
    x, y = c.p(64, 128), c.p(64, 128, name="y")
    for make in (
        lambda: two(64, 128, shorter=100),
        lambda: [total(x, (64,), 128, "first"), total(y, (64,), 128, "second")],
    ):
        s = interpreted(RuleCase("apart", make), "cuda")
        assert kernels(s) == ["first", "second"]
        assert "second.beside" not in {knob.name for knob in s.knobs}


def test_what_needs_the_first_result_waits_for_it() -> None:
    x = c.p(64, 128)
    first = total(x, (64,), 128, "first")
    k, j = (te.reduce_axis((0, 128), name=n) for n in "kj")
    middle = te.compute((64,), lambda i: te.sum(x[i, k] * first[63 - i], axis=k), name="middle")
    last = te.compute((64,), lambda i: te.max(x[i, j], axis=j), name="last")
    s = interpreted(RuleCase("waits", lambda: [first, middle, last]), "cuda")
    assert kernels(s) == ["first", "middle"]
    assert s["last"].op.name == "last"
    assert "middle.beside" not in {knob.name for knob in s.knobs}


# A reduction of everything in the loops of a pointwise kernel ------------------------------------


def gathered(rows: int, columns: int) -> list[Tensor]:
    """Elements gathered along columns, and whether all of the indices are valid."""
    x, at = c.p(20, columns), c.p(rows, columns, dtype="int32", name="at")
    i, j = te.reduce_axis((0, rows), name="i"), te.reduce_axis((0, columns), name="j")
    y = te.compute(
        (rows, columns), lambda r, k: x[te.minimum(te.maximum(at[r, k], 0), 19), k], name="y"
    )
    valid = te.compute((), lambda: te.all((at[i, j] >= 0) & (at[i, j] < 20), axis=(i, j)), name="v")
    return [y, valid]


@pytest.mark.parametrize(("rows", "columns"), [(40, 512), (37, 300)])
def test_indices_are_checked_by_the_tiles_that_use_them(rows: int, columns: int) -> None:
    """They are loaded once; a small kernel combines what the tiles found."""
    case = RuleCase("gathered", lambda: gathered(rows, columns))
    assert kernels(interpreted(case, "cuda")) == ["y", "v"]
    assert kernels(interpreted(case, "cuda", {"y.rows": 8, "y.columns": 64})) == ["y", "v"]
    assert kernels(interpreted(case, "cuda", {"v.along": False}))[0] == "y"
    assert kernels(interpreted(case, "cuda", {"v.one_launch": True})) == ["y"]
    s = te.schedule_for(gathered(rows, columns), CUDA)
    assert emit(lower(s.plan, CUDA), CUDA).source.count("tl.load(at ") == 1


@pytest.mark.ptxas
@pytest.mark.parametrize(("rows", "last"), [(40, False), (37, False), (37, True)])
def test_indices_are_checked_in_tritons_interpreter(rows: int, last: bool) -> None:
    case = RuleCase("gathered", lambda: gathered(rows, 300))
    compiled(case, "triton-interpret", {"v.one_launch": last})


def test_a_hundred_thousand_tiles_check_their_indices() -> None:
    """To combine what so many found takes one program 6 us, to load all indices again 140."""
    s = te.schedule_for(gathered(187248, 427), CUDA)
    assert kernels(s) == ["y", "v"]


def test_what_is_nothing_of_an_inlined_stage_is_waited_for() -> None:
    """Of (x % 5) // 5 nothing is left where it is substituted, and until then it is read."""
    x, five = c.p(64, 32, dtype="int64"), te.const(5, "int64")
    first: Any = te.compute((64, 32), lambda i, j: (x[i, j] // five, x[i, j] + five), name="first")
    k = te.reduce_axis((0, 32), name="k")
    top = te.compute((64,), lambda i: te.max(first[1][i, k], axis=k), name="top")
    rest = te.compute((64, 32), lambda i, j: (first[1][i, j] - top[i]) % five, name="rest")
    none = te.compute((64, 32), lambda i, j: rest[i, j] // five, name="none")
    last = te.compute((64, 32), lambda i, j: none[i, 31 - j] + none[i, j], name="last")
    interpreted(RuleCase("nothing", lambda: [last, first[0]]), "cuda")
