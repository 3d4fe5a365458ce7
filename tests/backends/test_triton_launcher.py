"""The launcher: arguments, plans, errors without a GPU; numbers and overhead with one."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import triton_irs as t

import tedsl as te
from tedsl.backends.triton.emit.module import emit
from tedsl.backends.triton.launch import launcher as launching
from tedsl.backends.triton.launch.launcher import CudaProgram, entry
from tedsl.dtypes import DType
from tedsl.errors import BackendError
from tedsl.ir.nodes import Launch, Module


class FakeTensor:
    """What the launcher asks of a tensor."""

    def __init__(self, address: int, shape: tuple[int, ...] = (4, 4), device: int = 0) -> None:
        self.address = address
        self.shape = shape
        self.device = device
        self.dtype = SimpleNamespace(itemsize=4)
        self.copied: list[int] = []

    def data_ptr(self) -> int:
        return self.address

    def get_device(self) -> int:
        return self.device

    def stride(self) -> tuple[int, ...]:
        return (self.shape[1], 1)

    def copy_(self, other: FakeTensor) -> None:
        self.copied.append(other.address)


class FakeTorch:
    """A PyTorch with one GPU that is never touched."""

    def __init__(self) -> None:
        self.cuda = SimpleNamespace(
            current_device=lambda: 0,
            is_available=lambda: True,
            is_current_stream_capturing=lambda: False,
        )
        self.cleared: list[FakeTensor] = []
        self._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda device: 77)
        self.float32, self.int32, self.uint8 = "float32", "int32", "uint8"
        self._addresses = iter(range(0x10000, 0x20000, 256))

    def empty(self, shape: tuple[int, ...], dtype: object, device: int) -> FakeTensor:
        del dtype, device
        return FakeTensor(next(self._addresses), shape)

    def zeros(self, size: int, dtype: object, device: int) -> FakeTensor:
        self.cleared.append(self.empty((size,), dtype, device))
        return self.cleared[-1]


class FakeLauncher:
    """A launcher in the form of Triton 3.6: arguments in a row."""

    global_scratch_size = 0
    profile_scratch_size = 0
    launch_cooperative_grid = False
    launch_pdl = False

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.launch = lambda *args: self.calls.append(args)

    def __call__(
        self, gridX: int, gridY: int, gridZ: int, stream: int, function: int, *args: Any
    ) -> None:
        raise AssertionError("the slow entry was used")


class NewLauncher(FakeLauncher):
    """A launcher in the form of Triton 3.9: arguments in one tuple, with their annotations."""

    arg_annotations = "notes"
    kernel_signature = "types"


class OtherLauncher(FakeLauncher):
    """A launcher that needs scratch memory, which only its own `__call__` allocates."""

    global_scratch_size = 16

    def __call__(
        self, gridX: int, gridY: int, gridZ: int, stream: int, function: int, *args: Any
    ) -> None:
        self.calls.append((gridX, gridY, gridZ, stream, function, *args))


def fake_kernel(launcher: FakeLauncher) -> Any:
    return SimpleNamespace(run=launcher, function=5, packed_metadata=(4, 1, 0), metadata=None)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeLauncher]]:
    """Programs that compile to nothing and launch into a list."""
    made: list[FakeLauncher] = []

    def compiled(*_: object) -> Any:
        made.append(FakeLauncher())
        return fake_kernel(made[-1]), {}

    def module(source: str) -> Any:
        del source
        return SimpleNamespace(transpose_add=None, scale=None, matmul=None)

    monkeypatch.setattr(launching, "_compiled", compiled)
    monkeypatch.setattr(launching, "load_source", module)
    monkeypatch.setattr(launching, "_descriptor", lambda tensor, buffer, block: (tensor, block))
    yield made


def started(module: Module) -> CudaProgram:
    program = CudaProgram(emit(module, "cuda"))
    fake: Any = FakeTorch()
    program._torch = fake
    program._stream_of = fake._C._cuda_getCurrentRawStream
    program._current = fake.cuda.current_device
    return program


def test_addresses_fill_the_arguments(fakes: list[FakeLauncher]) -> None:
    program = started(t.transpose_add(64, 16))
    program([FakeTensor(0x100), FakeTensor(0x200)])
    program([FakeTensor(0x300), FakeTensor(0x400)])
    assert len(fakes) == 1, "compiled once"
    tail = (None, None, (4, 1, 0), None, None, None)
    head = (4, 4, 1, 77, 5, False, False)
    assert fakes[0].calls == [(*head, *tail, 0x100, 0x200), (*head, *tail, 0x300, 0x400)]


def test_counters_are_cleared_once(
    fakes: list[FakeLauncher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls on one stream count in the same memory, which they leave cleared."""
    A = te.placeholder((64,), name="A")
    P = te.compute((64,), lambda p: A[p] * 2.0, name="P")
    D = te.compute((), lambda: P[0] + P[63], name="D")
    s = te.create_schedule(D)
    s[P].bind(P.op.axis[0], "blockIdx.x")
    s[D].compute_last(P)
    monkeypatch.setattr(launching, "load_source", lambda source: SimpleNamespace(P_kernel=None))
    program = started(te.lower(s, "triton-interpret"))
    program([FakeTensor(0x100), FakeTensor(0x200)])
    program([FakeTensor(0x300), FakeTensor(0x400)])
    fake: Any = program._torch
    assert len(fake.cleared) == 2, "one is spare, for a graph"
    counted = {call[-1] for call in fakes[0].calls}
    assert len(counted) == 1 and counted <= {each.address for each in fake.cleared}


