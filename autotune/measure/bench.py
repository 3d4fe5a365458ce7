"""Guarded arrays, what the outputs must be, and a clock: where a candidate is checked and timed.

Every candidate: two kinds of inputs, outputs poisoned before and red zones looked at after each
run, inputs that must not change, and a second run whose outputs must have the same bits.  One that
may win, being about as fast as the best so far, goes through more: rows of zeros, of equal, tiny,
negative or masked values, very large and very small numbers, NaN and infinities, small odd sizes
where sizes are symbolic, and one more run on poisoned outputs after it was timed.  The one that is
to win is called so often again that a fault of one call in fifty shows.  Imports `guarded_buffers`,
`checking.other_sizes` and `reference_cache`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tedsl.autotune.measure.guarded_buffers import Arena, Guarded, Wanted, open_arena
from tedsl.autotune.measure.reference_cache import References
from tedsl.autotune.workers.protocol import CALLS
from tedsl.checking.expected_outputs import argument_order, scalars_of
from tedsl.checking.other_sizes import other_sizes, serves
from tedsl.checking.random_inputs import ADVERSE, KINDS
from tedsl.errors import ExprError, TuneError
from tedsl.runtime.kernel import Kernel
from tedsl.tensor.tensor import Tensor
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload

RACE = 5
"""Samples after which a clearly slower candidate is dropped."""
HOPELESS = 1.5
"""What is this many times slower than the best, in its fastest sample, is dropped."""
RUN_FACTOR, RUN_SECONDS = 100.0, 0.1
"""What a single run may take on a device before it is given up: so many times the best, and at
least so long."""
NEAR = 1.1
"""What is within this factor of the best may win."""
REPEATS = 15
SAMPLE_SECONDS = 1.0
DRIFT = 0.02
VERIFY_SECONDS = 1.0
"""What such calls may take, where nobody says."""
CONSENTS = ("atomic",)
"""Primitives that say that the order of additions does not matter."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found wrong: `wrong` or `nondeterministic`, the reason, the whole text."""

    status: str
    reason: str
    text: str


