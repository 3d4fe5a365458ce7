"""atomic: reduce loops that run at the same time, each iteration combining its part in one step."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lowering import after_passes, agrees
from refusals import refused

import tedsl as te
from tedsl.backends.cpu.emit.module import emit_module
from tedsl.backends.triton.emit.module import emit
from tedsl.dtypes import DType
from tedsl.errors import InternalError
from tedsl.expr.nodes import Axis, BinaryOp, Const
from tedsl.expr.numerics import numpy_dtype
from tedsl.ir.nodes import Accumulate, Buffer, For, Func, Level, LoopKind, Scope, Stmt
from tedsl.ir.verify import verify
from tedsl.ir.visit import walk_stmts
from tedsl.lower.pipeline import lower
from tedsl.target import Target
from tedsl.tensor.reduce import simple_reducer

TARGETS = [
    pytest.param("cpu", marks=pytest.mark.cpu),
    pytest.param("triton-interpret", marks=pytest.mark.ptxas),
]
NUMPY: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "max": np.max,
    "min": np.min,
    "any": np.any,
    "all": np.all,
}


def rows(
    reducer: str = "sum", element: str = "int32", shape: tuple[Any, Any] = (33, 70), **options: Any
) -> tuple[te.Schedule, te.Tensor, Axis]:
    """A reduction of rows, and its reduce loop."""
    A = te.placeholder(shape, element, name="A")
    k = te.reduce_axis((0, shape[1]), name="k")
    fold = getattr(te, reducer)
    C = te.compute((shape[0],), lambda i: fold(A[i, k], axis=k, **options), name="C")
    return te.create_schedule(C), C, k


def parted(
    reducer: str = "sum", element: str = "int32", shape: tuple[Any, Any] = (33, 70), **options: Any
) -> te.Schedule:
    """Parts of 16 columns at the same time, of which lanes of columns fold 8 rows at once."""
    s, C, k = rows(reducer, element, shape, **options)
    ko, ki = s[C].split(k, 16)
    io, ii = s[C].split(s[C].op.axis[0], 8)
    s[C].reorder(ko, io, ii, ki)
    s[C].atomic()
    s[C].bind(ko, "blockIdx.x")
    s[C].vectorize(ii)
    s[C].vectorize(ki)
    return s


def special(dtype: str) -> Any:
    """Rows with NaN of both signs, infinities, zeros of both signs, and of one sign only."""
    rng = np.random.default_rng(3)
    a = rng.standard_normal((33, 70)).astype(dtype)
    a[3], a[4] = -np.abs(a[3]), np.abs(a[4])
    a[5, 3], a[6, 68], a[7, 0] = np.nan, -np.nan, np.nan
    a[7, 1:] = -1.0
    a[8], a[9], a[10] = -0.0, np.inf, -np.inf
    a[11, 20:], a[12, 20:] = 0.0, -0.0
    return a


# --- legality


def test_the_refusal_of_a_race_names_the_ways_out() -> None:
    s, C, k = rows()
    with refused(s, "k = 0 and k = 1 both update C[0]", "rfactor(C, k)", "atomic()", "vectorize"):
        s[C].parallel(k)
    s[C].atomic()
    s[C].parallel(k)
    assert "kernel C: int32[33]  (atomic)" in str(s)


def test_the_printed_schedule_says_that_float_sums_vary() -> None:
    assert "(atomic, rounded in an order that may change from run to run)" in str(
        parted("sum", "float32")
    )
    assert "(atomic)" in str(parted("max", "float32"))


def test_reducers_without_an_atomic_update() -> None:
    s, C, _ = rows("prod")
    with refused(s, "atomic(C): there is no atomic update for its reducer prod", "rfactor"):
        s[C].atomic()
    A = te.placeholder((33, 70), name="A")
    k = te.reduce_axis((0, 70), name="k")
    first = te.comm_reducer(
        lambda x, y: (te.select(x[1] >= y[1], x[0], y[0]), te.maximum(x[1], y[1])),
        lambda t, u: (te.const(-1, t), te.min_value(u)),
        name="argmax",
    )
    M, _ = te.compute((33,), lambda i: first((k, A[i, k]), axis=k), name="M")
    s = te.create_schedule(M)
    with refused(s, "its reducer argmax combines tuples of 2 values"):
        s[M].atomic()
    B = te.compute((33,), lambda i: A[i, 0], name="B")
    s = te.create_schedule(B)
    with refused(s, "B is no reduction", "te.sum"):
        s[B].atomic()


def test_only_at_root() -> None:
    s, C, k = rows()
    D = te.compute((33,), lambda i: C[i] + 1, name="D")
    s = te.create_schedule(D)
    s[C].atomic()
    with refused(s, "C is atomic and computed inside D: parts are combined in memory", "root"):
        s[C].compute_at(s[D], s[D].op.axis[0])
    s = te.create_schedule(D)
    s[C].compute_at(s[D], s[D].op.axis[0])
    with refused(s, "C is atomic and computed inside D: parts are combined in memory"):
        s[C].atomic()
    s = te.create_schedule(D)
    s[C].atomic()
    s[C].reorder(k, s[C].op.axis[0])
    s[C].bind(k, "blockIdx.x")
    assert not s[C].legal_places()
    with refused(s, "D would run inside C.k, a reduce loop"):
        s[D].reverse_compute_at(s[C], k)


def test_not_together_with_another_stage() -> None:
    A = te.placeholder((33, 70), "int32", name="A")
    k, r = te.reduce_axis((0, 70), "k"), te.reduce_axis((0, 70), "r")
    B = te.compute((33,), lambda i: te.sum(A[i, k], axis=k), name="B")
    C = te.compute((33,), lambda i: te.max(A[i, r], axis=r), name="C")
    s = te.create_schedule([B, C])
    s[B].atomic()
    with refused(s, "B is atomic, and after this call B runs together with another stage"):
        s[C].compute_with(s[B], s[B].op.axis[0])


@pytest.mark.parametrize("target", TARGETS)
def test_what_it_starts_from_is_there_before(target: str) -> None:
    A, B = te.placeholder((33, 70), "int32", name="A"), te.placeholder((33,), "int32", name="B")
    D = te.compute((33,), lambda i: B[i] * 2, name="D")
    k = te.reduce_axis((0, 70), name="k")
    C = te.compute((33,), lambda i: te.sum(A[i, k], axis=k, init=D[i]), name="C")
    s = te.create_schedule(C)
    s[C].atomic()
    s[C].parallel(k)
    with refused(s, "C is atomic, and after this call C starts from D, and the start is stored"):
        s[D].compute_at(s[C], s[C].op.axis[0])
    for place in (s[D].compute_root, s[D].compute_inline):
        place()
        agrees(s, targets=(target,))


def test_its_start_may_be_a_stage() -> None:
    s, C, _ = rows()
    s[C].atomic()
    s.decompose_reduction(C, s[C].op.axis[0])
    s[C].parallel(s[C].op.reduce_axis[0])
    agrees(s)


def test_it_keeps_its_reduction() -> None:
    s, C, _ = rows()
    s[C].atomic()
    with refused(s, "C is atomic, and after this call C is no reduction"):
        s.cache_write(C, "local")


def test_rfactor_keeps_it() -> None:
    s, C, k = rows()
    ko, _ = s[C].split(k, 16)
    s[C].atomic()
    s.rfactor(C, ko)
    s[C].reorder(s[C].op.reduce_axis[0], s[C].op.axis[0])
    s[C].parallel(s[C].op.reduce_axis[0])
    assert agrees(s)


MISSING = [
    ("max", "bfloat16", "cpu"),
    ("sum", "float16", "cpu"),
    ("max", "float16", "triton-interpret"),
    ("min", "int8", "triton-interpret"),
    ("sum", "uint8", "triton-interpret"),
    ("sum", "bfloat16", "triton-interpret"),
    ("any", "bool", "triton-interpret"),
    ("all", "bool", "triton-interpret"),
]
"""Reductions that the target has no atomic update for."""


def in_order(order: str, reducer: str, dtype: str) -> te.Schedule:
    """Rows in the loops `order`, of which the outer ones of both axes run at once."""
    options: dict[str, Any] = {"dtype": dtype} if reducer == "sum" else {}
    s, C, k = rows(reducer, dtype, **options)
    ko, ki = s[C].split(k, 16)
    io, ii = s[C].split(s[C].op.axis[0], 8)
    axes = {"ko": ko, "ki": ki, "io": io, "ii": ii}
    s[C].reorder(*(axes[name] for name in order.split()))
    s[C].atomic()
    s[C].parallel(ko)
    s[C].parallel(io)
    return s


def reduce_loops_at_once(stmt: Stmt) -> bool:
    """Whether an atomic update occurs."""
    return any(isinstance(each, Accumulate) and each.atomic for each in walk_stmts(stmt))


@pytest.mark.parametrize(("reducer", "dtype", "target"), MISSING)
def test_loops_run_in_turn_without_the_update(reducer: str, dtype: str, target: str) -> None:
    """`parallel` allows and orders nothing: the parts are folded one after the other."""
    for order in ("ko io ii ki", "io ko ii ki", "ki ko io ii", "io ii ki ko", "ko ii io ki"):
        s = in_order(order, reducer, dtype)
        module = lower(s.plan, Target.parse(target), check=True)
        assert [func.name for func in module.funcs] == ["C"], "no nest for what it starts from"
        assert not any(reduce_loops_at_once(func.body) for func in module.funcs)
        assert agrees(s, targets=(target,), bound=0.2 if "float16" in dtype else 0.0), order


@pytest.mark.parametrize(("reducer", "dtype", "target"), MISSING)
def test_what_the_mark_does_not_do_is_said(reducer: str, dtype: str, target: str) -> None:
    """In the text of the program, where the kernel is explained and in the schedule for the target;
    nothing is said of one that is combined atomically."""
    for case, said in (((reducer, dtype), 1), (("sum", "int32"), 0)):
        s = in_order("ko io ii ki", *case)
        module = lower(s.plan, Target.parse(target))
        text = emit_module(module) if target == "cpu" else emit(module, target).source
        remark = "C is not combined atomically: "
        assert text.count(remark) == said
        assert str(te.explain(s, target)).count(remark) == said
        assert str(s.copy(target=Target.parse(target))).count("(in turn)") == said


def test_what_runs_at_once_beside_them_stays() -> None:
    """The rows are programs of the grid, inside of which the parts of a row come in turn."""
    for order in ("ko io ii ki", "io ko ii ki"):
        module = lower(in_order(order, "max", "float16").plan, Target.parse("cuda"), check=True)
        (func,) = module.funcs
        found = [each for each in walk_stmts(func.body) if isinstance(each, For)]
        assert [loop.axis.name for loop in found if loop.kind is LoopKind.PROGRAM] == ["i.outer"]
        assert found[0].kind is LoopKind.PROGRAM


@pytest.mark.parametrize("place", ["outer", "inner", "tile"])
@pytest.mark.parametrize("order", ["ko io ii ki", "io ko ii ki"])
@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_a_producer_in_loops_that_run_in_turn(target: str, order: str, place: str) -> None:
    A = te.placeholder((32, 64), "bfloat16" if target == "cpu" else "bool", name="A")
    k = te.reduce_axis((0, 64), name="k")
    B = te.compute((32, 64), lambda i, j: A[31 - i, j], name="B")
    fold = te.max if target == "cpu" else te.any
    C = te.compute((32,), lambda i: fold(B[i, k], axis=k, where=k != 5), name="C")
    s = te.create_schedule(C)
    ko, ki = s[C].split(k, 16)
    io, ii = s[C].split(s[C].op.axis[0], 8)
    axes = {"ko": ko, "ki": ki, "io": io, "ii": ii}
    s[C].reorder(*(axes[name] for name in order.split()))
    s[C].atomic()
    s[C].parallel(ko)
    s[C].parallel(io)
    first, second = (axes[name] for name in order.split()[:2])
    s[B].compute_at(s[C], {"outer": first, "inner": second, "tile": ii}[place])
    assert agrees(s, targets=(target,))


def test_a_start_that_may_be_nan() -> None:
    """Triton's atomic minima and maxima would lose it: the loops run in turn there."""
    A = te.placeholder((8, 70), name="A")
    k, top = te.reduce_axis((0, 70), name="k"), te.var("top", "float32")
    C = te.compute((8,), lambda i: te.max(A[i, k], axis=k, init=top), name="C")
    s = te.create_schedule(C)
    s[C].atomic()
    s[C].parallel(k)
    for target, atomic in (("cuda", False), ("cpu", True)):
        funcs = lower(s.plan, Target.parse(target), check=True).funcs
        assert any(reduce_loops_at_once(func.body) for func in funcs) == atomic


