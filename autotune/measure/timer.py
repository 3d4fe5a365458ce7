"""How long calls take: on the host by its clock, on a GPU by events around one call or by a graph
of many.

A kernel comes as a rotation: the same call over several copies of its arrays.  On a GPU there are
enough copies to exceed the second-level cache, so that every call finds it cold without a kernel
that flushes it; where the arrays are too small for that the cache is overwritten between samples of
single calls.  Samples of several kernels are taken in turn, forth and back: a b c, c b a.  PyTorch
is loaded for a GPU only.  Imports `runtime`.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tedsl.errors import BackendError
from tedsl.runtime.calls.recording import recording
from tedsl.runtime.timing import AWAKE, Stats, wake

Call = Callable[[], object]
Rotation = Sequence[Call]
Times = dict[str, tuple[float, ...]]
LEAST = 3
"""Rounds that are taken whatever the time limit."""
SHORT = 2e-4
"""Seconds below which a call is too short to be timed alone without care."""
ASLEEP = 2e-3
"""Seconds without work after which processors sleep."""
TRIES = 9
MIN_SAMPLE = 1e-4
GRAPH_SAMPLE = 1e-3
MOST_CALLS = 1024
_WAIT_CYCLES = 180_000


class Clock(Protocol):
    """Times rotations."""

    def time(self, rotations: Mapping[str, Rotation], repeats: int, limit: float) -> Times:
        """Seconds per call of each, sampled in turn."""
        ...

    def warm_up(self, rotation: Rotation) -> None:
        """Run until the clocks are where they stay."""
        ...


def in_turn(
    samplers: Mapping[str, Callable[[], None]], repeats: int, limit: float, after: Call
) -> None:
    """Call every sampler once a round, the order reversed every other round.

    Args:
        samplers: what takes a sample.
        repeats: rounds.
        limit: seconds after which, and after three rounds, no other is begun.
        after: called after each round.
    """
    start = time.perf_counter()
    order = list(samplers.values())
    for done in range(max(repeats, 1)):
        if done >= LEAST and time.perf_counter() - start > limit:
            return
        for sample in order:
            sample()
        after()
        order.reverse()


class HostClock:
    """The clock of the host: short calls are batched until a sample lasts 0.1 ms.

    Between two measurements the processors sleep, and the second thread of a call may have to wait
    for its processor for longer than the call lasts: they are kept busy before the first sample.
    """

    def __init__(self) -> None:
        self._busy = -math.inf

    def time(self, rotations: Mapping[str, Rotation], repeats: int, limit: float) -> Times:
        turns: dict[str, _HostTurn] = {}
        for name, rotation in rotations.items():
            asleep = not turns and time.monotonic() - self._busy > ASLEEP
            turns[name] = _HostTurn(rotation, asleep)
        in_turn({name: turn.sample for name, turn in turns.items()}, repeats, limit, _nothing)
        self._busy = time.monotonic()
        return {name: tuple(turn.samples) for name, turn in turns.items()}

    def warm_up(self, rotation: Rotation) -> None:
        wake(rotation[0])
        self._busy = time.monotonic()


class _HostTurn:
    """One rotation on the host: where it is, how many calls a sample has, the samples so far."""

    def __init__(self, rotation: Rotation, asleep: bool) -> None:
        self.rotation = rotation
        self.samples: list[float] = []
        self._next = 0
        self.batch = 1
        wake(self._run, AWAKE if asleep else 0.0)
        while self.batch < 1 << 20:
            taken = self._run() * self.batch
            if taken >= MIN_SAMPLE:
                break
            more = math.ceil(self.batch * MIN_SAMPLE / max(taken, 1e-9))
            self.batch = min(1 << 20, max(self.batch * 2, more))

    def sample(self) -> None:
        """Take one."""
        self.samples.append(self._run())

    def _run(self) -> float:
        calls = self.rotation
        count, first = len(calls), self._next
        self._next = (first + self.batch) % count
        if count == 1:
            call = calls[0]
            begin = time.perf_counter()
            for _ in range(self.batch):
                call()
            return (time.perf_counter() - begin) / self.batch
        begin = time.perf_counter()
        for place in range(first, first + self.batch):
            calls[place % count]()
        return (time.perf_counter() - begin) / self.batch


class DeviceClock:
    """The clock of the current GPU.

    Which of the two ways is steadier for short calls here is found out with the first of them, and
    noted in a file so that a process that takes over does the same.  When the device was last busy
    is the time of another file: one that another process has just kept busy is awake.

    Args:
        note: the first file; the other lies beside it.
        flush: bytes to overwrite before each single call; 0 where the rotation makes it needless.
    """

    def __init__(self, note: Path, flush: int) -> None:
        self.torch: Any = importlib.import_module("torch")
        self._note = note
        self._last = note.with_suffix(".busy")
        self._scratch = self.torch.empty(flush, dtype=self.torch.uint8, device="cuda")
        self._stream = self.torch.cuda.Stream()
        self._pool = self.torch.cuda.graph_pool_handle()

    @property
    def way(self) -> str:
        """`graph`, `events`, or nothing as long as it is not known."""
        return self._note.read_text() if self._note.exists() else ""

    def time(self, rotations: Mapping[str, Rotation], repeats: int, limit: float) -> Times:
        first = next(iter(rotations.values()))
        self._keep_busy(first, 0.3 if self._is_asleep() else 0.005)
        single = {name: _Single(self, rotation) for name, rotation in rotations.items()}
        self._take(single, LEAST, limit)
        turns: dict[str, _Turn] = dict(single)
        if all(turn.median() < SHORT for turn in single.values()) and self.way != "events":
            turns = self._by_graph(single, rotations) or turns
        for turn in turns.values():
            turn.samples.clear()
        self._take(turns, repeats, limit)
        self._last.touch()
        return {name: tuple(turn.samples) for name, turn in turns.items()}

    def _is_asleep(self) -> bool:
        """True when nothing was timed for a second, by this process or another of the search."""
        try:
            return not 0.0 <= time.time() - self._last.stat().st_mtime < 1.0
        except FileNotFoundError:
            return True

    def warm_up(self, rotation: Rotation) -> None:
        self._keep_busy(rotation, 0.3)

    def _by_graph(
        self, single: Mapping[str, _Single], rotations: Mapping[str, Rotation]
    ) -> dict[str, _Turn] | None:
        """All of them as graphs; None where one cannot be, or single calls are steadier."""
        made: dict[str, _Turn] = {}
        for name, rotation in rotations.items():
            graph = self._capture(rotation, single[name].median())
            if graph is None:
                return None
            made[name] = graph
        if not self.way:
            both: dict[str, _Turn] = {}
            name = next(iter(made))
            both["graph"], both["events"] = made[name], single[name]
            self._take(both, TRIES, 1.0)
            spreads = {way: Stats(tuple(turn.samples)).spread for way, turn in both.items()}
            steadier = "graph" if spreads["graph"] <= spreads["events"] else "events"
            self._note.write_text(steadier)
        return made if self.way == "graph" else None

    def _capture(self, rotation: Rotation, seconds: float) -> _Graph | None:
        """A graph of enough calls; None where the kernel does something a graph cannot hold."""
        torch = self.torch
        count = max(len(rotation), math.ceil(GRAPH_SAMPLE / max(seconds, 1e-6)))
        count = min(MOST_CALLS, count)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            try:
                with recording(torch, graph, pool=self._pool, capture_error_mode="thread_local"):
                    for place in range(count):
                        rotation[place % len(rotation)]()
                graph.replay()
            except (RuntimeError, BackendError):
                return None
        torch.cuda.current_stream().wait_stream(self._stream)
        torch.cuda.synchronize()
        return _Graph(self, graph, count)

    def _take(self, turns: Mapping[str, _Turn], repeats: int, limit: float) -> None:
        """Samples of each in turn; their times are read once the round has run."""

        def read() -> None:
            self.torch.cuda.synchronize()
            for turn in turns.values():
                turn.read()

        in_turn({name: turn.sample for name, turn in turns.items()}, repeats, limit, read)

    def prelude(self) -> None:
        """Work before a sample, which hides the time that the host needs to launch it."""
        if len(self._scratch):
            self._scratch.zero_()
        else:
            self.torch.cuda._sleep(_WAIT_CYCLES)

    def _keep_busy(self, rotation: Rotation, seconds: float) -> None:
        end = time.monotonic() + seconds
        place = 0
        while time.monotonic() < end:
            rotation[place % len(rotation)]()
            self.torch.cuda.synchronize()
            place += 1


class _Turn:
    """One rotation on a GPU and its samples so far."""

    def __init__(self, clock: DeviceClock, calls: int) -> None:
        self.clock = clock
        self.calls = calls
        self.samples: list[float] = []
        self._pair: tuple[Any, Any] | None = None

    def sample(self) -> None:
        """Queue one sample."""
        cuda = self.clock.torch.cuda
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        self.clock.prelude()
        begin.record()
        self.run()
        end.record()
        self._pair = begin, end

    def read(self) -> None:
        """Read the time of the sample that has run."""
        if self._pair is not None:
            begin, end = self._pair
            self.samples.append(begin.elapsed_time(end) * 1e-3 / self.calls)
            self._pair = None

    def median(self) -> float:
        """The middle of the samples."""
        return Stats(tuple(self.samples)).median

    def run(self) -> None:
        """Queue the calls of one sample."""
        raise NotImplementedError


class _Single(_Turn):
    """A sample is one call."""

    def __init__(self, clock: DeviceClock, rotation: Rotation) -> None:
        super().__init__(clock, 1)
        self._rotation = rotation
        self._place = 0

    def run(self) -> None:
        self._place = (self._place + 1) % len(self._rotation)
        self._rotation[self._place]()


class _Graph(_Turn):
    """A sample is a graph of many calls."""

    def __init__(self, clock: DeviceClock, graph: Any, calls: int) -> None:
        super().__init__(clock, calls)
        self._graph = graph

    def run(self) -> None:
        self._graph.replay()


def _nothing() -> None:
    pass
