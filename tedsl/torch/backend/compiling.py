"""The kernels of a graph's regions: known ones, those on disk, those that a search finds, the rest
by the rules.

Imported `region` and, when a search is asked for, `autotune`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tedsl.backends.parallel import in_parallel
from tedsl.backends.processes.beside import Beside, beside
from tedsl.build import BESIDE, BESIDE_SECONDS
from tedsl.errors import TuneError
from tedsl.late import late
from tedsl.torch import kept
from tedsl.torch.backend.options import Budget, Options
from tedsl.torch.backend.region import Region, imports_of, structure
from tedsl.torch.backend.report import RegionReport
from tedsl.torch.compiled import Compiled
from tedsl.torch.importer.graph import Imported
from tedsl.torch.lib import pytree, torch
from tedsl.torch.refusals import CompilerFault, first_line

if TYPE_CHECKING:
    from tedsl.autotune.frontend import driver
    from tedsl.autotune.multi import task_scheduler
else:
    driver = late("tedsl.autotune.frontend.driver")
    task_scheduler = late("tedsl.autotune.multi.task_scheduler")


def compile_regions(regions: Sequence[Region], options: Options) -> None:
    """Give each region its kernel; regions of one structure have one."""
    groups: dict[str, list[Region]] = {}
    for region in regions:
        groups.setdefault(structure(region.part), []).append(region)
    fresh: dict[str, list[Region]] = {}
    for text, alike in groups.items():
        known = options.known.get(text)
        if known is not None:
            for region in alike:
                region.adopt(known)
        else:
            fresh[text] = alike
    budget = options.budget
    search = _Search(options, budget) if budget is not None else None
    if search is not None:
        search.run(fresh)
    made = _compiled(fresh, search)
    for (text, (_, *others)), (label, compiled) in zip(fresh.items(), made, strict=True):
        options.known[text] = compiled
        for region in others:
            if compiled is not None:
                region.adopt(compiled)
            else:
                region.compile(label, imports_of(region.part, {}))


def _compiled(
    groups: dict[str, list[Region]], search: _Search | None
) -> list[tuple[str, Compiled | None]]:
    """The kernel of the first region of each group, and under what it is kept.

    Those of a GPU are made at once: in processes beside this one, where they are many, else in
    threads, as Triton and ptxas let others run.  LLVM takes a third of the time of a program for
    the CPU, in many short calls that each wait for Python again: with threads it was as long.
    """
    where = _beside(groups, search)
    jobs: list[tuple[Region, str, Imported | CompilerFault, Any]] = []
    for text, (first, *_) in groups.items():
        found = None if search is None else search.schedules.get(text)
        imported, schedule = found or (imports_of(first.part, {}), None)
        jobs.append((first, text if search is None else search.label(text), imported, schedule))
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else -1

    def compiled(job: tuple[Region, str, Imported | CompilerFault, Any]) -> Compiled | None:
        region, label, imported, schedule = job
        with torch.cuda.device(device):
            if where is not None and schedule is None and isinstance(imported, Imported):
                kept.make_beside(where, kept.key_of(label, region.target), imported)
            return region.compile(label, imported, schedule)

    if any(region.target != "cpu" for region, *_ in jobs):
        kernels = in_parallel(compiled, jobs)
    else:
        kernels = list(map(compiled, jobs))
    return [(label, kernel) for (_, label, *_), kernel in zip(jobs, kernels, strict=True)]


def _beside(groups: dict[str, list[Region]], search: _Search | None) -> Beside | None:
    """The processes that schedule and compile, started while the regions are being imported."""
    made = [
        text
        for text, (first, *_) in groups.items()
        if first.target != "cpu" and (search is None or text not in search.schedules)
    ]
    labels = made if search is None else [search.label(text) for text in made]
    count = sum(not kept.is_kept(kept.key_of(label, "cuda")) for label in labels)
    return beside(BESIDE, count, BESIDE_SECONDS)


class _Search:
    """One search for the regions of a graph.

    Attributes:
        schedules: found, by the text of the region.
    """

    def __init__(self, options: Options, budget: Budget) -> None:
        self.options, self.budget = options, budget
        self.schedules: dict[str, tuple[Imported, Any]] = {}
        self._kept: set[str] = set()

    def label(self, text: str) -> str:
        """Under what the kernel of a region is kept: what was searched for apart from the rest."""
        searched = text in self.schedules or text in self._kept
        return self._asked(text) if searched else text

    def _asked(self, text: str) -> str:
        return f"{text}\nsearch {self.options.search} {self.options.seconds}"

    def run(self, groups: dict[str, list[Region]]) -> None:
        """Search for all that was not found before, the heaviest first."""
        known: dict[str, Imported] = {}
        tasks: list[tuple[float, str, Any]] = []
        for n, (text, alike) in enumerate(groups.items()):
            first = alike[0]
            made = imports_of(first.part, {})
            if isinstance(made, CompilerFault):
                continue  # `compile` says so
            if kept.find(
                kept.key_of(self._asked(text), first.target), made.sizes.variables, first.target
            ):
                first.report.search = "found on disk"
                self._kept.add(text)
                continue
            known[text] = made
            name, outputs = f"{n}: {first.report.name}", list(made.tensors)
            task = task_scheduler.Task(name, outputs, len(alike), _examples(first))
            tasks.append((_bytes(first) * len(alike), text, task))
        tasks.sort(key=lambda each: -each[0])
        reports = {text: groups[text][0].report for _, text, _ in tasks}
        if tasks and self.budget.seconds <= 0:
            for report in reports.values():
                report.search = "the budget is spent"
        elif tasks:
            target = groups[tasks[0][1]][0].target
            self._tune({task.name: (text, task) for _, text, task in tasks}, target, known, reports)

    def _tune(
        self,
        tasks: dict[str, tuple[str, Any]],
        target: str,
        known: dict[str, Imported],
        reports: dict[str, RegionReport],
    ) -> None:
        begin = time.monotonic()
        settings = driver.Options(
            trials=self.budget.trials * len(tasks),
            seconds=self.budget.seconds,
            records=self.options.records,
        )
        try:
            found = task_scheduler.tune_many([task for _, task in tasks.values()], target, settings)
        except TuneError as error:
            for report in reports.values():
                report.search = first_line(error)
            return
        finally:
            self.options.note_search(begin)
        for name, (text, _) in tasks.items():
            if name in found.failed:
                reports[text].search = found.failed[name].reason
                continue
            result = found[name]
            gain = f", {result.speedup:.2f}x the default" if result.speedup else ""
            source = "recorded" if result.replayed else f"{len(result.trials)} trials"
            reports[text].search = f"{source}{gain}"
            self.schedules[text] = known[text], result.kernel.schedule


def _examples(region: Region) -> dict[str, int]:
    """Sizes of the example that PyTorch traced, by symbol."""
    found: dict[str, int] = {}
    for node in region.part.inputs:
        fake = node.meta.get("val")
        sizes = fake.shape if isinstance(fake, torch.Tensor) else (fake,)
        for size in sizes:
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                found[str(size.node.expr)] = int(size.node.hint)
    return found


def _bytes(region: Region) -> float:
    """What a region reads and writes in the example."""
    nodes = (*region.part.inputs, *region.part.results)
    total = 0.0
    for fake in pytree.tree_leaves([node.meta.get("val") for node in nodes]):
        if isinstance(fake, torch.Tensor):
            count = 1.0
            for size in fake.shape:  # pyright: ignore[reportUnknownVariableType,reportUnknownMemberType]
                count *= size if isinstance(size, int) else int(size.node.hint or 1)  # pyright: ignore
            total += count * fake.element_size()  # pyright: ignore[reportUnknownMemberType]
    return total
