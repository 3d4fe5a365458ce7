"""A process that runs drawn pairs (`agree_worker`), as its parent sees it: asked by a line, watched
while it answers, started again when it has ended or was ended."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("agree_worker.py")
LIMITS = {
    **{"start": 300.0, "reference": 120.0, "interpret": 8.0},
    **{"build": 120.0, "compile": 240.0, "run": 60.0},
}
"""Seconds that a step may take; one that is not named, a minute."""
SLOW = 4.0
"""What Triton's interpreter takes longer."""
LIFE = 1500
"""Pairs after which a process makes room: what it has loaded stays loaded."""


class Child:
    """A process, started when it is first asked.

    Args:
        options: of the worker's command line.
        folder: where it may keep what compilers write, until it ends.
        device: the GPU that it sees, by its number; all that its parent sees where that is empty.
    """

    def __init__(self, options: Sequence[str], folder: Path, device: str = "") -> None:
        self.visible = {"CUDA_VISIBLE_DEVICES": device} if device else {}
        self.command = [sys.executable, str(WORKER), *options]
        self.patience = SLOW if "triton-interpret" in options else 1.0
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.own = folder
        self.errors: Any = None
        self.answered = 0
        self.rest = b""

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer, or how the process failed to give one: `status` "crash" or "hang", `at` the
        step that it was at."""
        process = self.started()
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the process has no pipes")
        step = "start" if self.answered == 0 else "ask"
        self.answered += 1
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            return self.crashed(process, step)
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            since = time.monotonic()
            while True:
                left = since + self.patience * LIMITS.get(step, 60.0) - time.monotonic()
                if left <= 0 or not selector.select(left):
                    self.close()
                    return {"status": "hang", "at": step, "message": f"no end of {step}"}
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    return self.crashed(process, step)
                since = time.monotonic()
                *lines, self.rest = (self.rest + data).split(b"\n")
                for found in map(json.loads, lines):
                    if "status" not in found:
                        step = found["step"]
                        continue
                    if found["status"] == "device" or self.answered >= LIFE:
                        self.close()
                    return found

    def crashed(self, process: subprocess.Popen[bytes], step: str) -> dict[str, Any]:
        """What is known of a process that has ended."""
        process.wait()
        code = process.returncode
        name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        self.errors.seek(0, os.SEEK_END)
        self.errors.seek(max(0, self.errors.tell() - 3000))
        tail = self.errors.read().decode(errors="replace")
        self.close()
        return {"status": "crash", "at": step, "message": name, "trace": tail}

    def started(self) -> subprocess.Popen[bytes]:
        """The process, a new one if need be."""
        if self.process is not None:
            return self.process
        self.own = Path(tempfile.mkdtemp(dir=self.folder))
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        self.answered, self.rest = 0, b""
        kept = {"TRITON_CACHE_DIR": "triton", "TEDSL_CACHE_DIR": "tedsl", "TMPDIR": ""}
        # One thread, and no tables of lines, which take time and change no instruction.
        own = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TRITON_DISABLE_LINE_INFO": "1"}
        own |= self.visible
        env = {**os.environ, **own, **{k: str(self.own / v) for k, v in kept.items()}}
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=env,
            start_new_session=True,
        )
        return self.process

    def close(self) -> None:
        """End the process and whatever it started, and forget what it wrote."""
        process, self.process = self.process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.errors.close()
        shutil.rmtree(self.own, ignore_errors=True)
