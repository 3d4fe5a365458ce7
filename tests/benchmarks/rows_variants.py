"""Schedules of rows and reductions by name, beside PyTorch: what the rules' defaults should be.

    python tests/benchmarks/rows_variants.py --out FOLDER --seconds 200

Each row is a child process that may hang or die: it compiles beside others, then measures alone.
One that died is run again with the rules' default alone.  Writes `rows_variants.json` after each
row and prints the times of each.
"""

from __future__ import annotations

import variants
from runner import Row
from workload import COMPILED, COPY, EAGER, OURS, TUNED, Workload

PEERS = (EAGER, COMPILED, TUNED, COPY)
FAMILIES = ("rows", "reductions")

ROOTS = {
    "softmax": "softmax",
    "log_softmax": "out",
    "rms_norm_add": "out",
    "layer_norm": "layer_norm",
    "cross_entropy": "loss",
    "cross_entropy_both": "dx",
    "layer_norm_backward": "dx",
    "rms_norm_backward": "dx",
    "mean_squares": "total",
    "variance": "sums",
    "column_sum": "columns",
}
"""The stage whose name the knobs of a computation begin with."""

WHOLE: variants.Choices = (
    {"warps": 2},
    {"warps": 4},
    {"warps": 8},
    {"warps": 16},
    {"rows": 2, "warps": 2},
    {"rows": 2, "warps": 4},
    {"rows": 4, "warps": 8},
    {"resident": 2, "ahead": 3, "warps": 8},
    {"resident": 2, "ahead": 4, "warps": 8},
    {"resident": 4, "ahead": 3, "warps": 4},
    {"resident": 4, "ahead": 4, "warps": 4},
    {"resident": 8, "ahead": 3, "warps": 4},
    {"resident": 8, "ahead": 3, "warps": 2},
)
ALONE: variants.Choices = (
    {"warps": 16},
    {"warps": 32},
    {"resident": 1, "ahead": 3, "warps": 16},
    {"resident": 1, "ahead": 3, "warps": 32},
)
"""Rows that fill a processor."""
SHORT: variants.Choices = (
    {"rows": 4, "warps": 1},
    {"rows": 4, "warps": 2},
    {"rows": 8, "warps": 1},
    {"rows": 8, "warps": 2},
    {"rows": 16, "warps": 1},
    {"rows": 16, "warps": 2},
    {"rows": 16, "warps": 4},
    {"rows": 2, "warps": 1},
    {"resident": 8, "rows": 8, "warps": 2},
)
LOOPED: variants.Choices = (
    {"block": 512, "warps": 2},
    {"block": 1024, "warps": 4},
    {"block": 1024, "warps": 4, "stages": 3},
    {"block": 2048, "warps": 4},
    {"block": 2048, "warps": 8},
    {"block": 2048, "warps": 8, "stages": 3},
    {"block": 4096, "warps": 8},
    {"block": 4096, "warps": 16},
    {"block": 8192, "warps": 16},
    {"block": 2048, "warps": 8, "lanes": False},
    {"block": 1024, "warps": 4, "online": False},
    {"block": 2048, "warps": 8, "online": False},
)
NEAR: variants.Choices = variants.listed(
    "block resident warps stages",
    (8192, 1, 32, 1),
    (8192, 1, 32, 3),
    (8192, 1, 16, 3),
    (4096, 1, 16, 4),
    (8192, 2, 16, 3),
    (4096, 2, 16, 3),
)
"""Few rows at a time, which stay near until they are read again."""
APART: variants.Choices = tuple(
    {**each, "evict_last": what}
    for each in variants.listed("block resident warps", (8192, 2, 32), (8192, 1, 32), (8192, 2, 16))
    for what in ("reads", "apart")
)
"""The same with more threads, which evict inputs last, and results first or not."""
IN_PARTS: variants.Choices = variants.listed(
    "parts part_block warps block",
    (2, 2048, 8, 2048),
    (4, 2048, 8, 2048),
    (8, 2048, 8, 2048),
    (16, 2048, 8, 2048),
    (32, 2048, 8, 2048),
    (8, 4096, 8, 4096),
    (16, 4096, 8, 4096),
    (16, 1024, 4, 1024),
    (16, 8192, 16, 8192),
    online=True,
)
BOTH: variants.Choices = variants.listed(
    "rows resident ahead warps",
    (1, 1, 3, 8),
    (1, 1, 3, 16),
    (1, 1, 3, 32),
    (1, 1, 4, 16),
    (1, 1, 4, 8),
    (1, 2, 3, 8),
    (1, 2, 3, 16),
    (2, 1, 3, 16),
    (2, 2, 3, 8),
    (4, 1, 3, 16),
    (4, 2, 3, 8),
    (8, 1, 3, 16),
    (8, 1, 3, 8),
    (2, 4, 3, 4),
    (2, 4, 4, 4),
    (1, 4, 4, 4),
    (1, 8, 3, 4),
    (4, 4, 3, 4),
    (4, 4, 3, 8),
)
TOTAL: variants.Choices = variants.listed(
    "block parts warps",
    (1024, 512, 8),
    (1024, 1024, 4),
    (2048, 512, 8),
    (2048, 1024, 4),
    (2048, 2048, 8),
    (2048, 2048, 4),
    (4096, 512, 8),
    (4096, 1024, 8),
    (4096, 1024, 16),
    (4096, 2048, 8),
)
TOTAL_AT_ONCE: variants.Choices = (
    {"one_launch": True},
    *({"one_launch": True, **each} for each in TOTAL if each["parts"] != 2048),
)
"""Merged by the last program of the parts, in one launch instead of two."""
COLUMNS: variants.Choices = variants.listed(
    "columns rows parts warps",
    (64, 16, 32, 4),
    (64, 64, 128, 4),
    (64, 64, 256, 4),
    (64, 64, 256, 8),
    (64, 64, 1024, 8),
    (64, 64, 512, 4),
    (64, 32, 1024, 4),
    (64, 128, 1024, 8),
    (32, 64, 512, 4),
    (128, 16, 8, 4),
    (128, 16, 32, 4),
    (128, 32, 16, 8),
    (128, 64, 16, 8),
    (256, 16, 16, 4),
    (256, 16, 32, 4),
    (256, 16, 32, 8),
    (512, 16, 32, 4),
    (512, 16, 32, 8),
    (512, 8, 16, 4),
)
COLUMNS_AT_ONCE: variants.Choices = (
    {"one_launch": True},
    *(
        {"columns": columns, **more}
        for columns in (32, 64)
        for more in ({}, {"one_launch": True}, {"one_launch": True, "rows": 64})
    ),
    *({"one_launch": True, **each} for each in COLUMNS[::3]),
)