# --- loops


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_loops(target: str, golden: Callable[..., None]) -> None:
    passes = after_passes(parted("sum", "float32", init=2.0), target)
    golden(passes["build_nests"] + "\n" + list(passes.values())[-1])


def test_source(golden: Callable[..., None]) -> None:
    program = emit(lower(parted("max", "float32").plan, Target.parse("cuda")), "cuda")
    golden(program.source)


def test_loops_around_and_inside() -> None:
    """Contended loops inside serial ones, around them, all of them, and of one iteration."""
    for order in ("io ko ii ki", "ki ko io ii", "ko ki io ii", "io ii ki ko", "ki io ko ii"):
        s, C, k = rows()
        ko, ki = s[C].split(k, 16)
        io, ii = s[C].split(s[C].op.axis[0], 8)
        axes = {"ko": ko, "ki": ki, "io": io, "ii": ii}
        s[C].reorder(*(axes[name] for name in order.split()))
        s[C].atomic()
        s[C].parallel(ko)
        assert agrees(s, targets=("cpu",)), order


def test_a_loop_of_one_iteration() -> None:
    s, C, k = rows(shape=(5, 1))
    s[C].reorder(k, s[C].op.axis[0])
    s[C].atomic()
    s[C].parallel(k)
    assert agrees(s)


