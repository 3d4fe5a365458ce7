"""`tune`: from the tensors and the options to the result.

Looks in the records first, and searches when they have no answer.  Imports everything else of
`autotune`.  Loaded by `tedsl.autotune.autotune` at its first call.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Generator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

from tedsl.autotune.cluster.cluster import Farm
from tedsl.autotune.cluster.device_host import Place
from tedsl.autotune.frontend.lockfile import DEFAULT, LockFile
from tedsl.autotune.frontend.result import TuneResult
from tedsl.autotune.frontend.settings import DEFAULT_TRIALS, MOST_SECONDS, Options, options_of
from tedsl.autotune.frontend.sizes import one_size, weighted
from tedsl.autotune.multi.dispatcher import Dispatcher
from tedsl.autotune.multi.multi_size import Joint, Make
from tedsl.autotune.records.database import Records, default_path
from tedsl.autotune.records.machine import context_of
from tedsl.autotune.search.budget import BUDGETS, trials_of
from tedsl.autotune.search_space.problem import Problem
from tedsl.autotune.tuner import Tuner, finished
from tedsl.build import default_target
from tedsl.errors import BackendError, TuneError
from tedsl.slips import advice
from tedsl.target import Target, TargetKind
from tedsl.tensor.tensor import Outputs
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload


def tune(outputs: Outputs, target: str | Target | None, options: Options) -> TuneResult:
    """Find a fast schedule; `autotune` with everything it learnt.

    Raises:
        TuneError: the search cannot start, or nothing ran correctly.
    """
    begin = time.monotonic()
    check_options(options)
    chosen = target_of(target)
    workload = Workload.of(outputs)
    problem = Problem(workload.outputs, chosen, options.schedule)
    space = problem.space()
    sizes = one_size(options.sizes)
    Extents(workload, sizes)  # every symbolic size has a value
    known = [var.name for var in workload.variables]
    for name in sizes:
        if name not in known:
            raise TuneError(
                f"the computation has no size {name!r}",
                subject="autotune",
                hint=advice(name, known, "sizes={{{!r}: ...}}") if known else "leave sizes= out",
            )
    context = context_of(
        workload, chosen, space.name, json.dumps(sizes, sort_keys=True, separators=(",", ":"))
    )
    lock = _lock_file(options)
    pinned = None
    if lock is not None and not options.fresh:
        pinned = lock.pinned(context, space, frozen=options.frozen)
    with closing(open_records(options.records)) as records:
        tuner = Tuner(problem, space, workload, context, records, options, sizes, begin)
        if pinned is not None:
            return tuner.chosen(pinned)
        if options.budget is not None and not trials_of(options.budget):
            return tuner.choose()
        found = None if options.fresh else tuner.replay()
        with tuner.interrupts if found is None else nullcontext():  # until all of it is kept
            if found is None:
                found = _search(tuner, options)
            if tuner.ledger.run:
                keep(records, options.records)
            records.close()
            if lock is not None and found.winner.outcome.seconds is not None:
                names = ", ".join(tensor.name for tensor in workload.outputs)
                with _kept(lock.path):
                    lock.pin(context, names, found.winner.candidate, found.winner.seconds)
    return found


def _search(tuner: Tuner, options: Options) -> TuneResult:
    """Run a search, here or where its options say."""
    if options.devices is None and options.executor is None:
        return tuner.run()
    place = Place(tuner.problem.target, seconds=options.candidate_seconds)
    with Farm(place, options.devices, options.executor) as farm:
        return finished(tuner.steps(tuner.share(farm)))


def tune_sizes(
    outputs: Outputs | Make, target: str | Target | None, options: Options
) -> Dispatcher:
    """Find a few kernels for many sizes; `autotune` with `sizes=[...]`.

    Raises:
        TuneError: the search cannot start, or at some size nothing ran correctly.
    """
    check_options(options)
    _check_set(options)
    chosen = target_of(target)
    sizes = weighted(options.sizes)
    lock = _lock_file(options)
    place = Place(chosen, seconds=options.candidate_seconds)
    with (
        closing(open_records(options.records)) as records,
        Farm(place, options.devices, options.executor) as farm,
    ):
        joint = Joint(outputs, chosen, sizes, records, options, farm)
        if lock is not None and not options.fresh:
            pinned = joint.pinned(lock)
            if pinned is not None:
                return pinned
        replayed = None if options.fresh else joint.replay()
        found = joint.run() if replayed is None else replayed
        if replayed is None:
            keep(records, options.records)
        if lock is not None:
            with _kept(lock.path):
                joint.pin(lock, found)
    return found


def _lock_file(options: Options) -> LockFile | None:
    """The lock file asked for; the usual one where a frozen search names none."""
    if options.lock is None:
        return LockFile(DEFAULT) if options.frozen else None
    return LockFile(Path(options.lock))


def open_records(where: str | Path | bool | None) -> Records:
    """The record file asked for; False keeps records in memory, a .jsonl file is read first."""
    if where is None or where is True:
        return Records(default_path())
    if where is False:
        return Records(None)
    path = Path(where)
    if path.suffix != ".jsonl":
        return Records(path)
    records = Records(None)
    if path.exists():
        records.load(path)
    return records


def keep(records: Records, where: str | Path | bool | None) -> None:
    """Write the winners to the .jsonl file asked for, with what others wrote to it meanwhile."""
    path = None if where is None or isinstance(where, bool) else Path(where)
    if path is not None and path.suffix == ".jsonl":
        with _kept(path):
            if path.exists():
                records.load(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            records.export(path, winners_only=True)


@contextmanager
def _kept(path: Path) -> Generator[None]:
    """Within, a search that has found its winner writes a file: where it cannot, it says so."""
    try:
        yield
    except (OSError, TuneError) as error:
        warnings.warn(
            f"the winner was found, but could not be written to {path}: {error}",
            RuntimeWarning,
            stacklevel=3,
        )


def target_of(target: str | Target | None) -> str:
    """`cpu` or `cuda`.

    Raises:
        TuneError: anything else.
    """
    try:
        parsed = default_target() if target is None else Target.parse(target)
    except BackendError as error:
        raise TuneError(
            f"unknown target {target!r}",
            subject="autotune",
            facts=[("allowed", "cpu, cuda")],
            hint='use target="cpu" where there is no GPU',
        ) from error
    if parsed.arch is not None or parsed.kind is TargetKind.TRITON_INTERPRET:
        raise TuneError(
            f"candidates cannot be timed on the target {str(parsed)!r}",
            subject="autotune",
            facts=[("allowed", "cpu, cuda")],
            hint='use target="cuda" on a machine with a GPU, or target="cpu"',
        )
    return parsed.kind.value


def _check_set(options: Options) -> None:
    """Refuse a set of kernels that makes no sense."""
    if options.asked == 0:
        raise TuneError(
            'budget="none" measures nothing, and only times say which kernel serves which size',
            subject="autotune",
            hint="name another budget: " + ", ".join(list(BUDGETS)[1:]),
        )


def check_options(options: Options) -> None:
    """Refuse budgets that make no sense, and a frozen search that is to be done anew."""
    if options.frozen and options.fresh:
        raise TuneError(
            "frozen=True and fresh=True contradict each other",
            subject="autotune",
            hint="frozen takes the schedule that the lock file pins; fresh searches anew",
        )
    if options.budget is not None:
        trials_of(options.budget)
        if options.trials is not None:
            raise TuneError(
                f"budget={options.budget!r} and trials={options.trials} are two budgets",
                subject="autotune",
                hint="give one of them; seconds= may be added to either",
            )
        if options.seconds is not None and not trials_of(options.budget):
            raise TuneError(
                f"budget={options.budget!r} measures nothing, so seconds= bounds nothing",
                subject="autotune",
                hint="leave seconds= out, or name another budget: " + ", ".join(BUDGETS),
            )
    if options.kernels < 1 or not options.within >= 0:
        raise TuneError(
            f"kernels={options.kernels!r}, within={options.within!r} describe no set of kernels",
            subject="autotune",
            hint="allow at least one kernel, and a slowdown of 0 or more (0.05 is 5 %)",
        )
    if not 0 < options.candidate_seconds < MOST_SECONDS:
        raise TuneError(
            f"candidate_seconds={options.candidate_seconds!r} is no time",
            subject="autotune",
            facts=[("allowed", f"above 0, below {MOST_SECONDS:.0f}")],
            hint="give the seconds that compiling or measuring one candidate may take (30)",
        )
    for name, value in (("trials", options.trials), ("seconds", options.seconds)):
        if value is not None and not value > 0:
            raise TuneError(
                f"{name}={value!r} is no budget",
                subject="autotune",
                hint=f"give {name} above 0, or leave it out ({DEFAULT_TRIALS} trials by default)",
            )


__all__ = ["Options", "TuneResult", "options_of", "tune", "tune_sizes"]
