"""A program that tunes, to be interrupted or killed by a test.  Prints what it found as JSON.

tune_program.py RECORDS TRIALS [EVENTS]
"""

import json
import signal
import sys
from pathlib import Path

import numpy as np

import tedsl as te
from tedsl.autotune import tune
from tedsl.scheduling.handles.schedule import Schedule

N = 5000
CHOICES = tuple(range(8, 8 + 2 * 200, 2))


def schedule(s: Schedule) -> None:
    """Many choices that all work; any other is faster than the default, which leaps through
    memory."""
    stage = s[s.outputs[0]]
    piece = int(str(s.knob("piece", CHOICES, CHOICES[0])))
    outer, inner = stage.split(stage.op.axis[0], factor=piece)
    if piece == CHOICES[0]:
        stage.reorder(inner, outer)
    else:
        stage.vectorize(inner)


def main(path: str, trials: int, events: str | None = None) -> None:
    """Tune `x * x + 1`."""
    x = te.placeholder((N,), "float32", name="x")
    y = te.compute((N,), lambda i: x[i] * x[i] + 1.0, name="y")
    found = tune(
        y, "cpu", trials=trials, seed=5, records=Path(path), schedule=schedule, events=events
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what comes now is no longer for the search
    data = np.linspace(-3, 3, N, dtype=np.float32)
    right = np.allclose(found.kernel(data), data * data + 1)
    facts = {
        "interrupted": found.interrupted,
        "exhausted": found.exhausted,
        "right": bool(right),
        "space": len(CHOICES),
        "tried": len(found.trials),
    }
    sys.stdout.write(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
