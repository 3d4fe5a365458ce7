"""Errors of float32 on the CPU, beside eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("tedsl.torch")
pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "cumsum along rows": lambda x: x.cumsum(1),
    "cumsum down columns": lambda x: x.cumsum(0),
    "cumsum of integers": lambda x: (x * 8).to(torch.int32).cumsum(1, dtype=torch.float32),
    "cumprod": lambda x: (1 + x * 0.01).cumprod(1),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "sum down columns": lambda x: x.sum(0),
    "mean of squares": lambda x: (x * x).mean(0),
    "variance": lambda x: x.var(0),
    "batch norm": lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
}


@pytest.mark.parametrize("shape", [(2050, 67), (33, 10_007)])
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_errors_are_about_those_of_eager(function: Callable[[Any], Any], shape: Any) -> None:
    torch.manual_seed(3)
    x = torch.randn(shape)
    exact, eager = function(x.double()).double(), function(x)
    found = torch.compile(function, backend="tedsl")(x)
    assert found.dtype is eager.dtype
    size = float(exact.abs().max())
    error, usual = (float((y.double() - exact).abs().max()) for y in (found, eager))
    assert error <= 3 * usual + 1e-6 * size, (error, usual)
