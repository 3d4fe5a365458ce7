"""In which order programs take the tiles of a product, and who stores these."""

from __future__ import annotations

import pytest
from rule_cases import matmul

import tedsl as te
from tedsl.schedules import schedule_for
from tedsl.target import Target
from tedsl.tensor.tensor import Tensor

B = "bfloat16"
HOPPER = Target.parse("cuda:sm_90")
OPERANDS = ((1024, 2048), "a"), ((2048, 1024), "b")


def knobs(output: Tensor) -> dict[str, object]:
    """What the rules choose by default, by the names of knobs without their stage."""
    return {k.name.rpartition(".")[2]: k.chosen for k in schedule_for(output, HOPPER).knobs}


@pytest.mark.parametrize(
    ("shape", "group"), [((1000, 5000, 2000), 8), ((2048, 5000, 2000), 8), ((1500, 5000, 2000), 4)]
)
def test_groups_of_rows_are_whole(shape: tuple[int, int, int], group: int) -> None:
    assert knobs(matmul(*shape, B))["group"] == group


def test_products_that_share_a_wave_have_groups_of_all_rows() -> None:
    a, b = (te.placeholder((16, *side), B, name=name) for side, name in OPERANDS)
    assert knobs(te.nn.matmul(a, b))["group"] == 8


def pair(m: int, n: int, k: int) -> Tensor:
    """The greater of two products of one operand."""
    a, *b = (te.placeholder(s, B, name=x) for s, x in (((m, k), "a"), ((k, n), "b"), ((k, n), "c")))
    first, second = (te.cast(te.nn.matmul(a, each), "float32") for each in b)
    return te.cast(te.maximum(first, second), B)


@pytest.mark.parametrize(("m", "stored"), [(1000, True), (500, False)])
def test_two_results_of_a_program_count_where_the_copy_engine_stores(m: int, stored: bool) -> None:
    """As many tiles of half the size; programs stay only for whole ones."""
    found = knobs(pair(m, 5000, 2000))
    assert found["descriptor_store"] is stored and not found.get("resident")
