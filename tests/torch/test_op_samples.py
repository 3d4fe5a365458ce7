"""PyTorch's own samples of its operators, in float32, against eager.

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


def test_the_list_is_of_operators_that_pytorch_has() -> None:
    assert len(TAKEN) >= 300
    assert sorted(set(TAKEN)) == TAKEN


@pytest.mark.parametrize("name", LIGHT)
def test_light(name: str) -> None:
    tally = samples.run(name, limit=2)
    assert not tally.wrong
    assert tally.equal


@pytest.mark.slow
@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str) -> None:
    if name not in samples.OPERATORS:
        pytest.skip("this PyTorch has no such operator")
    tally = samples.run(name, limit=8)
    assert not tally.wrong
    assert tally.equal
    assert not tally.refused


@pytest.mark.slow
@pytest.mark.parametrize("name", list(samples.OPERATORS))
def test_compiled(name: str) -> None:
    """Through the backend, forward and backward: equal, whatever is taken of it."""
    assert samples.through_backend(name, limit=2) == []
