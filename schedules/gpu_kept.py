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
from tedsl.schedules.choices import knobs_of, pick
from tedsl.schedules.gpu_model import Product
from tedsl.schedules.gpu_tiles import PROCESSORS, bind_all
from tedsl.scheduling.schedule import Schedule
from tedsl.scheduling.stage import Stage

TILE = 128, 64
"""Rows and columns of a tile of which two programs that keep 128 elements of each row share a
processor.  On an H200 a result of 8192 by 8192 took 52 us; with one program to a processor and
tiles twice as wide it took 59, whether that kept the rows or not."""
FEWEST = 8
"""Tiles for which it is worth it to keep rows."""
IDLE = 8
"""The part of the time, one in so many, that programs may wait for the last of them."""


def run_of(p: Product, bm: int, bn: int) -> int:
    """For how many tiles beside each other two programs of a processor keep their rows: the most of
    which whole runs make a row, and which leave next to no program idle at the end; else 1."""
    rows, columns = p.batch * -(-p.m // bm), -(-p.n // bn)
    programs = 2 * PROCESSORS
    fair = -(-rows * columns // programs)
    runs = (n for n in range(FEWEST, columns + 1) if columns % n == 0)
    busy = (n for n in runs if -(-rows * columns // n // programs) * n * IDLE <= (IDLE + 1) * fair)
    return max(busy, default=1)


def keep_rows(
    s: Schedule,
    stage: Stage,
    outer: Sequence[Axis],
    columns: Axis,
    tiles: tuple[int, int],
    fitting: int,
) -> tuple[Axis, Axis] | None:
    """With the knob `kept`, programs take so many tiles beside each other, one after the other.

    Args:
        s: the schedule.
        stage: the root of a kernel, in tiles.
        outer: the loops over what is beside a row of tiles.
        columns: the loop over the tiles of a row.
        tiles: how many there are, and for how many rows are kept by default.
        fitting: for how many a program has room for the operand of the columns.

    Returns:
        The loop over programs, and the one over a program's tiles; None for a tile each.
    """
    count = pick(s, f"{knobs_of(s, stage)}.kept", (1, 8, 16, 32, 64), tiles[1], tiles[0])
    if count == 1:
        return None
    run, turn = stage.split(columns, factor=count)
    lanes = [a for a in stage.leaf_iter_vars if not any(a is b for b in (*outer, run, turn))]
    stage.reorder(*outer, run, turn, *lanes)
    program = bind_all(stage, [*outer, run])
    ahead = pick(s, f"{knobs_of(s, stage)}.ahead", (1, 2, 3, 4), 3, max(1, min(count, fitting)))
    stage.pipeline(turn, num_stages=ahead)
    return program, turn


def of_rows(op: ComputeOp) -> set[Tensor]:
    """What a contraction reads that is the same for all columns."""
    shape = contraction(op)
    if shape is None:
        return set()
    first, second = ({r.tensor for r in reads(operand)} for operand in shape.operands)
    return first - second