class UnfinishedError(Exception):
    """A run has not ended in `seconds`; the device goes on with it until this process ends."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Stand:
    """Inputs and outputs of one size, and what the outputs must be.

    Args:
        arena: where arrays live.
        size: the sizes.
        target: for the oracle.
        seed: of the inputs.
        folder: where references are kept for a process that takes over.
    """

    def __init__(self, arena: Arena, size: Extents, target: str, seed: int, folder: Path) -> None:
        self.arena = arena
        self.size = size
        self.workload = size.workload
        self.references = References(size, target, seed, folder)
        self.inputs: dict[str, dict[Tensor, Guarded]] = {}
        self.sums: dict[str, dict[Tensor, int]] = {}
        self.wanted: dict[str, list[Wanted] | None] = {}
        self.outputs = self.empty_outputs()

    def put(self, kind: str, count: int = 1) -> list[dict[Tensor, Guarded]]:
        """So many more copies of the inputs of a kind."""
        host = self.references.inputs(kind) if count else {}
        return [{t: self.arena.put(a, t.dtype) for t, a in host.items()} for _ in range(count)]

    def empty_outputs(self) -> list[Guarded]:
        """One more set of outputs."""
        return [self.arena.empty(self.size.shape(t), t.dtype) for t in self.workload.outputs]

    def ready(self, kind: str) -> bool:
        """Make inputs and reference of a kind; False where it asks for what has no one answer."""
        if kind not in self.wanted:
            made = self.references.get(kind)
            if made is None:
                self.wanted[kind] = None
                return False
            host = self.references.inputs(kind)
            found, noises = made
            excuses = self.references.excuses(kind)
            self.wanted[kind] = [
                self.arena.want(array, replace(tolerance, noise=noise), excuse)
                for array, tolerance, noise, excuse in zip(
                    found, self.references.tolerances, noises, excuses, strict=True
                )
            ]
            self.inputs[kind] = {t: self.arena.put(a, t.dtype) for t, a in host.items()}
            self.sums[kind] = {t: self.arena.checksum(g) for t, g in self.inputs[kind].items()}
        return self.wanted[kind] is not None

    def check(
        self, kernel: Kernel, kinds: Sequence[str], twice: bool, limit: float | None = None
    ) -> Finding | None:
        """What is wrong with a kernel's results, or None.  What it spoilt is made again.

        Raises:
            UnfinishedError: a run takes longer than `limit` seconds.
        """
        for number, kind in enumerate(kinds):
            if not self.ready(kind):
                continue
            finding = self._check(kernel, kind, twice and number == 0, limit)
            if finding is not None:
                self._restore(kind)
                return finding
        return None

    def call(
        self, kernel: Kernel, inputs: dict[Tensor, Guarded], outputs: Sequence[Guarded]
    ) -> Callable[[], object]:
        """A call of the kernel with everything bound."""
        arguments = [inputs[t].array for t in argument_order(kernel)]
        out = tuple(g.array for g in outputs)
        scalars = scalars_of(kernel, self.size)
        return lambda: kernel(*arguments, out=out, **scalars)

    def _check(self, kernel: Kernel, kind: str, twice: bool, limit: float | None) -> Finding | None:
        text = self._run(kernel, kind, limit)
        if text is None and twice:
            before = [self.arena.snapshot(output) for output in self.outputs]
            text = self._run(kernel, kind, limit)
            pairs = zip(self.outputs, before, strict=True)
            if text is None and not all(self.arena.same(o, b) for o, b in pairs):
                if consents(kernel):
                    return None
                text = f"{kind} inputs: two runs gave different bits"
                return Finding("nondeterministic", "two runs differ", self._placed(text))
        if text is None:
            return None
        outside = "wrote outside its output" if "red zone" in text else "wrong output"
        return Finding("wrong", outside, self._placed(text))

    def verify(
        self,
        kernel: Kernel,
        places: Sequence[tuple[dict[Tensor, Guarded], Sequence[Guarded]]],
        calls: int,
        seconds: float,
    ) -> tuple[int, Finding | None]:
        """Call a kernel that has been checked again and again, on poisoned outputs: how often that
        was, and what was wrong then.

        Args:
            kernel: the kernel.
            places: inputs of the random kind and outputs, taken in turn.
            calls: how often; each of `places` is taken once whatever the time.
            seconds: after which no further call is begun.
        """
        end = time.monotonic() + seconds
        run = [self.call(kernel, inputs, outputs) for inputs, outputs in places]
        first: list[Any] = []
        for number in range(max(calls, len(places))):
            if number >= len(places) and time.monotonic() > end:
                return number, None
            outputs = places[number % len(places)][1]
            for output in outputs:
                self.arena.poison(output)
            run[number % len(places)]()
            self.arena.finish()
            pairs = zip(outputs, first, strict=False)
            if first and all(self.arena.same(output, bits) for output, bits in pairs):
                continue
            text = self._wrong("random", outputs)
            if text is not None:
                text = f"call {number + 1} after it was timed: {text}"
                return number + 1, Finding("wrong", "wrong in a later call", self._placed(text))
            if first and not consents(kernel):
                text = f"random inputs: call {number + 1} after it was timed gave different bits"
                return number + 1, Finding(
                    "nondeterministic", "two runs differ", self._placed(text)
                )
            first = first or [self.arena.snapshot(output) for output in outputs]
        return max(calls, len(places)), None

    def _placed(self, text: str) -> str:
        label = self.references.label
        return f"at {label}: {text}" if label else text

    def _run(self, kernel: Kernel, kind: str, limit: float | None) -> str | None:
        """Run once on poisoned outputs; what is wrong then."""
        arena = self.arena
        for output in self.outputs:
            arena.poison(output)
        self.call(kernel, self.inputs[kind], self.outputs)()
        if not arena.finish(limit):
            raise UnfinishedError(limit or 0.0)
        wrong = self._wrong(kind, self.outputs)
        if wrong is not None:
            return wrong
        for tensor, given in self.inputs[kind].items():
            if arena.checksum(given) != self.sums[kind][tensor]:
                return f"{kind} inputs: the input {tensor.name} was written"
        return None

    def _wrong(self, kind: str, outputs: Sequence[Guarded]) -> str | None:
        """What is wrong with outputs that were made of inputs of a kind."""
        for tensor, output, wanted in zip(
            self.workload.outputs, outputs, self.wanted[kind] or (), strict=True
        ):
            wrong = self.arena.wrong(output, wanted, tensor.name)
            if wrong is not None:
                return f"{kind} inputs: {wrong}"
            if not self.arena.intact(output):
                return f"{kind} inputs: the red zone around {tensor.name} was written"
        return None

    def _restore(self, kind: str) -> None:
        """Make inputs again that a wrong candidate has written."""
        changed = (
            self.arena.checksum(given) != self.sums[kind][tensor]
            for tensor, given in self.inputs[kind].items()
        )
        if any(changed):
            (self.inputs[kind],) = self.put(kind)


class Elsewhere:
    """What problems that are one computation at several sizes have in common: the other sizes that
    its kernels are run at.

    Attributes:
        stands: at these sizes; None before they are made.
        right: keys of the kernels that were right there.
    """

    def __init__(self, workload: Workload) -> None:
        self.sizes = other_sizes(workload)
        self.stands: list[Stand] | None = None
        self.right: set[str] = set()


class Bench:
    """Checks and times the kernels of one problem.

    Args:
        workload: the problem.
        size: the sizes to tune for.
        target: `cpu` or `cuda`.
        seed: of the inputs.
        folder: where to keep what a process that takes over needs.
        like: the bench of the same computation at other sizes; what is checked elsewhere is shared.

    Attributes:
        device_seconds: that it took to open the device.
    """

    def __init__(
        self,
        workload: Workload,
        size: Extents,
        target: str,
        seed: int,
        folder: Path,
        like: Bench | None = None,
    ) -> None:
        self.workload = workload
        self.target = target
        self.seed = seed
        self.folder = folder
        begin = time.perf_counter()
        self.arena = open_arena(target)
        self.arena.finish()
        self.device_seconds = time.perf_counter() - begin
        self.stand = Stand(self.arena, size, target, seed, folder)
        for kind in KINDS:
            self.stand.ready(kind)
        self.sentinel: tuple[Kernel, float] | None = None
        self.elsewhere = Elsewhere(workload) if like is None else like.elsewhere
        self._copies: list[tuple[dict[Tensor, Guarded], list[Guarded]]] = []
        arrays = [*self.stand.inputs["random"].values(), *self.stand.outputs]
        each = sum(guarded.nbytes for guarded in arrays)
        self._count = self.arena.copies(each)
        self.clock = self.arena.clock(each * self._count, folder / "clock")

    def check(self, kernel: Kernel, best: float | None = None) -> Finding | None:
        """What every candidate goes through.

        Raises:
            UnfinishedError: a run takes far longer than `best` seconds.
        """
        limit = None if best is None else max(RUN_SECONDS, RUN_FACTOR * best)
        return self.stand.check(kernel, KINDS, twice=True, limit=limit)

    def has_rows(self) -> bool:
        """Whether all is made that such inputs are checked against."""
        return all(map(self.stand.references.is_made, ADVERSE))

    def check_rows(self, kernel: Kernel) -> Finding | None:
        """Of the closer checks what is done at the problem's own sizes."""
        return self.stand.check(kernel, ADVERSE, twice=False)

    def check_elsewhere(self, kernel: Kernel, key: str = "") -> Finding | None:
        """Of the closer checks what is done at other sizes; once for each kernel that has a key,
        whichever of its problems it was for."""
        if not self.is_open(kernel, key):
            return None
        for stand in self._small_stands():
            if serves(kernel.schedule.plan.assumptions, stand.size):
                finding = stand.check(kernel, ("random", *ADVERSE), twice=False)
                if finding is not None:
                    return finding
        if key:
            self.elsewhere.right.add(key)
        return None

    def is_open(self, kernel: Kernel, key: str) -> bool:
        """Whether a kernel has to be run at other sizes, and has not been."""
        if key in self.elsewhere.right:
            return False
        assumptions = kernel.schedule.plan.assumptions
        return any(serves(assumptions, size) for size in self.elsewhere.sizes)

    def take_over(self, kernel: Kernel) -> bool:
        """Make now what the first measurement would make, with a kernel that is known to be right:
        the process before this one has ended, or may.  Nothing, and False, where that would take
        memory that the process that measures may need."""
        arrays = [*self.stand.inputs["random"].values(), *self.stand.outputs]
        each = sum(guarded.nbytes for guarded in arrays)
        if not self.arena.has_room((self._count + 2 * len(ADVERSE)) * each):
            return False
        self.make_ready()
        self.check(kernel)
        self.rotation(kernel)
        return True

    def make_ready(self) -> None:
        """Make now what the closer checks need."""
        for stand in (self.stand, *self._small_stands()):
            for kind in ADVERSE:
                stand.ready(kind)

    def time(self, kernel: Kernel, bound: float | None) -> list[float]:
        """Seconds of single calls; few when even the fastest is clearly slower than `bound`."""
        rotation = {"": self.rotation(kernel)}
        race = self.clock.time(rotation, RACE, SAMPLE_SECONDS)[""]
        if bound is not None and min(race) > HOPELESS * bound:
            return list(race)
        samples = race
        if statistics.median(race) < SAMPLE_SECONDS / REPEATS:
            samples = self.clock.time(rotation, REPEATS, SAMPLE_SECONDS)[""]
        if self.sentinel is None:
            self.sentinel = kernel, statistics.median(samples)
        return list(samples)

    def compare(self, kernels: Sequence[Kernel], rounds: int, seconds: float) -> list[list[float]]:
        """Samples of several kernels, taken in turn."""
        rotations = {str(n): self.rotation(kernel) for n, kernel in enumerate(kernels)}
        found = self.clock.time(rotations, rounds, seconds)
        return [list(found[name]) for name in rotations]

    def verify(
        self, kernel: Kernel, calls: int = CALLS, seconds: float = VERIFY_SECONDS
    ) -> tuple[int, Finding | None]:
        """Call a kernel that has been timed again, on poisoned outputs and over every copy of the
        arrays; see `Stand.verify`."""
        self.rotation(kernel)
        return self.stand.verify(kernel, self._copies, calls, seconds)

    def drift(self) -> float:
        """By how much the sentinel's time has changed for good, as a share; 0 when it has not.

        When it has, the device is warmed up and asked again; what it says then is the new normal.
        """
        if self.sentinel is None:
            return 0.0
        kernel, before = self.sentinel
        rotation = self.rotation(kernel)
        drifted, _ = self._sentinel_drift(rotation, before)
        if not drifted:
            return 0.0
        self.clock.warm_up(rotation)
        _, now = self._sentinel_drift(rotation, before)
        self.sentinel = kernel, now
        return drifted

    def _sentinel_drift(
        self, rotation: Sequence[Callable[[], object]], before: float
    ) -> tuple[float, float]:
        """The change of the sentinel's time, 0 when small or within its own scatter; its time."""
        samples = sorted(self.clock.time({"": rotation}, REPEATS, SAMPLE_SECONDS)[""])
        now = statistics.median(samples)
        quarter = len(samples) // 4
        scatter = (samples[-1 - quarter] - samples[quarter]) / now
        change = abs(now / before - 1)
        return (change if change > max(DRIFT, scatter) else 0.0), now

    def rotation(self, kernel: Kernel) -> list[Callable[[], object]]:
        """The call of a kernel over every copy of the arrays."""
        if not self._copies:
            more = self.stand.put("random", self._count - 1)
            self._copies = [(self.stand.inputs["random"], self.stand.outputs)]
            self._copies += [(inputs, self.stand.empty_outputs()) for inputs in more]
        self._copies[0] = self.stand.inputs["random"], self.stand.outputs
        return [self.stand.call(kernel, inputs, out) for inputs, out in self._copies]

    def _small_stands(self) -> list[Stand]:
        """Stands of other sizes, made when they are first asked for."""
        if self.elsewhere.stands is None:
            self.elsewhere.stands = []
            for size in self.elsewhere.sizes:
                with suppress(ExprError, TuneError):  # it has no meaning there
                    stand = Stand(self.arena, size, self.target, self.seed, self.folder)
                    stand.ready("random")
                    self.elsewhere.stands.append(stand)
        return self.elsewhere.stands


def consents(kernel: Kernel) -> bool:
    """True when the schedule asked for an order of additions that no run repeats."""
    return any(step.primitive in CONSENTS for step in kernel.schedule.trace.steps)
