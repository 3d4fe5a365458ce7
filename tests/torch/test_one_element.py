"""Dimensions of one element, a batch of one above all, fuse as longer ones do."""

from __future__ import annotations

from typing import Any

import pytest

import tedsl as te

torch = pytest.importorskip("torch")
tt: Any = pytest.importorskip("tedsl.torch")
F: Any = torch.nn.functional

FUNCTIONS: dict[str, Any] = {
    "layer norm": lambda x: F.layer_norm(x, (28,)),
    "softmax": lambda x: torch.softmax(x, -1),
    "divided by a norm": lambda x: x / x.norm(dim=-1, keepdim=True),
    "root mean square": lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5),
    "product": lambda x: torch.relu(x @ x.transpose(1, 2)),
    "logarithm of a sum": lambda x: torch.exp(torch.logsumexp(x, 2, keepdim=True)) * x,
    "running sum": lambda x: torch.exp(torch.cumsum(x, 1)) * x,
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
}


def kernels(function: Any, batch: int, target: str) -> int:
    program = tt.trace(function, torch.empty(batch, 64, 28))
    shown = str(te.schedule_for(program.outputs, target)).splitlines()
    return sum(line.startswith("kernel ") for line in shown)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_batch_of_one_takes_as_many_kernels(name: str, target: str) -> None:
    assert kernels(FUNCTIONS[name], 1, target) <= kernels(FUNCTIONS[name], 2, target)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers(name: str) -> None:
    x = torch.randn(1, 64, 28, generator=torch.Generator().manual_seed(1)) / 4
    function = FUNCTIONS[name]
    found = tt.trace(function, x).build()(x)
    torch.testing.assert_close(found, function(x), rtol=1e-4, atol=1e-5)
