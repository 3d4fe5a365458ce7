"""The search for a fast schedule, over the choices of the rules or of a user's schedule function.

`tedsl.autotune(...)` is all that most users call.  Only the function is loaded with the package;
the search itself, its database and its displays are loaded at the first call.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tedsl.expr.nodes import Var
from tedsl.expr.tensor import Tensor
from tedsl.target import Target

if TYPE_CHECKING:
    from tedsl.autotune.driver import TuneResult
    from tedsl.runtime.kernel import Kernel
    from tedsl.scheduling.schedule import Schedule


def autotune(
    outputs: Tensor | Sequence[Tensor],
    target: str | Target | None = None,
    *,
    trials: int | None = None,
    seconds: float | None = None,
    seed: int | None = None,
    schedule: Callable[[Schedule], object] | None = None,
    records: str | Path | bool | None = None,
    progress: bool | None = None,
    sizes: Mapping[str | Var, int] | None = None,
    fresh: bool = False,
    candidate_seconds: float = 30.0,
) -> Kernel:
    """Search for a fast schedule and build it.

    Every candidate is compiled and run in a worker process, which may crash or hang without harm,
    and its outputs are checked against a reference before it may win.  All are recorded; a call
    whose budget an earlier run has covered, on the same device with the same tools, returns that
    run's winner without measuring.  Ctrl-C ends the search with the best so far.

    Args:
        outputs: the tensor to compute, or several.
        target: `"cpu"` or `"cuda"`; by default the GPU where there is one.
        trials: how many candidates to try; 64 when neither budget is given.
        seconds: how long to search; with `trials`, whichever ends first.
        seed: of the search's random choices; by default it follows from the computation.
        schedule: a function `f(s)` that schedules `s` and calls `s.knob(name, choices)` for what is
            open; without it the default rules are searched.
        records: the record file; by default one in the user's data folder.  False keeps none.  A
            name that ends in .jsonl is a text file of winners only, to be kept with a program:
            read first, written anew after a search.
        progress: True shows progress, False does not; by default it is shown on a terminal.
        sizes: values of symbolic sizes to tune for, by variable or name.
        fresh: search even when the records have an answer, and measure everything anew.
        candidate_seconds: time limit for compiling, and for measuring, one candidate.

    Returns:
        The fastest kernel; `kernel.schedule` is its schedule.

    Raises:
        TuneError: an unknown target, a missing device, no usable budget, or no candidate that ran
            correctly (with the reasons, counted).
    """
    return tune(
        outputs,
        target,
        trials=trials,
        seconds=seconds,
        seed=seed,
        schedule=schedule,
        records=records,
        progress=progress,
        sizes=sizes or {},
        fresh=fresh,
        candidate_seconds=candidate_seconds,
    ).kernel


def tune(
    outputs: Tensor | Sequence[Tensor], target: str | Target | None = None, **options: Any
) -> TuneResult:
    """`autotune`, returning all that the search learnt: every trial, what failed, the summary.

    Args:
        outputs: as for `autotune`.
        target: as for `autotune`.
        options: as for `autotune`, and `command`, the worker process to start.
    """
    module = importlib.import_module("tedsl.autotune.driver")
    result: TuneResult = module.tune(outputs, target, module.Options(**options))
    return result


__all__ = ["autotune", "tune"]
