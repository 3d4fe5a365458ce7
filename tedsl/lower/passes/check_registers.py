"""Check that tiles held in registers are read and written whole: a Triton block has no element
access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tedsl.errors import LowerError
from tedsl.expr.index_arith import constant, next_power_of_two
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
    Requires: level TILE, padded tiles; what is no such tile is kept in memory.
    Raises:
        LowerError: names the stage, the access and the alternatives.
    """
    for buffer, dimension in misfits(func.body):
        stage = buffer.part_of or buffer.name
        raise LowerError(
            f"dimension {dimension} of {buffer.told} is not accessed as the whole tile that "
            f"kernel {func.name} holds in registers",
            facts=[("tile", " x ".join(str(constant(e)) for e in buffer.shape))],
            hint=f"a tile cannot be read at a shift or in part: attach {stage} at an outer loop, "
            f"leave it at root (its own kernel), or vectorize the loops of {stage} that index it; "
            "what is no reduction can be inlined",
        )
    return func


def misfits(body: Stmt) -> Iterator[tuple[Buffer, int]]:
    """The tiles that some access names another way than as a whole, each with the dimension, as
    often as they are."""
    for stmt in walk_stmts(body):
        tile = tile_axes(stmt)
        for buffer, indices in accesses(stmt):
            dimension = None if buffer.scope is Scope.GLOBAL else _misfit(buffer, indices, tile)
            if dimension is not None:
                yield buffer, dimension


def accesses(stmt: Stmt) -> list[tuple[Buffer, tuple[Expr, ...]]]:
    """The buffers that a statement itself reads and writes, and at which indices."""
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


def _misfit(buffer: Buffer, indices: tuple[Expr, ...], tile: Sequence[TileAxis]) -> int | None:
    """The first dimension that is not named by an axis of its own that runs over all of it."""
    extents = {t.axis: t.extent for t in tile}
    seen: set[Axis] = set()
    for dimension, (index, size) in enumerate(zip(indices, buffer.shape, strict=True)):
        if constant(size) == 1 and constant(index) == 0:
            continue
        axis = index if isinstance(index, Axis) else None
        if axis is None or axis in seen or extents.get(axis) != padded(size):
            return dimension
        seen.add(axis)
    return None


def padded(size: Expr) -> int | None:
    """The extent of the tile that a dimension of so many elements is."""
    known = constant(size)
    return None if known is None else next_power_of_two(known)
