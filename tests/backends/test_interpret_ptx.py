"""Instructions that generated source writes out, as the interpreter runs them: values that are
worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tedsl.backends.triton.interpret.inline_ptx import elementwise

U, F = np.uint32, np.float32


def ran(text: str, *args: Any, result: Any = U, pack: int = 1) -> list[Any]:
    (found,) = elementwise(text, [np.asarray(a) for a in args], [result], pack)
    return found.tolist()


def words(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, U)


@pytest.mark.parametrize(
    ("text", "args", "wanted"),
    [
        ("prmt.b32 $0, $1, $2, 0x0741;", (0x33221100, 0x77665544), 0x00774411),
        ("shf.l.wrap.b32 $0, $1, $2, 36;", (0xABCDEF01, 0x23456789), 0x3456789A),
        ("lop3.b32 $0, $1, $2, 0x0F0F0F0F, 0x78;", (0xFF00FF00, 0x12345678), 0xFD04F908),
        ("mad.lo.u32 $0, $1, $2, 7;", (0x10000, 0x10001), 0x10007),
        (
            ".reg .b64 v; mul.wide.u32 v, $1, $2; shr.u64 v, v, 32; cvt.u32.u64 $0, v;",
            (0xFFFFFFFF, 0xFFFFFFFF),
            0xFFFFFFFE,
        ),
        (
            ".reg .b64 v; mul.wide.u32 v, $1, $2; shl.b64 v, v, 32; cvt.rn.f32.s64 $0, v;",
            (3, 0x40000000),
            0xDE800000,
        ),
    ],
)
def test_integers(text: str, args: tuple[int, int], wanted: int) -> None:
    assert ran(text, *(words(a) for a in args)) == [wanted]


def test_a_product_and_its_sum_are_rounded_once() -> None:
    x = np.array([1.0 + 2.0**-12], F)
    assert ran("fma.rn.f32 $0, $1, $1, 0fBF800000;", x, result=F) == [2.0**-11 + 2.0**-24]
    assert ran("mul.rn.f32 $0, $1, $1; sub.rn.f32 $0, $0, 0f3F800000;", x, result=F) == [2.0**-11]


def test_two_results_of_16_bits_share_a_word() -> None:
    x = np.array([1.0, -2.0, 0.5, 1.0 + 2.0**-8], F)
    got = ran("cvt.rn.bf16x2.f32 $0, $2, $1;", x, result=np.uint16, pack=2)
    assert got == [0x3F80, 0xC000, 0x3F00, 0x3F80]
    assert ran("cvt.rn.f16x2.f32 $0, $2, $1;", x[:2], result=np.float16, pack=2) == [1.0, -2.0]


def test_elements_that_branch_keep_their_registers() -> None:
    text = """{
        .reg .b32 m; .reg .pred p;
        mov.b32 m, $1;
        setp.gt.f32 p, m, 0f40000000;
        @!p bra SMALL;
        neg.f32 m, m;
    SMALL:
        mul.rn.f32 $0, m, 0f40000000;
    }"""
    x = np.array([1.0, 3.0, 2.0, np.inf, np.nan], F)
    np.testing.assert_array_equal(
        ran(text, x, result=F), np.array([2.0, -6.0, 4.0, -np.inf, np.nan])
    )


def test_elements_beyond_the_last_whole_pack_are_dropped() -> None:
    x = np.arange(5, dtype=F).reshape(5)
    text = "neg.f32 $0, $2; neg.f32 $1, $3;"
    assert ran(text, x, result=F, pack=2) == [-0.0, -1.0, -2.0, -3.0, -4.0]


def test_what_is_not_known_is_said() -> None:
    with pytest.raises(NameError, match="register m is read before it is written"):
        ran("neg.f32 $0, m;", words(1))
    with pytest.raises(ValueError, match="sign of a byte"):
        ran("prmt.b32 $0, $1, $1, 0x8210;", words(1))
    with pytest.raises(LookupError, match=r"does not know the instruction sin\.approx\.f32"):
        ran("sin.approx.f32 $0, $1;", words(1))
