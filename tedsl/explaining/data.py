"""What an explanation says, as data: kernels, their stages, and pairs that are not fused.

All of it is frozen; `to_json` writes it, `str` and `to_html` show it (`text.py`, `html.py`).
Counting is done by the other files of `explaining`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tedsl import saving
from tedsl.late import late
from tedsl.lower.tile_operations.missed_dots import Missed
from tedsl.scheduling.handles.fallback import Fallback
from tedsl.slips import suggests

if TYPE_CHECKING:
    from tedsl.explaining import html, steps, text
    from tedsl.scheduling.handles.schedule import Schedule
    from tedsl.scheduling.trace import replay
    from tedsl.scheduling.trace.trace import Step
else:
    html = late("tedsl.explaining.html")
    replay = late("tedsl.scheduling.trace.replay")
    steps = late("tedsl.explaining.steps")
    text = late("tedsl.explaining.text")


class Way(StrEnum):
    """How a stage got into the kernel that computes it."""

    ROOT = "root"
    INLINED = "inlined"
    ATTACHED = "attached"
    WITH = "with"
    LAST = "last"
    ACROSS = "across"
    ONLINE = "online"
    SPLIT = "split"
    CACHED = "cached"
    EXTERN = "extern"


class Bound(StrEnum):
    """What a kernel waits for most."""

    MEMORY = "memory"
    COMPUTE = "compute"
    LAUNCH = "launch"


class Verdict(StrEnum):
    """Why two kernels are not one.

    ILLEGAL: every step that would fuse them is refused, by the schedule or by the target.  WORSE,
    EQUAL, BETTER: the best of the legal steps was carried out on a copy, and is predicted to be
    slower, as fast within what the model can tell, or faster.
    """

    ILLEGAL = "illegal"
    WORSE = "not worth it"
    EQUAL = "no difference"
    BETTER = "worth it"


class Relation(StrEnum):
    """What two kernels that are not one have in common."""

    READS = "reads"
    SIBLINGS = "siblings"


@suggests()
@dataclass(frozen=True, slots=True)
class StagePlace:
    """A stage in its kernel.  `where` is a loop or a stage (`softmax.i`), empty at root;
    `recomputed` is how many times an element of it is computed, on average."""

    stage: str
    way: Way
    where: str = ""
    recomputed: float = 1.0


@suggests()
@dataclass(frozen=True, slots=True)
class Resources:
    """What a program asks for: registers of a thread, bytes of shared memory, and bytes (compiled)
    or registers (estimated) that do not fit and are spilled.

    `occupancy` is the share of a processor's warps that run at one time.  `compiled` tells figures
    of machine code from those of the static model; `limit` are the registers that a thread may have
    where that model estimated them.
    """

    registers: int
    spilled: int
    shared: int
    warps: int
    programs: int
    occupancy: float
    compiled: bool
    limit: int = 0

    @property
    def uncertain(self) -> bool:
        """True where an estimate of no spills may be wrong: estimates are often a third off."""
        return not self.compiled and not self.spilled and 2 * self.registers > self.limit > 0


@suggests()
@dataclass(frozen=True, slots=True)
class KernelCost:
    """One kernel, and all `times` that it is launched in a call.

    Attributes:
        name: of the kernel.
        stages: what is computed in it.
        reads, writes: bytes from and to device memory, by buffer; the caches are cold before the
            first kernel.  Of an explanation without caches, `loads` and `stores`.
        cached: bytes that the kernel before has left in the last cache, by buffer.
        loads, stores: bytes of every access of the statements, none spared by a cache.
        doubtful: buffers of which data decide how often they are accessed: `loads` and `stores` are
            the most there can be.
        missed: sums of products that become no `tl.dot` on a GPU, with why and what to do.
        touched: bytes of different elements that a launch reads and writes; None where uncounted.
        flops: floating-point operations.
        seconds: predicted; the longest of the parts that follow, a little more where two are close.
        memory_seconds, compute_seconds, launch_seconds: what memory, the processors and the start
            take alone.
        bound: the longest of these.
        local_bytes: what stages on the way hold, of one program or thread.
        times: launches.
        calls: the function that an extern runs, of whose operations nothing is known.
        resources: of a GPU; None on the CPU.
        remarks: what the schedule asks for and the target does otherwise.
    """

    name: str
    stages: tuple[StagePlace, ...]
    reads: Mapping[str, int]
    writes: Mapping[str, int]
    flops: int
    seconds: float
    memory_seconds: float
    compute_seconds: float
    launch_seconds: float
    bound: Bound
    local_bytes: int = 0
    times: int = 1
    calls: str = ""
    resources: Resources | None = None
    remarks: tuple[str, ...] = ()
    cached: Mapping[str, int] = field(default_factory=dict[str, int])
    loads: Mapping[str, int] = field(default_factory=dict[str, int])
    stores: Mapping[str, int] = field(default_factory=dict[str, int])
    doubtful: tuple[str, ...] = ()
    missed: tuple[Missed, ...] = ()
    touched: Mapping[str, tuple[int | None, int | None]] = field(
        default_factory=dict[str, "tuple[int | None, int | None]"]
    )

    @property
    def accessed(self) -> int:
        """Bytes of every access, none spared by a cache."""
        return sum(self.loads.values()) + sum(self.stores.values())

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return sum(self.reads.values()) + sum(self.writes.values())

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.flops / self.nbytes if self.nbytes else 0.0

    @property
    def recomputed(self) -> float:
        """How many times an element of its most repeated stage is computed."""
        return max((stage.recomputed for stage in self.stages), default=1.0)

    def __str__(self) -> str:
        return "\n".join(text.kernel_lines(self))


@suggests()
@dataclass(frozen=True, slots=True)
class Unfused:
    """The same computation with every stage a kernel of its own, scheduled by the default rules.

    `stages` are the bytes that each moves; a stage that the rules split may take several launches.
    """

    launches: int
    reads: int
    writes: int
    flops: int
    seconds: float
    stages: Mapping[str, int]

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self.reads + self.writes


@suggests()
@dataclass(frozen=True, slots=True)
class Figures:
    """What the static model says of a whole program: the numbers that fusions are judged by.

    `registers` are of the greediest kernel, `programs` of the longest.
    """

    seconds: float
    nbytes: float
    flops: float
    registers: float
    shared: int
    programs: float
    kernels: int


@suggests()
@dataclass(frozen=True, slots=True)
class Attempt:
    """Steps that would fuse two kernels, tried on a copy of the schedule.

    Attributes:
        steps: the calls.
        without: numbers of steps of the trace, from 1, that were taken back before: decisions about
            a kernel that is one no longer.
        refused: the text of the error that a call, or the lowering, raised; empty when none did.
        figures: of the program that it makes; None where refused.
    """

    steps: tuple[Step, ...]
    without: tuple[int, ...] = ()
    refused: str = ""
    figures: Figures | None = None

    @property
    def code(self) -> tuple[str, ...]:
        """The calls, as Python over a schedule `s`."""
        return tuple(steps.code_of(step) for step in self.steps)

    def force(self, schedule: Schedule) -> Schedule:
        """A copy of the schedule that was explained, after these steps.

        Raises:
            ScheduleError: a step is refused; `refused` is the text.
        """
        made = steps.without_steps(schedule, frozenset(self.without)).copy()
        for step in self.steps:
            replay.apply_step(made, step)
        return made


@suggests()
@dataclass(frozen=True, slots=True)
class Pair:
    """Two stages of different kernels: `second` reads `first`, or both read `shared`.

    Attributes:
        first, second: the stages.
        relation: which of the two it is.
        shared: the tensors that siblings both read.
        verdict: why they are not one kernel.
        reason: the refusal, or the numbers.
        attempts: what was tried; of the legal ones the best comes first.
    """

    first: str
    second: str
    relation: Relation
    shared: tuple[str, ...]
    verdict: Verdict
    reason: str
    attempts: tuple[Attempt, ...]

    @property
    def best(self) -> Attempt | None:
        """The legal attempt that is predicted to be fastest; None when there is none."""
        return next((each for each in self.attempts if not each.refused), None)

    def as_dict(self) -> dict[str, object]:
        """Names and numbers, the calls as Python."""
        data = asdict(self)
        for row, attempt in zip(data["attempts"], self.attempts, strict=True):
            row["code"] = attempt.code
            del row["steps"]
        return data

    def __str__(self) -> str:
        return "\n".join(text.pair_lines(self))


class Finder(Protocol):
    """What only a schedule tells, found when it is asked for: it takes longer."""

    def unfused(self) -> Unfused | None:
        """The program without any fusion; None where stages are tied together."""
        ...

    def now(self) -> Figures:
        """What the static model says of the schedule as it is."""
        ...

    def pairs(self) -> tuple[Pair, ...]:
        """Why kernels are not one."""
        ...


@suggests()
@dataclass(frozen=True)
class Explanation:
    """All launches of a call.

    Attributes:
        name: of the program.
        target: as it was built for.
        device: whose figures the times are predicted with.
        sizes: values of runtime sizes that were counted with.
        kernels: in the order of their launches.
        least_bytes: every input and output once, the floor for any fusion.
        workspace_bytes: what is kept in device memory between kernels.
        fallbacks: what of the default rules was refused, and what was taken in its place.
        caches: whether bytes are those of device memory behind its caches, or of every access.
        finder: what finds `unfused`, `now` and `pairs`; None for a program without a schedule.
    """

    name: str
    target: str
    device: str
    sizes: Mapping[str, int]
    kernels: tuple[KernelCost, ...]
    least_bytes: int
    workspace_bytes: int
    fallbacks: tuple[Fallback, ...] = ()
    caches: bool = True
    finder: Finder | None = field(default=None, repr=False, compare=False)

    @cached_property
    def unfused(self) -> Unfused | None:
        """The program without any fusion; None where it is not counted: without a schedule, or
        where a scan or an extern ties stages together."""
        return None if self.finder is None else self.finder.unfused()

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """Stages of different kernels of which one reads the other, and kernels that read the same,
        each with why they are not one."""
        return () if self.finder is None else self.finder.pairs()

    @cached_property
    def now(self) -> Figures | None:
        """What the static model says of the program, as fusions are judged by it."""
        return None if self.finder is None else self.finder.now()

    @property
    def reads(self) -> int:
        """Bytes that all launches read from device memory."""
        return sum(sum(kernel.reads.values()) for kernel in self.kernels)

    @property
    def writes(self) -> int:
        """Bytes that all launches write to device memory."""
        return sum(sum(kernel.writes.values()) for kernel in self.kernels)

    @property
    def nbytes(self) -> int:
        """Bytes moved by all launches."""
        return self.reads + self.writes

    @property
    def accessed(self) -> int:
        """Bytes of every access of all launches, none spared by a cache."""
        return sum(kernel.accessed for kernel in self.kernels)

    @property
    def flops(self) -> int:
        """Floating-point operations of all launches."""
        return sum(kernel.flops for kernel in self.kernels)

    @property
    def seconds(self) -> float:
        """Predicted time of a call."""
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def launches(self) -> int:
        """Kernels that a call starts."""
        return sum(kernel.times for kernel in self.kernels)

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.flops / self.nbytes if self.nbytes else 0.0

    @property
    def saved(self) -> int:
        """Bytes that the unfused program moves more; 0 where it is not counted."""
        return 0 if self.unfused is None else self.unfused.nbytes - self.nbytes

    def alone(self, kernel: KernelCost) -> int:
        """Bytes that the stages of a kernel move as kernels of their own; 0 where not counted."""
        if self.unfused is None:
            return 0
        names = dict.fromkeys(place.stage for place in kernel.stages)
        return sum(self.unfused.stages.get(name, 0) for name in names)

    def pair(self, first: str, second: str) -> Pair:
        """What is said of two stages, in the order `first`, `second`.

        Raises:
            KeyError: they are in one kernel, or have nothing in common.
        """
        for each in self.pairs:
            if (each.first, each.second) == (first, second):
                return each
        known = ", ".join(f"{each.first} and {each.second}" for each in self.pairs) or "none"
        raise KeyError(f"no pair {first!r}, {second!r}; there are: {known}")

    def to_json(self) -> str:
        """All of it, with the sums, as one JSON object."""
        data = asdict(replace(self, finder=None))
        del data["finder"]
        data["unfused"] = None if self.unfused is None else asdict(self.unfused)
        data["now"] = None if self.now is None else asdict(self.now)
        data["pairs"] = [pair.as_dict() for pair in self.pairs]
        sums = (
            "reads",
            "writes",
            "nbytes",
            "accessed",
            "flops",
            "seconds",
            "launches",
            "intensity",
            "saved",
        )
        for name in sums:
            data[name] = getattr(self, name)
        for row, kernel in zip(data["kernels"], self.kernels, strict=True):
            for name in ("nbytes", "intensity", "recomputed"):
                row[name] = getattr(kernel, name)
            row["alone"] = self.alone(kernel)
        return json.dumps(data)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write it to a file.

        Args:
            path: `.html` for one page that needs no network, `.json`, or `.txt`.

        Returns:
            The path.

        Raises:
            BackendError: another ending, or a file that cannot be written.
        """
        return saving.save(
            path,
            "an explanation",
            {
                ".html": saving.text(self.to_html),
                ".json": saving.text(self.to_json),
                ".txt": saving.text(lambda: f"{self}\n"),
            },
        )

    def to_html(self) -> str:
        """One HTML document, which needs no network."""
        return html.document(self)

    def _repr_html_(self) -> str:
        return html.fragment(self)

    def __str__(self) -> str:
        return "\n".join(text.explanation_lines(self))
