"""Tiles that TMA must not fill: those that a pipelined loop reads through registers."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from descriptor_prologues import KINDS, TILES, scheduled, wrong

import tedsl as te

SHAPE = (3, 256, 192, 256)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_operands_that_change_in_registers_are_loaded_by_addresses(kind: str, stages: int) -> None:
    source = te.build(scheduled(SHAPE, kind, (128, 64, stages)), "cuda:sm_90").source
    by_engine = kind == "plain" or stages == 1
    assert ("a_desc.load(" in source) is by_engine
    assert ("w_desc.load(" in source) is by_engine
    assert ("through registers" in source) is not by_engine


def test_float32_is_loaded_by_addresses() -> None:
    """Tensor cores take it in parts, which are made in registers."""
    a, b = te.placeholder((256, 256), name="a"), te.placeholder((256, 256), name="b")
    source = te.build(te.nn.matmul(a, b), "cuda:sm_90").source
    assert "desc.load(" not in source and "tf32x3" in source


@pytest.mark.gpu
def test_prologues_on_a_gpu() -> None:
    torch: Any = importlib.import_module("torch")
    assert not list(wrong(torch))
    assert len(TILES) > 1