def test_results_that_do_not_fit_in_registers() -> None:
    """A row as long as known at the call is folded where it is stored."""
    n = te.size_var("n")
    A = te.placeholder((40, n), "int32", name="A")
    k = te.reduce_axis((0, 40), name="k")
    C = te.compute((n,), lambda j: te.sum(A[k, j], axis=k), name="C")
    s = te.create_schedule(C)
    ko, ki = s[C].split(k, 8)
    s[C].reorder(ko, ki, s[C].op.axis[0])
    s[C].atomic()
    s[C].parallel(ko)
    for size in (0, 1, 7, 33):
        assert agrees(s, {n: size}, targets=("cpu",))


def test_a_producer_in_the_contended_loop() -> None:
    A = te.placeholder((33, 70), "int32", name="A")
    k = te.reduce_axis((0, 70), name="k")
    B = te.compute((33, 70), lambda i, j: A[i, j] * 3 - 1, name="B")
    C = te.compute((33,), lambda i: te.sum(B[i, k], axis=k, where=k != 5), name="C")
    s = te.create_schedule(C)
    ko, ki = s[C].split(k, 16)
    s[C].reorder(ko, s[C].op.axis[0], ki)
    s[C].atomic()
    s[C].bind(ko, "blockIdx.x")
    s[B].compute_at(s[C], ko)
    assert agrees(s, targets=("cpu",))