def test_alignment_and_sizes_choose_the_plan(fakes: list[FakeLauncher]) -> None:
    program = started(t.symbolic_scale())
    program([FakeTensor(0x100), FakeTensor(0x200)], (7, 200))
    program([FakeTensor(0x104), FakeTensor(0x200)], (7, 200))
    program([FakeTensor(0x100), FakeTensor(0x200)], (8, 200))
    assert [launcher.calls[0][-2:] for launcher in fakes] == [(7, 200), (7, 200), (8, 200)]


def test_the_text_of_launches_follows_an_aligned_call(fakes: list[FakeLauncher]) -> None:
    program = started(t.symbolic_scale())
    x, y = FakeTensor(0x100), FakeTensor(0x200)
    program([FakeTensor(0x104), y], (7, 200))
    assert program.inlined((7, 200), 0) is None, "no call was aligned"
    program([x, y], (7, 200))
    assert program.inlined((8, 200), 0) is None and program.inlined((7, 200), 1) is None
    found = program.inlined((7, 200), 0)
    assert found is not None and found.alignment == 16
    exec("\n".join(found.lines), {**found.names, "p0": 0x100, "p1": 0x200})
    assert fakes[-1].calls[0] == fakes[-1].calls[1]


def test_an_empty_grid_launches_nothing(fakes: list[FakeLauncher]) -> None:
    started(t.symbolic_scale())([FakeTensor(0x100), FakeTensor(0x200)], (0, 200))
    assert not fakes


