"""One row in a process of its own: `python child.py --suite suite --mode check --row NAME`.

Messages to the parent are JSON lines on standard output; whatever a library prints goes to standard
error instead.  A job that is about to use the device alone says that it is ready and waits for a
line on standard input; the parent may have stopped or killed it by then.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from workload import Workload

Row = dict[str, Any]
Wait = Callable[[], None]


def main() -> None:
    """Find the row, do the job, answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", default="suite", help="the module that has the rows")
    parser.add_argument("--mode", required=True, help="check, static or measure")
    parser.add_argument("--row", required=True)
    parser.add_argument("--settings", default="{}", help="what the job is told, as JSON")
    options = parser.parse_args()
    faulthandler.enable()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)

        def say(message: Row) -> None:
            answers.write(json.dumps(message) + "\n")
            answers.flush()

        def wait() -> None:
            say({"ready": True})
            if not sys.stdin.readline():
                sys.exit("the parent has ended")

        suite: Any = importlib.import_module(options.suite)
        rows: list[Workload] = suite.workloads()
        load = next(row for row in rows if row.name == options.row)
        say({"row": answer(load, options.mode, json.loads(options.settings), wait)})


def answer(load: Workload, mode: str, settings: Row, wait: Wait) -> Row:
    """What the job found, or why it failed."""
    if load.lacks:
        return {"name": load.name, "lacks": load.lacks}
    job: Any = importlib.import_module(f"job_{mode}")
    begin = time.perf_counter()
    try:
        found: Row = job.run(load, settings, wait)
    except Exception as error:
        traceback.print_exc()
        text = str(error) or type(error).__name__
        return {"name": load.name, "failed": f"{type(error).__name__}: {text}"[:2000]}
    return {"name": load.name, **found, "seconds": round(time.perf_counter() - begin, 2)}


if __name__ == "__main__":
    main()
