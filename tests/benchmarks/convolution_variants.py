"""Schedules of convolutions by name, beside PyTorch: what the rules' defaults should be.

    python tests/benchmarks/convolution_variants.py --out FOLDER --seconds 200

Each row is a child process that may hang or die: it compiles beside others, then measures alone.
One that died is run again with the rules' default alone.  Writes `convolution_variants.json` after
each row and prints the best of each.
"""

from __future__ import annotations

import variants
from runner import Row
from workload import COMPILED, COPY, EAGER, OURS, TUNED, Workload

FAMILY = "convolution"
PEERS = (EAGER, COMPILED, TUNED, COPY)
# Rows, columns and depth of a tile, stages, warps.
TILES = (
    (128, 128, 64, 3, 4),
    (128, 128, 64, 3, 8),
    (128, 128, 64, 4, 8),
    (128, 128, 32, 5, 8),
    (128, 256, 64, 3, 8),
    (256, 128, 64, 3, 8),
    (256, 64, 64, 3, 8),
    (256, 64, 32, 4, 8),
    (128, 64, 64, 4, 4),
    (128, 64, 32, 4, 4),
    (64, 128, 64, 4, 4),
    (64, 256, 64, 3, 8),
    (64, 64, 64, 4, 4),
    (128, 128, 128, 2, 8),
    (128, 64, 128, 3, 4),
    (128, 32, 64, 4, 4),
)
# Such tiles with the weights moved by the copy engine.
DESCRIBED = (
    (128, 128, 64, 3, 8),
    (128, 128, 64, 3, 4),
    (128, 128, 64, 4, 8),
    (128, 256, 64, 3, 8),
    (256, 128, 64, 3, 8),
    (128, 64, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (128, 128, 32, 5, 8),
)
# Channels, columns and rows of a tile, warps.
WINDOWS = (
    (32, 16, 1, 4),
    (32, 16, 2, 4),
    (32, 16, 4, 4),
    (32, 16, 4, 8),
    (32, 8, 8, 8),
    (32, 8, 4, 4),
    (32, 32, 1, 4),
    (64, 8, 2, 4),
    (64, 8, 4, 8),
    (64, 8, 4, 4),
    (64, 16, 1, 4),
    (128, 8, 1, 4),
    (128, 4, 4, 8),
    (16, 32, 4, 8),
    (16, 16, 4, 4),
    (64, 4, 8, 8),
)


def candidates(load: Workload) -> dict[str, dict[str, object]]:
    """Decisions of the rules by name; those that a row does not offer are refused there."""
    if load.line == "depthwise":
        return {
            f"{columns}c {rows}x {high}y, {warps} warps": {
                "out.columns": columns,
                "out.rows": rows,
                "out.high": high,
                "out.warps": warps,
            }
            for columns, rows, high, warps in WINDOWS
        }
    sizes = load.sizes
    deep = sizes["side"] ** 2 * sizes["channels"]
    found: dict[str, dict[str, object]] = {}
    for (bm, wide, bk, ahead, warps), described in [
        *((tile, False) for tile in TILES),
        *((tile, True) for tile in DESCRIBED),
    ]:
        if described and sizes["channels"] % bk:
            continue  # a piece of the folded axes is no box
        bn = min(wide, 1 << (sizes["filters"] - 1).bit_length())
        stages = min(ahead, -(-deep // bk))
        with_engine = ", descriptors" if described else ""
        found[f"{bm}x{bn}x{bk}, {stages} stages, {warps} warps{with_engine}"] = {
            "out.bm": bm,
            "out.bn": bn,
            "out.bk": bk,
            "out.stages": stages,
            "out.warps": warps,
            **({"out.descriptors": True} if described else {}),
        }
    return found


def summary(row: Row) -> str:
    """One row as text: the default, the best candidate, the peers."""
    if "times" not in row:
        return f"{row['name']}: FAILED {row.get('failed', '')}"
    times: dict[str, float] = row["times"]
    own = {name: ms for name, ms in times.items() if name not in PEERS}
    best = min(own, key=lambda name: own[name], default=OURS)
    parts = [f"default {times.get(OURS, float('nan')):.4f}"]
    if own:
        parts.append(f"best {own[best]:.4f} ({best})")
    parts += [f"{name} {times[name]:.4f}" for name in PEERS if name in times]
    return f"{row['name']}: " + ", ".join(parts) + f" ms; {len(row['refused'])} refused"


if __name__ == "__main__":
    variants.main(__doc__, "convolution_variants", [FAMILY], summary)
