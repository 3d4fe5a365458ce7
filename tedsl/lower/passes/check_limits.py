"""Check that tiles are no larger than Triton takes them."""

from __future__ import annotations

from math import prod

from tedsl.errors import LowerError
from tedsl.ir.nodes import Dot, Func
from tedsl.ir.visit import tile_axes, walk_stmts

# Elements of a value in Triton (`TRITON_MAX_TENSOR_NUMEL`).
LARGEST = 1 << 20


def check_limits(func: Func) -> Func:
    """Refuse a tile of more elements than a value of Triton may have.

    A product of tiles (`Dot`) has no value of all its axes, but one of rows and columns and its
    operands.
    Requires: level TILE, padded tiles; dots found.
    Raises:
        LowerError: names the kernel and the tile.
    """
    for stmt in walk_stmts(func.body):
        tile = tile_axes(stmt)
        sides = [each.extent for each in tile]
        counts = [prod(sides)]
        if isinstance(stmt, Dot):
            batch = prod(each.extent for each in stmt.batch)
            m, n, k = (each.extent for each in (stmt.row, stmt.column, stmt.contract))
            counts = [batch * m * n, batch * m * k, batch * n * k]
        if max(counts) > LARGEST:
            shape = " x ".join(f"{each.axis.name}: {each.extent}" for each in tile)
            raise LowerError(
                f"a tile of kernel {func.name} has {max(counts)} elements",
                facts=[("tile", shape), ("allowed", f"{LARGEST} in Triton")],
                hint="split the vectorized loops by smaller factors, and leave the outer parts "
                "serial or bind them",
            )
    return func
