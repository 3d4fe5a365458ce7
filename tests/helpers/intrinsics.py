"""Intrinsics for tests: micro kernels of a few elements, as LLVM text, in C and in Triton."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import tedsl as te

DOT = """
@triton.jit
def micro_gemm(a, b, c):
    return c + tl.sum(a[:, :, None] * b[None, :, :], axis=1)
"""
ROWS = """
@triton.jit
def micro_gemv(a, x, y):
    return y + tl.sum(a * x[None, :], axis=1)
"""


def gemm_text(m: int, n: int, k: int, name: str = "micro_gemm", op: str = "fadd") -> str:
    """`c[i, j] += a[i, l] * b[l, j]`, written out element by element."""
    head = "ptr %a, i64 %a0, i64 %a1, ptr %b, i64 %b0, i64 %b1, ptr %c, i64 %c0, i64 %c1"
    lines: list[str] = []

    def at(what: str, row: int, column: int, to: str) -> None:
        lines.append(f"%{to}r = mul i64 {row}, %{what}0")
        lines.append(f"%{to}c = mul i64 {column}, %{what}1")
        lines.append(f"%{to}o = add i64 %{to}r, %{to}c")
        lines.append(f"%{to}p = getelementptr float, ptr %{what}, i64 %{to}o")
        lines.append(f"%{to} = load float, ptr %{to}p")

    for i in range(m):
        for j in range(n):
            at("c", i, j, f"c{i}_{j}_s")
            total = f"c{i}_{j}_s"
            for x in range(k):
                here = f"{i}_{j}_{x}"
                at("a", i, x, f"a{here}")
                at("b", x, j, f"b{here}")
                lines.append(f"%m{here} = fmul float %a{here}, %b{here}")
                lines.append(f"%t{here} = {op} float %{total}, %m{here}")
                total = f"t{here}"
            lines.append(f"store float %{total}, ptr %c{i}_{j}_sp")
    body = "\n  ".join(lines)
    return f"define void @{name}({head}) {{\n  {body}\n  ret void\n}}\n"


def gemm(m: int = 4, n: int = 4, k: int = 4, name: str = "gemm", **given: Any) -> Any:
    """The declared multiply-accumulate."""
    a = te.placeholder((m, k), name="a")
    b = te.placeholder((k, n), name="b")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="c")
    return te.decl_tensor_intrin(c, name=name, **given)


@cache
def micro_kernel(m: int, n: int, k: int) -> Any:
    """A multiply-accumulate of that size for the CPU, and for Triton where it has such tiles."""
    tiles = all(size & (size - 1) == 0 for size in (m, n, k))
    text = gemm_text(m, n, k)
    gpu = te.triton_snippet(DOT) if tiles else None
    return gemm(m, n, k, f"gemm{m}x{n}x{k}", cpu=te.llvm_function(text), gpu=gpu)


def gemv(m: int = 4, k: int = 8, name: str = "gemv", **given: Any) -> Any:
    """`y[i] += a[i, l] * x[l]`."""
    a, x = te.placeholder((m, k), name="a"), te.placeholder((k,), name="x")
    r = te.reduce_axis((0, k), name="r")
    y = te.compute((m,), lambda i: te.sum(a[i, r] * x[r], axis=r), name="y")
    return te.decl_tensor_intrin(y, name=name, **given)


_P, _I = ctypes.POINTER(ctypes.c_float), ctypes.c_int64


@ctypes.CFUNCTYPE(None, _P, _I, _I, _P, _I, _P, _I)
def c_gemv(a: Any, a0: int, a1: int, x: Any, x0: int, y: Any, y0: int) -> None:
    for i in range(4):
        for k in range(8):
            y[i * y0] += a[i * a0 + k * a1] * x[k * x0]


def product(m: int, n: int, k: int) -> te.Tensor:
    """`C = A B`."""
    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    r = te.reduce_axis((0, k), name="k")
    return te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")


def tiled(c: te.Tensor, factors: tuple[int, int, int]) -> tuple[te.Schedule, te.Axis]:
    """The loops `io, jo, ko, ii, ji, ki` and the first of the inner ones."""
    s = te.create_schedule(c)
    i, j = s[c].op.axis
    (k,) = s[c].op.reduce_axis
    io, ii = s[c].split(i, factors[0])
    jo, ji = s[c].split(j, factors[1])
    ko, ki = s[c].split(k, factors[2])
    s[c].reorder(io, jo, ko, ii, ji, ki)
    return s, ii
