"""From tensors to Triton kernels: interpreted, compiled only, and refused."""

from __future__ import annotations

import numpy as np
import pytest

import tedsl as te
from tedsl.errors import BackendError

pytestmark = pytest.mark.ptxas


def row_shares() -> te.Tensor:
    n = te.size_var("n")
    a = te.placeholder((n, 8), "float32", name="A")
    k = te.reduce_axis((0, 8), name="k")
    s = te.compute((n,), lambda i: te.sum(a[i, k], axis=k), name="S")
    return te.compute((n, 8), lambda i, j: a[i, j] / s[i], name="B")


def shares(x: np.ndarray) -> np.ndarray:
    return x / x.sum(axis=1, keepdims=True)


X = np.arange(1, 41, dtype=np.float32).reshape(5, 8)


def test_interpreted() -> None:
    run = te.build(row_shares(), "triton-interpret")
    for x in (X, X[:1], X[:0], np.tile(X, (7, 1))):
        np.testing.assert_allclose(run(x), shares(x), rtol=1e-6)
    assert "@triton.jit" in run.source
    with pytest.raises(BackendError, match=r"no machine code(.|\n)*cuda:sm_90"):
        _ = run.asm


def test_the_interpreter_leaves_inputs_alone() -> None:
    run = te.build(row_shares(), "triton-interpret")
    x = X.copy()
    x.flags.writeable = False
    out = np.zeros_like(X)
    assert run(x, out=out) is out
    np.testing.assert_allclose(out, shares(X), rtol=1e-6)


def test_interpreted_on_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    run = te.build(row_shares(), "triton-interpret")
    result = run(torch.from_numpy(X))
    assert isinstance(result, torch.Tensor)
    np.testing.assert_allclose(result.numpy(), shares(X), rtol=1e-6)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_compiled_only(arch: str) -> None:
    run = te.build(row_shares(), f"cuda:{arch}")
    assert f".target {arch}" in run.asm
    assert len(run.resources) == len(run.specializations) == 2  # of sizes with and without a mask
    for info in run.resources.values():
        assert info.registers > 0
        assert info.stack == 0
        assert info.shared >= 0
    for arguments in ((X,), ()):
        with pytest.raises(BackendError, match=rf"compiled for {arch} only(.|\n)*target=\"cuda\""):
            run(*arguments)


def test_wrong_arguments_are_refused_as_on_the_cpu() -> None:
    run = te.build(row_shares(), "triton-interpret")
    with pytest.raises(BackendError, match=r"argument 1 \(A\): is float64, float32 expected"):
        run(X.astype(np.float64))
