"""TVM's `te`, where what is said is judged when it is lowered: calls in any order, loops that are
taken apart after a mark, reads outside for some sizes; and kernels in files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tedsl
from tedsl import tvm as module

tvm: Any = module
te: Any = tvm.te


def mixed(create: Any, compute: Any) -> tuple[Any, Any, Any, Any]:
    A = te.placeholder((32,), name="A")
    B = compute((32,), lambda i: A[i] + 1, name="B")
    C = compute((32,), lambda i: B[i] * 2, name="C")
    D = compute((32,), lambda i: B[i] + C[i], name="D")
    return A, B, C, create(D.op)


@pytest.mark.cpu
def test_calls_in_any_order() -> None:
    A, B, C, s = mixed(te.create_schedule, te.compute)
    D = s.outputs[0]
    outer, inner = s[D].split(s[D].op.axis[0], 8)
    s[B].compute_at(s[D], outer)  # C reads it too, and is outside
    s[D].vectorize(inner)
    s[C].compute_inline()
    assert s[B].attach_stage == s[D] and [each.primitive for each in s.trace.steps] == [
        *("split", "vectorize", "compute_inline", "compute_at")
    ]
    kernel, x, out = tvm.build(s, [A, D], "llvm"), np.arange(32, dtype="f4"), np.zeros(32, "f4")
    kernel(x, out)
    np.testing.assert_array_equal(out, 3 * (x + 1))
    strict = mixed(tedsl.create_schedule, tedsl.compute)[-1]
    with pytest.raises(te.ScheduleError, match="C, which runs outside"):
        strict["B"].compute_at(strict["D"], strict["D"].op.axis[0])


def test_what_no_later_call_made_legal_is_refused_in_the_end() -> None:
    _, B, _, s = mixed(te.create_schedule, te.compute)
    s[B].compute_at(s["D"], s["D"].op.axis[0])
    for use in (tvm.lower, te.schedule.InferBound):
        with pytest.raises(te.ScheduleError, match=r"C, which runs outside(.|\n)*test_door\.py"):
            use(s)
    s[B].compute_root()  # in place of the one that waited
    assert "for i" in str(tvm.lower(s))
    with pytest.raises(te.ScheduleError, match=r"nothing inside the loop B\.i reads D|output"):
        s["D"].compute_at(s[B], s[B].op.axis[0])


@pytest.mark.cpu
def test_a_loop_that_is_taken_apart_loses_its_mark() -> None:
    A = te.placeholder((64,), name="A")
    B = te.compute((64,), lambda i: A[i] + 1, name="B")
    s = te.create_schedule(B.op)
    s[B].parallel(s[B].op.axis[0])
    outer, inner = s[B].split(s[B].op.axis[0], 8)
    s[B].unroll(inner)
    s[B].vectorize(s[B].fuse(outer, inner))
    assert "tile (i.outer.i.inner.fused:64)" in str(tvm.lower(s))
    with pytest.raises(te.ScheduleError, match=r"expected a loop(.|\n)*test_door\.py"):
        s[B].split(3, 4)


@pytest.mark.cpu
def test_an_argmax_that_does_not_break_ties_is_believed() -> None:
    def argmax(create: Any) -> Any:
        return create(
            lambda x, y: (te.select(x[1] >= y[1], x[0], y[0]), te.maximum(x[1], y[1])),
            lambda t0, t1: (te.const(-1, t0), te.min_value(t1)),
            name="argmax",
        )

    k = te.reduce_axis((0, 64), "k")
    index, value = te.placeholder((64,), "int32", name="n"), te.placeholder((64,), name="v")

    def factored(create: Any) -> Any:
        at, most = te.compute((), lambda: argmax(create)((index[k], value[k]), axis=k))
        s = te.create_schedule(at.op)
        s.rfactor(at, s[at].split(s[at].op.reduce_axis[0], 8)[1])
        return tvm.build(s, [index, value, at, most], "llvm")

    with pytest.raises(te.ScheduleError, match="not associative and commutative"):
        factored(tedsl.comm_reducer)
    found, x = np.zeros((), "i4"), np.random.default_rng(0).random(64, "f4")
    factored(te.comm_reducer)(np.arange(64, dtype="i4"), x, found, np.zeros((), "f4"))
    assert found == x.argmax()


@pytest.mark.cpu
def test_reads_outside_for_some_sizes_give_0() -> None:
    n, m = te.var("n"), te.var("m")
    A = te.placeholder((n,), name="A")
    with pytest.warns(RuntimeWarning, match=r"A\[i \+ 1\] is outside A(.|\n)*are 0"):
        B = te.compute((n,), lambda i: A[i + 1], name="B")
    with pytest.warns(RuntimeWarning, match=r"A\[j\] is outside A"):
        C = te.compute((m,), lambda j: A[j], name="C")
    x = np.arange(1, 5, dtype="f4")
    kernel = tvm.build(te.create_schedule([B.op, C.op]), [A, B, C], "llvm")
    b, c = np.ones(4, "f4"), np.ones(6, "f4")
    kernel(x, b, c)
    assert b.tolist() == [2, 3, 4, 0] and c.tolist() == [1, 2, 3, 4, 0, 0]
    with pytest.raises(te.ExprError, match="is outside D"):
        D = te.placeholder((4,), name="D")
        te.compute((5,), lambda i: D[i])


def test_tags_attributes_and_pragmas() -> None:
    A = te.placeholder((4,), name="A")
    B = te.compute((4,), lambda i: A[i], name="B", attrs={"a": 1, "b": [2, "x"]})
    assert B.op.attrs["a"].value == 1 and B.op.attrs["b"][0].value == 2
    with te.tag_scope("outer"), pytest.raises(ValueError, match="'inner' is inside 'outer'"):
        te.tag_scope("inner").__enter__()
    s = te.create_schedule(B.op)
    with pytest.warns(RuntimeWarning, match="nothing here is done by the pragma 'my_pragma'"):
        s[B].pragma(s[B].op.axis[0], "my_pragma")
    s[B].pragma(s[B].op.axis[0], "unroll")
    assert s.trace.steps[-1].primitive == "pragma"
    assert tuple(s[B].leaf_iter_vars) != s[B].split(s[B].op.axis[0], 2)


def test_a_thread_of_env_threads() -> None:
    state = te.placeholder((4, 8), name="state")
    x = te.placeholder((4, 8), name="x")
    start = te.compute((1, 8), lambda _, i: x[0, i], name="start")
    step = te.compute((4, 8), lambda t, i: state[t - 1, i] + x[t, i], name="step")
    scan = te.scan(start, step, state, name="scan")
    s = te.create_schedule(scan.op)
    copy = s.cache_read(x, "local", [step])
    thread = te.thread_axis((0, 8), "threadIdx.x")
    assert thread.dom.extent.value == 8 and te.thread_axis("blockIdx.x").dom is None
    with pytest.warns(RuntimeWarning, match="computed before, for all threads"):
        s[copy].compute_at(s[scan], thread)
    assert str(tvm.lower(s, [x, state, scan])) == str(tvm.lower(s, [x, scan]))


@pytest.mark.cpu
def test_kernels_in_files(tmp_path: Path) -> None:
    contrib = tvm.contrib
    A = te.placeholder((te.var("n"),), name="A")
    B = te.compute(A.shape, lambda i: A[i] + 1, name="B")
    kernel = tvm.build(te.create_schedule(B.op), [A, B], "llvm", name="add")
    folder = contrib.utils.tempdir()
    kernel.save(folder.relpath("a.o"))
    contrib.cc.create_shared(folder.relpath("a.so"), [folder.relpath("a.o")])
    kernel.export_library(str(tmp_path / "b.tar"))
    x = np.arange(3, dtype="f4")
    for path in (folder.relpath("a.so"), tmp_path / "b.tar"):
        out = np.zeros(3, "f4")
        again = tvm.runtime.load_module(path)
        again.import_module(again)
        again["add"](x, out)
        assert out.tolist() == [1, 2, 3] and again.name == "add"
    assert sorted(folder.listdir()) == ["a.o", "a.so"] and folder.path == folder.temp_dir
    with pytest.raises(te.BackendError, match="2 files are given"):
        contrib.cc.create_shared("c.so", ["a.o", "b.o"])
    folder.remove()
    with pytest.raises(te.BackendError, match=r"what this kernel was made of is not known"):
        tedsl.build(te.create_schedule(B.op)).export_library("x.so")
    (tmp_path / "other").write_text("{}")
    with pytest.raises(te.BackendError, match=r"not written by save_json(.|\n)*export_library"):
        tvm.runtime.load_module(tmp_path / "other")


def test_definitions_as_texts() -> None:
    A = te.placeholder((4,), name="A")
    B = te.compute((4,), lambda i: A[i] + 1, name="B", tag="t", attrs={"a": 3})
    again = tvm.ir.load_json(tvm.ir.save_json(B))
    assert again.op.attrs["a"].value == 3 and again.op.tag == "t" and again is not B
    s = te.create_schedule(B.op)
    s[B].split(s[B].op.axis[0], 2)
    assert str(tvm.load_json(tvm.save_json(s))) == str(s) == str(pickle.loads(pickle.dumps(s)))
    C = te.extern((4,), [A], lambda ins, outs: None, name="C")
    with pytest.raises(te.ExprError, match="cannot be written"):
        tvm.ir.save_json(C)


def test_graphs_expressions_and_proofs() -> None:
    A, B, C, s = mixed(te.create_schedule, te.compute)
    D = s.outputs[0]
    graph = te.schedule.CreateReadGraph([D.op])
    assert graph[C.op] == (B,) and graph[B.op] == (A,)
    order = te.schedule.PostDFSOrder([D.op], graph)
    assert order[0] is A.op and order[-1] is D.op
    n, i = te.size_var("n"), te.var("i")
    seen: list[Any] = []
    tvm.tir.stmt_functor.post_order_visit(n + i * 2, seen.append)
    assert seen[-1].dtype == "int32" and any(each is n for each in seen)
    prove = tvm.arith.Analyzer()
    prove.bind(i, tvm.ir.Range(te.const(0), te.const(8)))
    assert prove.can_prove(i < 8) and not prove.can_prove(i < 7)
    assert str(prove.simplify(i // 8 + n)) == "n" and prove.can_prove_equal((n * 8 + i) // 8, n)
    prove.bind(n, 3)
    assert prove.can_prove(n >= 3)
    changed = tvm.tir.stmt_functor.substitute(n + i * 2, {i: n})
    tvm.testing.assert_prim_expr_equal(changed, n * 3)
    tvm.ir.assert_structural_equal(n + 1, n + 1)
    tvm.ir.assert_structural_equal(tvm.lower(s), tvm.lower(s))
    with pytest.raises(AssertionError, match="these differ"):
        tvm.ir.assert_structural_equal(n + 1, n + 2)
    with pytest.raises(AssertionError, match="not known to be equal"):
        tvm.testing.assert_prim_expr_equal(n, i)
    with pytest.raises(te.ExprError, match="is no expression"):
        tvm.tir.stmt_functor.post_order_visit(tvm.lower(s), seen.append)


def test_functions_by_target() -> None:
    @tvm.target.generic_func
    def name(x: int) -> Any:
        return "other", x

    @name.register(["cuda", "gpu"])
    def _of_cuda(x: int) -> Any:
        return "cuda", x

    assert name(1) == ("other", 1) and _of_cuda(2) == ("cuda", 2)
    with tvm.target.Target("cuda"):
        assert name(3) == ("cuda", 3)
    with tvm.target.Target("llvm"):
        assert name(4) == ("other", 4)
    assert tvm.tir.likely(True)


def test_numerical_gradients() -> None:
    x = np.array([0.5, 1.5])
    tvm.testing.check_numerical_grads(lambda v: (v**2).sum(), [x], [2 * x])
    with pytest.raises(AssertionError, match="derivative 0 is"):
        tvm.testing.check_numerical_grads(lambda v: (v**2).sum(), [x], [3 * x])


@pytest.mark.cpu
def test_functions_of_c_and_libraries() -> None:
    A, B = te.placeholder((4, 5), name="A"), te.placeholder((6, 5), name="B")
    a, b = (np.random.default_rng(n).random(s, "f4") for n, s in enumerate([(4, 5), (6, 5)]))
    E = te.compute((4, 5), lambda i, j: tvm.tir.call_pure_extern("float32", "__expf", A[i, j]))
    np.testing.assert_allclose(te.evaluate(E, {A: a})[0], np.exp(a), 1e-6)
    F = te.compute((4, 5), lambda i, j: tvm.tir.ldexp(tvm.tir.hypot(A[i, j], 2.0), 3))
    np.testing.assert_allclose(te.evaluate(F, {A: a})[0], np.hypot(a, 2) * 8, 1e-6)
    with pytest.raises(te.ExprError, match=r"no function 'mine'(.|\n)*llvm_function"):
        te.compute((4,), lambda i: tvm.tir.call_pure_extern("float32", "mine", A[i, 0]))
    C = tvm.contrib.cblas.matmul(A, B, transb=True)
    np.testing.assert_allclose(te.evaluate(C, {A: a, B: b})[0], a @ b.T, 1e-5)
    D = te.extern(
        (4, 6),
        [A, B],
        lambda ins, outs: tvm.tir.call_packed("tvm.contrib.cblas.matmul", *ins, *outs, False, True),
        name="D",
    )
    np.testing.assert_allclose(te.evaluate(D, {A: a, B: b})[0], a @ b.T, 1e-5)
    assert tvm.contrib.pickle_memoize.memoize("key")(len) is len
    assert tvm.contrib.nvcc.have_fp16("7.0") and tvm.nd.array([1.0]).same_as(C) is False


@pytest.mark.cpu
@pytest.mark.parametrize("bound_before", [True, False])
def test_nothing_runs_between_loops_of_the_grid(bound_before: bool) -> None:
    """What is attached at an outer one is computed at the innermost."""
    A, B, C, s = mixed(te.create_schedule, te.compute)
    D = s.outputs[0]
    s[C].compute_inline()
    outer, inner = s[D].split(s[D].op.axis[0], 8)
    middle, inner = s[D].split(inner, 4)
    s[D].bind(outer, te.thread_axis("blockIdx.y"))
    if bound_before:
        s[D].bind(middle, te.thread_axis("blockIdx.x"))
    s[B].compute_at(s[D], outer)
    if not bound_before:
        s[D].bind(middle, te.thread_axis("blockIdx.x"))
    assert s[B].attach_ivar is middle
    with pytest.raises(te.ScheduleError, match=r"both bound to blockIdx\.x"):
        s[D].bind(inner, te.thread_axis("blockIdx.x"))
        tvm.lower(s)
    assert s[B].attach_ivar is middle
    again = tedsl.replay(D, s.trace)
    kernel, x, out = tvm.build(again, [A, D], "llvm"), np.arange(32, dtype="f4"), np.zeros(32, "f4")
    kernel(x, out)
    np.testing.assert_array_equal(out, 3 * (x + 1))


def test_an_intrinsic_without_code_that_does_not_fit_is_left_out() -> None:
    def intrinsic(**code: Any) -> Any:
        a = te.placeholder((4,), name="a")
        b = te.compute((4,), lambda i: a[i] * 2, name="b")
        return te.decl_tensor_intrin(b.op, None, name="twice", **code)

    text = "define void @twice(ptr %a, i64 %s, ptr %b, i64 %t) {\n ret void\n}"
    A = te.placeholder((8,), name="A")
    B = te.compute((8,), lambda i: A[i] + 2, name="B")

    def scheduled(intrin: Any) -> Any:
        s = te.create_schedule(B.op)
        s[B].tensorize(s[B].split(s[B].op.axis[0], 4)[1], intrin)
        return s

    with pytest.warns(RuntimeWarning, match=r"tensorize\(B\): .*; its loops run"):
        assert "for" in str(tvm.lower(scheduled(intrinsic())))
    with pytest.raises(te.ScheduleError, match="do not compute what twice declares"):
        tvm.lower(scheduled(intrinsic(cpu=te.llvm_function(text))))


NUMBERS = [0.0, -0.0, 1.0, -1.5, 3e38, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 7.25]


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
@pytest.mark.parametrize("name", ["copysign", "nextafter"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits_of_floats(name: str, dtype: str, target: str) -> None:
    a, b = (
        each.ravel() for each in np.meshgrid(np.array(NUMBERS, dtype), np.array(NUMBERS, dtype))
    )
    A, B = (te.placeholder(a.shape, dtype, name=n) for n in "AB")
    C = te.compute(a.shape, lambda i: getattr(tvm.tir, name)(A[i], B[i]), name="C")
    with np.errstate(all="ignore"):
        want = getattr(np, name)(a, b)
    got = te.build(te.schedule_for(C, target), target=target)(a, b)
    np.testing.assert_array_equal(got, want)
    assert name == "nextafter" or (np.signbit(got) == np.signbit(want)).all()


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint16", "uint32"])
def test_leading_zeros(dtype: str) -> None:
    few = [0, 1, 2, 5, 64, 127, *([-1, -128] if dtype[0] == "i" else [255])]
    x, bits = np.array(few, dtype), 8 * np.dtype(dtype).itemsize
    X = te.placeholder(x.shape, dtype, name="X")
    C = te.compute(x.shape, lambda i: tvm.tir.clz(X[i]), name="C")
    want = [bits - (int(n) & (2**bits - 1)).bit_length() for n in few]
    np.testing.assert_array_equal(te.build(te.create_schedule(C), target="cpu")(x), want)
    with pytest.raises(te.ExprError, match="float32 is no integer"):
        tvm.tir.clz(te.const(1.0, "float32"))
