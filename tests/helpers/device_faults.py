"""Kernels that harm a GPU's context: one writes where there is no memory, one never ends."""

from __future__ import annotations

import importlib
from typing import Any

import triton
import triton.language as tl

torch: Any = importlib.import_module("torch")  # not installed where the types are checked


@triton.jit
def _write_far(address, far):
    tl.store(address + far, 1)


@triton.jit
def _wait_for(flag):
    found = tl.atomic_add(flag, 0)
    while found == 0:
        found = tl.atomic_add(flag, 0)


def write_nowhere() -> None:
    """An illegal access: the context takes no more work afterwards."""
    place = torch.zeros(1, dtype=torch.int32, device="cuda")
    _write_far[(1,)](place, 1 << 45)
    torch.cuda.synchronize()


def spin() -> None:
    """A kernel that waits for what never happens; returns once it is queued."""
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    _wait_for[(1,)](flag)
