"""Scripts of TVM's as they are written: `tvm.build`, `tvm.nd.array`, targets, devices, timing; only
the imports differ.  (`te_scripts` has the language itself.)"""

from __future__ import annotations

import unittest
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
    with pytest.raises(AttributeError, match=r"no attribute 'decl_buffer'\n  do .*te\.placeholder"):
        getattr(tvm.tir, "decl_buffer")  # noqa: B009


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
    for name in ("nd", "tir", "testing", "cpu", "cuda", "gpu", "device", "context", "te", "tvm"):
        assert getattr(tvm, name) is getattr(tedsl, name)
    assert tvm.build is tedsl.build and tvm.te is tedsl
    with pytest.raises(AttributeError, match=r"no attribute 'get_global_func'\n  do "):
        getattr(tvm, "get_global_func")  # noqa: B009


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
    for name, text in (("conv2d", "te\\.nn\\.conv2d"), ("soft_max", "softmax"), ("gelu", "gelu")):
        with pytest.raises(AttributeError, match=rf"topi.nn has no attribute(.|\n)*{text}"):
            getattr(topi.nn, name)
    with pytest.raises(te.ExprError, match=r"is no order of 2 dimensions"):
        topi.transpose(te.placeholder((2, 2)), (0, 0))
