"""Generated Triton through ptxas: what the hardware would be asked for."""

from __future__ import annotations

import os

import pytest
import triton_irs as t

import tedsl as te
from tedsl.backends.triton.compile.offline import CompiledInfo, compile_offline, load_source
from tedsl.backends.triton.emit.module import emit
from tedsl.dtypes import DType
from tedsl.errors import BackendError
from tedsl.expr.nodes import BinaryOp, Expr, Unary, UnaryOp
from tedsl.ir.nodes import Launch, Module
from tedsl.tensor.reduce import simple_reducer

pytestmark = pytest.mark.ptxas
ARCHES = ("sm_80", "sm_90", "sm_100")
H100_SHARED = 227 * 1024


def compiled(module: Module, arch: str = "sm_90") -> CompiledInfo:
    (info,) = compile_offline(emit(module, f"cuda:{arch}"), arch, module.sizes)
    assert info.cubin[:4] == b"\x7fELF"
    return info


def test_softmax_row_in_registers() -> None:
    info = compiled(t.softmax(16384, 4096, 4096, DType.bfloat16, num_warps=4))
    assert info.stack == 0
    assert info.registers is not None
    assert info.registers <= 64
    assert ".v4" in info.ptx, "16-byte accesses"


def test_masked_softmax_keeps_wide_accesses() -> None:
    info = compiled(t.softmax(16384, 4000, 4096, DType.bfloat16, num_warps=8))
    assert info.stack == 0
    assert info.ptx.count(".v4.b32") >= 4


def test_gemm_with_descriptors() -> None:
    """The tile that the best published kernels use."""
    module = t.matmul((4096, 4096, 4096), (128, 256, 64), launch=Launch(num_warps=8), shared=True)
    info = compiled(module)
    assert info.stack == 0
    assert info.registers is not None
    assert info.registers <= 168
    assert info.shared <= H100_SHARED
    assert "wgmma.mma_async" in info.ptx
    assert "cp.async.bulk.tensor" in info.ptx


@pytest.mark.parametrize("wide", ["rows", "columns", "both"])
def test_descriptors_of_what_is_counted_in_64_bits(wide: str) -> None:
    """Tiles that are loaded and stored start at 32-bit offsets, whatever their loops count in."""
    rows = te.const(64, "int32" if wide == "columns" else "int64")
    columns = te.const(96, "int32" if wide == "rows" else "int64")
    A = te.placeholder((rows, columns), "float32", name="A")
    P = te.compute((rows, columns), lambda i, j: A[i, j] * 2.0, name="P")
    s = te.create_schedule(P)
    staged = s.cache_write(P, "shared")
    io, jo, ii, ji = s[P].tile(*s[P].op.axis, 32, 32)
    s[P].bind(io, "blockIdx.x")
    s[P].vectorize(ii)
    s[P].vectorize(ji)
    s[staged].compute_at(s[P], jo)
    read = s.cache_read(A, "shared", [staged])
    s[read].compute_at(s[P], jo)
    module = te.lower(s, "cuda:sm_90")
    source = emit(module, "cuda:sm_90").source
    assert "A_desc.load" in source and "P_desc.store" in source
    assert "cp.async.bulk.tensor" in compiled(module).ptx


def test_dimensions_beyond_32_bit_offsets_have_no_descriptors() -> None:
    long = te.placeholder((te.const(2**31, "int64"), 16), "float32", name="A")
    P = te.compute((te.const(2**31, "int64"), 16), lambda i, j: long[i, j] * 2.0, name="P")
    s = te.create_schedule(P)
    staged = s.cache_write(P, "shared")
    io, ii = s[P].split(s[P].op.axis[0], 32)
    s[P].bind(io, "blockIdx.x")
    s[P].vectorize(ii)
    s[P].vectorize(s[P].op.axis[1])
    s[staged].compute_at(s[P], io)
    module = te.lower(s, "cuda:sm_90")
    assert "is beyond the 32-bit offsets of descriptors" in emit(module, "cuda:sm_90").source
    compiled(module)


def test_gemm_with_pointers() -> None:
    module = t.matmul((4096, 4096, 4096), (128, 256, 64), launch=Launch(num_warps=8))
    info = compiled(module)
    assert info.stack == 0
    assert info.registers is not None
    assert info.registers <= 208
    assert "wgmma.mma_async" in info.ptx
    assert "cp.async.cg.shared.global" in info.ptx


