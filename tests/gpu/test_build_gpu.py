"""Kernels on a GPU: results, devices, streams, outputs given, and the time that a call costs the
host."""

from __future__ import annotations

import time
from typing import Any

import pytest

import tedsl as te
from tedsl.errors import BackendError

pytestmark = pytest.mark.gpu
torch: Any = pytest.importorskip("torch")


def row_shares(dtype: str = "float32") -> te.Tensor:
    n = te.size_var("n")
    a = te.placeholder((n, 256), dtype, name="A")
    k = te.reduce_axis((0, 256), name="k")
    s = te.compute((n,), lambda i: te.sum(a[i, k], axis=k), name="S")
    return te.compute((n, 256), lambda i, j: (a[i, j] / s[i]).astype(dtype), name="B")


def shares(x: Any) -> Any:
    x = x.float()
    return x / x.sum(1, keepdim=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rows", [0, 1, 7, 33, 1000])
def test_results(dtype: str, rows: int) -> None:
    run = te.build(row_shares(dtype), "cuda")
    x = torch.rand(rows, 256, device="cuda").to(getattr(torch, dtype)) + 1
    for _ in range(2):
        result = run(x)
        assert (result.device, result.dtype) == (x.device, x.dtype)
        torch.testing.assert_close(result.float(), shares(x), rtol=2e-2, atol=1e-4)


def test_out_is_filled() -> None:
    run = te.build(row_shares(), "cuda")
    x, out = torch.rand(9, 256, device="cuda") + 1, torch.zeros(9, 256, device="cuda")
    for _ in range(3):
        out.zero_()
        assert run(x, out=out) is out
        torch.testing.assert_close(out, shares(x))
    with pytest.raises(BackendError, match=r"out= \(B\): shares memory with input A"):
        run(x, out=x)


def test_the_default_target_is_the_gpu() -> None:
    assert str(te.build(row_shares()).target) == "cuda"


def test_host_arrays_are_refused() -> None:
    run = te.build(row_shares(), "cuda")
    with pytest.raises(BackendError, match=r"\(A\): is on cpu, but the kernel runs on cuda"):
        run(torch.rand(3, 256))
    with pytest.raises(BackendError, match=r"out= \(B\): is on cpu"):
        run(torch.rand(3, 256, device="cuda"), out=torch.rand(3, 256))
    with pytest.raises(BackendError, match=r"\(A\): is on cuda:0, but the kernel runs on cpu"):
        te.build(row_shares(), "cpu")(torch.rand(3, 256, device="cuda"))


def test_any_dlpack_array() -> None:
    class Foreign:
        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

        def __dlpack__(self, **options: Any) -> Any:
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.tensor.__dlpack_device__()

    run = te.build(row_shares(), "cuda")
    x = torch.rand(5, 256, device="cuda") + 1
    torch.testing.assert_close(run(Foreign(x)), shares(x))
    out = torch.zeros(5, 256, device="cuda")
    foreign = Foreign(out)
    assert run(Foreign(x), out=foreign) is foreign
    torch.testing.assert_close(out, shares(x))


def test_the_current_stream_is_used() -> None:
    run = te.build(row_shares(), "cuda")
    x = torch.rand(4096, 256, device="cuda") + 1
    run(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = x * 2
        result = run(y)
    stream.synchronize()
    torch.testing.assert_close(result, shares(x * 2))


def test_unaligned_memory() -> None:
    run = te.build(row_shares(), "cuda")
    base = torch.rand(257 * 256 + 1, device="cuda") + 1
    x = base[1 : 1 + 256 * 256].reshape(256, 256)
    torch.testing.assert_close(run(x), shares(x))


def test_what_a_kernel_shows() -> None:
    run = te.build(row_shares(), "cuda")
    assert "@triton.jit" in run.source
    assert ".target sm_" in run.asm
    assert all(info.registers > 0 for info in run.resources.values())


def test_a_call_costs_the_host_little() -> None:
    run = te.build(row_shares(), "cuda")
    x = torch.rand(32, 256, device="cuda") + 1
    out = torch.empty_like(x)
    for call in (lambda: run(x), lambda: run(x, out=out)):
        for _ in range(20):
            call()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(500):
            call()
        taken = (time.perf_counter() - begin) / 500
        torch.cuda.synchronize()
        assert taken < 60e-6


def test_timing() -> None:
    x = torch.rand(8192, 8192, device="cuda")
    stats = te.runtime.compare_cuda({"copy": x.clone, "add": lambda: x + 1}, repeats=10)
    assert 0.5e11 < stats["copy"].bandwidth(2 * x.nbytes) < 2e13
    assert te.runtime.measure_cuda(x.clone, repeats=5, flush=False).median > 0
