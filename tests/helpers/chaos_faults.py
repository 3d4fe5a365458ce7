"""A worker that really compiles and measures, but in which every tenth candidate meets a fault.

Which is decided by the knob `piece`, an even number: pieces 20, 40, 60 ... fail, in the six ways in
turn.  On a GPU the faults are real: a kernel writes where there is no memory, a kernel never ends,
memory is asked for that no card has.  Times are real too, but what is reported is a fixed function
of the piece, so that two searches can be compared: `seconds_of`.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tedsl.autotune.outcome import Status
from tedsl.autotune.workers.session import TuneSession, preload
from tedsl.autotune.workers.worker_main import serve
from tedsl.backends.processes.serving import Message
from tedsl.scheduling.handles.schedule import Schedule

COMMAND = (sys.executable, "-P", str(Path(__file__).resolve()))
EVERY = 20
BEST = 74
FAULTS: Mapping[str, Status] = {
    "segfault": Status.CRASH,
    "device": Status.DEVICE_FAULT,
    "hang": Status.TIMEOUT,
    "memory": Status.OUT_OF_MEMORY,
    "slow": Status.TIMEOUT,
    "wrong": Status.WRONG,
}
SOUND = "--sound"


def fault_of(piece: int) -> str:
    """The fault that a piece meets, or nothing."""
    if piece % EVERY:
        return ""
    return list(FAULTS)[piece // EVERY % len(FAULTS)]


def seconds_of(piece: int) -> float:
    """The time that is reported for a piece; `BEST` is the fastest by far."""
    return 1e-5 * (1.0 + abs(piece - BEST) / 100) + 1e-8 * (piece % 7)


def pieces(count: int) -> tuple[int, ...]:
    """The choices of the knob."""
    return tuple(range(2, 2 + 2 * count, 2))


def scheduled(count: int, target: str) -> Any:
    """A schedule function with `count` choices."""

    def schedule(s: Schedule) -> None:
        stage = s[s.outputs[0]]
        piece = int(str(s.knob("piece", pieces(count), 2)))
        outer, inner = stage.split(stage.op.axis[0], factor=piece)
        if target == "cuda":
            stage.bind(outer, "blockIdx.x")
            stage.vectorize(inner)

    return schedule


class Faulty:
    """A kernel but for its calls."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)


class Wrong(Faulty):
    """It does its work and then spoils the last element."""

    def __call__(self, *inputs: Any, out: Any, **scalars: Any) -> Any:
        self.kernel(*inputs, out=out, **scalars)
        out[0].reshape(-1)[-1] += 1.0


class Endless(Faulty):
    """It never ends on the GPU; the host goes on."""

    def __call__(self, *inputs: Any, out: Any, **scalars: Any) -> Any:
        importlib.import_module("device_faults").spin()


class ChaosSession(TuneSession):
    """The real session, with faults, and with times that are known."""

    broken = False

    def compile(self, request: Message) -> Message:
        if self._fault(request) == "slow":
            time.sleep(60.0)
        return super().compile(request)

    def measure(self, request: Message) -> Message:
        kernel = self.kernel(request)
        match self._fault(request):
            case "segfault":
                ctypes.string_at(0)
            case "device":
                self._break_device()
            case "hang" if self._hangs_on_device:
                return super().measure(request)
            case "hang":
                _hang()
            case "memory":
                self._exhaust()
            case _:
                pass
        reply = super().measure({**request, "bound": None})
        if reply["status"] == "ok" and kernel is not None:
            reply["samples"] = [seconds_of(_piece(request))] * len(reply["samples"])
        return reply

    def compare(self, request: Message) -> Message:
        reply = super().compare(request)
        times = [seconds_of(_piece(item)) for item in request["candidates"]]
        each = zip(times, reply["samples"], strict=True)
        return {**reply, "samples": [[seconds] * len(taken) for seconds, taken in each]}

    def watch(self, request: Message) -> Message:
        reply = super().watch(request)
        pieces = {str(item["key"]): _piece(item) for item in request["candidates"]}
        again = {key: [seconds_of(pieces[key])] * 3 for key in reply["again"]}
        return {**reply, "again": again}

    def kernel(self, request: Message) -> Any:
        kernel, fault = super().kernel(request), self._fault(request)
        if fault == "hang" and self._hangs_on_device:
            return Endless(kernel)
        return Wrong(kernel) if fault == "wrong" else kernel

    def fault(self) -> str | None:
        return "a device fault in name only" if self.broken else super().fault()

    def _fault(self, request: Message) -> str:
        return "" if SOUND in sys.argv else fault_of(_piece(request))

    def _break_device(self) -> None:
        if self.target == "cuda":
            importlib.import_module("device_faults").write_nowhere()
        self.broken = True
        raise RuntimeError("the device is said to take no more work")

    @property
    def _hangs_on_device(self) -> bool:
        """Whether it is the device that hangs, not the host: about every second time."""
        return self.target == "cuda" and os.getpid() % 2 == 1

    def _exhaust(self) -> None:
        if self.target == "cuda":
            torch: Any = importlib.import_module("torch")
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        raise MemoryError("no more")


def _hang() -> None:
    hold: Any = ctypes.PyDLL(None).sleep  # keeps the interpreter's lock
    hold(3600)


def _piece(request: Message) -> int:
    return int(request["decisions"].get("piece", 0))


if __name__ == "__main__":
    serve(ChaosSession, preload)
