"""What is known to divide a size shows in the width of loads and stores: 16 bytes at a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import rule_cases as c
import triton_irs as t
from irs import tile
from rule_cases import Outputs
from triton_check import agree, both

import tedsl as te
from tedsl.backends.triton.compile.offline import compile_offline
from tedsl.backends.triton.emit.module import emit
from tedsl.backends.triton.emit.program import TritonProgram
from tedsl.dtypes import DType
from tedsl.errors import BackendError, InternalError
from tedsl.expr import build as b
from tedsl.expr.nodes import Axis, Expr, Var
from tedsl.ir.interp import run
from tedsl.ir.nodes import Load, Module, Store
from tedsl.ir.printer import print_module
from tedsl.lower.pipeline import lower
from tedsl.runtime.executors.triton import InterpretExecutor
from tedsl.runtime.kernel import Kernel
from tedsl.schedules import schedule_for
from tedsl.target import Target

HOPPER = Target.parse("cuda:sm_90")
ARCHES = ("sm_80", "sm_90", "sm_100")


def divides(factor: int, size: Expr) -> Expr:
    return b.eq(b.floormod(size, factor), 0)


def assuming(module: Module, *conditions: Expr) -> Module:
    return replace(module, funcs=tuple(replace(f, assumptions=conditions) for f in module.funcs))


def scaled(dtype: DType, columns: Expr, sizes: tuple[Var, ...], block: int = 1024) -> Module:
    """Y[i, j] = X[i, j] + X[i, j], one row for each program: the base and the mask use the size."""
    rows = sizes[0]
    x, y = t.mem("X", (rows, columns), dtype), t.mem("Y", (rows, columns), dtype)
    i, jo, ji = Axis("i"), Axis("j.outer"), Axis("j.inner")
    j = b.add(b.mul(jo, block), ji)
    mask = b.lt(j, columns)
    read = Load(x, (i, j), mask)
    body = Store(y, (i, j), b.add(read, read), mask, tile((ji, block)))
    steps = b.floordiv(b.add(columns, block - 1), block)
    return t.module("scaled", (x,), (y,), t.grid(i, rows, t.grid(jo, steps, body, 1)), sizes)


def rows_and_columns() -> tuple[Var, Var]:
    return Var("m", lower=0), Var("n", lower=0)


def widths(program: TritonProgram, arch: str = "sm_90") -> tuple[int, int]:
    """Bytes of the widest load and store, with no argument known to divide by 16."""
    ptx = "\n".join(info.ptx for info in compile_offline(program, arch, sizes_divisible=()))
    return widest(ptx, "ld"), widest(ptx, "st")


def widest(ptx: str, kind: str) -> int:
    found = re.findall(rf"\b{kind}\.global[\w.:]*?(?:\.v(\d))?\.b(\d+)\b", ptx)
    sizes = [int(count or 1) * int(bits) // 8 for count, bits in found]
    if kind == "ld":
        sizes += [int(n, 0) for n in re.findall(r"cp\.async\.c[ag][^;]*?\], (0x\w+|\d+)", ptx)]
    assert sizes, f"no {kind}.global"
    return max(sizes)


@pytest.mark.ptxas
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("dtype", [DType.float32, DType.bfloat16, DType.int8])
def test_full_width_with_the_fact_and_one_element_without(dtype: DType, arch: str) -> None:
    m, n = rows_and_columns()
    module = scaled(dtype, n, (m, n), block=4096)
    one = dtype.nbytes
    assert widths(emit(module, f"cuda:{arch}"), arch) == (one, one)
    assert widths(emit(assuming(module, divides(16, n)), f"cuda:{arch}"), arch) == (16, 16)


@pytest.mark.ptxas
@pytest.mark.parametrize(
    ("dtype", "factor", "wide"),
    [
        (DType.float32, 4, 16),
        (DType.float32, 2, 8),
        (DType.float32, 6, 8),
        (DType.float32, 3, 4),
        (DType.bfloat16, 8, 16),
        (DType.bfloat16, 4, 8),
        (DType.bfloat16, 48, 16),
    ],
)
def test_the_width_follows_the_factor(dtype: DType, factor: int, wide: int) -> None:
    """Triton itself asks an argument for multiples of 16 only."""
    m, n = rows_and_columns()
    program = emit(assuming(scaled(dtype, n, (m, n)), divides(factor, n)), "cuda:sm_90")
    assert widths(program) == (wide, wide)


@pytest.mark.ptxas
def test_an_argument_that_triton_specialises_needs_no_fact() -> None:
    m, n = rows_and_columns()
    program = emit(scaled(DType.float32, n, (m, n)), "cuda:sm_90")
    (info,) = compile_offline(program, "sm_90", sizes_divisible=(n,))
    assert widest(info.ptx, "ld") == widest(info.ptx, "st") == 16


@pytest.mark.ptxas
def test_a_mask_alone_needs_the_fact() -> None:
    """A vector of n elements: no stride, only `i < n`."""
    n = Var("n", lower=0)
    x, y = t.mem("X", (n,)), t.mem("Y", (n,))
    io, ii = Axis("i.outer"), Axis("i.inner")
    i = b.add(b.mul(io, 1024), ii)
    body = Store(y, (i,), Load(x, (i,), b.lt(i, n)), b.lt(i, n), tile((ii, 1024)))
    steps = b.floordiv(b.add(n, 1023), 1024)
    module = t.module("copy", (x,), (y,), t.grid(io, steps, body), (n,))
    assert widths(emit(module, "cuda")) == (4, 4)
    assert widths(emit(assuming(module, divides(16, n)), "cuda")) == (16, 16)


@pytest.mark.ptxas
def test_a_quotient_of_a_size() -> None:
    """Rows of n / 4: Triton sees 16 // 4 of n % 16 == 0, `index` 16 of n % 64 == 0."""
    m, n = rows_and_columns()
    module = scaled(DType.bfloat16, b.floordiv(n, 4), (m, n))
    assert widths(emit(module, "cuda")) == (2, 2)
    assert widths(emit(assuming(module, divides(16, n)), "cuda")) == (8, 8)
    program = emit(assuming(module, divides(64, n)), "cuda")
    assert "n // 4 // 16 * 16" in program.source
    assert widths(program) == (16, 16)


