"""A worker that does to itself what a request tells it to: crash, hang, abort, run out of memory.

It is the real worker loop over a session of its own, so what is tested is how the pool and the
search take such ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import Any

from tedsl.autotune.workers.worker_main import serve
from tedsl.backends.processes.serving import Message
from tedsl.errors import BackendError, InternalError, LowerError, ScheduleError

COMMAND = (sys.executable, "-P", __file__)


class Faults:
    """Carries out `request["fault"]`; without one, answers with `request["seconds"]`.

    Set up again after it has made the file `setup["once"]`, it hangs.
    """

    def __init__(self, setup: Message) -> None:
        self.setup = setup
        if "once" in setup:
            try:
                os.close(os.open(setup["once"], os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                self.act("hang")
        if setup.get("fault"):
            self.act(str(setup["fault"]))

    @property
    def facts(self) -> Message:
        return {"pid": os.getpid()}

    def compile(self, request: Message) -> Message:
        if request.get("when") == "compile":
            self.act(str(request["fault"]))
        return {"status": "ok", "code": str(request.get("code", request.get("trace", "")))}

    def measure(self, request: Message) -> Message:
        if "last" in request:  # the reply after which this process ends
            return {"status": "device_fault", "fatal": True, **request["last"]}
        self.act(str(request.get("fault") or ""))
        seconds = float(request.get("seconds", 1.0))
        return {"status": "ok", "samples": [seconds] * 3, "code": ""}

    def compare(self, request: Message) -> Message:
        return {"status": "ok", "samples": [[s] * 3 for s in request["seconds"]]}

    def verify(self, request: Message) -> Message:
        return {"status": "ok", "calls": int(request["calls"])}

    def watch(self, request: Message) -> Message:
        return {"status": "ok", "drift": 0.0, "again": {}}

    def act(self, fault: str) -> None:
        """Do it."""
        match fault:
            case "":
                pass
            case "segfault":
                ctypes.string_at(0)
            case "abort":
                os.abort()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(3)
            case "hang":
                time.sleep(3600)
            case "hang in native code":
                hold: Any = ctypes.PyDLL(None).sleep  # keeps the interpreter's lock
                hold(3600)
            case "hang with child":
                child = subprocess.Popen(["sleep", "3600"])
                sys.stderr.write(f"child {child.pid}\n")
                sys.stderr.flush()
                time.sleep(3600)
            case "bug in python":
                raise KeyError("surprise")
            case "out of memory":
                raise MemoryError("no more")
            case "backend":
                raise BackendError("ptxas said no\nat length")
            case "lower":
                raise LowerError("a tile is read at a shift")
            case "schedule":
                raise ScheduleError("not legal here")
            case "internal":
                raise InternalError("lost a stage")
            case "garbage":
                sys.stdout.write("this is no reply\n")
                sys.stdout.flush()
                os.write(1, b"{not json\n")
            case _:
                raise ValueError(fault)


if __name__ == "__main__":
    serve(Faults)
