"""Tile order over heads (or images, or batches): all tiles of one head before those of the next, or
the same tile of several heads, for L2 reuse and load balance with causal masks.

    for groups of heads: for tiles: for the heads of the group
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import axes_of, reads
from tedsl.schedules.analysis.nests import nbytes_of
from tedsl.schedules.analysis.views import View, extent_of, volume
from tedsl.schedules.devices import gpu_of
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp, Tensor

# Heads of a group that are offered beside the default.
GROUPS = (1, 4, 8, 16, 32)
# The choice that stands for all heads where their number is symbolic.
ALL = 0
# What reads, the axis that its loop moves along, and the one along which programs differ.
Reader = tuple[ComputeOp, Axis, Axis | None]


def walked(view: View, inside: Collection[str], readers: Sequence[Reader]) -> int:
    """Bytes of memory that the `readers` in a loop read, without what is computed `inside` the
    kernel, the same for all rows of one head (K and V of attention); 0 when that is symbolic."""
    names = view.names
    found: dict[Tensor, int] = {}
    for op, moving, apart in readers:
        for read in reads(*op.bodies):
            source = read.tensor.op
            axes = axes_of(*read.indices)
            made = isinstance(source, ComputeOp) and names.get(source) in inside
            if not made and moving in axes and apart not in axes:
                found[read.tensor] = nbytes_of(read.tensor)
    return 0 if 0 in found.values() else sum(found.values())


def together(s: Schedule, name: str, heads: Sequence[Axis], nbytes: int, uneven: bool) -> int:
    """How many heads are in a group: the knob `together` of the kernel `name`.

    By default one where all tiles take as long.  Where they are `uneven` (causal masks), a group is
    as many heads as have their operands in L2 at once, so that the longest tiles of all of them
    start first and the kernel ends with short ones: scheduling 32 to 256 heads, whose loops end at
    the diagonal, on 132 SMs, two to four programs on each, ends 1.03 to 1.08 times later than it
    could with one head after another, and at most 1.01 times later in such groups.  (32 heads of
    2048 rows are few programs: 1.3 times later or more by the same count, 1.06 when measured.)

    `nbytes` are those of the operands of all heads that loops read, 0 when that is not known.
    `ALL` is returned for a symbolic number of heads.
    """
    count = volume(heads)
    if not heads or count in (0, 1):
        return 1
    usual = 1
    if uneven and count is not None and nbytes:
        limit = min(count, gpu_of(s).l2_near * count // nbytes)
        usual = max((n for n in range(1, limit + 1) if _fits(heads, n)), default=1)
    offered = {n for n in (*GROUPS, usual) if _fits(heads, n)} | {ALL if count is None else count}
    return int(s.knob(f"{name}.together", sorted(offered), usual))


def ordered(
    stage: Stage, heads: Sequence[Axis], tiles: Sequence[Axis], together: int
) -> list[Axis]:
    """The loops of a grid in the order of its programs: groups of heads, tiles, the heads of a
    group, of which there are so many `together`."""
    if together == ALL:
        return [*tiles, *heads]
    outside: list[Axis] = []
    inside: list[Axis] = []
    left = together
    for axis in reversed(heads):
        extent = extent_of(axis)
        if left == 1:
            outside.insert(0, axis)
        elif extent is not None and left % extent == 0:
            inside.insert(0, axis)
            left //= extent
        else:
            outer, inner = stage.split(axis, factor=left)
            outside.insert(0, outer)
            inside.insert(0, inner)
            left = 1
    return [*outside, *tiles, *inside]


def _fits(heads: Sequence[Axis], together: int) -> bool:
    """True when all groups of so many neighbouring heads are whole: no program is without a tile,
    and none is in two rows of the axes around it."""
    left = together
    for axis in reversed(heads):
        extent = extent_of(axis)
        if left == 1 or extent is None:
            break
        if left % extent and extent % left:
            return False
        left = max(1, left // extent)
    return left == 1
