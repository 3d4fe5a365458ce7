"""Models through `torch.compile(backend="tedsl")`: forward and one training step, as eager."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
tt: Any = pytest.importorskip("tedsl.torch")
models: Any = pytest.importorskip("torch_models")
backend: Any = pytest.importorskip("tedsl.torch.backend.entry").tedsl
pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]
LIGHT = ("mlp", "mobile", "gpt", "graph", "mixtral", "points")
"""What every run of the tests looks at: the others take minutes."""
SHARES = {"bottleneck": 0.3, "gpt2": 0.5, "mamba": 0.5, "graph_attention": 0.5, "llama_cached": 0.5}
"""The least share of a forward graph's operators in tedsl's kernels, views aside."""


def every(names: Any) -> list[Any]:
    """Names, those that are not light as slow."""
    return [name if name in LIGHT else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No graphs of other tests; the library's recurrent layers as graphs too."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # one fused operator in place of a graph
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def test_there_are_many() -> None:
    assert len(models.MODELS) >= 45


def compiled(model: Any) -> tuple[Any, Any]:
    """The model by the backend, and the report of it."""
    report = tt.Report()
    return torch.compile(model, backend=backend, options={"report": report}), report


def cast(given: Any, dtype: Any) -> list[Any]:
    """Tensors of floats in another type."""
    return [each.to(dtype) if each.is_floating_point() else each for each in given]


@pytest.mark.parametrize("name", every(models.MODELS))
def test_forward(name: str) -> None:
    model, arguments = models.MODELS[name]()
    model.eval()
    call, report = compiled(model)
    with torch.no_grad():
        torch.manual_seed(1)
        expected = model(*arguments)
        torch.manual_seed(1)
        torch.testing.assert_close(call(*arguments), expected)
    assert not report.faults
    taken, nodes = models.shares(report)
    assert taken > 0
    assert taken >= SHARES.get(name, 0.0) * nodes


@pytest.mark.parametrize("name", every(models.MODELS))
def test_training_step(name: str) -> None:
    model, arguments = models.MODELS[name]()
    twin = copy.deepcopy(model)
    call, report = compiled(twin)
    for step in range(2):
        for one, function in ((model, model), (twin, call)):
            optimizer = torch.optim.SGD(one.parameters(), lr=0.01)
            optimizer.zero_grad()
            torch.manual_seed(step)
            function(*arguments).square().mean().backward()
            optimizer.step()
    for (place, a), b in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(b, a, msg=lambda text, place=place: f"{place}: {text}")
    assert not report.faults


def gradients(model: Any, function: Any, arguments: Any) -> list[Any]:
    """The result of one call in training, and the gradients of the parameters."""
    model.zero_grad()
    torch.manual_seed(1)
    result = function(*arguments)
    result.float().square().mean().backward()
    return [result.detach(), *(each.grad for each in model.parameters())]


@pytest.mark.parametrize("name", every(models.MODELS))
def test_bfloat16(name: str) -> None:
    """As far from float32 as eager in bfloat16 is, twice, and a step of rounding: of the result, or
    of the largest gradient, as those of biases before a batch norm are 0 but for rounding."""
    model, arguments = models.MODELS[name]()
    model, arguments = model.bfloat16(), cast(arguments, torch.bfloat16)
    exact = copy.deepcopy(model).float()
    right = gradients(exact, exact, cast(arguments, torch.float32))
    theirs = gradients(model, model, arguments)
    call, report = compiled(model)
    ours = gradients(model, call, arguments)
    largest = max(float(true.abs().max()) for true in right[1:] if true is not None)
    for n, (own, other, true) in enumerate(zip(ours, theirs, right, strict=True)):
        if true is None:
            assert own is None
            continue
        assert own.dtype == other.dtype
        off = (other.double() - true).abs().max()
        allowed = 2 * off + 2**-7 * (largest if n else float(true.abs().max()))
        assert (own.double() - true).abs().max() <= allowed
    assert not report.faults
