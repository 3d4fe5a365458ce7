"""What `test_processes_beside` has called in another process."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from tedsl.backends.parallel import ENVIRONMENT

Message = dict[str, Any]


def seen(given: Message) -> Message:
    """Who is called, with what, and what is loaded there of all that is asked for."""
    loaded = [name for name in given["names"] if name in sys.modules]
    threads = os.environ[ENVIRONMENT]
    return {"pid": os.getpid(), "keeper": os.getppid(), "loaded": loaded, "threads": threads}


def die(given: Message) -> Message:
    """End the process by a signal."""
    os.kill(os.getpid(), signal.SIGKILL)
    return given


def hang(given: Message) -> Message:
    """Never answer."""
    time.sleep(1000)
    return given
