"""A process that writes records and says so, for tests of concurrency and of a kill."""

import sys
from pathlib import Path

from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.records.database import Records
from tedsl.autotune.records.record_key import Context
from tedsl.autotune.search_space.space import Candidate, Knob


def main(path: str, tag: int, count: int) -> None:
    """Write `count` candidates of one run, printing each number once it is safe."""
    context = Context(
        workload="w1",
        family="f",
        sizes="[[8]]",
        dtypes='["float32"]',
        target="cpu",
        device="some cpu",
        features="avx2",
        toolchain="tedsl 0.1",
        codegen="abc",
    )
    records = Records(Path(path))
    run = records.start(context, seed=tag, trials=count, seconds=None)
    for number in range(count):
        value = tag * 1_000_000 + number
        candidate = Candidate((Knob("tile", (value,), value),), f"trace {value}", "random")
        records.add(run, number, candidate, Outcome(Status.OK, 1e-3, (1e-3,)))
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
    records.finish(run, "done", None)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
