"""Operand-stationary tiles for a GEMM with small K: the rows of A are loaded once, and the program
walks along N.

    for tiles of rows, tiles of columns: C[i, j] = sum(A[i, k] * B[k, j])
    --> for tiles of rows, runs of columns: a = A[i, k]
            for tiles of a run: C[i, j] = sum(a[i, k] * B[k, j])

K is one step there, so that no mainloop overlaps loads: the loop over the tiles of a run does.
"""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import reads
from tedsl.schedules.analysis.nests import contraction
from tedsl.schedules.gpu.gemm.cost_model import Product
from tedsl.schedules.gpu.launch import bind_all
from tedsl.schedules.knobs import knobs_of, pick
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp, Tensor

TILE = 128, 64
"""BLOCK_M and BLOCK_N of a tile of which two programs that keep 128 elements of each row share an
SM. On an H200 a result of 8192 by 8192 took 52 us; with one program per SM and tiles twice as wide
it took 59, with stationary rows or not."""
FEWEST = 8
"""Tiles from which stationary rows are worth it."""
IDLE = 8
"""The share of the time, one in so many, that programs may be idle at the end."""


def run_of(p: Product, bm: int, bn: int) -> int:
    """How many tiles along N two programs of an SM take each: the most for which whole runs make a
    row, and which leave next to no program idle at the end; else 1."""
    rows, columns = p.batch * -(-p.m // bm), -(-p.n // bn)
    programs = 2 * p.gpu.sms
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
    """With the knob `kept`, programs take so many tiles along N, one after the other.

    Args:
        s: the schedule.
        stage: the root of a kernel, in tiles.
        outer: the loops over the batch and over tiles of rows.
        columns: the loop over the tiles of a row.
        tiles: how many there are, and for how many rows are stationary by default.
        fitting: for how many there is shared memory for the operand of the columns.

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
    """What a contraction reads that is the same for all columns: A."""
    shape = contraction(op)
    if shape is None:
        return set()
    first, second = ({r.tensor for r in reads(operand)} for operand in shape.operands)
    return first - second
