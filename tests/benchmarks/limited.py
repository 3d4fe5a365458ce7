"""A command in a process group of its own, killed with all it started when its time is up."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: `code` is None where it was killed, `text` what it printed last."""

    code: int | None
    text: str


def run_limited(command: Sequence[str], seconds: float, log: Path) -> Ended:
    """Run a command; its output goes to a file.

    Args:
        command: program and arguments.
        seconds: after which the whole group is killed.
        log: where both its streams go.
    """
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Ended(code, log.read_text(encoding="utf-8", errors="replace"))
