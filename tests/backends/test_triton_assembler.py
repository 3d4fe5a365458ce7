"""What ptxas gets wrong is not given to it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packed_sums import bytes_at_clamped_remainders
from sm_90_code import assembled, assembly

import tedsl as te
from tedsl.backends.triton.compile.assembler import assembled as assemble
from tedsl.backends.triton.compile.assembler import unpacked
from tedsl.backends.triton.compile.offline import compile_offline
from tedsl.backends.triton.emit.module import emit

pytest.importorskip("triton")
PTX = Path(__file__).parents[1] / "data" / "packed_sums.ptx"
LOST = re.compile(r"VIADD\.16x2 \S+ \S+ (0x0|RZ) ;")
"""A packed sum whose constant ptxas has lost: LLVM prints none of a zero."""


def test_no_constant_of_a_packed_sum_is_lost(tmp_path: Path) -> None:
    ptx = PTX.read_text()
    assert not LOST.search(assembled(unpacked(ptx), tmp_path))
    if not LOST.search(assembled(ptx, tmp_path)):
        pytest.skip("this ptxas gets it right: `unpacked` may not be needed any more")


@pytest.mark.parametrize("warps", [1, 2])
def test_offline_kernels_have_what_is_right(warps: int, tmp_path: Path) -> None:
    s, _, _ = bytes_at_clamped_remainders(warps)
    program = emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90")
    (info,) = compile_offline(program, "sm_90")
    assert unpacked(info.ptx) == info.ptx
    assert not LOST.search(assembly(info.cubin, tmp_path))


def test_a_kernel_is_compiled_again_from_what_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEDSL_CACHE_DIR", str(tmp_path))
    asked: list[dict[str, Any]] = []

    def compiled(options: dict[str, Any]) -> Any:
        asked.append(dict(options))
        override = options.get("ir_override")
        text = Path(override).read_text() if override else PTX.read_text()
        return SimpleNamespace(asm={"ptx": text})

    kernel, options = assemble(compiled, {"num_warps": 2})
    assert asked == [{"num_warps": 2}, options]
    assert kernel.asm["ptx"] == unpacked(PTX.read_text())


def test_only_packed_sums_of_constants_are_taken_apart() -> None:
    ptx = "\tmov.b32 \t%r9, 1900572;\n\tadd.s16x2 \t%r3, %r1, %r9;\n\tadd.s16x2 \t%r4, %r1, %r2;\n"
    got = unpacked(ptx)
    assert got.count("add.s16x2") == 1 and "%r4, %r1, %r2" in got
    assert got.count("add.s16 ") == 2 and "mov.b32 %r3, {%tedsl4, %tedsl5};" in got
    assert unpacked("\tadd.s16x2 \t%r3, %r1, -5;\n").count("add.s16 ") == 2
    assert unpacked(got) == got
