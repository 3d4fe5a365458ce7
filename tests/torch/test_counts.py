"""Counts of whole numbers are computed as indices, others as PyTorch counts."""

from __future__ import annotations

from typing import Any

import pytest

import tedsl as te

torch = pytest.importorskip("torch")
tt: Any = pytest.importorskip("tedsl.torch")
F: Any = torch.nn.functional

COUNTS = [(0.0, 10.0, 1.0), (-3.0, 9.0, 2.0), (0.5, 7.0, 1.0), (5.0, -4.0, -3.0)]
LONG = (0.0, 2.0**24 + 4, 2.0**20 - 1)


@pytest.mark.parametrize("count", [*COUNTS, LONG])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_counts_are_those_of_pytorch(count: tuple[float, ...], dtype: Any) -> None:
    def counted(x: Any) -> Any:
        return x + torch.arange(*count, dtype=dtype)

    x = torch.zeros(len(torch.arange(*count)), dtype=dtype)
    assert torch.equal(tt.trace(counted, x).build()(x), counted(x))


def test_nearest_places_take_no_doubles() -> None:
    x = torch.randn(2, 3, 17, 9, generator=torch.Generator().manual_seed(1))
    program = tt.trace(lambda x: F.interpolate(x, scale_factor=3, mode="nearest"), x)
    assert "float64" not in str(te.schedule_for(program.outputs, "cuda:sm_90"))
    torch.testing.assert_close(program.build()(x), F.interpolate(x, scale_factor=3))
