"""What of the default rules was refused for a computation, as data: the rules write it
(`tedsl.schedules.fallback`), `te.explain` shows it.  Imports nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fallback:
    """One rule that was refused.

    Attributes:
        stages: of the definition, that have another schedule for it.
        kernel: the stage in whose kernel the refusal arose; empty where that is not known.
        reason: the first line of the error.
        taken: the rule that was taken in its place.
    """

    stages: tuple[str, ...]
    kernel: str
    reason: str
    taken: str

    def __str__(self) -> str:
        where = f" in the kernel {self.kernel}" if self.kernel else ""
        return f"{', '.join(self.stages)}: {self.taken}, since{where}: {self.reason}"
