"""Programs that keep the rows of their tiles while they take tiles of several columns."""

from __future__ import annotations

import pytest
from rule_cases import RuleCase, matmul
from rule_checks import compiled, interpreted

from tedsl.backends.triton.compile.offline import compile_offline
from tedsl.backends.triton.emit.module import emit
from tedsl.devices import H200
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.schedules.gpu.gemm.cost_model import Product
from tedsl.schedules.gpu.gemm.stationary_operand import run_of
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


def chosen(m: int, n: int, k: int, **decided: object) -> list[object]:
    """Rows and columns of a tile, and the run of tiles and warps of a program, by default or where
    some are decided."""
    s = schedule_for(
        matmul(m, n, k, B), HOPPER, {f"matmul.{knob}": each for knob, each in decided.items()}
    )
    found = {knob.name: knob.chosen for knob in s.knobs}
    return [found.get(f"matmul.{knob}") for knob in ("bm", "bn", "kept", "warps")]


def test_large_results_of_shallow_folds_keep_the_rows_of_their_tiles() -> None:
    """By default, in tiles of which two programs share a processor; a larger one has it alone."""
    assert chosen(8192, 8192, 128) == [128, 64, 32, 4]
    assert chosen(4096, 4096, 128) == [128, 64, 8, 4]
    assert chosen(8192, 8192, 64) == [128, 64, 32, 4]
    assert chosen(8192, 8192, 128, bn=128) == [128, 128, 1, 8]
    assert chosen(8192, 8192, 128, descriptor_store=False)[1:] == [128, 1, 4]
    assert chosen(2048, 2048, 128)[2] == 1


@pytest.mark.parametrize(
    ("m", "n", "run"),
    [
        (8192, 8192, 32),
        (4096, 4096, 8),
        (65536, 1024, 16),
        (5000, 5000, 1),  # 79 tiles of columns: no runs of them are whole
        (6144, 6144, 1),  # a sixth of the programs would be idle
        (8192, 256, 1),  # four tiles
    ],
)
def test_runs_are_whole_and_fill_the_waves(m: int, n: int, run: int) -> None:
    assert run_of(Product(H200, 1, m, n, 128), 128, 64) == run
