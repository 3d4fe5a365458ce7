"""Scripts of TVM's as they are written: `tvm.build`, `tvm.nd.array`, targets, devices, timing; only
the imports differ.  (`te_scripts` has the language itself.)"""

from __future__ import annotations

import unittest
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tedsl
from tedsl import tvm as module

tvm: Any = module
te: Any = tvm.te


def vector_add() -> Any:
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.placeholder((n,), name="B")
    C = te.compute(A.shape, lambda i: A[i] + B[i], name="C")
    return A, B, C, te.create_schedule(C.op)


@pytest.mark.cpu
@pytest.mark.parametrize("text", ["llvm", "llvm -mcpu=core-avx2", "target", "cpu"])
def test_the_first_tutorial(text: str) -> None:
    tgt = tvm.target.Target(target="llvm", host="llvm") if text == "target" else text
    A, B, C, s = vector_add()
    outer, inner = s[C].split(C.op.axis[0], factor=64)
    s[C].parallel(outer)
    s[C].vectorize(inner)
    with tvm.target.Target("llvm"):
        assert "parallel" in str(tvm.lower(s, [A, B, C], simple_mode=True))
    fadd = tvm.build(s, [A, B, C], tgt, name="myadd")
    dev = tvm.device(str(tgt), 0)
    assert dev.exist and str(dev) == "cpu(0)"
    n = 1024
    a = tvm.nd.array(np.random.uniform(size=n).astype(A.dtype), dev)
    b = tvm.nd.array(np.random.uniform(size=n).astype(B.dtype), dev)
    c = tvm.nd.array(np.zeros(n, dtype=C.dtype), dev)
    fadd(a, b, c)
    tvm.testing.assert_allclose(c.numpy(), a.numpy() + b.asnumpy(), rtol=1e-5)
    evaluator = fadd.time_evaluator(fadd.entry_name, dev, number=10, repeat=3)
    times = evaluator(a, b, c)
    assert 0 < times.min <= times.median <= times.max and len(times.results) == 3
    assert times.min <= times.mean <= times.max and times.std >= 0
    assert fadd.get_source() == fadd.source == fadd.imported_modules[0].get_source()
    assert fadd.get_source("asm") == fadd.asm and fadd.entry_func is fadd


def test_targets_of_tvm() -> None:
    here = tedsl.Target
    assert here("cuda -arch=sm_80") == here.parse("nvptx -arch=sm_80") == here("cuda:sm_80")
    assert str(tvm.target.Target("cuda", host="llvm")) == "cuda" == str(here("cuda -libs=cublas"))
    assert str(here(here("cuda", "sm_90"))) == "cuda:sm_90"
    for wrong in ("cuda -arch=sm_1", "rocm", "metal", ""):
        with pytest.raises(te.BackendError, match=r"unknown target(.|\n)*triton-interpret"):
            here(wrong)


def test_arrays() -> None:
    dev = tvm.cpu(0)
    a = tvm.nd.array([[1, 2], [3, 4]])
    assert a.dtype == "float32" and a.shape == (2, 2) and a.device == dev and dev.sync() is None
    b = tvm.nd.empty((2, 2), "int8", dev)
    b.copyfrom(a)
    assert b.numpy().tolist() == [[1, 2], [3, 4]] and b.copyto(dev).dtype == "int8"
    assert tvm.nd.empty(3).copyto(tvm.nd.empty((3,), dtype="float64")).dtype == "float64"
    assert type(a.numpy()) is np.ndarray and not np.shares_memory(a, a.numpy())


def test_arrays_of_a_gpu_hold_tensors() -> None:
    torch = pytest.importorskip("torch")
    nd: Any = tvm.nd
    a = nd.GpuArray(torch.arange(4.0), tvm.gpu(1))  # on no GPU: what is read of it is the same
    assert a.shape == (4,) and a.dtype == "float32" and str(a.device) == "cuda(1)"
    assert a.copyfrom(np.ones(4)).asnumpy().tolist() == [1.0] * 4
    assert nd.array(a).numpy().tolist() == a.copyto(tvm.cpu()).tolist()
    A = te.placeholder((4,), name="A")
    B = te.compute((4,), lambda i: A[i] * 2.0, name="B")
    kernel = tvm.build(te.create_schedule(B.op), [A, B], "llvm")
    out = nd.GpuArray(torch.zeros(4), tvm.gpu(1))
    kernel(a, out)
    assert out.numpy().tolist() == [2.0] * 4


