"""PyTorch's own samples of its operators, forward and backward, against eager.

`tests/data/torch_taken.txt` lists the operators of which every sample is taken.
"""

from __future__ import annotations

from typing import Any

import pytest
from sources import ROOT

torch: Any = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's samples need it")
samples: Any = pytest.importorskip("torch_samples")
pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]
TAKEN = (ROOT / "tests" / "data" / "torch_taken.txt").read_text(encoding="utf-8").split()
LIGHT = (
    "add",
    "amax",
    "argmax",
    "bmm",
    "cat",
    "clamp",
    "cumsum",
    "div.no_rounding_mode",
    "gather",
    "masked_fill",
    "mean",
    "nn.functional.avg_pool2d",
    "nn.functional.conv2d",
    "nn.functional.gelu",
    "nn.functional.group_norm",
    "nn.functional.layer_norm",
    "nn.functional.pad.constant",
    "permute",
    "reshape",
    "softmax",
    "sum",
    "tril",
    "unfold",
    "where",
)


BOTH_WAYS = ("nn.functional.max_pool2d", "index_add", "softmax", "where")
"""Looked at forward and backward in every run."""
DTYPES = ("float32", "bfloat16", "int64")


def test_the_list_is_of_operators_that_pytorch_has() -> None:
    assert len({samples.OPERATORS[name].name for name in TAKEN if name in samples.OPERATORS}) >= 300
    assert sorted(set(TAKEN)) == TAKEN


@pytest.mark.parametrize("name", LIGHT)
def test_light(name: str) -> None:
    tally = samples.run(name, limit=2)
    assert not tally.wrong
    assert tally.equal


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("name", LIGHT[::3])
def test_light_in_other_types(name: str, dtype: str) -> None:
    found = samples.run_in(name, dtype, limit=1)
    if found is None:
        pytest.skip(f"PyTorch has no {name} of {dtype}")
    assert not found.wrong
    assert found.equal


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_light_both_ways(name: str) -> None:
    assert samples.through_backend(name, limit=1) == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str, dtype: str) -> None:
    found = samples.run_in(name, dtype, limit=8) if name in samples.OPERATORS else None
    if found is None:
        pytest.skip(f"this PyTorch has no {name} of {dtype}")
    assert not found.wrong
    if dtype == "float32":
        assert found.equal
        assert not found.refused


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", list(samples.OPERATORS))
def test_compiled(name: str, dtype: str) -> None:
    """Through the backend, forward and backward: equal, whatever is taken of it."""
    assert samples.through_backend(name, limit=2, dtype=getattr(torch, dtype)) == []
