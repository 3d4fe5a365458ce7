"""Check that tiles held in registers are read as they are written."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.errors import LowerError
from tedsl.expr.integers import constant
from tedsl.expr.nodes import Axis, Expr
from tedsl.expr.visit import walk
from tedsl.ir.nodes import (
    Accumulate,
    Buffer,
    Dot,
    Func,
    Load,
    Scope,
    Stmt,
    Store,
    TileAxis,
)
from tedsl.ir.visit import own_exprs, tile_axes, walk_stmts


def check_registers(func: Func) -> Func:
    """Refuse a tile that is read or written at a shift, in part, or element by element.

    A tile of a program is one value: every access names the whole of it, dimension by dimension,
    up to their order.
    Requires: level TILE, padded tiles.
    Raises:
        LowerError: names the stage, the access and the alternatives.
    """
    for stmt in walk_stmts(func.body):
        tile = tile_axes(stmt)
        for buffer, indices in _accesses(stmt):
            if buffer.scope is not Scope.GLOBAL:
                _check(func, buffer, indices, tile)
    return func


def _accesses(stmt: Stmt) -> list[tuple[Buffer, tuple[Expr, ...]]]:
    found = [
        (node.buffer, node.indices) for node in walk(*own_exprs(stmt)) if isinstance(node, Load)
    ]
    match stmt:
        case Store(buffer=buffer, indices=indices) | Dot(buffer=buffer, indices=indices):
            found.append((buffer, indices))
        case Accumulate(buffers=buffers, indices=indices):
            found.extend((buffer, indices) for buffer in buffers)
        case _:
            pass
    return found


def _check(func: Func, buffer: Buffer, indices: tuple[Expr, ...], tile: Sequence[TileAxis]) -> None:
    extents = {t.axis: t.extent for t in tile}
    seen: set[Axis] = set()
    for dimension, (index, size) in enumerate(zip(indices, buffer.shape, strict=True)):
        if constant(size) == 1 and constant(index) == 0:
            continue
        axis = index if isinstance(index, Axis) else None
        if axis is None or extents.get(axis) != constant(size) or axis in seen:
            raise LowerError(
                f"dimension {dimension} of {buffer.name} is not accessed as the whole tile that "
                f"kernel {func.name} holds in registers",
                facts=[("tile", " x ".join(str(constant(e)) for e in buffer.shape))],
                hint=f"a tile cannot be read at a shift or in part: inline {buffer.name} (computed "
                "again where it is read), leave it at root (its own kernel), attach it at an outer "
                "loop, or vectorize the loops that index it",
            )
        seen.add(axis)
