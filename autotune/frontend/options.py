"""What a search may be told, by name: the keywords of `te.autotune`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Required, TypedDict

from tedsl.autotune.frontend.sizes import OneSize, Sizes

if TYPE_CHECKING:
    from tedsl.autotune.report.events import Event
    from tedsl.scheduling.handles.schedule import Schedule


class CommonOptions(TypedDict, total=False):
    """The keywords of every search; none has to be given.

    Attributes:
        budget: `"none"`, `"quick"`, `"normal"` or `"full"`: 0, 16, 64 or 256 candidates; `normal`
            when nothing else bounds the search.  With `none` nothing is measured: what is recorded
            wins, else what a model holds for fastest.
        trials: in place of `budget`, how many candidates to try.
        seconds: how long to search; with `budget` or `trials`, whichever ends first.  What is under
            way then has some seconds more; where nothing is measured by then, the default schedule
            is built as it is.
        seed: of the search's random choices; by default it follows from the computation.
        schedule: a function `f(s)` that schedules `s` and calls `s.knob(name, choices)` for what is
            open; without it the default rules are searched.
        records: the record file; by default one in the user's data folder.  False keeps none.  A
            name that ends in .jsonl is a text file of winners only, to be kept with a program:
            read first, written anew after a search.
        progress: True shows progress, False does not; by default it is shown on a terminal,
            and elsewhere by a line every ten seconds.
        events: a file to which every event of the search is appended, a JSON object on each line,
            or a function that is called with each (see `tedsl.autotune.report.events`).
        fresh: search even when the records have an answer, and measure everything anew.
        candidate_seconds: time limit for compiling, and for measuring, one candidate.
        lock: a `tedsl.lock`, kept with the program: the schedule that it pins for this computation
            is taken as it is; what it does not know is searched for and written to it.
        frozen: with True, what the lock file (`tedsl.lock` here when none is named) does not pin is
            an error, so that all ranks of a job and all runs of a test use the same schedules.
        devices: indices of the GPUs of this machine to measure on, all of one model; by default the
            current one.
        executor: what carries candidates to where they are compiled and measured, any
            `concurrent.futures.Executor` whose processes can import tedsl; or a function that makes
            it, which is called again when it breaks.
    """

    budget: str | None
    trials: int | None
    seconds: float | None
    seed: int | None
    schedule: Callable[[Schedule], object] | None
    records: str | Path | bool | None
    progress: bool | None
    events: str | Path | Callable[[Event], object] | None
    fresh: bool
    candidate_seconds: float
    lock: str | Path | None
    frozen: bool
    devices: Sequence[int] | None
    executor: Executor | Callable[[], Executor] | None


class TuneOptions(CommonOptions, total=False):
    """The keywords of `te.autotune` for one size.

    Attributes:
        sizes: values of symbolic sizes to tune for, by variable or name.
    """

    sizes: OneSize


class SizesOptions(CommonOptions, total=False):
    """The keywords of `te.autotune` for many sizes.

    Attributes:
        sizes: a list of sizes, each a mapping from names to values, alone or with a weight; or one
            mapping in which some values are ranges (`te.sizes.uniform`, `te.sizes.log_uniform`).
        within: by how much a kernel may be slower than the fastest candidate at a size it serves.
        kernels: how many kernels there may be; where they do not suffice for `within`, the set with
            the least geometric mean of slowdowns is taken.
    """

    sizes: Required[Sizes]
    within: float
    kernels: int
