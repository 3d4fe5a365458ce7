"""Declaring intrinsics: what a meaning and its implementations have to be."""

from __future__ import annotations

from typing import Any

import pytest
from intrinsics import DOT, c_gemv, gemm, gemm_text, gemv

import tedsl as te
from tedsl.tensor.intrin import declared

A = te.placeholder((4, 4), name="a")
R = te.reduce_axis((0, 4), name="r")


def test_what_is_declared() -> None:
    made = gemm(name="declared_here", cpu=te.llvm_function(gemm_text(4, 4, 4)))
    assert declared("declared_here") is made
    assert made.extents == (4, 4, 4) and [t.name for t in made.inputs] == ["a", "b"]
    assert made.cpu is not None and made.cpu.label == "micro_gemm"
    assert gemv(cpu=c_gemv).cpu is not None


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (lambda: A, "no compute of one output"),
        (lambda: te.compute((4, 4), lambda i, j: (A[i, j], A[j, i]))[0], "no compute of one"),
        (lambda: te.compute((te.var("n"),), lambda i: A[0, 0]), "not constant from 0"),
        (lambda: te.compute((4,), lambda i: A[i, 0]), r"reads a\[i, 0\]"),
        (lambda: te.compute((4, 4), lambda i, j: A[i, j] + A[j, i]), r"reads a\[i, j\], a\[j, i\]"),
        (lambda: te.compute((4,), lambda i: A[i, i]), r"reads a\[i, i\]"),
        (lambda: te.compute((4, 4), lambda i, j: A[i, j] + i), "as a value"),
        (lambda: te.compute((4,), lambda i: te.const(1.0)), "reads nothing"),
        (lambda: te.compute((4, 4), lambda i, j: (A + A)[i, j]), "which is computed"),
        (lambda: te.compute((4,), lambda i: te.sum(A[i, R], axis=R, init=1.0)), "an init="),
    ],
)
def test_refused_meanings(op: Any, reason: str) -> None:
    with pytest.raises(te.ExprError, match=reason) as caught:
        te.decl_tensor_intrin(op(), name="wrong")
    assert "te.compute over placeholders" in caught.value.hint


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"cpu": 0}, "is no C function"),
        (
            {"cpu": te.llvm_function("define void @f(ptr %a) {\n ret void\n}")},
            "has 1 parameters, not 9",
        ),
        ({"gpu": "source"}, "gpu is 'source'"),
        (
            {"gpu": te.triton_snippet("@triton.jit\ndef f(a, b): return a")},
            "has 2 parameters, not 3",
        ),
    ],
)
def test_refused_implementations(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(te.ExprError, match=reason) as caught:
        c = te.compute((4, 4), lambda i, j: te.sum(A[i, R] * A2[R, j], axis=R))
        te.decl_tensor_intrin(c, name="wrong", **given)
    assert caught.value.hint


A2 = te.placeholder((4, 4), name="b")


def test_texts() -> None:
    two = (
        "define void @f() {\n ret void\n}\ndefine internal void @g(ptr %a, i64 %s) {\n ret void\n}"
    )
    assert te.llvm_function(two).name == "g"
    assert te.llvm_function(two, "f").params == 0
    with pytest.raises(te.ExprError, match="defines no LLVM function 'h'"):
        te.llvm_function(two, "h")
    assert te.triton_snippet(DOT).params == ("a", "b", "c")
