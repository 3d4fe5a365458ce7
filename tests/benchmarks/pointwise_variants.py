"""Schedules of pointwise rows by name, beside PyTorch: what the rules' defaults should be.

    python tests/benchmarks/pointwise_variants.py --out FOLDER --seconds 200

Each row is a child process that may hang or die: it compiles beside others, then measures alone.
One that died is run again with the rules' default alone.  Writes `pointwise_variants.json` after
each row and prints the times of each.
"""

from __future__ import annotations

import rows_variants
import variants
from workload import Workload

FLAT: variants.Choices = variants.listed(
    "block warps",
    (512, 2),
    (512, 4),
    (1024, 2),
    (1024, 4),
    (1024, 8),
    (2048, 4),
    (2048, 8),
    (4096, 8),
)
PERIODS: variants.Choices = variants.listed(
    "periods block warps",
    (2, 1024, 4),
    (2, 1024, 8),
    (2, 2048, 8),
    (4, 512, 2),
    (4, 512, 4),
    (4, 1024, 4),
    (4, 1024, 8),
    (8, 256, 2),
    (8, 512, 4),
    (8, 512, 8),
    (8, 1024, 8),
)
"""Of rows off the accesses to memory: rows that start alike are taken together."""
TILES: variants.Choices = variants.listed(
    "rows columns warps",
    (16, 64, 2),
    (16, 64, 4),
    (32, 32, 2),
    (32, 32, 4),
    (32, 64, 4),
    (32, 64, 8),
    (32, 128, 8),
    (64, 32, 4),
    (64, 32, 8),
    (64, 64, 4),
    (64, 64, 8),
    (64, 128, 8),
    (64, 128, 16),
    (128, 64, 8),
    (128, 64, 16),
    (128, 128, 16),
    (64, 256, 16),
)


def candidates(load: Workload) -> dict[str, variants.Decisions]:
    """Decisions of the rules by name; those that a row does not offer are refused there.  The stage
    that they are about is called as the computation."""
    choices = TILES if load.function == "transpose_add" else FLAT
    more = PERIODS if load.function == "row_vectors" else ()
    return variants.named(load.function, (*choices, *more))


if __name__ == "__main__":
    variants.main(__doc__, "pointwise_variants", ("pointwise",), rows_variants.summary)
