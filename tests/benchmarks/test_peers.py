"""The PyTorch side of the rows computes what the NumPy side does; needs PyTorch, not a GPU."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import job_check
import numpy as np
import pytest
import suite
from workload import FLEX, SCALED, Workload

ROWS = list({load.function: load for load in reversed(suite.workloads())}.values())
PREPARED = [
    load
    for load in {tuple(load.peers): load for load in suite.workloads() if load.peers}.values()
    if load.function not in ("attention", "attention_backward")
]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)


def wide_tensors(load: Workload) -> tuple[dict[str, Any], dict[str, Any]]:
    """The small inputs as NumPy arrays and as float64 tensors."""
    torch: Any = importlib.import_module("torch")
    arrays = job_check.inputs_of(load, load.inputs(small=True), load.small)
    wide = {k: a if a.dtype.kind == "i" else a.astype(np.float64) for k, a in arrays.items()}
    return arrays, {name: torch.from_numpy(array) for name, array in wide.items()}


@pytest.mark.parametrize("load", ROWS, ids=[load.function for load in ROWS])
def test_a_function_agrees(load: Workload) -> None:
    peers: Any = importlib.import_module("torch_peers")
    arrays, tensors = wide_tensors(load)
    settings = job_check.settings_of(load)
    got = getattr(peers, load.function)(**tensors, **settings)
    found = tuple(t.numpy() for t in got) if isinstance(got, tuple) else got.numpy()
    assert job_check.worst(found, job_check.expected(load, arrays)) < 1e-6


@pytest.mark.parametrize("load", PREPARED, ids=[load.name for load in PREPARED])
def test_peers_can_be_prepared(load: Workload) -> None:
    peers: Any = importlib.import_module("torch_peers")
    _, tensors = wide_tensors(load)
    for name, prepare in load.peers.items():
        if name in (FLEX, SCALED, "fused"):  # these run on a device only
            continue
        narrow = {k: t.float() if t.is_floating_point() else t for k, t in tensors.items()}
        getattr(peers, prepare)(**narrow, **load.settings)()


def test_sums_of_8_bit_products_are_wider() -> None:
    """What a row of integers is checked by: the sums do not fit 8 bits."""
    torch: Any = importlib.import_module("torch")
    peers: Any = importlib.import_module("torch_peers")
    numbers = 20 * torch.arange(-6, 6, dtype=torch.int8).reshape(3, 4)
    scales = torch.ones(3)
    got = peers.scaled_matmul(numbers, numbers, scales, scales)
    wide = numbers.to(torch.float64)
    assert torch.equal(got.to(torch.float64), wide @ wide.t())
