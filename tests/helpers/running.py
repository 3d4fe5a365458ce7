"""Whether processes run."""

from __future__ import annotations

import time
from pathlib import Path


def alive(pid: int) -> bool:
    """True while process `pid` runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def gone(pid: int, seconds: float = 5.0) -> bool:
    """True once it has ended, if it does so in time."""
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)