def test_a_scalar_of_all() -> None:
    A = te.placeholder((33, 70), "int64", name="A")
    i, k = te.reduce_axis((0, 33), name="i"), te.reduce_axis((0, 70), name="k")
    C = te.compute((), lambda: te.sum(A[i, k], axis=[i, k], init=7), name="C")
    s = te.create_schedule(C)
    s[C].atomic()
    s[C].bind(i, "blockIdx.y")
    s[C].bind(k, "blockIdx.x")
    assert agrees(s)


def racing(kind: LoopKind, *, atomic: bool, scope: Scope = Scope.GLOBAL) -> Func:
    """One element, updated by every iteration."""
    a = Axis("i")
    total = Buffer("total", DType.int32, (), scope)
    reducer = simple_reducer(BinaryOp.ADD, DType.int32)
    update: Stmt = Accumulate((total,), (), reducer, (Const(1, DType.int32),), atomic=atomic)
    return Func("f", (total,), (), For(a, Const(4, DType.int32), kind, update))


def test_the_rules_of_loop_ir() -> None:
    for kind in (LoopKind.PARALLEL, LoopKind.PROGRAM):
        with pytest.raises(InternalError, match="iterations of 'i' race for one element"):
            verify(racing(kind, atomic=False), Level.NEST)
        verify(racing(kind, atomic=True), Level.NEST)
    verify(racing(LoopKind.SERIAL, atomic=False), Level.NEST)


# --- numbers


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64"])
@pytest.mark.parametrize("reducer", ["sum", "max", "min"])
def test_integers_are_exact(reducer: str, dtype: str, target: str) -> None:
    kernel = te.build(parted(reducer, dtype), target=target, cache=False)
    a = np.random.default_rng(1).integers(0, 2**31 - 1, (33, 70)).astype(dtype)
    if dtype != "uint32":
        a -= 2**30
    want = NUMPY[reducer](a, axis=1, **({"dtype": dtype} if reducer == "sum" else {}))
    np.testing.assert_array_equal(kernel(a), want)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("reducer", ["sum", "max", "min"])
