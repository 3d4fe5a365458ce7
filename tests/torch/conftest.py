"""Each test compiles its graphs anew: none is found where an earlier run kept it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """Without AOTAutograd's own cache on disk; `test_whole_graphs.py` turns it on."""
    if importlib.util.find_spec("torch") is None:
        yield
        return
    config: Any = importlib.import_module("torch._functorch.config")
    with config.patch(enable_autograd_cache=False):
        yield
