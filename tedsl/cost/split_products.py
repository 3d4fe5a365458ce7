"""Products of float32 whose operands are split into two TF32 numbers each (tf32x3): what a thread
holds of them, as Triton lays them out.

The three products of parts follow one another, which makes Triton put all warps along one side of
the tile: those that find no rows (or columns) of their own repeat what others do.  Their sums are
another accumulator.  Imports `expr`, `ir` and `statement_list`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tedsl.cost.statement_list import Leaf, Nest
from tedsl.expr.nodes import Expr
from tedsl.expr.visit import walk
from tedsl.ir.nodes import Accumulate, Dot, Load, Precision, Scope

THREADS = 32
PRODUCTS = 3
ROWS, COLUMNS = 16, 8
"""Of the sums that a warp adds up at least."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Registers of a thread: `sums` for those of the tile, `lhs` for both parts of the left
    operand, which every product of a step reads, and `rhs` for what is split of the right one at
    one time; and `again`, how often each sum is computed."""

    sums: float
    lhs: float
    rhs: float
    again: float


def is_split(dot: Dot) -> bool:
    """True when each operand is split into two parts."""
    return dot.precision is Precision.TF32X3 and dot.lhs.dtype.nbytes == 4


def parts_of(dot: Dot, warps: int, widest: int, *, groups: bool) -> Parts:
    """What a product holds in registers.

    Args:
        dot: a product of split operands.
        warps: of a program.
        widest: columns of the widest tile of the kernel, by which Triton places the warps.
        groups: four warps multiply a right operand in shared memory together (wgmma).
    """
    rows, columns, depth = dot.row.extent, dot.column.extent, dot.contract.extent
    batch = math.prod(t.extent for t in dot.batch)
    if batch > 1:
        down = across = 1
    elif groups or rows >= widest:
        down, across = warps, 1
    else:
        down, across = 1, warps
    own = max(rows / down, ROWS), max(columns / across, COLUMNS)
    tiles = max(1.0, batch / warps)
    sums = tiles * own[0] * own[1] / THREADS
    rhs = depth * columns / warps if groups else depth * own[1]
    return Parts(
        sums=sums,
        lhs=tiles * 2 * own[0] * depth / THREADS,
        rhs=tiles * rhs / THREADS,
        again=max(1.0, sums * warps * THREADS / (batch * rows * columns)),
    )


def stands(nest: Nest, leaf: Leaf, operand: Expr) -> bool:
    """True when an operand of a product is the same in all turns of the loop around it."""
    loop = leaf.turns[-1]
    for load in (node for node in walk(operand) if isinstance(node, Load)):
        if load.buffer.scope is Scope.GLOBAL:
            if any(node is loop.loop.axis for node in walk(*load.indices)):
                return False
            continue
        for other in nest.leaves:
            stmt = other.stmt
            made = stmt.buffers if isinstance(stmt, Accumulate) else (stmt.buffer,)
            if load.buffer in made and loop in other.loops:
                return False
    return True