def test_floats(reducer: str, dtype: str, target: str) -> None:
    """Minima and maxima keep every NaN, whatever its sign and whatever meets it."""
    kernel = te.build(parted(reducer, dtype), target=target, cache=False)
    a = special(dtype)
    found: Any = kernel(a)
    if reducer == "sum":
        np.testing.assert_allclose(found, a.sum(axis=1), rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(found, NUMPY[reducer](a, axis=1))


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_short_integers_on_the_cpu(dtype: str) -> None:
    a = np.random.default_rng(1).integers(0, 127, (33, 70)).astype(dtype)
    for reducer in ("max", "min"):
        kernel = te.build(parted(reducer, dtype), target="cpu", cache=False)
        np.testing.assert_array_equal(kernel(a), NUMPY[reducer](a, axis=1))


@pytest.mark.cpu
@pytest.mark.parametrize("reducer", ["any", "all"])
def test_conditions_on_the_cpu(reducer: str) -> None:
    kernel = te.build(parted(reducer, "bool"), target="cpu", cache=False)
    a = np.random.default_rng(1).random((33, 70)) > (0.99 if reducer == "any" else 0.01)
    np.testing.assert_array_equal(kernel(a), NUMPY[reducer](a, axis=1))


@pytest.mark.parametrize(
    ("reducer", "dtype", "target"),
    [
        pytest.param(*case, marks=pytest.mark.cpu if case[-1] == "cpu" else pytest.mark.ptxas)
        for case in MISSING
    ],
)
def test_numbers_without_the_update(reducer: str, dtype: str, target: str) -> None:
    """Programs of the grid and tiles, as with an update."""
    options: dict[str, Any] = {"dtype": dtype} if reducer == "sum" else {}
    s = parted(reducer, dtype, **options)
    s[s.stages[-1]].bind(s.stages[-1].leaf_iter_vars[1], "blockIdx.y")
    kernel = te.build(s, target=target, cache=False)
    a = (np.random.default_rng(1).integers(-9, 9, (33, 70)) % 5).astype(numpy_dtype(DType(dtype)))
    want = NUMPY[reducer](a, axis=1, **({"dtype": a.dtype} if reducer == "sum" else {}))
    np.testing.assert_array_equal(kernel(a), want)


@pytest.mark.cpu
def test_threads_that_meet_at_one_element() -> None:
    """Every update counts: many threads, one result, and a start that is written each time."""
    A = te.placeholder((4096, 64), "int64", name="A")
    i, k = te.reduce_axis((0, 4096), name="i"), te.reduce_axis((0, 64), name="k")
    total = te.compute((), lambda: te.sum(A[i, k], axis=[i, k]), name="total")
    top = te.compute((), lambda: te.max(A[i, k].astype("float64"), axis=[i, k]), name="top")
    s = te.create_schedule([total, top])
    for each in (total, top):
        s[each].atomic()
        s[each].parallel(s[each].op.reduce_axis[0])
    kernel = te.build(s, target="cpu", cache=False)
    a = np.random.default_rng(1).integers(-(2**40), 2**40, (4096, 64))
    for _ in range(20):
        found, most = kernel(a)
        assert int(found) == a.sum() and float(most) == a.max()


@pytest.mark.ptxas
def test_half_sums_in_tritons_interpreter() -> None:
    s = parted("sum", "float16", dtype="float16")
    a = np.random.default_rng(1).standard_normal((33, 70)).astype("float16")
    found: Any = te.build(s, target="triton-interpret", cache=False)(a)
    np.testing.assert_allclose(found, a.astype("float64").sum(axis=1), atol=0.2)


# --- code


@pytest.mark.ptxas
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(
    ("reducer", "dtype", "instructions"),
    [
        ("sum", "int32", ["add.u32"]),
        ("sum", "float32", ["add.f32"]),
        ("sum", "float16", ["add.noftz.f16"]),
        ("max", "float32", ["max.s32", "min.u32"]),
        ("min", "float64", ["min.s64", "max.u64"]),
    ],
)
def test_instructions(reducer: str, dtype: str, instructions: list[str], arch: str) -> None:
    offline = importlib.import_module("tedsl.backends.triton.compile.offline")
    options: dict[str, Any] = {"dtype": dtype} if dtype == "float16" else {}
    module = lower(parted(reducer, dtype, **options).plan, Target.parse(f"cuda:{arch}"))
    info = offline.compile_offline(emit(module, f"cuda:{arch}"), arch, module.sizes)[-1]
    for instruction in instructions:
        # Triton 3.6 writes atom, and leaves the order to the instruction's default.
        assert re.search(rf"(red|atom)\.global\.[\w.]*{re.escape(instruction)}", info.ptx)


@pytest.mark.cpu
def test_llvm() -> None:
    texts = {
        (reducer, dtype): emit_module(lower(parted(reducer, dtype).plan, Target.parse("cpu")))
        for reducer, dtype in (("sum", "float32"), ("sum", "int32"), ("max", "float32"))
    }
    assert "atomicrmw fadd ptr" in texts["sum", "float32"]
    assert "atomicrmw add ptr" in texts["sum", "int32"]
    assert "cmpxchg weak ptr" in texts["max", "float32"]
