"""What is evicted last from the caches, for every row that streams, beside PyTorch.

    python tests/benchmarks/cache_variants.py --out FOLDER --seconds 200

The rules' default with each choice of the knobs `evict_last`: nothing, what is read, that with
results evicted first, all that is moved, or what is read until it is read for the last time (the
default again where nothing is read twice).  Each row is a child process that compiles beside
others, then measures alone.  Writes `cache_variants.json` after each row and prints the times of
each.
"""

from __future__ import annotations

import rows_variants
import variants
from workload import Workload, buildable

import tedsl as te
from tedsl.schedules import schedule_for

CHOICES = ("none", "reads", "apart", "all", "until_read")


def candidates(load: Workload) -> dict[str, variants.Decisions]:
    """The choices by name; none for a row without such a knob."""
    made = buildable(load.outputs())
    assert not isinstance(made, te.Schedule)
    knobs = [knob.name for knob in schedule_for(made, load.target).knobs]
    names = [name for name in knobs if name.endswith(".evict_last")]
    return {choice: dict.fromkeys(names, choice) for choice in CHOICES if names}


if __name__ == "__main__":
    variants.main(
        __doc__, "cache_variants", ("pointwise", *rows_variants.FAMILIES), rows_variants.summary
    )