def test_names_of_tir_are_those_of_te() -> None:
    x = te.placeholder((8,), name="x")
    assert tvm.tir.const(1, "int32").dtype == "int32" and tvm.tir.IntImm("int64", 3).value == 3
    assert tvm.tir.Cast("int32", te.var("n", "float32")).dtype == "int32"
    y = te.compute(
        (8,),
        lambda i: tvm.tir.if_then_else(
            tvm.tir.all(i > 1, i < 6), tvm.tir.Select(i > 3, x[i], tvm.tir.exp(x[i])), 0.0
        ),
    )
    value = np.linspace(0, 1, 8).astype("float32")
    want = np.where(np.arange(8) > 3, value, np.exp(value)) * ([0] * 2 + [1] * 4 + [0] * 2)
    np.testing.assert_allclose(te.evaluate(y, {x: value})[0], want, 1e-6)
    assert isinstance(te.reduce_axis((0, 3)), tvm.tir.IterVar) and tvm.tir.StringImm("a") == "a"
    with pytest.raises(AttributeError, match=r"no attribute 'call_extern'\n  do .*te\.extern"):
        getattr(tvm.tir, "call_extern")  # noqa: B009


def test_tests_of_tvm() -> None:
    with tvm.transform.PassContext(opt_level=3, config={"tir.disable_vectorize": True}):
        assert ("llvm", tvm.cpu(0)) in tvm.testing.enabled_targets()
    assert tvm.testing.device_enabled("llvm")

    @tvm.testing.requires_llvm
    def runs() -> int:
        return 1

    @tvm.testing.requires_gpu
    def needs_a_gpu() -> int:
        return 2

    assert runs() == 1
    if tvm.cuda().exist:
        assert needs_a_gpu() == 2
    else:
        with pytest.raises(unittest.SkipTest, match="no GPU"):
            needs_a_gpu()
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        tvm.testing.assert_allclose(tvm.nd.array([1.0]), np.array([1.1]), rtol=1e-3)
    with pytest.raises(tvm.TVMError, match=r"extent 0 is -1"):
        te.placeholder((-1,))
    assert tvm.error.TVMError is tvm.TVMError


@tvm.testing.parametrize_targets("llvm")
def test_of_targets(target: str, dev: Any) -> None:
    assert (target, dev) == ("llvm", tvm.cpu())


def test_both_modules_have_the_same_names() -> None:
    for name in ("nd", "tir", "testing", "cpu", "cuda", "gpu", "device", "context", "tvm"):
        assert getattr(tvm, name) is getattr(tedsl, name)
    assert tvm.lower is tedsl.lower and tvm.te.exp is tedsl.exp and tvm.te.build is tedsl.build
    with pytest.raises(AttributeError, match=r"no attribute 'get_global_func'\n  do "):
        getattr(tedsl, "get_global_func")  # noqa: B009


@pytest.mark.cpu
def test_operators_of_topi() -> None:
    topi: Any = tvm.topi
    A, b = te.placeholder((4, 6), name="A"), te.placeholder((6,), name="b")
    a, bias = np.random.default_rng(0).standard_normal((4, 6)).astype("f4"), np.ones(6, "f4")
    W = te.placeholder((3, 6), name="W")
    w = np.arange(18, dtype="f4").reshape(3, 6)
    cases: list[tuple[Any, Any]] = [
        (topi.sum(A, axis=1), a.sum(1)),
        (topi.max(A, axis=-1, keepdims=True), a.max(1, keepdims=True)),
        (topi.min(A), a.min()),
        (topi.prod(A, (0, 1), True), a.prod(keepdims=True)),
        (topi.nn.relu(topi.add(A, b)), np.maximum(a + bias, 0)),
        (topi.transpose(A), a.T),
        (topi.transpose(A, (0, 1)), a),
        (topi.broadcast_to(b, (4, 6)), np.ones((4, 6))),
        (topi.full((2, 3), "int32", 7), np.full((2, 3), 7)),
        (topi.nn.dense(A, W), a @ w.T),
        (topi.nn.dense(A, W, out_dtype="float64"), a @ w.T),
        (topi.nn.leaky_relu(A, 0.1), np.where(a > 0, a, 0.1 * a)),
        (topi.argmax(A, axis=1), a.argmax(1)),
        (topi.nn.softmax(A), np.exp(a) / np.exp(a).sum(1, keepdims=True)),
        (topi.nn.pad(A, (1, 0), (0, 2)), np.pad(a, ((1, 0), (0, 2)))),
        (topi.nn.pad(A, (0, 0)), a),
        (topi.broadcast_mul(topi.elemwise_sum([A, A]), b), 2 * a),
        (topi.mod(topi.cast(A, "int32"), 3), a.astype("i4") % 3),
    ]
    for out, want in cases:
        np.testing.assert_allclose(te.evaluate(out, {A: a, b: bias, W: w})[0], want, 1e-4)
    C = topi.nn.relu(A)
    s = topi.x86.schedule_injective(C)
    got = np.empty_like(a)
    tvm.build(s, [A, C], "llvm")(a, got)
    np.testing.assert_array_equal(got, np.maximum(a, 0))


