"""Programs that keep the rows of their tiles: where the folded axis is one step, a program takes
tiles of several columns, and moves the operand of its rows once for all of them.

    for tiles of rows, tiles of columns: C[i, j] = sum(A[i, k] * B[k, j])
    --> for tiles of rows, runs of columns: a = A[i, k]
            for tiles of a run: C[i, j] = sum(a[i, k] * B[k, j])
"""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis
from tedsl.expr.tensor import ComputeOp, Tensor
from tedsl.expr.visit import reads
from tedsl.schedules.analysis import contraction
from tedsl.schedules.choices import pick
from tedsl.schedules.gpu_tiles import bind_all
from tedsl.scheduling.schedule import Schedule
from tedsl.scheduling.stage import Stage


def keep_rows(
    s: Schedule, stage: Stage, outer: Sequence[Axis], columns: Axis, tiles: int, fitting: int
) -> tuple[Axis, Axis] | None:
    """With the knob `kept`, programs take so many tiles beside each other, one after the other.

    Args:
        s: the schedule.
        stage: the root of a kernel, in tiles.
        outer: the loops over what is beside a row of tiles.
        columns: the loop over the tiles of a row.
        tiles: how many there are.
        fitting: for how many a program has room for the operand of the columns.

    Returns:
        The loop over programs, and the one over a program's tiles; None for a tile each.
    """
    count = pick(s, f"{stage.name}.kept", (1, 8, 16, 32, 64), 1, tiles)
    if count == 1:
        return None
    run, turn = stage.split(columns, factor=count)
    lanes = [a for a in stage.leaf_iter_vars if not any(a is b for b in (*outer, run, turn))]
    stage.reorder(*outer, run, turn, *lanes)
    program = bind_all(stage, [*outer, run])
    ahead = pick(s, f"{stage.name}.ahead", (1, 2, 3, 4), 3, max(1, min(count, fitting)))
    stage.pipeline(turn, num_stages=ahead)
    return program, turn


def of_rows(op: ComputeOp) -> set[Tensor]:
    """What a contraction reads that is the same for all columns."""
    shape = contraction(op)
    if shape is None:
        return set()
    first, second = ({r.tensor for r in reads(operand)} for operand in shape.operands)
    return first - second
