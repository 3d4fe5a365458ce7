"""Graphs of kernels: what is copied, read in place and returned; what is refused; with a GPU, that
replays compute."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from fake_kernels import buffer, kernel, module

import tedsl as te
from tedsl.dtypes import DType
from tedsl.errors import BackendError
from tedsl.ir.nodes import Func, HostCall, Module
from tedsl.runtime.arguments.order import ArgumentOrder
from tedsl.runtime.calls import graphed as graphs
from tedsl.runtime.calls.forms import TORCH
from tedsl.runtime.calls.graphed import GraphedKernel
from tedsl.runtime.calls.recording import recording
from tedsl.target import Target
from tedsl.tensor.foreign import PythonFunction


class FakeTensor:
    """Numbers with an address: what a graph asks of a tensor."""

    made = 0

    def __init__(self, *values: float) -> None:
        FakeTensor.made += 1
        self.address = 256 * FakeTensor.made
        self.values = list(values)
        self.shape = (len(values),)
        self.dtype, self.device, self.requires_grad = "float32", "cuda:0", False

    def stride(self) -> tuple[int, ...]:
        return (1,)

    def is_contiguous(self) -> bool:
        return True

    def is_neg(self) -> bool:
        return False

    def data_ptr(self) -> int:
        return self.address

    def numel(self) -> int:
        return len(self.values)

    def clone(self) -> FakeTensor:
        return FakeTensor(*self.values)

    def copy_(self, other: FakeTensor) -> None:
        self.values[:] = other.values


class FakeTorch:
    """A device whose graphs are lists of functions."""

    def __init__(self) -> None:
        self.recording: list[Any] | None = None
        self.capturing = False
        self.begun = self.ended = 0
        stream = SimpleNamespace(wait_stream=lambda other: None)
        self.cuda = SimpleNamespace(
            current_stream=lambda: stream,
            Stream=lambda: stream,
            stream=self.within,
            device=self.within,
            synchronize=lambda: None,
            is_current_stream_capturing=lambda: self.capturing,
            CUDAGraph=self.new_graph,
        )

    @contextmanager
    def within(self, what: object) -> Generator[None]:
        yield

    def new_graph(self) -> Any:
        recorded: list[Any] = []

        def begin() -> None:
            self.recording = recorded
            self.begun += 1

        def end() -> None:
            self.recording = None
            self.ended += 1

        return SimpleNamespace(
            replay=lambda: [f() for f in recorded], capture_begin=begin, capture_end=end
        )


class Doubler:
    """Doubles the first input and adds the second, at once or into the recording."""

    def __init__(self, torch: FakeTorch) -> None:
        self.torch = torch
        self.calls = 0

    def __call__(self, inputs: tuple[Any, ...], outs: Any, scalars: Any) -> FakeTensor:
        self.calls += 1
        x, y = inputs
        result = FakeTensor(*([0.0] * len(x.values)))

        def run() -> None:
            result.values[:] = [2 * a + b for a, b in zip(x.values, y.values, strict=True)]

        if self.torch.recording is None:
            run()
        else:
            self.torch.recording.append(run)
        return result


CUDA = Target.parse("cuda")
PLAIN = module([buffer("X", 2), buffer("Y", 2)], [buffer("Z", 2)])


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    fake = FakeTorch()
    real = importlib.import_module
    monkeypatch.setattr(
        graphs.importlib, "import_module", lambda name: fake if name == "torch" else real(name)
    )
    monkeypatch.setattr(TORCH, "types", (FakeTensor,))
    return fake


def graphed(call: Any, copied: list[str] | None = None, order: Any = None) -> GraphedKernel:
    return GraphedKernel(PLAIN, CUDA, order, call, copied)


def test_a_replay_reads_copies_of_the_inputs_and_returns_the_same_memory(torch: FakeTorch) -> None:
    call = Doubler(torch)
    run = graphed(call)
    first = run(FakeTensor(1, 2), FakeTensor(10, 10))
    assert first.values == [12, 14]
    second = run(FakeTensor(3, 4), FakeTensor(0, 1))
    assert second is first
    assert second.values == [6, 9]
    assert call.calls == 2, "once to compile and check, once to record"


def test_inputs_that_are_not_copied_are_read_where_they_are(torch: FakeTorch) -> None:
    call = Doubler(torch)
    run = graphed(call, copied=["X"])
    weight = FakeTensor(10, 10)
    result = run(FakeTensor(1, 2), weight)
    weight.values[:] = [20, 20]
    assert run(FakeTensor(1, 2), weight) is result
    assert result.values == [22, 24]
    assert call.calls == 2
    assert run(FakeTensor(1, 2), FakeTensor(0, 0)).values == [2, 4], "another graph"
    assert call.calls == 4


def test_out_gets_a_copy_of_the_results(torch: FakeTorch) -> None:
    run = graphed(Doubler(torch))
    out = FakeTensor(0, 0)
    assert run(FakeTensor(1, 2), FakeTensor(0, 0), out=out) is out
    assert out.values == [2, 4]
    run(FakeTensor(5, 5), FakeTensor(0, 0))
    assert out.values == [2, 4]
    with pytest.raises(BackendError, match=r"(?s)out= is float32\[3\].*allowed float32\[2\]"):
        run(FakeTensor(1, 2), FakeTensor(0, 0), out=FakeTensor(0, 0, 0))


def test_another_form_is_another_graph(torch: FakeTorch) -> None:
    call = Doubler(torch)
    run = graphed(call)
    run(FakeTensor(1, 2), FakeTensor(0, 0))
    assert run(FakeTensor(1), FakeTensor(0)).values == [2]
    assert run(FakeTensor(), FakeTensor()).values == [], "nothing to record"
    assert repr(run) == "<tedsl.GraphedKernel f, 3 graphs>"


def test_graphs_are_forgotten_before_they_fill_memory(
    torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "_KEPT", 2)
    run = graphed(Doubler(torch))
    for size in range(1, 5):
        run(FakeTensor(*range(size)), FakeTensor(*range(size)))
    assert len(run._graphs) == 2


def test_arguments_by_position_include_the_results(torch: FakeTorch) -> None:
    order = ArgumentOrder(("Z", "X", "Y"), (1, 2), (0,), {})
    out = FakeTensor(0, 0)
    graphed(Doubler(torch), order=order)(out, FakeTensor(1, 2), FakeTensor(0, 1))
    assert out.values == [2, 5]


def test_arrays_that_are_no_tensors_are_refused(torch: FakeTorch) -> None:
    with pytest.raises(BackendError, match=r"(?s)plain PyTorch tensors.*from_dlpack"):
        graphed(Doubler(torch))([1.0], [2.0])


def test_a_stream_under_capture_is_refused(torch: FakeTorch) -> None:
    torch.capturing = True
    with pytest.raises(BackendError, match=r"(?s)captured already.*call the kernel itself"):
        graphed(Doubler(torch))(FakeTensor(1, 2), FakeTensor(0, 0))


def test_what_the_device_cannot_capture_is_said(torch: FakeTorch) -> None:
    def call(inputs: Any, outs: Any, scalars: Any) -> FakeTensor:
        if torch.recording is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        return FakeTensor(1)

    with pytest.raises(BackendError, match=r"cannot capture the call: operation not permitted"):
        graphed(call)(FakeTensor(1, 2), FakeTensor(0, 0))
    assert gc.isenabled()
    assert (torch.begun, torch.ended) == (2, 2)  # the second time nothing, to mend the generator


@pytest.mark.gpu
def test_random_numbers_can_be_drawn_after_a_recording_that_failed() -> None:
    torch: Any = pytest.importorskip("torch")
    x = torch.ones(4, device="cuda")
    fails = pytest.raises(RuntimeError, match="captur")
    with torch.cuda.stream(torch.cuda.Stream()), fails, recording(torch, torch.cuda.CUDAGraph()):
        x.sum().item()
    assert torch.rand(4, device="cuda").max() < 1
    with torch.cuda.stream(torch.cuda.Stream()), recording(torch, torch.cuda.CUDAGraph()):
        y = x + 1
    assert y.shape == x.shape


def test_names_that_are_no_inputs_are_refused() -> None:
    with pytest.raises(BackendError, match=r"(?s)no input is called 'W'.*allowed X, Y"):
        graphed(None, copied=["W"])


def test_other_targets_are_refused() -> None:
    run = kernel(PLAIN, lambda *arrays: None)
    with pytest.raises(BackendError, match=r'(?s)target cpu has no graphs.*target="cuda"'):
        run.graphed()


def test_functions_of_the_host_are_refused() -> None:
    (x, _), (z,) = PLAIN.inputs, PLAIN.outputs
    function = PythonFunction(lambda ins, outs: None, False, "half")
    body = HostCall("half", function, None, function, (x,), (z,))
    whole = Module("f", PLAIN.inputs, PLAIN.outputs, (), (), (Func("half", (x, z), (), body),))
    with pytest.raises(BackendError, match=r"half is computed by a function of the host"):
        GraphedKernel(whole, CUDA, None, lambda *a: None, None)


def two_kernels(dtype: str = "float32") -> te.Tensor:
    n = te.size_var("n")
    x = te.placeholder((n, 64), dtype, name="X")
    w = te.placeholder((64, 64), dtype, name="W")
    k, j = te.reduce_axis((0, 64), name="k"), te.reduce_axis((0, 64), name="j")
    y = te.compute(
        (n, 64),
        lambda i, c: te.sum(x[i, k].astype("float32") * w[k, c].astype("float32"), axis=k),
        name="Y",
    )
    s = te.compute((n,), lambda i: te.sum(y[i, j], axis=j), name="S")
    return te.compute((n, 64), lambda i, c: (y[i, c] - s[i] / 64.0).astype(dtype), name="Z")


@pytest.mark.gpu
@pytest.mark.parametrize("copied", [None, ["X"], []])
def test_replays_compute_on_the_gpu(copied: list[str] | None) -> None:
    torch: Any = pytest.importorskip("torch")
    plain = te.build(two_kernels(), "cuda")
    run = plain.graphed(copied=copied)
    w = torch.randn(64, 64, device="cuda")
    for rows in (5, 33, 5):
        for _ in range(3):
            x = torch.randn(rows, 64, device="cuda")
            torch.testing.assert_close(run(x, w), plain(x, w))
            out = torch.zeros_like(x)
            assert run(x, w, out=out) is out
            torch.testing.assert_close(out, plain(x, w))


@pytest.mark.gpu
def test_a_graph_of_bfloat16_products_uses_descriptors_again() -> None:
    torch: Any = pytest.importorskip("torch")
    n, t = 256, DType.bfloat16.value
    a, b = te.placeholder((n, n), t, name="A"), te.placeholder((n, n), t, name="B")
    c = te.nn.matmul(a, b)
    plain = te.build(te.nn.relu(c), "cuda")
    run = plain.graphed()
    for _ in range(3):
        x, y = (torch.randn(n, n, device="cuda").to(torch.bfloat16) for _ in range(2))
        torch.testing.assert_close(run(x, y), plain(x, y))
