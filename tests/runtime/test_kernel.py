"""The kernel object: frameworks, the fast path, workspaces, threads, printing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_kernels import FakeExecutor, buffer, kernel, module

from tedsl.dtypes import DType
from tedsl.errors import BackendError
from tedsl.expr.nodes import Var
from tedsl.runtime.kernel import Kernel
from tedsl.target import Target

n = Var("n", DType.int32, lower=0)


def doubler(dtype: DType = DType.float32) -> Kernel:
    a, c = buffer("A", n, dtype=dtype), buffer("C", n, dtype=dtype)
    return kernel(module([a], [c], [n]), lambda x, y, k: np.add(x, x, out=y))


def test_arguments_of_one_form_are_checked_once() -> None:
    run = doubler()
    executor: Any = run._executor
    for _ in range(5):
        run(np.zeros(4, np.float32))
        run(np.zeros(5, np.float32))
    assert executor.prepared == 2
    assert executor.launched == 10


def test_forms_are_forgotten_before_they_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tedsl.runtime.kernel._KEPT", 4)
    run = doubler()
    for size in range(20):
        assert run(np.ones(size, np.float32)).sum() == 2 * size
    assert len(run._known) <= 4


def test_torch_tensors_give_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    run = doubler(DType.bfloat16)
    x = torch.ones(5, dtype=torch.bfloat16)
    for _ in range(2):
        result = run(x)
        assert isinstance(result, torch.Tensor)
        assert torch.equal(result, x + x)
    out = torch.zeros(5, dtype=torch.bfloat16)
    for _ in range(2):
        assert run(x, out=out) is out
        with pytest.raises(BackendError, match=r"out= \(C\): shares memory with input A"):
            run(x, out=x)
    assert torch.equal(out, x + x)
    large = torch.ones(1 << 20, dtype=torch.bfloat16)
    assert torch.equal(run(large), large + large)


def test_torch_parameters() -> None:
    torch = pytest.importorskip("torch")
    run = doubler()
    weight = torch.nn.Parameter(torch.ones(3))
    run(weight.detach())
    for _ in range(2):
        with pytest.raises(BackendError, match=r"requires grad"):
            run(weight)
        with torch.no_grad():
            assert run(weight).tolist() == [2, 2, 2]


def test_torch_tensors_without_memory() -> None:
    torch = pytest.importorskip("torch")
    run = doubler()
    run(torch.ones(3))
    with pytest.raises(BackendError, match=r"\(A\): .*layout torch.sparse_coo"):
        run(torch.ones(3).to_sparse())
    with pytest.raises(BackendError, match=r"\(A\): is on meta:0"):
        run(torch.ones(3, device="meta"))
    fake = pytest.importorskip("torch._subclasses.fake_tensor").FakeTensorMode()
    with fake:
        hollow = torch.ones(3)
    with pytest.raises(BackendError, match=r"\(A\): a FakeTensor has no memory"):
        run(hollow)
    with pytest.raises(BackendError, match=r"\(A\): .*torch.vmap(.|\n)*do .*tedsl\.torch\.op"):
        torch.vmap(run)(torch.ones(2, 3))


def test_under_torch_compile() -> None:
    torch = pytest.importorskip("torch")
    run = doubler()

    def more(whole: bool) -> Any:
        made = torch.compile(lambda x: run(x + 1) + 1, backend="eager", fullgraph=whole)
        torch.compiler.reset()
        return made(torch.ones(3))

    assert more(whole=False).tolist() == [5, 5, 5]
    with pytest.raises(RuntimeError, match=r"tedsl\.torch\.op"):
        more(whole=True)


def test_torch_out_of_a_numpy_call() -> None:
    torch = pytest.importorskip("torch")
    out = torch.zeros(3)
    assert doubler()(np.ones(3, np.float32), out=out) is out
    assert out.tolist() == [2, 2, 2]


def test_mapped_and_subclassed_arrays(tmp_path: Path) -> None:
    class Mine(np.ndarray):
        pass

    run = doubler()
    assert run(np.ones(3, np.float32).view(Mine)).tolist() == [2, 2, 2]
    np.ones(3, np.float32).tofile(tmp_path / "x")
    assert run(np.memmap(tmp_path / "x", np.float32, "r")).tolist() == [2, 2, 2]


def test_workspaces_are_separate_in_threads() -> None:
    a, w, c = buffer("A", 1000), buffer("W", 1000), buffer("C", 1000)
    barrier = threading.Barrier(4)

    def slow(x: Any, y: Any, scratch: Any) -> None:
        scratch[:] = x
        barrier.wait(timeout=20)
        y[:] = scratch

    run = kernel(module([a], [c], workspaces=[w]), slow)
    results: dict[int, Any] = {}

    def work(i: int) -> None:
        results[i] = run(np.full(1000, i, np.float32))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((results[i] == i).all() for i in range(4))


def test_what_a_kernel_shows() -> None:
    run = doubler()
    assert repr(run) == "<tedsl.Kernel f(A: float32[n]) -> C: float32[n] for cpu>"
    assert run.source == "the source"
    assert run.asm == "the assembly"
    assert run.ir.startswith("module f\n")
    assert run.name == "f"
    assert run.build_seconds == {}


def test_explain_needs_sizes() -> None:
    run = doubler()
    with pytest.raises(BackendError, match=r"'n' is not known(.|\n)*explain\(n=\.\.\.\)"):
        run.explain()
    assert run.explain(n=10).least_bytes == 80
    run(np.ones(3, np.float32))
    assert run.explain().least_bytes == 24


def test_signature_errors_come_at_construction() -> None:
    made = module([buffer("A", 2)], [buffer("C", 2)])
    run = Kernel(made, Target.parse("cpu"), FakeExecutor(made, lambda *_: None), schedule="s")
    assert run.schedule == "s"


@pytest.mark.parametrize("count", [2, 12])
def test_outputs_that_share_memory_are_refused_at_every_call(count: int) -> None:
    """Few arrays are compared pair by pair, many in the order of their addresses."""
    names = range(count)
    ins = [buffer(f"A{i}", n) for i in names]
    outs = [buffer(f"C{i}", n) for i in names]

    def copy(*arrays: Any) -> None:
        for source, target in zip(arrays[:count], arrays[count : 2 * count], strict=True):
            target[:] = source

    run = kernel(module(ins, outs, [n]), copy)
    memory = np.arange(4 * count * 3, dtype=np.float32)
    parts = [memory[4 * i : 4 * i + 4] for i in range(3 * count)]
    given, out = parts[:count], parts[count : 2 * count]
    for _ in range(3):
        run(*given, out=tuple(out))
    np.testing.assert_array_equal(np.concatenate(out), np.concatenate(given))
    for place in (0, count - 1):
        for other in (given[0], out[1 - min(place, 1)], memory[4 * count + 1 : 4 * count + 5]):
            shared = [*out[:place], other, *out[place + 1 :]]
            with pytest.raises(BackendError, match=r"shares memory with"):
                run(*given, out=tuple(shared))
    out[1].flags.writeable = False
    with pytest.raises(BackendError, match=r"read-only"):
        run(*given, out=tuple(out))
