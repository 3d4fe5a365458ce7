"""What the rules ask about the processor of the CPU target, without loading a backend before it is
needed."""

from __future__ import annotations

import importlib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, slots=True)
class Processor:
    """The vector registers that generated code may use (bits of one, and how many there are), how
    many threads may run, and the bytes of the second cache, which each of them has for itself."""

    vector_bits: int
    vector_registers: int
    threads: int = 8
    cache: int = 1 << 20

    def lanes(self, nbytes: int) -> int:
        """Elements of `nbytes` bytes in one register."""
        return max(1, self.vector_bits // (8 * max(1, nbytes)))


COMMON = Processor(256, 16)
"""Assumed where the code generator is not installed, so that schedules can be looked at."""


def processor() -> Processor:
    """The processor of this machine."""
    if importlib.util.find_spec("llvmlite") is None:
        return COMMON
    here = importlib.import_module("tedsl.backends.cpu.machine").machine()
    threads = importlib.import_module("tedsl.backends.cpu.threads").available()
    cache = cache_sizes().get(2, COMMON.cache)
    return Processor(here.vector_bits, here.vector_registers, threads, cache)


def cache_sizes(folder: Path = CACHES) -> dict[int, int]:
    """Bytes of the data caches of a processor by level; empty where the system does not tell."""
    found: dict[int, int] = {}
    for cache in sorted(folder.glob("index*")):
        size = re.fullmatch(r"(\d+)([KMG]?)", _text(cache / "size"))
        level = _text(cache / "level")
        if size and level.isdigit() and _text(cache / "type") != "Instruction":
            found[int(level)] = int(size[1]) << {"K": 10, "M": 20, "G": 30}.get(size[2], 0)
    return found


def _text(path: Path) -> str:
    """The text of a system file; empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