def test_operators_that_topi_has_and_this_has_not_say_what_to_write() -> None:
    topi: Any = tvm.topi
    for name, text in (("conv4d", "conv3d"), ("soft_max", "softmax"), ("gelu", "gelu")):
        with pytest.raises(AttributeError, match=rf"topi.nn has no attribute(.|\n)*{text}"):
            getattr(topi.nn, name)
    with pytest.raises(te.ExprError, match=r"is no order of 2 dimensions"):
        topi.transpose(te.placeholder((2, 2)), (0, 0))


@pytest.mark.cpu
def test_what_lower_gave_is_built() -> None:
    A, B, C, s = vector_add()
    lowered = tvm.lower(s, [A, B, C], name="main")
    s[C].parallel(C.op.axis[0])  # after it: the module is as it was
    a = np.arange(9, dtype="float32")
    for kernel in (tvm.build(lowered, target="llvm"), tvm.build(lowered, "llvm")):
        out = np.zeros(9, "float32")
        kernel(a, a, out)
        np.testing.assert_array_equal(out, 2 * a)
        assert "parallel" not in kernel.ir
    assert str(tvm.lower(s, [A])) == str(tvm.lower(s))  # some of the arguments
    with pytest.raises(te.BackendError, match=r"D is no argument"):
        tvm.lower(s, [A, te.compute((4,), lambda i: i, name="D")])
    with pytest.raises(te.BackendError, match=r"Lowered cannot be built"):
        tvm.build(replace(lowered, name="changed"), "llvm")