def test_misaligned_descriptor_tensors_are_copied(
    fakes: list[FakeLauncher], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = started(t.matmul((32, 32, 16), (16, 16, 16), shared=True))
    monkeypatch.setattr(FakeLauncher, "__call__", OtherLauncher.__call__)
    a, b, bias, c = (FakeTensor(address) for address in (0x104, 0x200, 0x300, 0x408))
    program([a, b, bias, c])
    (call,) = fakes[-1].calls if fakes[-1].calls else fakes[0].calls
    described = [arg[0].address for arg in call if isinstance(arg, tuple) and len(arg) == 2]
    assert len(described) == 3
    assert all(address % 16 == 0 for address in described)
    assert not a.copied
    assert len(c.copied) == 1


@pytest.mark.parametrize("kind", [FakeLauncher, NewLauncher, OtherLauncher])
def test_every_form_of_launcher_gets_its_arguments(kind: type[FakeLauncher]) -> None:
    launcher = kind()
    enter, encode, raw = entry(fake_kernel(launcher), (2, 3, 1), described=False)
    enter(9, [1, 2])
    assert encode is None
    (call,) = launcher.calls
    assert call[:5] == (2, 3, 1, 9, 5)
    assert call[-1] == ([1, 2] if kind is NewLauncher else 2)
    assert (raw is None) == (kind is OtherLauncher)
    if raw is not None:
        last = ([1, 2],) if raw.listed else (1, 2)
        assert call == (*raw.grid, 9, *raw.rest, *last)


def test_the_forms_are_those_of_the_installed_triton() -> None:
    """The launcher class has one of the two forms that `entry` enters directly."""
    driver = importlib.import_module("triton.backends.nvidia.driver")
    source = importlib.import_module("inspect").getsource(driver.CudaLauncher)
    assert "self.launch_cooperative_grid" in source and "self.launch_pdl" in source
    assert "gridX, gridY, gridZ, stream, function" in source
    assert hasattr(driver, "make_tensordesc_arg") and hasattr(driver, "wrap_handle_tensordesc")


def test_a_tensor_on_the_host_is_refused() -> None:
    program = started(t.transpose_add(64, 16))
    with pytest.raises(BackendError, match=r"(?s)not on a GPU.*\.cuda\(\)"):
        program([FakeTensor(0x100, device=-1), FakeTensor(0x200)])


def test_no_gpu_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoGpu(FakeTorch):
        def __init__(self) -> None:
            super().__init__()
            self.cuda.is_available = lambda: False

    real = importlib.import_module

    def find(name: str) -> Any:
        return NoGpu() if name == "torch" else real(name)

    monkeypatch.setattr(launching.importlib, "import_module", find)
    with pytest.raises(BackendError, match=r'(?s)no CUDA device.*use target="cpu"'):
        CudaProgram(emit(t.transpose_add(64, 16), "cuda"))([FakeTensor(0), FakeTensor(0)])


def test_out_of_resources_says_what_is_short() -> None:
    errors = importlib.import_module("triton.runtime.errors")
    (spec,) = emit(t.transpose_add(64, 16), "cuda").kernels
    error = launching._compile_error(spec, errors.OutOfResources(300000, 232448, "shared memory"))
    assert "needs 300000 of shared memory, the device has 232448" in str(error)
    assert "fewer pipeline stages" in str(error)


class Strided:
    """A tensor of memory with any steps."""

    def __init__(self, shape: tuple[int, ...], steps: tuple[int, ...]) -> None:
        self.shape, self.steps = shape, steps

    def stride(self) -> tuple[int, ...]:
        return self.steps


def test_steps_of_one_element_are_those_of_what_is_in_it() -> None:
    """PyTorch has any number there, and a tensor descriptor multiples of 16 bytes alone."""
    steps = launching._steps(Strided((1, 2, 264, 1896), (1, 500544, 1896, 1)))
    assert steps == [1001088, 500544, 1896, 1]
    assert launching._steps(Strided((8, 1), (7, 7))) == [7, 1]
    assert launching._steps(Strided((8, 64), (72, 1))) == [72, 1]


@pytest.mark.gpu
@pytest.mark.parametrize("safe", [False, True])
def test_numbers_on_the_gpu(safe: bool) -> None:
    torch: Any = importlib.import_module("torch")
    module = t.softmax(64, 1000, 1024, DType.bfloat16)
    x = torch.randn(64, 1000, device="cuda").to(torch.bfloat16)
    y = torch.empty_like(x)
    CudaProgram(emit(module, "cuda"))([x, y], safe=safe)
    expected = torch.softmax(x.float(), -1)
    np.testing.assert_allclose(y.float().cpu(), expected.cpu(), atol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("misaligned", [False, True])
def test_matmul_on_the_gpu(shared: bool, misaligned: bool) -> None:
    torch: Any = importlib.import_module("torch")
    module = t.matmul((256, 512, 256), (128, 128, 64), launch=Launch(num_warps=4), shared=shared)

    def tensor(*shape: int) -> Any:
        flat = torch.randn(int(np.prod(shape)) + 8, device="cuda").to(torch.bfloat16)
        start = 1 if misaligned else 0
        return flat[start : start + int(np.prod(shape))].view(*shape)

    a, b, bias, c = tensor(256, 256), tensor(256, 512), tensor(512), tensor(256, 512)
    program = CudaProgram(emit(module, "cuda"))
    for _ in range(2):
        program([a, b, bias, c])
    expected = torch.relu(a.float() @ b.float() + bias.float())
    np.testing.assert_allclose(c.float().cpu(), expected.cpu(), rtol=2e-2, atol=0.3)