def test_the_hints_in_the_text() -> None:
    m, n = rows_and_columns()
    module = scaled(DType.float32, n, (m, n))
    assert "assumed" not in emit(module, "cuda").source
    source = emit(assuming(module, divides(16, n), divides(24, m)), "cuda").source
    head = "    # multiples, as assumed\n    m = m // 8 * 8\n    n = n // 16 * 16\n"
    assert source.partition("):\n")[2].startswith(head)
    unproved = (b.gt(n, 16), b.eq(b.floormod(n, 16), 8), divides(5, n))
    assert "assumed" not in emit(assuming(module, *unproved), "cuda").source


@pytest.mark.ptxas
def test_a_hint_changes_no_value() -> None:
    m, n = rows_and_columns()
    module = assuming(scaled(DType.float32, n, (m, n), block=32), divides(16, n))
    agree(both(module, sizes={m: 3, n: 48}), 0)


# What every call is checked against


def test_a_launch_against_an_assumption_is_refused() -> None:
    m, n = rows_and_columns()
    module = assuming(scaled(DType.float32, n, (m, n)), divides(16, n))
    (spec,) = emit(module, "cuda").kernels
    assert spec.grid_for({m: 2, n: 1040}) == (2 * 2, 1, 1)
    with pytest.raises(
        BackendError, match=r"(?s)made for sizes with.*n % 16.*n = 1000.*such sizes"
    ):
        spec.grid_for({m: 2, n: 1000})


@pytest.mark.ptxas
def test_a_call_against_an_assumption_is_refused() -> None:
    m, n = rows_and_columns()
    module = assuming(scaled(DType.float32, n, (m, n), block=32), divides(16, n))
    target = Target.parse("triton-interpret")
    kernel = Kernel(module, target, InterpretExecutor(module, target))
    x = np.arange(96, dtype=np.float32)
    np.testing.assert_array_equal(kernel(x.reshape(2, 48)), 2 * x.reshape(2, 48))
    with pytest.raises(BackendError, match=r"(?s)assumes n % 16 == 0.*n = 24.*without"):
        kernel(x.reshape(4, 24))


def test_the_interpreter_refuses_as_well() -> None:
    m, n = rows_and_columns()
    module = assuming(scaled(DType.float32, n, (m, n)), divides(16, n))
    assert "assume n % 16 == 0" in print_module(module)
    with pytest.raises(InternalError, match="against an assumption"):
        run(module, {module.inputs[0]: np.zeros((1, 8), np.float32)}, {m: 1, n: 8})


# Whole schedules over runtime sizes


def by_rules(outputs: Outputs, *conditions: Expr, arch: str = "sm_90") -> TritonProgram:
    target = Target.parse(f"cuda:{arch}")
    plan = replace(schedule_for(outputs, target).plan, assumptions=conditions)
    return emit(lower(plan, target, check=True), target)


def of_any_size(program: TritonProgram) -> TritonProgram:
    """Only the last version of the one kernel, which serves sizes that no condition covers."""
    return replace(program, kernels=program.kernels[-1:])


def of_sizes(name: str, sizes: Sequence[Var]) -> Outputs:
    m, n, k = sizes
    match name:
        case "chain":
            return c.chain(m, n)
        case "softmax":
            return c.softmax(m, n, dtype="bfloat16")
        case "layer_norm":
            return c.layer_norm(m, n)
        case "row_vectors":
            return c.broadcast(m, n)
        case "crossed":
            return c.transpose_add(m, n)
        case _:
            return c.matmul(m, n, k, "bfloat16")


@pytest.mark.ptxas
@pytest.mark.parametrize(
    "name", ["chain", "softmax", "layer_norm", "row_vectors", "crossed", "contraction"]
)
def test_rules_over_runtime_sizes(name: str) -> None:
    sizes = te.size_var("m"), te.size_var("n"), te.size_var("k")
    outputs = of_sizes(name, sizes)
    loads, stores = widths(of_any_size(by_rules(outputs)))
    assert max(loads, stores) <= 4
    assert widths(by_rules(outputs, *(divides(16, v) for v in sizes))) == (16, 16)


# Found on the way: a divisor that took on the mask's dimensions


@pytest.mark.ptxas
@pytest.mark.parametrize("arch", ARCHES)
def test_a_contraction_of_runtime_sizes_is_a_dot(arch: str) -> None:
    """The number of tiles divides the program id; it is no value of the tile."""
    m, n, k = te.size_var("m"), te.size_var("n"), te.size_var("k")
    program = by_rules(c.matmul(m, n, k, "bfloat16"), arch=arch)
    assert "tl.dot" in program.source
    (info,) = compile_offline(of_any_size(program), arch)
    assert info.registers is None or info.registers <= 255


def test_a_fused_loop_over_runtime_sizes_divides_nothing() -> None:
    source = by_rules(c.chain(te.size_var("m"), te.size_var("n"))).source
    assert "//" not in source and "%" not in source
