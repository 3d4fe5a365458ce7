"""Products that take an operand from registers: no thread writes these while they are read."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from descriptor_prologues import scheduled, wrong
from register_hazards import filled_while_read, overwritten, products_of_registers
from sm_90_code import assembled, assembly

import tedsl as te
from tedsl.backends.triton.compile import assembler
from tedsl.backends.triton.compile.assembler import waiting
from tedsl.backends.triton.compile.offline import CompiledInfo, compile_offline
from tedsl.backends.triton.compile.ptx_loops import loops
from tedsl.backends.triton.emit.module import emit
from tedsl.schedules import schedule_for
from tedsl.tensor.tensor import Tensor

PTX = Path(__file__).parents[1] / "data" / "products_of_registers.ptx"
SHAPE = (0, 1024, 1024, 1024)
TILE = {"c.bm": 64, "c.bn": 64, "c.descriptors": True}


def compiled(s: te.Schedule) -> CompiledInfo:
    """The one kernel of a schedule, for sm_90."""
    (info,) = compile_offline(emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90"), "sm_90")
    return info


def product(left: Callable[..., Any], right: Callable[..., Any]) -> Tensor:
    r = te.reduce_axis((0, 1024), name="r")
    return te.compute(
        (2, 1024, 1024),
        lambda h, i, j: te.sum(
            left(h, i, r).astype("float32") * right(h, j, r).astype("float32"), axis=r
        ),
        name="c",
    )


@pytest.mark.ptxas
def test_loops_wait_for_products_that_read_registers(tmp_path: Path) -> None:
    """What Triton 3.6 writes is wrong with every ptxas."""
    ptx = PTX.read_text()
    found = assembled(ptx, tmp_path)
    assert products_of_registers(found) and len(overwritten(found)) > 16
    right = waiting(ptx)
    assert not overwritten(assembled(right, tmp_path))
    assert waiting(right) == right
    assert right.replace("\twgmma.wait_group.sync.aligned 0;\n\t@%p18 bra", "\t@%p18 bra") == ptx


LAID_BACK = """.version 8.7
.visible .entry k(
	.param .u64 k_param_0
)
{
	mov.b32 	%r1, 0;
	bra.uni 	$L__BB0_2;
$L__BB0_1:
	st.global.b32 [%rd1], %r9;
	setp.ne.b32 	%p1, %r1, 4;
WAIT	@%p1 bra 	$L__BB0_2;
	bra.uni 	$L__BB0_5;
$L__BB0_2:
	add.s32 	%r1, %r1, 1;
$L__BB0_3:
	wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r9}, {%r5,%r6}, %rd9, 1, 1, 1;
	wgmma.commit_group.sync.aligned;
	wgmma.wait_group.sync.aligned 0;
	setp.ne.b32 	%p2, %r2, 8;
	@%p2 bra 	$L__BB0_3;
	setp.lt.f32 	%p3, %f1, 0f00000000;
	@%p3 bra 	$L__BB0_1;
	mov.b32 	%r9, 0;
	bra.uni 	$L__BB0_1;
$L__BB0_5:
	ret;
}
"""
"""Threads of a warp part at p3, and branch to a place that stands before and is no loop."""


def test_only_loops_wait() -> None:
    """Text order is no loop: a wait where the threads of a warp have parted hangs the kernel."""
    plain = LAID_BACK.replace("WAIT", "")
    outer, inner = loops(plain)
    assert outer.back == LAID_BACK.index("WAIT") and len(outer.spans) > len(inner.spans) == 1
    wait = "\twgmma.wait_group.sync.aligned 0;\n"
    assert waiting(plain) == LAID_BACK.replace("WAIT", wait)


@pytest.mark.ptxas
@pytest.mark.parametrize("tma", [True, False])
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("kind", ["scale", "mask"])
def test_no_operand_is_overwritten_while_it_is_read(
    kind: str, stages: int, tma: bool, tmp_path: Path
) -> None:
    """However tiles come: loads by addresses only make it rare that the numbers are wrong."""
    info = compiled(scheduled(SHAPE, kind, (64, 64, stages), tma))
    found = assembly(info.cubin, tmp_path)
    assert ("cp.async.bulk.tensor" in info.ptx) is tma
    assert products_of_registers(found) and not overwritten(found)
    assert not filled_while_read(info.ptx)


@pytest.mark.ptxas
@pytest.mark.parametrize("kind", ["cut", "right", "both", "float32", "bytes"])
def test_no_operand_of_other_kinds_is_overwritten(kind: str, tmp_path: Path) -> None:
    """A tile with a dimension of one element in the middle, a right operand that changes, operands
    that are taken apart: TMA loads them all."""
    dtype = {"float32": "float32", "bytes": "float8_e4m3fn"}.get(kind, "bfloat16")
    a = te.placeholder((1024, 2, 1024) if kind == "cut" else (2, 1024, 1024), dtype, name="a")
    w = te.placeholder((2, 1024, 1024), dtype, name="w")
    two = te.const(2, dtype)

    def left(h: Any, i: Any, r: Any) -> te.Expr:
        value: Any = a[i, h, r] if kind == "cut" else a[h, i, r]
        return value * two if kind == "both" else value

    def right(h: Any, j: Any, r: Any) -> te.Expr:
        value: Any = w[h, j, r]
        return value * two if kind in ("right", "both") else value

    c = product(left, right)
    info = compiled(schedule_for(c, "cuda:sm_90", TILE))
    assert "cp.async.bulk.tensor" in info.ptx and "wgmma.mma_async" in info.ptx
    assert not overwritten(assembly(info.cubin, tmp_path))
    assert not filled_while_read(info.ptx)


@pytest.mark.ptxas
def test_this_triton_needs_waiting_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembler, "waiting", lambda ptx: ptx)
    info = compiled(scheduled(SHAPE, "scale", (64, 64, 3)))
    if waiting(info.ptx) == info.ptx:
        assert not overwritten(assembly(info.cubin, tmp_path))
        pytest.skip("this Triton and its ptxas keep what products read: loops need not wait")
    assert overwritten(assembly(info.cubin, tmp_path))


@pytest.mark.gpu
def test_prologues_on_a_gpu() -> None:
    torch: Any = importlib.import_module("torch")
    assert not list(wrong(torch))
