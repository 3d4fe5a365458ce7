"""Copy a statement tree so that it can stand twice: every bound axis and buffer of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tedsl.expr.nodes import Axis, Expr
from tedsl.ir.nodes import Accumulate, Allocate, Buffer, For, Stmt, Store, TileAxis
from tedsl.ir.visit import map_buffers, map_sub_stmts, substitute, walk_stmts


def fresh_copy(stmt: Stmt) -> Stmt:
    """`stmt` with new axes for its loops and tiles and new buffers for its allocations."""
    axes: dict[Expr, Expr] = {}
    buffers: dict[Buffer, Buffer] = {}
    for node in walk_stmts(stmt):
        match node:
            case For(axis=axis):
                axes.setdefault(axis, _fresh(axis))
            case Store(tile=tile) | Accumulate(tile=tile):
                for dim in tile:
                    axes.setdefault(dim.axis, _fresh(dim.axis))
            case Allocate(buffer=buffer):
                buffers[buffer] = replace(buffer)
            case _:
                pass
    moved = map_buffers(substitute(stmt, axes), buffers) if buffers else substitute(stmt, axes)
    return _rebound(moved, axes)


def fresh_tile(tile: Sequence[TileAxis]) -> tuple[tuple[TileAxis, ...], dict[Expr, Expr]]:
    """The tile with axes of its own, and the mapping from the old ones."""
    new = tuple(TileAxis(_fresh(t.axis), t.extent) for t in tile)
    return new, {old.axis: dim.axis for old, dim in zip(tile, new, strict=True)}


def _fresh(axis: Axis) -> Axis:
    return Axis(axis.name, axis.kind, None, axis.dtype)


def _axis(axis: Axis, axes: dict[Expr, Expr]) -> Axis:
    new = axes.get(axis, axis)
    return new if isinstance(new, Axis) else axis


def _rebound(stmt: Stmt, axes: dict[Expr, Expr]) -> Stmt:
    """Give loops and tiles the axes their bodies now use."""
    stmt = map_sub_stmts(stmt, lambda s: _rebound(s, axes))
    match stmt:
        case For(axis=axis):
            return replace(stmt, axis=_axis(axis, axes))
        case Store(tile=tile) | Accumulate(tile=tile) if tile:
            new = tuple(TileAxis(_axis(t.axis, axes), t.extent) for t in tile)
            if isinstance(stmt, Accumulate) and stmt.along is not None:
                return replace(stmt, tile=new, along=_axis(stmt.along, axes))
            return replace(stmt, tile=new)
        case _:
            return stmt
