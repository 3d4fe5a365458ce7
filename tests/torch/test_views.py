"""Views between kernels as one call each, and calls of kernels on tensors as they lie."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from fake_cuda import fake_cuda

from tedsl.errors import BackendError
from tedsl.runtime import kernel as kernels
from tedsl.runtime.arrays.allocation import QuickCuda

torch: Any = pytest.importorskip("torch")
tt: Any = importlib.import_module("tedsl.torch")
fx: Any = importlib.import_module("torch.fx.experimental.proxy_tensor")
views: Any = importlib.import_module("tedsl.torch.backend.views")
compiled: Any = importlib.import_module("tedsl.torch.compiled")


def straight(function: Any, *arguments: Any) -> Any:
    """The graph of a function with its views straightened."""
    module = fx.make_fx(function, tracing_mode="fake")(*arguments)
    views.straighten(module.graph)
    module.graph.lint()
    module.recompile()
    return module


def called(module: Any) -> list[str]:
    return [str(n.target.__name__) for n in module.graph.nodes if n.op == "call_function"]


def heads(x: Any) -> Any:
    parts = x.view(2, 3, 3, 4, 5).permute(2, 0, 3, 1, 4)
    q, k = parts.select(0, 1), parts[2].transpose(-1, -2)
    return torch.ops.aten.sin(q), torch.ops.aten.cos(k)


def halves(x: Any) -> Any:
    first, second = torch.ops.aten.split(x.t(), 30)
    return torch.ops.aten.sin(first[::2]), second.unsqueeze(1).expand(30, 7, 6)


@pytest.mark.parametrize("function", [heads, halves])
def test_a_chain_of_views_is_one_call(function: Any) -> None:
    x = torch.randn(6, 60)
    module = straight(function, x)
    assert set(called(module)) <= {"looked_at", "sin.default", "cos.default"}
    for given in (x, torch.randn(12, 60)[3:9], torch.randn(60, 6).t()):
        for got, wanted in zip(module(given), function(given.contiguous()), strict=True):
            assert torch.equal(got, wanted)


def test_a_view_of_a_slice_begins_where_that_does() -> None:
    module = straight(lambda x: torch.ops.aten.sin(x[1:, 2:].t()), torch.randn(6, 60)[2:])
    x = torch.randn(9, 60)[3:7]
    assert torch.equal(module(x), x[1:, 2:].t().sin())


def test_what_is_written_to_stays_a_view() -> None:
    def written(x: Any) -> Any:
        row = x.view(4, 15).select(0, 1)
        row.copy_(torch.ops.aten.sin(row))
        return x + 1

    module = straight(written, torch.randn(60))
    assert "looked_at" not in called(module)
    x = torch.randn(60)
    y = x.clone()
    assert torch.equal(module(x), written(y)) and torch.equal(x, y)


def test_views_of_runtime_sizes_stay() -> None:
    def turned(x: Any) -> Any:
        return torch.ops.aten.sin(x.t())

    module = fx.make_fx(turned, tracing_mode="symbolic")(torch.randn(6, 60))
    views.straighten(module.graph)
    assert called(module) == ["t.default", "sin.default"]


def test_a_reshape_that_copies_stays() -> None:
    def turned(x: Any) -> Any:
        return torch.ops.aten.sin(torch.ops.aten._unsafe_view(x.t().contiguous(), (30, 12)))

    x = torch.randn(6, 60)
    assert torch.equal(straight(turned, x)(x), turned(x))


def test_a_reshape_of_what_lies_otherwise_copies() -> None:
    def flat(x: Any) -> Any:
        return torch.ops.aten.sin(torch.ops.aten.reshape(x, (2, -1)))

    x = torch.randn(2, 6, 8, 10).to(memory_format=torch.channels_last)
    assert torch.equal(straight(flat, x)(x), flat(x))


def test_offsets_are_from_where_memory_begins() -> None:
    def strided(x: Any) -> Any:
        return torch.ops.aten.sin(torch.ops.aten.as_strided(x, (4, 5), (3, 7), 2))

    x = torch.randn(10, 10)
    assert torch.equal(straight(strided, x)(x[1:]), strided(x))


def test_a_kernel_is_called_on_tensors_as_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    def quick(spec: Any, _: Any) -> QuickCuda:
        steps = torch.empty(spec.shape, device="meta").stride()
        dtype = getattr(torch, spec.dtype.value)

        def empty(shape: Any, steps: Any, dtype: Any) -> Any:
            return torch.empty_strided(shape, steps, dtype=dtype)

        return QuickCuda(empty, spec.shape, steps, dtype, 0, int, lambda: empty)

    launched: list[tuple[Any, ...]] = []
    monkeypatch.setattr(kernels, "torch_allocator", quick)
    with fake_cuda(lambda *given: launched.append(given)):
        x, y = torch.randn(64, 32).t(), torch.randn(32, 64)
        program = tt.trace(lambda x, y: ((x + y).t(), torch.exp(y)), x, y)
        run = compiled.Compiled(program.imported, None, "cuda")
        for _ in range(6):
            x, y = torch.randn(64, 32).t(), torch.randn(32, 64)
            launched.clear()
            turned, other = run((x, y), {})
            assert turned.shape == (64, 32) and other.shape == (32, 64)
            pointers = {each.data_ptr() for each in (x, y, turned, other)}
            assert pointers <= {each for given in launched for each in given[4:]}
        assert run._direct is not compiled.missed
        each = len(launched)
        for a, b in ((x.contiguous(), y), (x, y.clone())):  # the first is copied
            launched.clear()
            run((a, b), {})
            assert len(launched) == each
        with pytest.raises(BackendError, match="31"):
            run((x[:31], y[:31]), {})


@pytest.mark.parametrize("kind", ["parts", "conjugated", "bits"])
def test_views_of_another_type_stay_as_they_are(kind: str) -> None:
    """Parts of complex numbers, what is conjugated when it is read, bits as another type."""

    def spectrum(x: Any) -> Any:
        found = torch.fft.rfft(x.transpose(1, 2), dim=1)
        if kind == "parts":
            return found.abs() + found.real * found.imag
        if kind == "conjugated":
            return torch.view_as_real((found.conj() * 2).resolve_conj())[..., 1].transpose(0, 1)
        return (x.view(torch.int32).transpose(1, 2) & 0x7FFFFFFF).view(torch.float32) + 1

    x = torch.randn(2, 6, 8)
    torch._dynamo.reset()
    compiled = torch.compile(spectrum, backend="tedsl")
    torch.testing.assert_close(compiled(x), spectrum(x))
    if kind == "bits":
        return
    grads = []
    for function in (compiled, spectrum):
        own = x.clone().requires_grad_()
        function(own).square().sum().backward()
        grads.append(own.grad)
    torch.testing.assert_close(*grads)
