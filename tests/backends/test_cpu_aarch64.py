"""Code for AArch64, made here and read as text: NEON vectors, fused multiply-adds, no x86 names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from aarch64 import NEON, assembly, believing
from cpu_modules import add, buffer, c, f, local, module, mul, reducer, un

from tedsl.backends.cpu.emit import module as codegen
from tedsl.backends.cpu.run import thread_pool
from tedsl.expr.nodes import Axis
from tedsl.ir.nodes import Accumulate, Allocate, For, Load, LoopKind, Module, Seq, Store, TileAxis

pytestmark = pytest.mark.cpu


@pytest.fixture
def llvm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """LLVM with the AArch64 target, and a backend that believes it runs there."""
    with believing(monkeypatch) as binding:
        yield binding


def elementwise(name: str) -> Module:
    i = Axis("i")
    x, y = buffer("x", (70,)), buffer("y", (70,))
    return module([x], [y], Store(y, (i,), un(name, Load(x, (i,))), None, (TileAxis(i, 70),)))


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "asinh"])
def test_functions_are_vectors_without_calls(llvm: Any, name: str) -> None:
    text = assembly(llvm, codegen.emit_module(elementwise(name)))
    assert "fmla" in text
    assert "\tbl\t" not in text


def test_register_tiles_stay_in_registers(llvm: Any) -> None:
    i, j, k = Axis("i"), Axis("j"), Axis("k")
    a, b, out, acc = (
        buffer("a", (4, 64)),
        buffer("b", (64, 8)),
        buffer("c", (4, 8)),
        local("t", (4, 8)),
    )
    tile = (TileAxis(i, 4), TileAxis(j, 8))
    step = Accumulate(
        (acc,), (i, j), reducer("+", 0), (mul(Load(a, (i, k)), Load(b, (k, j))),), None, tile
    )
    body = Seq((
        Store(acc, (i, j), f(0), None, tile),
        For(k, c(64), LoopKind.SERIAL, step),
        Store(out, (i, j), add(Load(acc, (i, j)), f(1)), None, tile),
    ))  # fmt: skip
    text = assembly(llvm, codegen.emit_module(module([a, b], [out], Allocate(acc, body))))
    assert text.count("fmla") >= 8
    assert "sub\tsp" not in text.split("tedsl_entry:")[0]


def test_the_thread_pool(llvm: Any) -> None:
    text = assembly(llvm, thread_pool.runtime_text(NEON))
    assert "yield" in text or "hint" in text
    assert "tedsl_parallel_for:" in text