def test_loops_are_pipelined_without_a_dot() -> None:
    info = compiled(t.looped_sum(8192, 8192, 1024))
    assert info.stack == 0
    assert "cp.async" in info.ptx


def test_transpose_goes_through_shared_memory() -> None:
    info = compiled(t.transpose_add(8192, 64))
    assert info.stack == 0
    assert 0 < info.shared <= 64 * 64 * 4
    assert ".v4" in info.ptx


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    "make",
    [
        lambda: t.arg_max(4, 33),
        t.symbolic_scale,
        lambda: t.gather(5, 4096, 9),
        lambda: t.guarded_steps(5, 3),
        lambda: t.update_in_memory(6, 40),
        lambda: t.batched_matmul(3, 32),
        t.matmul_into_columns,
        lambda: t.matmul((100, 90, 50), (32, 32, 16), DType.float32),
        lambda: t.matmul((128, 128, 64), (32, 32, 32), transposed=True, shared=True),
        lambda: t.transpose_add(65536, 32),
        lambda: t.fused_grid(2, 70000, 3),
    ],
)
def test_every_kind_of_statement_compiles(make: object, arch: str) -> None:
    assert callable(make)
    module = make()
    assert isinstance(module, Module)
    compiled(module, arch)


OF_SOME = (UnaryOp.NOT, UnaryOp.POPCOUNT, UnaryOp.BITS)
FLOAT_OPS = [op for op in UnaryOp if op not in OF_SOME]


@pytest.mark.parametrize("dtype", [DType.bfloat16, DType.float32, DType.float64])
def test_every_float_operator_compiles(dtype: DType) -> None:
    """All unary operators in one kernel."""

    def value(x: Expr, y: Expr) -> Expr:
        total = x
        for op in FLOAT_OPS:
            found = Unary(op, x)
            total = t.b.add(total, t.b.cast(found, dtype))
        for op in (BinaryOp.DIV, BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.POW,
                   BinaryOp.ATAN2, BinaryOp.MIN, BinaryOp.MAX):  # fmt: skip
            total = t.b.add(total, t.Binary(op, x, y))
        return total

    compiled(t.pointwise(1024, 128, (dtype, dtype), dtype, value))


@pytest.mark.parametrize("dtype", [DType(f"{u}int{n}") for u in ("", "u") for n in (8, 16, 32, 64)])
def test_every_integer_operator_compiles(dtype: DType) -> None:
    def value(x: Expr, y: Expr) -> Expr:
        total = Unary(UnaryOp.NOT, Unary(UnaryOp.POPCOUNT, x))
        for op in (UnaryOp.NEG, UnaryOp.ABS, UnaryOp.SIGN):
            total = t.b.add(total, Unary(op, x))
        for op in BinaryOp:
            if op not in (BinaryOp.DIV, BinaryOp.ATAN2):
                total = t.b.add(total, t.Binary(op, x, y))
        return total

    compiled(t.pointwise(1024, 128, (dtype, dtype), dtype, value))


@pytest.mark.parametrize("op", [BinaryOp.ADD, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX])
def test_reductions_of_every_type_compile(op: BinaryOp) -> None:
    for dtype in (DType.float16, DType.float64, DType.int8, DType.uint32, DType.int64):
        compiled(t.reduce_rows(4, 64, dtype, simple_reducer(op, dtype)))


def test_bool_reductions_compile() -> None:
    for op in (BinaryOp.AND, BinaryOp.OR):
        compiled(t.reduce_rows(4, 64, DType.bool, t.bool_reducer(op)))


@pytest.mark.uncompiled("three warps")
def test_a_compiler_refusal_is_a_backend_error() -> None:
    program = emit(t.matmul((64, 64, 64), (64, 64, 64), launch=Launch(num_warps=3)), "cuda")
    with pytest.raises(BackendError, match=r"(?s)cannot compile matmul for sm_90.*num_warps"):
        compile_offline(program, "sm_90")


def test_the_interpreter_switch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TRITON_INTERPRET", "1")
    with pytest.raises(BackendError, match="TRITON_INTERPRET=1 is set"):
        load_source("import triton\n")
