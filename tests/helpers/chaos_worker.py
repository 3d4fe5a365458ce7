"""A worker that really compiles and measures, but in which chosen candidates meet a fault.

The choice is by the knob `piece`: each fault has a number that no sensible schedule would use.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

from fault_worker import Faults

from tedsl.autotune.workers.session import TuneSession
from tedsl.autotune.workers.worker_main import serve
from tedsl.backends.processes.serving import Message

COMMAND = (sys.executable, "-P", str(Path(__file__).resolve()))
FAULTS = {
    11: "segfault",
    13: "abort",
    17: "hang",
    19: "out of memory",
    23: "kill",
    29: "exit",
    31: "backend",
}
WRONG = 37
OUTSIDE = 41
COMPILE_ABORT = 47


class Spoiled:
    """A kernel that does its work and then spoils the result."""

    def __init__(self, kernel: Any, how: int) -> None:
        self.kernel = kernel
        self.how = how

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def __call__(self, *inputs: Any, out: Any, **scalars: Any) -> Any:
        self.kernel(*inputs, out=out, **scalars)
        if self.how == WRONG:
            out[0].reshape(-1)[-1] += 1.0
        elif self.how == OUTSIDE:
            ctypes.memset(out[0].ctypes.data + out[0].nbytes, 0, 1)


class Chaos(TuneSession):
    """The real session, with faults."""

    def compile(self, request: Message) -> Message:
        if _piece(request) == COMPILE_ABORT:
            Faults({"fault": "abort"})
        return super().compile(request)

    def measure(self, request: Message) -> Message:
        Faults({"fault": FAULTS.get(_piece(request), "")})
        return super().measure(request)

    def kernel(self, request: Message) -> Any:
        kernel = super().kernel(request)
        piece = _piece(request)
        return Spoiled(kernel, piece) if piece in (WRONG, OUTSIDE) else kernel


def _piece(request: Message) -> int:
    return int(request["decisions"].get("piece", 0))


if __name__ == "__main__":
    serve(Chaos)
