"""Figures of machine code on the CPU, and when two programs are the same code."""

from __future__ import annotations

import pytest

import tedsl as te
from tedsl.backends.cpu.run.asm_stats import read_listing

pytestmark = pytest.mark.cpu


def test_figures_of_a_text() -> None:
    asm = """
f:
	subq	$128, %rsp
	vmovups	(%rdi), %zmm0
	vfmadd231ps	(%rsi), %zmm1, %zmm0
	vmovups	%zmm0, 64(%rsp)
	vaddss	%xmm0, %xmm1, %xmm2
	retq
"""
    found = read_listing(asm)
    assert (found.instructions, found.vectors, found.fused) == (6, 3, 1)
    assert (found.spills, found.stack) == (1, 128)


def product(rows: int, name: str = "c", unroll: bool = True) -> te.Kernel:
    a, b = (te.placeholder((64, 64), "float32", name=n) for n in "ab")
    k = te.reduce_axis((0, 64), name="k")
    c = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name=name)
    s = te.create_schedule(c)
    held = s.cache_write(c, "local")
    i, j = s[c].op.axis
    io, ii = s[c].split(i, factor=rows)
    jo, ji = s[c].split(j, factor=32)
    s[c].reorder(io, jo, ii, ji)
    s[c].vectorize(ii)
    s[c].vectorize(ji)
    inner = s[held]
    inner.compute_at(s[c], jo)
    hi, hj = inner.op.axis
    inner.reorder(inner.op.reduce_axis[0], hi, hj)
    inner.vectorize(hi)
    inner.vectorize(hj)
    return te.build(s, "cpu", cache=False)


def test_figures_of_a_program() -> None:
    (good,) = product(2).resources.values()
    (spilled,) = product(16).resources.values()
    assert good.vectors > 0
    assert spilled.spills > good.spills, "512 sums do not fit into the registers"


def test_the_same_code_has_one_digest() -> None:
    assert product(4).code == product(4).code
    assert product(4).code != product(8).code
