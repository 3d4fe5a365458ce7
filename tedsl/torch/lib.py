"""PyTorch as this folder uses it: the package and its operators, typed as anything.

First file of `tedsl.torch`, which alone loads PyTorch; its stubs are incomplete, so that the rest
of the folder holds what comes from there as `Any` behind typed functions.
"""

from __future__ import annotations

import importlib
from typing import Any


def load(name: str) -> Any:
    """A module of PyTorch."""
    return importlib.import_module(name)


torch: Any = load("torch")
fx: Any = load("torch.fx")
pytree: Any = load("torch.utils._pytree")
aten: Any = torch.ops.aten
prims: Any = torch.ops.prims
