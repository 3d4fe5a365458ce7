"""Switches of faults in a copy of the package (`random_faults.py`): which is on, who comes by."""

from __future__ import annotations

import os
from pathlib import Path

ACTIVE = int(os.environ.get("TEDSL_FAULT") or -1)
HITS = os.environ.get("TEDSL_FAULT_HITS", "")
_seen: set[tuple[int, str]] = set()


def on(number: int) -> bool:
    """Whether the fault is switched on; with none on, notes that the running test came here."""
    if ACTIVE >= 0 or not HITS:
        return number == ACTIVE
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if (number, test) not in _seen:
        _seen.add((number, test))
        with (Path(HITS) / str(os.getpid())).open("a", encoding="utf-8") as file:
            file.write(f"{number} {test}\n")
    return False
