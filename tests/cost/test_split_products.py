"""Products of float32 in parts: what threads hold of them, and what shared memory makes of operands
that lie across, against ptxas and by order."""

from __future__ import annotations

import pytest
from model_cases import HOPPER, attention, lowered, product

import tedsl as te
from tedsl.backends.triton.compile import offline
from tedsl.backends.triton.emit.module import emit
from tedsl.cost.estimate import estimate
from tedsl.devices import H200

pytestmark = pytest.mark.uncompiled("compiled here, for one device")
WHOLE = 128
ATTENTION = [(32, 64, WHOLE, 8), (32, 64, 32, 8), (32, 64, 32, 4), (32, 32, 32, 4), (64, 32, 32, 4)]
PRODUCTS = [(128, 64, 4), (64, 64, 4), (32, 64, 4), (32, 32, 4), (16, 64, 4)]


def tall(rows: int) -> te.Tensor:
    """Of operands whose elements are copied one by one: the columns of both are side by side."""
    k = te.reduce_axis((0, 1 << 16), name="k")
    a, b = te.placeholder((1 << 16, rows), name="a"), te.placeholder((1 << 16, 79), name="b")
    return te.compute((rows, 79), lambda i, j: te.sum(a[k, i] * b[k, j], axis=k), name="c")


@pytest.mark.ptxas
@pytest.mark.parametrize(("bm", "bk", "part", "warps"), ATTENTION)
def test_attention(bm: int, bk: int, part: int, warps: int) -> None:
    """Registers within a third, spills where ptxas spills many bytes and nowhere else; as much
    shared memory as the parts of a turn take."""
    sizes = {"bm": bm, "bk": bk, "part": part, "warps": warps, "stages": 2, "occupancy": 0}
    module = lowered(attention(8, 1792, WHOLE, dtype="float32"), **sizes)
    found = estimate(module, H200)
    (info,) = offline.compile_offline(emit(module, HOPPER))
    assert abs(found.shared - info.shared) <= info.shared // 8
    if info.registers is None or info.stack is None:
        pytest.skip("the wheel has no cuobjdump")
    needed = info.registers + info.stack // 4
    assert 0.75 * needed <= found.registers <= 1.35 * needed
    if info.stack > 128:
        assert found.registers > H200.registers_thread


@pytest.mark.ptxas
@pytest.mark.parametrize(("bm", "bn", "warps"), PRODUCTS)
def test_products(bm: int, bn: int, warps: int) -> None:
    module = lowered(product(4096, 4096, 4096, "float32"), bm=bm, bn=bn, bk=32, warps=warps)
    *_, info = offline.compile_offline(emit(module, HOPPER))
    if info.registers is None or info.stack is None:
        pytest.skip("the wheel has no cuobjdump")
    needed = info.registers + info.stack // 4
    assert abs(estimate(module, H200).registers - needed) <= max(24, needed / 4)


def test_elements_that_lie_in_one_bank_take_long() -> None:
    """A warp copies 32 columns of an operand to the same bank where groups of warps multiply it
    along the other axis; not where each warp reads its own part."""
    groups, own = (lowered(tall(70), bm=bm, bn=64, bk=32, warps=4) for bm in (64, 32))
    assert estimate(groups, H200).seconds > 3 * estimate(own, H200).seconds


def test_aligned_elements_do_not() -> None:
    """16 bytes at a time are copied as they are used."""
    a, b = te.placeholder((4096, 1024), name="a"), te.placeholder((4096, 1024), name="b")
    k = te.reduce_axis((0, 4096), name="k")
    c = te.compute((1024, 1024), lambda i, j: te.sum(a[k, i] * b[k, j], axis=k), name="c")
    groups, own = (lowered(c, bm=bm, bn=64, bk=32, warps=4) for bm in (64, 32))
    assert estimate(groups, H200).seconds < 2 * estimate(own, H200).seconds
