"""8-bit floats on the CPU and in Triton: every number, every rounding, products, old devices."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from cpu_machines import MACHINES, compiling_for
from float8_values import FLOAT8, OTHERS, agree, edges, every

import tedsl as te
from tedsl.backends.triton.compile.offline import CompiledInfo, compile_offline
from tedsl.backends.triton.emit.module import emit
from tedsl.backends.triton.emit.program import TritonProgram
from tedsl.backends.triton.interpret.client import run
from tedsl.dtypes import DType
from tedsl.expr import numerics
from tedsl.expr.numerics import numpy_dtype
from tedsl.ir import interp
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.target import Target

TARGETS = ["cpu", "cuda:sm_80", "cuda:sm_90"]
uncompiled = pytest.mark.uncompiled("all conversions are compiled together, once")


def called(output: te.Tensor, target: str, *arrays: Any) -> Any:
    """What a kernel gives: compiled, or its text for a device in Triton's interpreter."""
    if target == "cpu":
        return te.build(output, target, cache=False)(*arrays)
    parsed = Target.parse(target)
    module = lower(schedule_for([output], parsed).plan, parsed)
    given: dict[Any, Any] = dict(zip(module.inputs, arrays, strict=True))
    for buffer in (*module.outputs, *module.workspaces):
        given[buffer] = np.zeros([int(n.value) for n in buffer.shape], numpy_dtype(buffer.dtype))  # type: ignore
    # Triton's interpreter moves tiles of descriptors as plain ones.
    run(emit(module, parsed), given)
    return given[module.outputs[0]]


def cast_of(count: int, source: DType, target: DType) -> te.Tensor:
    x = te.placeholder((count,), source, name="x")
    return te.compute((count,), lambda i: x[i].astype(target), name="y")


@uncompiled
@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("target", TARGETS)
def test_every_number_becomes_every_other_type(target: str, dtype: DType) -> None:
    for other in OTHERS:
        x = every(dtype)
        if other.is_integer:  # what infinite and NaN become has no meaning
            x = x[np.isfinite(x.astype(np.float32))]
        want = numerics.cast(x, dtype, other)
        agree(called(cast_of(len(x), dtype, other), target, x), want)


@uncompiled
@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("target", TARGETS)
def test_every_rounding(target: str, dtype: DType) -> None:
    for source in OTHERS[:-3]:
        x = edges(dtype)
        if source.is_integer:
            x = x[np.abs(x) < 2**30]
        x = x.astype(numpy_dtype(source))
        with np.errstate(over="ignore"):
            want = numerics.cast(x, source, dtype)
        agree(called(cast_of(len(x), source, dtype), target, x), want)


@pytest.mark.cpu
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", FLOAT8)
def test_other_machines(dtype: DType, machine: str) -> None:
    x = edges(dtype)
    with compiling_for(machine):
        agree(called(cast_of(len(x), DType.float32, dtype), "cpu", x), x.astype(numpy_dtype(dtype)))
        wide = every(dtype).astype(np.float32)
        agree(called(cast_of(256, dtype, DType.float32), "cpu", every(dtype)), wide)


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", FLOAT8)
def test_conversions_are_vectors_and_no_calls(dtype: DType) -> None:
    """Conversions by way of half are calls of a library where the processor has none."""
    for kinds in ((DType.float32, dtype), (dtype, DType.float32)):
        source = te.build(cast_of(4096, *kinds), "cpu", cache=False).source
        names, own = (
            set(re.findall(rf"{word} [^@]*@([\w.]+)", source)) for word in ("call", "define")
        )
        assert all(name.startswith("llvm.") for name in names - own), names - own
        assert "half" not in source
        assert " x i8>" in source and " x float>" in source


def filled(number: float) -> te.Tensor:
    return te.compute((37,), lambda i: te.const(number, "float8_e4m3fn"), name="filled")


