"""Code for AArch64, made here and read as text: NEON vectors, fused multiply-adds, no x86 names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cpu_modules import add, buffer, c, f, local, module, mul, reducer, un

from tedsl.backends.cpu import codegen, threads
from tedsl.backends.cpu import machine as detection
from tedsl.backends.cpu.machine import Machine
from tedsl.expr.nodes import Axis
from tedsl.ir.nodes import Accumulate, Allocate, For, Load, LoopKind, Module, Seq, Store, TileAxis

pytestmark = pytest.mark.cpu
NEON = Machine("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon", 128, 32, True, False, False)


@pytest.fixture
def llvm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """LLVM with the AArch64 target, and a backend that believes it runs there."""
    binding = detection.binding()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    try:
        binding.Target.from_triple(NEON.triple)
    except RuntimeError:
        pytest.skip("this llvmlite has no AArch64 target")
    monkeypatch.setattr(detection, "detect", lambda: NEON)
    yield binding


def assembly(llvm: Any, text: str) -> str:
    """Optimised assembly."""
    target = llvm.Target.from_triple(NEON.triple)
    tm = target.create_target_machine(cpu=NEON.cpu, features=NEON.features, opt=3, reloc="pic")
    parsed = llvm.parse_assembly(text)
    parsed.verify()
    builder = llvm.create_pass_builder(tm, llvm.PipelineTuningOptions(speed_level=3))
    builder.getModulePassManager().run(parsed, builder)
    return str(tm.emit_assembly(parsed))


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
    text = assembly(llvm, threads.runtime_text(NEON))
    assert "yield" in text or "hint" in text
    assert "tedsl_parallel_for:" in text
