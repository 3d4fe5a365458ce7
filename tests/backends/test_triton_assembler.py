"""What LLVM and ptxas get wrong is not given to them."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cut_sums import carries, rolled
from mixed_lanes import lanes_run_over, rows_less_their_least
from packed_sums import bytes_at_clamped_remainders
from sm_90_code import assembled, assembly
from window_parts import (
    greatest_of_negated,
    partial_extremes,
    repeated_pairs,
    skewed_rows_of_wide_counters,
)

import tedsl as te
from tedsl.backends.triton.compile import assembler
from tedsl.backends.triton.compile.assembler import assembled as assemble
from tedsl.backends.triton.compile.assembler import (
    complemented,
    signed,
    unmerged,
    unpacked,
    unpromised,
)
from tedsl.backends.triton.compile.offline import compile_offline
from tedsl.backends.triton.emit.module import emit

pytest.importorskip("triton")
PTX = Path(__file__).parents[1] / "data" / "packed_sums.ptx"
LOST = re.compile(r"VIADD\.16x2 \S+ \S+ (0x0|RZ) ;")
"""A packed sum whose constant ptxas has lost: LLVM prints none of a zero."""
MIXED = """
  %2 = and <2 x i32> %1, <i32 31, i32 poison>
  %3 = shl nuw nsw <2 x i32> %1, <i32 31, i32 5>
  %4 = shufflevector <2 x i32> %2, <2 x i32> %3, <2 x i32> <i32 0, i32 3>
  %5 = shl nuw nsw i32 %0, 5
"""


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
        return SimpleNamespace(asm={"llir": "", "ptx": text})

    kernel, options = assemble(compiled, {"num_warps": 2})
    assert asked == [{"num_warps": 2}, options]
    assert kernel.asm["ptx"] == unpacked(PTX.read_text())


def test_a_kernel_is_compiled_again_from_each_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PTX that comes from LLVM IR of ours is looked at, too."""
    monkeypatch.setenv("TEDSL_CACHE_DIR", str(tmp_path))
    asked: list[str] = []

    def compiled(options: dict[str, Any]) -> Any:
        override = Path(options.get("ir_override", "none"))
        asked.append(override.suffix)
        llir = override.read_text() if override.suffix == ".llir" else MIXED
        made = f"{PTX.read_text()}// {llir == MIXED}\n"
        ptx = override.read_text() if override.suffix == ".ptx" else made
        return SimpleNamespace(asm={"llir": llir, "ptx": ptx})

    kernel, options = assemble(compiled, {})
    assert asked == ["", ".llir", ".ptx"] and options["ir_override"].endswith(".ptx")
    assert kernel.asm["ptx"] == unpacked(PTX.read_text()) + "// False\n"