@pytest.mark.parametrize("target", TARGETS)
def test_constants_and_choices(target: str) -> None:
    """A constant is rounded as a value is, and a masked element is 0."""
    x = te.placeholder((37,), "float8_e4m3fn", name="x")
    chosen = te.compute(
        (37,),
        lambda i: te.select(i < 5, te.const(0.3, x.dtype), te.select(i < 30, x[i], -0.0)),
        name="y",
    )
    wide = te.compute(
        (37,), lambda i: chosen[i].astype("float32") + te.const(3.3, x.dtype).astype("float32")
    )
    given = np.linspace(-9, 9, 37).astype(numpy_dtype(DType.float8_e4m3fn))
    want = given.copy()
    want[:5], want[30:] = 0.3, -0.0
    agree(called(chosen, target, given), want)
    agree(called(wide, target, given), want.astype(np.float32) + 3.25)
    for number in (0.0, 0.3):
        agree(called(filled(number), target), np.full(37, number).astype(given.dtype))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "kinds", [FLOAT8[:1] * 2, FLOAT8[1:] * 2, FLOAT8, (DType.int8,) * 2], ids=str
)
def test_products(target: str, kinds: tuple[DType, DType]) -> None:
    m, n, k = 48, 33, 160
    rng = np.random.default_rng(5)
    left, right = (
        (rng.standard_normal(shape) * 8).astype(numpy_dtype(kind))
        for shape, kind in zip(((m, k), (n, k)), kinds, strict=True)
    )
    a, b = te.placeholder((m, k), kinds[0], name="a"), te.placeholder((n, k), kinds[1], name="b")
    product = te.nn.scaled_matmul(a, b, dtype="float32")
    want = left.astype(np.float64) @ right.astype(np.float64).T
    size = np.abs(left.astype(np.float64)) @ np.abs(right.astype(np.float64)).T
    got = called(product, target, left, right)
    assert (np.abs(got - want) <= 4e-7 * size).all()


@pytest.mark.ptxas
@uncompiled
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_conversions_compile(arch: str) -> None:
    x = te.placeholder((1024,), name="x")
    given = [te.placeholder((1024,), kind, name=f"x{n}") for n, kind in enumerate(FLOAT8)]
    made: Any = te.compute(
        (1024,),
        lambda i: (
            *(x[i].astype(kind) for kind in FLOAT8),
            *(each[i].astype(kind) for each in given for kind in OTHERS if kind != each.dtype),
        ),
        name="y",
    )
    target = Target.parse(f"cuda:{arch}")
    source = emit(lower(schedule_for(list(made), target).plan, target), target)
    (info,) = compile_offline(source, arch)
    assert ("satfinite.e4m3x2" in info.ptx) == (arch != "sm_80")
    assert info.stack == 0


def program(output: te.Tensor, target: str) -> TritonProgram:
    parsed = Target.parse(target)
    return emit(lower(schedule_for([output], parsed).plan, parsed), parsed)


def scaled(m: int, n: int, k: int, dtype: str = "float8_e4m3fn") -> te.Tensor:
    a, b = te.placeholder((m, k), dtype, name="a"), te.placeholder((n, k), dtype, name="b")
    scales = te.placeholder((m,), name="sa"), te.placeholder((n,), name="sb")
    return te.nn.scaled_matmul(a, b, *scales)


def compiled(made: TritonProgram) -> CompiledInfo:
    (info,) = compile_offline(made, str(made.target.arch))
    return info


@pytest.mark.ptxas
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int8"])
def test_a_product_on_hopper(dtype: str) -> None:
    """Operands come by the copy engine and are multiplied where they are; no register spills."""
    made = program(scaled(4096, 4096, 4096, dtype), "cuda:sm_90")
    info = compiled(made)
    assert "wgmma.mma_async" in info.ptx and "cp.async.bulk.tensor" in info.ptx
    assert info.stack == 0 and info.shared <= 227 << 10
    kind = {"float8_e4m3fn": "e4m3.e4m3", "float8_e5m2": "e5m2.e5m2", "int8": "s8.s8"}[dtype]
    assert f"k32.{'s32' if dtype == 'int8' else 'f32'}.{kind}" in info.ptx
    # The matrix units add up 8-bit floats in few bits: each step's sum is added in float32.
    assert ("max_num_imprecise_acc=128" in made.source) == (dtype != "int8")
    assert ("add.f32" in info.ptx or "add.rn.f32" in info.ptx) == (dtype != "int8")


@pytest.mark.ptxas
def test_a_product_on_ampere_is_one_of_float16() -> None:
    made = program(scaled(1024, 1024, 1024), "cuda:sm_80")
    info = compiled(made)
    assert "half_of_float8_e4m3fn" in made.source and "float8e4nv" not in made.source
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in info.ptx


@pytest.mark.ptxas
def test_operands_folded_across_memory_are_turned() -> None:
    """wgmma takes 8-bit operands along their rows only."""
    a, b = (te.placeholder((512, 512), "float8_e4m3fn", name=name) for name in "ab")
    info = compiled(program(te.nn.matmul(a, b), "cuda:sm_90"))
    assert "wgmma.mma_async" in info.ptx and info.stack == 0


def test_the_loop_interpreter_rounds_as_the_reference() -> None:
    for dtype in FLOAT8:
        x = edges(dtype)
        target = Target.parse("cpu")
        output = cast_of(len(x), DType.float32, dtype)
        module = lower(schedule_for([output], target).plan, target)
        (found,) = interp.run(module, {module.inputs[0]: x}).values()
        agree(found, x.astype(numpy_dtype(dtype)))
