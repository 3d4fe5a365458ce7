"""Programs that keep the rows of their tiles while they take tiles of several columns."""

from __future__ import annotations

import pytest
from rule_cases import RuleCase, matmul
from rule_checks import compiled, interpreted

from tedsl.backends.triton.emit import emit
from tedsl.backends.triton.offline import compile_offline
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.target import Target

B = "bfloat16"
HOPPER = Target.parse("cuda:sm_90")
SMALL = {"matmul.bm": 16, "matmul.bn": 16, "matmul.kept": 8}


@pytest.mark.parametrize("shape", [(64, 256, 32), (70, 216, 40), (33, 131, 17)])
@pytest.mark.parametrize("ahead", [1, 2])
def test_kept_rows_give_the_same_numbers(shape: tuple[int, int, int], ahead: int) -> None:
    """Also where runs of tiles, rows and columns are not whole."""
    case = RuleCase("kept", lambda: matmul(*shape, B))
    decisions = {**SMALL, "matmul.ahead": ahead}
    schedule = interpreted(case, "cuda", decisions)
    assert {knob.name: knob.chosen for knob in schedule.knobs}["matmul.kept"] == 8
    compiled(case, "triton-interpret", decisions)


def test_columns_times_kept_rows_give_the_same_numbers() -> None:
    case = RuleCase("kept", lambda: matmul(256, 1024, 100, B))
    decisions = {"matmul.bm": 128, "matmul.bn": 64, "matmul.turned": True, "matmul.kept": 8}
    interpreted(case, "cuda", decisions)
    compiled(case, "triton-interpret", decisions)


@pytest.mark.ptxas
@pytest.mark.parametrize("tile", [(128, 128), (256, 64), (128, 256), (256, 128)])
def test_kept_rows_are_moved_once(tile: tuple[int, int]) -> None:
    """Before the loop over tiles, which loads the columns and stores; all fits the memory."""
    decisions = {"matmul.bm": tile[0], "matmul.bn": tile[1], "matmul.bk": 128, "matmul.kept": 16}
    s = schedule_for(matmul(8192, 8192, 128, B), HOPPER, decisions)
    program = emit(lower(s.plan, HOPPER), HOPPER)
    before, _, loop = program.source.rpartition("@triton.jit")[2].partition("tl.range(0, 16, ")
    assert before.count("a_desc.load") == 1 and "b_desc.load" not in before
    assert loop.count("b_desc.load") == 1 and "a_desc.load" not in loop
    assert "matmul_desc.store" in loop
    (info,) = compile_offline(program, "sm_90")
    assert info.stack == 0 and info.shared <= 227 << 10
    assert "wgmma.mma_async" in info.ptx


def test_rows_are_kept_only_where_a_step_is_the_whole_fold() -> None:
    def offered(m: int, n: int, k: int) -> bool:
        return "matmul.kept" in {x.name for x in schedule_for(matmul(m, n, k, B), HOPPER).knobs}

    assert offered(8192, 8192, 128)
    assert not offered(8192, 8192, 256)
    assert not offered(8192, 128, 128)
