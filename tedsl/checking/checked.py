"""`checked`: every primitive call is followed by a check of the schedule's numbers.

What is checked and how is in `tedsl.checking.step_check`, which is loaded at the first use; this
file holds what a user sees.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tedsl.expr.nodes import Var
from tedsl.scheduling.handles.observers import watched
from tedsl.slips import suggests

Sizes = Mapping["str | Var", "int | Sequence[int]"]


@suggests()
@dataclass(frozen=True, slots=True)
class CheckedStep:
    """What was checked after one step.

    `sizes` are the sizes the schedule ran with, one text for each run (`n=5, m=0`); `targets` the
    lowerings that ran.  `smaller` is True when a copy of the computation with smaller constant
    extents stood for it.  `unchecked` says why nothing ran, where nothing did.
    """

    number: int
    text: str
    sizes: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    smaller: bool = False
    unchecked: str = ""


@suggests()
@dataclass(slots=True)
class Checks:
    """The checks made so far in a `with te.checked()` block."""

    steps: list[CheckedStep] = field(default_factory=list[CheckedStep])

    def __str__(self) -> str:
        lines: list[str] = []
        for step in self.steps:
            sizes = "; ".join(size for size in step.sizes if size)
            how = f"{', '.join(step.targets)}{f' at {sizes}' if sizes else ''}"
            how += " (a smaller copy)" if step.smaller else ""
            lines.append(f"step {step.number}, {step.text}: {step.unchecked or how}")
        return "\n".join(lines)


@contextmanager
def checked(sizes: Sizes | None = None, seed: int = 0, points: int = 1 << 14) -> Generator[Checks]:
    """Within the block, check the numbers of a schedule after every primitive call.

    After each call the schedule is lowered, for the CPU and for Triton, and the loop IR runs in its
    interpreter on small random inputs; the outputs must be those of the definition, which NumPy
    evaluates.  Symbolic sizes are drawn: odd ones, then 1 for all, then 0 for one of them.
    Constant extents stay as they are while the computation has at most `points` points; otherwise a
    copy of it with smaller extents, scheduled by the same calls, stands for it.  Only the code (and
    the thread or task) inside the block is concerned.

    Args:
        sizes: what a symbolic size may be: a number, or several to draw from.
        seed: of sizes and inputs.
        points: how many points of iteration spaces one run may have.

    Returns:
        The checks made, as the value of `with te.checked() as checks`; `print(checks)` shows them.

    Raises:
        InternalError: a primitive changed the result: a bug in tedsl.  The step is taken back.
        ScheduleError: the computation is too large to be run and cannot be made smaller.
    """
    checks = Checks()
    module: Any = importlib.import_module("tedsl.checking.step_check")
    checker = module.StepChecker(checks, dict(sizes or {}), seed, points)
    with watched(checker.check):
        yield checks