def test_vectors_whose_lanes_are_chosen_may_wrap() -> None:
    got = unpromised(MIXED)
    assert got == MIXED.replace("shl nuw nsw <2", "shl <2")
    assert unpromised(got) == got
    alone = "\n".join(line for line in MIXED.splitlines() if "shufflevector" not in line)
    assert unpromised(alone) == alone, "every lane is used"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_no_lane_runs_over_into_another(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 5 rows, 4 were stored: the mask of a row had the bits of a column."""
    s, *_ = rows_less_their_least()
    program = emit(te.lower(s, f"cuda:{arch}"), f"cuda:{arch}")
    assert not any(lanes_run_over(info.ptx) for info in compile_offline(program, arch))
    monkeypatch.setattr(assembler, "unpromised", lambda text: text)
    if not any(lanes_run_over(info.ptx) for info in compile_offline(program, arch)):
        pytest.skip("the LLVM of this Triton gets it right: `unpromised` may not be needed")


def test_only_packed_sums_of_constants_are_taken_apart() -> None:
    ptx = "\tmov.b32 \t%r9, 1900572;\n\tadd.s16x2 \t%r3, %r1, %r9;\n\tadd.s16x2 \t%r4, %r1, %r2;\n"
    got = unpacked(ptx)
    assert got.count("add.s16x2") == 1 and "%r4, %r1, %r2" in got
    assert got.count("add.s16 ") == 2 and "mov.b32 %r3, {%tedsl4, %tedsl5};" in got
    assert unpacked("\tadd.s16x2 \t%r3, %r1, -5;\n").count("add.s16 ") == 2
    assert unpacked(got) == got


CUT = """
  %4 = or disjoint i64 %1, %3
  %5 = add nuw nsw i64 %4, %2
  %6 = trunc i64 %5 to i32
  %7 = add nuw nsw i64 %3, 9
  %8 = trunc nuw nsw i64 %7 to i8
  %9 = add nuw nsw i32 %0, %6
"""


def test_sums_that_are_cut_promise_nothing() -> None:
    assert unpromised(CUT) == CUT.replace("%5 = add nuw nsw ", "%5 = add ")
    fits = CUT.replace("trunc i64", "trunc nuw nsw i64")
    assert unpromised(fits) == fits
    one = CUT.replace("trunc nuw nsw i64 %7", "trunc nuw i64 %7")
    assert "%7 = add i64" in unpromised(one)
    below = CUT.replace("or disjoint", "add nsw")
    assert "%4 = add i64" in unpromised(below)


@pytest.mark.parametrize(("columns", "lanes"), [(17, 16), (33, 32)])
def test_addresses_have_32_bits_of_sums_that_are_cut(
    columns: int, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = emit(te.lower(rolled(columns, 32, lanes, 4), "cuda:sm_90"), "cuda:sm_90")
    (info,) = compile_offline(program, "sm_90")
    assert not carries(info.ptx)
    monkeypatch.setattr(assembler, "unpromised", str)
    (info,) = compile_offline(program, "sm_90")
    if not carries(info.ptx):
        pytest.skip("this Triton has no such sum here: `unpromised` may not be needed any more")


DIFFERENCE = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry difference(.param .u64 to, .param .u64 from)
{
	.reg .b32 %r<4>;
	.reg .b64 %rd<6>;
	ld.param.u64 %rd1, [to];
	ld.param.u64 %rd2, [from];
	mov.u32 %r1, %tid.x;
	ld.global.u64 %rd3, [%rd2];
	mul.hi.u32 	%r2, %r1, 306783379;
	cvt.u64.u32 	%rd4, %r2;
	sub.s64 	%rd5, %rd4, %rd3;
	st.global.b64 [%rd1], %rd5;
	ret;
}
"""
NEGATED = re.compile(r"IMAD\.HI\.U32 \w+, P\d,")
"""The upper half of a product and a negated number, whose carry ptxas takes for no borrow."""


def test_no_borrow_of_a_difference_is_lost(tmp_path: Path) -> None:
    """`i // 14 - 0` was negative."""
    assert not NEGATED.search(assembled(complemented(DIFFERENCE), tmp_path))
    if not NEGATED.search(assembled(DIFFERENCE, tmp_path)):
        pytest.skip("this ptxas gets it right: `complemented` may not be needed any more")


def test_only_differences_from_upper_halves_are_said_otherwise() -> None:
    got = complemented(DIFFERENCE)
    assert "sub.s64" not in got and "add.s64 %rd5, %tedsl1, 1;" in got
    assert complemented(got) == got
    moved = DIFFERENCE.replace("cvt.u64.u32 \t%rd4, %r2", "mov.b64 \t%rd4, {%r2, %r1}")
    assert "not.b64 %tedsl0, %rd3;" in complemented(moved)
    for other in (
        DIFFERENCE.replace("mul.hi", "mul.lo"),
        DIFFERENCE.replace("sub.s64 \t%rd5, %rd4, %rd3", "sub.s64 \t%rd5, %rd3, %rd4"),
    ):
        assert complemented(other) == other


def test_kernels_subtract_from_no_upper_half(tmp_path: Path) -> None:
    s, *_ = partial_extremes()
    program = emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90")
    for info in compile_offline(program, "sm_90"):
        assert complemented(info.ptx) == info.ptx
        assert not NEGATED.search(assembly(info.cubin, tmp_path))


EXTREMES = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry extremes(.param .u64 to, .param .u64 from)
{
\t.reg .b32 %r<9>;
\t.reg .b64 %rd<3>;
\tld.param.u64 %rd1, [to];
\tld.param.u64 %rd2, [from];
\tld.global.b32 %r1, [%rd2];
\tld.global.b32 %r2, [%rd2+4];
\tld.global.b32 %r3, [%rd2+8];
\tneg.s32 \t%r4, %r1;
\tneg.s32 \t%r5, %r2;
\tneg.s32 \t%r6, %r3;
\tmax.s32 \t%r7, %r4, %r5;
\tmax.s32 \t%r8, %r7, %r6;
\tst.global.b32 [%rd1], %r8;
\tret;
}
"""


def _of_three(code: str) -> bool:
    """True where one instruction takes three numbers, of which fewer than three were negated."""
    return "VIMNMX3" in code and len(re.findall(r"RZ, -R|-R\d+, RZ", code)) < 3


def test_no_sign_of_an_extreme_is_lost(tmp_path: Path) -> None:
    """The greatest of -0, --2 and -0 was 0."""
    assert not _of_three(assembled(signed(EXTREMES), tmp_path))
    if not _of_three(assembled(EXTREMES, tmp_path)):
        pytest.skip("this ptxas gets it right: `signed` may not be needed any more")


@pytest.mark.parametrize("negated", ["neg.s32 \t{}, {};", "sub.s32 \t{}, 0, {};"])
def test_only_negated_numbers_of_extremes_are_said_otherwise(negated: str) -> None:
    ptx = re.sub(r"neg\.s32 \t(%r\d), (%r\d);", lambda m: negated.format(m[1], m[2]), EXTREMES)
    got = signed(ptx)
    assert got.count("not.b32 %tedsl, ") == 3 and signed(got) == got
    copied = ptx.replace("%r7, %r6;", "%r7, %r9;").replace("max", "mov.b32 \t%r9, %r6;\nmax", 1)
    assert signed(copied).count("not.b32 %tedsl, ") == 3, "a copy of it is taken"
    added = ptx.replace("max.s32", "add.s32")
    assert signed(added) == added


def test_one_extreme_of_a_loop_loses_no_sign(tmp_path: Path) -> None:
    """Turns of the loop become one instruction: the greatest of -76 - x - z was that of 76 + x + z
    (pair schedules:265004865)."""
    x, z = te.placeholder((64,), "int32"), te.placeholder((64,), "int32")
    k = te.reduce_axis((0, 64))
    y = te.compute((1,), lambda i: te.max(x[k] * -1 - z[k], axis=k), name="y")
    program = emit(te.lower(te.create_schedule(y), "cuda:sm_90"), "cuda:sm_90")
    (info,) = compile_offline(program, "sm_90")
    assert info.ptx.count("max.s32") == 1 and "neg.s32" not in info.ptx
    code = assembly(info.cubin, tmp_path)
    assert "MNMX" in code and not re.search(r"RZ, -R|-R\d+, RZ", code), (
        "a sign of its own may be lost"
    )


def test_kernels_lose_no_sign(tmp_path: Path) -> None:
    s, *_ = greatest_of_negated()
    program = emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90")
    (info,) = compile_offline(program, "sm_90")
    assert signed(info.ptx) == info.ptx
    assert not _of_three(assembly(info.cubin, tmp_path))


PAIRS = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry pairs(.param .u64 to, .param .u64 from)
{
	.reg .b16 %rs<5>;
	.reg .b32 %r<3>;
	.reg .b64 %rd<3>;
	ld.param.u64 %rd1, [to];
	ld.param.u64 %rd2, [from];
	ld.global.b32 %r1, [%rd2];
	mov.b32 %r2, 0;
	cvt.rn.satfinite.e4m3x2.f32  %rs1, %r2, %r1;
	cvt.rn.satfinite.e4m3x2.f32  %rs2, %r2, %r2;
	cvt.rn.satfinite.e4m3x2.f32  %rs3, %r2, %r2;
	cvt.rn.satfinite.e4m3x2.f32  %rs4, %r2, %r2;
	st.global.v4.b16 [%rd1], {%rs1, %rs2, %rs3, %rs4};
	ret;
}
"""
TWICE = PAIRS.replace("%r2, %r2;", "%r2, %r1;").replace("e4m3x2.f32", "e5m2x2.f32")


def _merges_what_is_no_pair(code: str) -> bool:
    """True where a pair of 8-bit floats is merged with a register that holds none."""
    pairs = {"RZ"}
    for line in code.splitlines():
        operation = re.sub(r"/\*.*?\*/", "", line).strip()
        merged = re.search(r"MERGE_C R\d+(?:,[^,]+)*, (R\w+) ;", operation)
        if merged and merged[1] not in pairs:
            return True
        if written := re.match(r"(?:@!?U?P\d+ )?[A-Z][\w.]* (R\d+),", operation):
            (pairs.add if "F2FP" in operation else pairs.discard)(written[1])
    return False


@pytest.mark.parametrize("ptx", [PAIRS, TWICE])
def test_pairs_are_merged_with_what_is_written(ptx: str, tmp_path: Path) -> None:
    """Zeros of float8 that were masked lanes came out as NaN."""
    assert not _merges_what_is_no_pair(assembled(unmerged(ptx), tmp_path))
    if not _merges_what_is_no_pair(assembled(ptx, tmp_path)):
        pytest.skip("this ptxas gets it right: `unmerged` may not be needed any more")


def test_only_pairs_of_an_older_ptxas_are_kept_apart() -> None:
    got = unmerged(PAIRS)
    assert got.count("cvt.rn.satfinite.e4m3x2.f32  %tedsl, ") == 4
    assert "and.b16 %rs4, %tedsl, -1;" in got and unmerged(got) == got
    newer = PAIRS.replace(".version 8.7", ".version 9.1")
    assert unmerged(newer) == newer
    wider = PAIRS.replace("satfinite.e4m3x2.f32", "bf16x2.f32")
    assert unmerged(wider) == wider


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_kernels_store_pairs_that_are_written(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s, *_, n = repeated_pairs(dtype)
    program = emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90")

    def merges() -> bool:
        infos = compile_offline(program, "sm_90", sizes={n: 1})
        return any(_merges_what_is_no_pair(assembly(info.cubin, tmp_path)) for info in infos)

    assert not merges()
    monkeypatch.setattr(assembler, "unmerged", str)
    if not merges():
        pytest.skip("this ptxas gets it right: `unmerged` may not be needed any more")


def test_loops_of_constant_ends_count_in_32_bits(tmp_path: Path) -> None:
    """ptxas writes them out; of numbers of 64 bits that are cut to 32 it adds constants in the
    upper half of a product, and takes one for several."""
    s, *_ = skewed_rows_of_wide_counters()
    program = emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90")
    assert "for j_32 in tl.range(0, 63):\n            j = j_32.to(tl.int64)\n" in program.source
    (info,) = compile_offline(program, "sm_90")
    assert "IMAD.HI.U32" not in assembly(info.cubin, tmp_path)
