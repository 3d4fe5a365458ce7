"""What each rule's programs ask of a GPU, compiled without one."""

from __future__ import annotations

import pytest
from rule_shapes import SHAPES

from tedsl.backends.triton.compile.offline import CompiledInfo, compile_offline
from tedsl.backends.triton.emit.module import emit
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.target import Target

pytestmark = pytest.mark.ptxas

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
# Bytes of shared memory that one program may have.
SHARED = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10}
# Registers of a thread, by the rule; 32 or 64 leave room for many programs on a multiprocessor.
REGISTERS = {
    "chain": 32,
    "row_vectors": 40,
    "crossed": 96,
    "whole_rows": 64,
    "long_rows": 64,
    "dependent_rows": 128,
    "columns": 64,
    "whole": 64,
    "thin_contraction": 128,
    "matrix_and_vector": 64,
}
# Bytes a thread may spill: on sm_100 Triton 3.6 (not 3.9) keeps the tile of the largest kernel in
# registers but for a few of them; the masked last part of a mean spills a few bytes once.  Products
# of float32 that are added up one by one spill in steps of 32, which were 5% faster than the steps
# of 16 that do not (2048x2048x2048 on an H200).
EXACT = ("exact_contraction", "batch")
STACK = {
    **{(name, arch): 344 for name in EXACT for arch in ("sm_90", "sm_100")},
    ("contraction_with_epilogue", "sm_100"): 96,
    ("mean", "sm_80"): 16,
    ("mean", "sm_90"): 16,
}


def compiled(name: str, arch: str) -> list[CompiledInfo]:
    target = Target.parse(f"cuda:{arch}")
    module = lower(schedule_for(SHAPES[name](), target).plan, target)
    return compile_offline(emit(module, target), arch)


@pytest.mark.uncompiled("compiled here, for its own architecture")
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", SHAPES)
def test_resources(name: str, arch: str) -> None:
    for info in compiled(name, arch):
        assert info.shared <= SHARED[arch], info.name
        if info.registers is None:
            continue
        assert info.registers <= REGISTERS.get(name, 255), info.name
        assert info.stack is not None and info.stack <= STACK.get((name, arch), 0), info.name


def test_windows_use_the_multipliers() -> None:
    """Rows of images are taken as one, so that tiles are whole."""
    (hopper,) = compiled("images", "sm_90")
    (ampere,) = compiled("images", "sm_80")
    assert "wgmma.mma_async" in hopper.ptx
    assert "mma.sync" in ampere.ptx
    assert "cp.async" in hopper.ptx


@pytest.mark.parametrize("name", ["contraction", "contraction_with_epilogue", "batch"])
def test_multipliers_are_used(name: str) -> None:
    (hopper,) = compiled(name, "sm_90")
    (ampere,) = compiled(name, "sm_80")
    split = name == "batch"  # of float32: parts that are computed in registers
    assert ("wgmma.mma_async" in hopper.ptx) or split
    assert "mma.sync" in ampere.ptx
    assert "tf32" in hopper.ptx if split else "cp.async.bulk.tensor" in hopper.ptx
    assert "cp.async.bulk" not in ampere.ptx
