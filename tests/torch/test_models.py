"""Models through `torch.compile(backend="tedsl")`: forward and one training step, as eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
tt: Any = pytest.importorskip("tedsl.torch")
models: Any = pytest.importorskip("torch_models")
backend: Any = pytest.importorskip("tedsl.torch.backend.entry").tedsl
pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def fresh():
    """No graphs of other tests."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # one fused operator in place of a graph


@pytest.mark.parametrize("name", list(models.MODELS))
def test_forward(name: str) -> None:
    model, arguments = models.MODELS[name]()
    model.eval()
    report = tt.Report()
    compiled = torch.compile(model, backend=backend, options={"report": report})
    with torch.no_grad():
        torch.testing.assert_close(compiled(*arguments), model(*arguments))
    assert not report.faults
    assert sum(graph.taken for graph in report.graphs) > 0


@pytest.mark.parametrize("name", list(models.MODELS))
def test_training_step(name: str) -> None:
    model, arguments = models.MODELS[name]()
    twin = copy.deepcopy(model)
    report = tt.Report()
    compiled = torch.compile(twin, backend=backend, options={"report": report})
    for _ in range(2):
        for one, call in ((model, model), (twin, compiled)):
            optimizer = torch.optim.SGD(one.parameters(), lr=0.01)
            optimizer.zero_grad()
            call(*arguments).square().mean().backward()
            optimizer.step()
    for (place, a), b in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(b, a, msg=lambda text, place=place: f"{place}: {text}")
    assert not report.faults
