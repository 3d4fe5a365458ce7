"""What the rules ask about the processor of the CPU target, without loading a backend before it is
needed."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Processor:
    """The vector registers that generated code may use (bits of one, and how many there are), and
    how many threads may run."""

    vector_bits: int
    vector_registers: int
    threads: int = 8

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
    return Processor(here.vector_bits, here.vector_registers, threads)