@pytest.mark.cpu
def test_an_intrinsic_whose_statements_are_those_of_tvm_runs_its_loops() -> None:
    m, n = 16, 8
    a, b = te.placeholder((n,), name="a"), te.placeholder((m, n), name="b")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((m,), lambda i: te.sum(a[k] * b[i, k], axis=k), name="c")
    buffers = {x: tvm.tir.decl_buffer(x.shape, x.dtype, name="X", strides=[1]) for x in (a, b, c)}
    with pytest.warns(RuntimeWarning, match=r"the loops of c run; give what is to run as text"):
        intrin = te.decl_tensor_intrin(c.op, lambda ins, outs: None, binds=buffers)
    A, B = te.placeholder((4, n), name="A"), te.placeholder((32, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    C = te.compute((4, 32), lambda i, j: te.sum(A[i, k] * B[j, k], axis=k), name="C")
    s = te.create_schedule(C.op)
    _, ji = s[C].split(C.op.axis[1], factor=m)
    s[C].reorder(C.op.axis[0], s[C].leaf_iter_vars[1], ji, k)
    s[C].tensorize(ji, intrin)
    x, y = np.ones((4, n), "float32"), np.arange(32 * n, dtype="float32").reshape(32, n)
    np.testing.assert_allclose(
        tvm.build(s, [A, B, C], "llvm")(x, y, np.empty((4, 32), "f4")), x @ y.T
    )


def test_what_scripts_look_at() -> None:
    A, _, C, s = vector_add()
    outer, inner = s[C].split(C.op.axis[0], factor=4)
    assert isinstance(s[C].relations[0], te.schedule.Split)
    s[C].fuse(outer, inner)
    assert isinstance(s[C].relations[1], te.schedule.Fuse)
    assert str(te.schedule.ScheduleOps(s, te.schedule.InferBound(s))) == str(te.lower(s))
    assert isinstance(C.op, te.ComputeOp) and isinstance(A.op, te.PlaceholderOp)
    k = te.reduce_axis((0, 8), name="k")
    E = te.placeholder((8,), name="E")
    D = te.compute((2,), lambda i: te.sum(E[k] + i, axis=k, where=k < 3), name="D")
    (body,) = D.op.body
    assert body.axis == (k,) and body.combiner is body.reducer
    assert body.source is body.sources and body.condition is body.where
    tx = te.thread_axis("threadIdx.x")
    assert str(tx.equal(0)) == str(tx.var.equal(0))
    assert tvm.runtime.convert(3) == 3 and tvm.convert([1]) == [1]


def test_the_target_of_a_block() -> None:
    with tvm.target.Target("cuda:sm_90") as chosen:
        assert tvm.target.Target.current() is chosen
        with tvm.target.Target("llvm"):
            s = vector_add()[-1]
            assert "for i" in str(te.lower(s)) and str(te.build(s, cache=False).target) == "cpu"
        assert tvm.target.Target.current() is chosen
    assert tvm.target.Target.current() is None


@pytest.mark.cpu
def test_build_as_older_versions_call_it() -> None:
    """A host as the fourth argument or by name, `binds=`, a context of options around."""
    A, B, C, s = vector_add()
    a = np.arange(5, dtype="float32")
    with tvm.build_config(offset_factor=4), tvm.target.build_config(restricted_func=False):
        buffer = tvm.tir.decl_buffer(A.shape, A.dtype, name="A", offset_factor=8)
        kernels = [
            tvm.build(s, [A, B, C], "llvm", "llvm", name="add"),
            tvm.build(s, args=[A, B, C], target="llvm", target_host="stackvm"),
            tvm.build(s, [A, B, C], "llvm", binds={A: buffer}),
            tvm.build(s, [buffer, B, C], "llvm", binds={A: buffer}),
            tvm.driver.build(s, [A, B, C], tvm.target.Target("llvm", "llvm")),
        ]
    for kernel in kernels:
        out = tvm.nd.empty((5,), ctx=tvm.cpu())
        kernel(tvm.nd.array(a, ctx=tvm.cpu()), a, out)
        np.testing.assert_array_equal(out.asnumpy(), 2 * a)
    module = tvm.driver.build_module.schedule_to_module(s, [A, B, C])
    assert isinstance(module["main"], tvm.tir.PrimFunc)


@pytest.mark.cpu
def test_a_module_of_several_functions() -> None:
    A, B, C, s = vector_add()
    D = te.compute(A.shape, lambda i: A[i] * 3.0, name="D")
    add = tvm.lower(s, [A, B, C], name="add")
    triple = tvm.lower(te.create_schedule(D.op), [A, D], name="triple")
    hopper = tvm.build([add, triple], "cuda:sm_90")
    assert str(hopper["add"].target) == str(hopper["triple"].target) == "cuda:sm_90"
    module = tvm.build([add, triple], "llvm")
    a, out = np.arange(5, dtype="float32"), np.zeros(5, "float32")
    module["add"](a, a, out)
    np.testing.assert_array_equal(out, 2 * a)
    module.get_function("triple")(a, out)
    np.testing.assert_array_equal(out, 3 * a)
    assert "define" in module.get_source()
    tvm.build({"llvm": triple})["triple"](a, out)
    with pytest.raises(te.BackendError, match=r"no function 'other'\n  functions add, triple"):
        module["other"]
    with pytest.raises(AttributeError, match=r"several functions has no attribute 'get_sourc'"):
        getattr(module, "get_sourc")  # noqa: B009


@pytest.mark.cpu
def test_functions_by_name_in_externs() -> None:
    """`call_packed` calls what is registered when the kernel runs; arrays have TVM's methods."""
    A = te.placeholder((6,), name="A")
    B = te.compute((6,), lambda i: A[i] + 1.0, name="B")

    def statement(ins: Any, outs: Any) -> Any:
        assert isinstance(ins[0], tvm.tir.Buffer) and isinstance(ins[0], te.schedule.Buffer)
        return tvm.tir.call_packed("tests.scaled", ins[0], outs[0])

    C = te.extern((6,), [B], statement, name="C")
    kernel = tvm.build(te.create_schedule(C.op), [A, C], "llvm")
    a, out = np.arange(6, dtype="float32"), np.zeros(6, "float32")
    with pytest.raises(te.ExprError, match=r"registered as 'tests.scaled'(.|\n)*register_func"):
        kernel(a, out)

    @tvm.register_func("tests.scaled")
    def scaled(x: Any, y: Any) -> None:
        tvm.nd.array(x.asnumpy() * 2).copyto(y)

    kernel(a, out)
    np.testing.assert_array_equal(out, 2 * (a + 1))
    assert tvm.get_global_func("tests.scaled") is scaled

    @tvm.register_func
    def tests_copied(x: Any, y: Any) -> None:
        x.copyto(y)

    assert tvm._ffi.get_global_func("tests_copied") is tests_copied
    assert tvm.get_global_func("tests.none", allow_missing=True) is None
    with pytest.raises(te.ExprError, match=r"fcompute builds statements \(ir_builder\)"):
        te.extern((6,), [A], lambda ins, outs: tvm.tir.ir_builder.create())


def test_functions_of_one_name_are_no_module() -> None:
    a = tedsl.placeholder((4,), name="A")
    b = tedsl.compute((4,), lambda i: a[i] * 2.0, name="B")
    lowered = [module.lower(tedsl.create_schedule(b), [a, b]) for _ in range(2)]
    with pytest.raises(tedsl.LowerError, match="two of the functions are called 'B'"):
        module.build(lowered, target="llvm")


def test_nothing_is_put_on_a_device_that_is_not_there() -> None:
    with pytest.raises(tedsl.BackendError, match=r"there is no device vulkan\(0\) here"):
        module.nd.array([1.0, 2.0], module.device("vulkan", 0))


def test_devices_of_others_do_not_exist() -> None:
    for name in ("vulkan", "opencl -device=intel_graphics", "metal", "rocm"):
        assert not tvm.context(name, 0).exist and not tvm.testing.device_enabled(name)
    with pytest.raises(te.BackendError, match=r"unknown target 'vulcan'"):
        tvm.device("vulcan")
    assert tvm.target.Target("llvm").keys == ("cpu",)
    assert "gpu" in tvm.target.Target("cuda", "llvm").keys


def test_numbers_as_constants() -> None:
    n = tvm.runtime.convert(6)
    assert n.value == 6 and n.astype("float32").dtype == "float32" and list(range(n)) == [*range(6)]
    A = te.placeholder((n,), name="A")
    B = te.compute(A.shape, lambda i: A[i], name="B")
    s = te.create_schedule(B.op)
    assert te.schedule.InferBound(s)[B.op.axis[0]].extent.value == 6
    s[B].split(B.op.axis[0], factor=tvm.convert(3))
    assert tvm.convert("text") == "text" and tvm.convert([2])[0].value == 2


def test_names_of_older_versions() -> None:
    assert tvm.make.Select is tvm.expr.Select is tvm.tir.Select
    assert tvm.decl_buffer is tvm.tir.decl_buffer
    assert tvm._ffi.base.TVMError is tvm.TVMError


@pytest.mark.cpu
def test_tensors_without_dimensions_are_scalars() -> None:
    A, scale = te.placeholder((4,), name="A"), te.placeholder((), name="scale")
    k = te.reduce_axis((0, 4), name="k")
    B = te.compute((), lambda: te.sum(A[k] * scale, axis=k), name="B")
    C = te.compute((), lambda: B + 1, name="C")
    D = te.compute((4,), lambda i: te.maximum(A[i], scale), name="D")
    a = np.arange(4, dtype="float32")
    got = te.evaluate([C, D], {A: a, scale: np.float32(2)})
    np.testing.assert_array_equal(got[0], 13)
    np.testing.assert_array_equal(got[1], np.maximum(a, 2))
    with pytest.raises(te.ExprError, match=r"over the axis k meets a whole tensor"):
        A[k] * A  # pyright: ignore[reportUnusedExpression]


@pytest.mark.cpu
def test_reductions_of_topi_keep_the_dtype() -> None:
    """Sums are wide within, and rounded once."""
    for dtype in ("float16", "int8", "float32"):
        A = te.placeholder((3, 64), dtype, name="A")
        B = tvm.topi.sum(A, axis=1)
        a = np.ones((3, 64), dtype)
        out = tvm.nd.empty((3,), dtype)
        with tvm.target.Target("llvm"):
            s = tvm.topi.testing.get_reduce_schedule("llvm")(B)
            tvm.build(s, [A, B], "llvm")(a, out)
        assert B.dtype == dtype and out.numpy().tolist() == [64] * 3
    assert tvm.topi.util is tvm.topi.utils
