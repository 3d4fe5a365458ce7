"""Calls of the user's Triton functions over tiles.

`acc = f(a, b, acc)`: operands are blocks of exactly the dimensions of the intrinsic's inputs, and
the accumulator has those of its output, both in its order.
"""

from __future__ import annotations

import ast

from tedsl.backends.triton.emit.dots import block
from tedsl.backends.triton.emit.masks import guard_loads
from tedsl.backends.triton.emit.values import Printer
from tedsl.backends.triton.emit.writer import Writer
from tedsl.errors import InternalError, LowerError
from tedsl.expr.nodes import Axis
from tedsl.ir.nodes import Accumulate, TensorCall, TileAxis


def call(writer: Writer, stmt: Accumulate, call: TensorCall) -> None:
    """Print one tensorized `Accumulate` into a tile value."""
    intrin, buffer = call.intrin, stmt.buffers[0]
    kernel = intrin.gpu
    if kernel is None:
        raise InternalError(f"{intrin.name} has no code for Triton")
    tiles = {
        own: TileAxis(axis, size)
        for own, axis, size in zip(intrin.axes, call.axes, intrin.extents, strict=True)
    }
    order = tuple(tiles[axis] for axis in intrin.op.axes)
    index = Printer(writer, order, ())
    if index.block_axes(buffer, stmt.indices) != tuple(range(len(index.tiles))):
        raise LowerError(
            f"the tile of {buffer.name} has its dimensions in another order than {intrin.name}",
            hint="reorder the data loops as the axes of the intrinsic before tensorize",
        )
    args: list[str] = []
    for read, operand in zip(intrin.reads, call.operands, strict=True):
        along = tuple(tiles[axis] for axis in read.indices if isinstance(axis, Axis))
        args.append(block(writer, guard_loads(operand), along))
    index.flush(buffer)
    local = writer.local(buffer)
    _define(writer, kernel.source, intrin.name)
    writer.line(f"{local.name} = {kernel.name}({', '.join((*args, local.name))})")
    local.defined = True
    writer.assigned((buffer,))


def _define(writer: Writer, source: str, name: str) -> None:
    """Put the user's text before the kernels, once."""
    for node in ast.parse(source).body:
        if not isinstance(node, (ast.FunctionDef, ast.Assign)):
            continue
        text = f"\n{ast.unparse(node)}\n"
        key = node.name if isinstance(node, ast.FunctionDef) else ast.unparse(node.targets[0])
        if writer.helpers.setdefault(key, text) != text:
            raise LowerError(
                f"{key!r} is defined by two texts",
                subject=f"the intrinsic {name}",
                hint=f"give {key} another name",
            )
