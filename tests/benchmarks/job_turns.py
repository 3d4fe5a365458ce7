"""A job for the tests of the runner: waits for its turn, then builds, and says when that was."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from workload import Workload


def run(load: Workload, settings: Mapping[str, Any], wait: Callable[[], None]) -> dict[str, Any]:
    """The times of the turn, on the clock that all processes share, and the device it was on."""
    if not settings.get("early"):
        wait()
    begin = time.monotonic()
    load.outputs(small=True)
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return {"begin": begin, "end": time.monotonic(), "device": device}