def candidates(load: Workload) -> dict[str, variants.Decisions]:
    """Decisions of the rules by name; those that a row does not offer are refused there."""
    return variants.named(ROOTS[load.function], _choices(load))


def _choices(load: Workload) -> list[variants.Decisions]:
    n = load.sizes["n"]
    if load.line == "norms backward":
        return [dict(each) for each in BOTH]
    if load.line == "reductions":
        if load.function == "column_sum":
            return [dict(each) for each in (*COLUMNS, *COLUMNS_AT_ONCE)]
        return [dict(each) for each in (*TOTAL, *TOTAL_AT_ONCE)]
    if n <= 512:
        return [dict(each) for each in SHORT]
    looped: list[variants.Decisions] = [dict(each) for each in LOOPED]
    if load.line == "cross entropy both":
        return [*looped, *(dict(each) for each in (*NEAR, *APART))]
    if n > 65536:
        parts = [dict(each) for each in (*NEAR, *APART, *IN_PARTS) if n >= 131072]
        return looped + parts
    if load.line == "cross entropy":
        return [{"whole_row": False, **each} for each in looped]
    whole: list[variants.Decisions] = [dict(each) for each in WHOLE]
    if n > 8192:
        whole = [dict(each) for each in ALONE]
    return whole + [{"whole_row": False, **each} for each in looped]


def summary(row: Row) -> str:
    """One row as text: the default, the best candidates, the peers."""
    if "times" not in row:
        return f"{row['name']}: FAILED {row.get('failed', '')}"
    times: dict[str, float] = row["times"]
    own = sorted((ms, name) for name, ms in times.items() if name not in PEERS)
    parts = [f"{name} {times[name]:.4f}" for name in PEERS if name in times]
    head = f"{row['name']}: default {times.get(OURS, float('nan')):.4f}, " + ", ".join(parts)
    lines = [f"         {ms:.4f}  {name}" for ms, name in own[:6]]
    return "\n".join([head + f"; {len(row['refused'])} refused", *lines])


if __name__ == "__main__":
    variants.main(__doc__, "rows_variants", FAMILIES, summary)
