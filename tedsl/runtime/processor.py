"""What the rules ask about the processor of the CPU target, without loading a backend before it is
needed."""

from __future__ import annotations

import importlib
import importlib.util
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
    return Processor(here.vector_bits, here.vector_registers, threads, second_cache())


def second_cache(folder: Path = CACHES) -> int:
    """Bytes of the second cache; what is common where the system does not tell."""
    path = folder / "index2" / "size"
    text = path.read_text().strip() if path.exists() else ""
    digits, unit = text.rstrip("KM"), text[-1:]
    if not digits.isdigit():
        return COMMON.cache
    return int(digits) << {"K": 10, "M": 20}.get(unit, 0)
