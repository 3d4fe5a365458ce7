"""The search for a fast schedule, over the choices of the rules or of a user's schedule function.

`tedsl.autotune(...)` is all that most users call.  Only the function is loaded with the package;
the search itself, its database and its displays are loaded at the first call.

In the order in which a search passes through them:

- `frontend`: what a user gives, and what comes back
- `tuner`: one search; `under_way`: its batches; `closing`: how it ends; `multi`: several sizes or
  problems in one
- `search_space`: what there is to choose; `search`: which candidates to try
- `workers`, `cluster`: processes and devices that try them; `measure`: what is done there
- `outcome`: what a trial gave; `records`: kept for the next search
- `report`: what a user sees

What a kernel should cost (`tedsl.cost`), whether it is right (`tedsl.checking`) and how a
computation travels (`tedsl.workload`) are below the search.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

from tedsl.target import Target
from tedsl.tensor.tensor import Outputs

if TYPE_CHECKING:
    from tedsl.autotune.frontend.options import CommonOptions, SizesOptions, TuneOptions
    from tedsl.autotune.frontend.result import TuneResult
    from tedsl.autotune.frontend.space_summary import Listing
    from tedsl.autotune.multi.dispatcher import Dispatcher
    from tedsl.autotune.multi.task_scheduler import ManyResult, Tasks
    from tedsl.runtime.kernel import Kernel
    from tedsl.scheduling.handles.schedule import Schedule


@overload
def autotune(
    outputs: Outputs,
    target: str | Target | None = None,
    **options: Unpack[TuneOptions],
) -> Kernel: ...


@overload
def autotune(
    outputs: Outputs | Callable[..., Outputs],
    target: str | Target | None = None,
    **options: Unpack[SizesOptions],
) -> Dispatcher: ...


def autotune(
    outputs: Outputs | Callable[..., Outputs],
    target: str | Target | None = None,
    **options: Any,
) -> Kernel | Dispatcher:
    """Search for a fast schedule and build it.

    Every candidate is compiled and run in a worker process, which may crash or hang without harm,
    and its outputs are checked against a reference before it may win.  All are recorded; a call
    whose budget an earlier run has covered, on the same device with the same tools, returns that
    run's winner without measuring.  Ctrl-C ends the search with the best so far.

    With several sizes, `sizes=[{...}, {...}]` or ranges (`te.sizes`), one search serves all: a few
    kernels such that at each size one is within 5 % of the fastest that was found there.

    Args:
        outputs: the tensor to compute, or several, or a program of `tedsl.torch.trace`; for several
            sizes also a function from sizes, by name, to tensors of these constant sizes.
        target: `"cpu"` or `"cuda"`; by default the GPU where there is one.
        options: `budget`, `trials`, `seconds`, `schedule`, `records`, `lock`, `sizes`, ...: see
            `tedsl.autotune.frontend.options.TuneOptions` and `SizesOptions`.

    Returns:
        The fastest kernel; `kernel.schedule` is its schedule, `kernel.tuning` all that the search
        learnt.  For several sizes a dispatcher, to
        be called like a kernel; `print` it for its table, `dispatch.source` is how it decides.

    Raises:
        TuneError: an unknown option or target, a missing device, no usable budget, no candidate
            that ran correctly (with the reasons, counted), or nothing pinned under `frozen`.
    """
    sizes = importlib.import_module("tedsl.autotune.frontend.sizes")
    if not sizes.are_many(options.get("sizes", {})):
        return tune(cast("Outputs", outputs), target, **options).kernel
    module = importlib.import_module("tedsl.autotune.frontend.driver")
    found: Dispatcher = module.tune_sizes(outputs, target, module.options_of(options))
    return found


def tune(outputs: Outputs, target: str | Target | None = None, **options: Any) -> TuneResult:
    """`autotune`, returning all that the search learnt: every trial, what failed, the summary.

    Args:
        outputs: as for `autotune`.
        target: as for `autotune`.
        options: as for `autotune`, and `command`, the worker process to start.
    """
    module = importlib.import_module("tedsl.autotune.frontend.driver")
    result: TuneResult = module.tune(outputs, target, module.options_of(options))
    result.kernel.tuning = result
    return result


def tune_many(
    tasks: Tasks, target: str | Target | None = None, **options: Unpack[CommonOptions]
) -> ManyResult:
    """Search for fast schedules of many problems under one budget, spent where it pays most.

    Args:
        tasks: `(name, outputs)` or `(name, outputs, weight)` each, where the weight says how often
            the kernel is to run; or `tedsl.autotune.multi.task_scheduler.Task`, which also takes
            sizes.
        target: as for `autotune`.
        options: as for `autotune`; `trials` and `seconds` are those of all tasks together, by
            default 64 trials for each.  `devices=[0, 1]` measures on several GPUs, `executor=` on
            other hosts.

    Returns:
        The result of each task by its name: `found["head"].kernel`; `print` it for a table.

    Raises:
        TuneError: the search cannot start, or nothing ran correctly for any task.
    """
    driver = importlib.import_module("tedsl.autotune.frontend.driver")
    module = importlib.import_module("tedsl.autotune.multi.task_scheduler")
    found: ManyResult = module.tune_many(tasks, target, driver.options_of(options))
    return found


def space(
    outputs: Outputs,
    target: str | Target,
    *,
    schedule: Callable[[Schedule], object] | None = None,
    samples: int = 64,
    seed: int = 0,
) -> Listing:
    """What a search for `outputs` on `target` may choose from.

    Args:
        outputs: the tensor to compute, or several, or a program of `tedsl.torch.trace`.
        target: `"cpu"` or `"cuda"`; no device is needed.
        schedule: a function that schedules with open choices (`te.auto`, `s.knob`); without it the
            default rules.
        samples: how many candidates to draw, for the size and to meet knobs that the default
            schedule does not have; at most 100,000.
        seed: of the draws.

    Returns:
        The space: `print` it for its size and for each knob its choices, its default and what it
        depends on; `.to_json()` is the same as data.

    Raises:
        TuneError: `samples` is no such number, or the computation cannot be searched.
    """
    module = importlib.import_module("tedsl.autotune.frontend.space_summary")
    found: Listing = module.list_space(outputs, target, schedule, samples, seed)
    return found


__all__ = ["autotune", "space", "tune", "tune_many"]
