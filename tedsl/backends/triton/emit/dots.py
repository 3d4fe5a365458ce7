"""`tl.dot` on tiles: matrix products on tensor cores.

`acc[row, column] += lhs[row, contract] * rhs[contract, column]`, with batch dimensions in front.
When the accumulator is stored as [column, row], the transposed product is computed instead.
"""

from __future__ import annotations

from tedsl.backends.triton.emit.masks import guard_loads
from tedsl.backends.triton.emit.reduction import whole
from tedsl.backends.triton.emit.values import Printer
from tedsl.backends.triton.emit.writer import Value, Writer
from tedsl.backends.triton.math import functions as math
from tedsl.backends.triton.math.functions import Text
from tedsl.dtypes import DType
from tedsl.errors import LowerError
from tedsl.expr.nodes import Cast, Const, Expr
from tedsl.ir.nodes import Dot, Scope, TileAxis

SMALLEST = 16


def dot(writer: Writer, stmt: Dot) -> None:
    """Print one `Dot` into a tile value."""
    _check(stmt)
    lhs, rhs = _operands(stmt)
    index = Printer(writer, (*stmt.batch, stmt.row, stmt.column), ())
    kept = index.block_axes(stmt.buffer, stmt.indices)
    row, column, contract = stmt.row, stmt.column, stmt.contract
    batch = tuple(t for t in stmt.batch if t.extent > 1)
    flip = kept[-2:] == (len(batch) + 1, len(batch))
    if flip:
        row, column, lhs, rhs = column, row, rhs, lhs
    left = block(writer, lhs, (*batch, row, contract))
    right = block(writer, rhs, (*batch, contract, column))
    local = writer.local(stmt.buffer)
    fresh = local.pending is not None and local.pending.value == 0
    if fresh:
        local.pending = None
    else:
        index.flush(stmt.buffer)
    if lhs.dtype.is_float8 and not writer.has_float8:
        left, right = writer.half(left, lhs.dtype), writer.half(right, rhs.dtype)
    args = f"{left}, {right}" if fresh else f"{left}, {right}, {local.name}"
    if lhs.dtype is DType.float32:
        args += f', input_precision="{stmt.precision.value}"'
    if lhs.dtype.is_float8 and writer.has_float8:
        # By itself sm_90 accumulates all 8-bit products in some 14 bits; each K step's are few
        # enough for that.
        args += f", max_num_imprecise_acc={contract.extent}"
    if stmt.buffer.dtype is not DType.float32:
        args += f", out_dtype={math.triton_type(stmt.buffer.dtype)}"
    if kept[:-2] != tuple(range(len(batch))):
        raise LowerError(f"accumulator {stmt.buffer.name!r} has its batch dimensions last")
    writer.line(f"{local.name} = tl.dot({args})")
    local.defined = True
    writer.assigned((stmt.buffer,))


def _operands(stmt: Dot) -> tuple[Expr, Expr]:
    """Both operands; short floats widened to float32 are multiplied exactly as they are."""
    lhs, rhs = guard_loads(stmt.lhs), guard_loads(stmt.rhs)
    match lhs, rhs:
        case (Cast(a=a, dtype=DType.float32), Cast(a=b, dtype=DType.float32)) if (
            a.dtype is b.dtype and a.dtype.is_short_float
        ):
            return a, b
        case _:
            return lhs, rhs


def _check(stmt: Dot) -> None:
    for role, tile in (("row", stmt.row), ("column", stmt.column), ("contract", stmt.contract)):
        if tile.extent < SMALLEST:
            raise LowerError(
                f"tl.dot into {stmt.buffer.name!r} needs {role} axis {tile.axis.name!r} of at "
                f"least {SMALLEST}, it has {tile.extent}",
                hint="split that axis by 16 or more, or multiply element by element",
            )
    if stmt.lhs.dtype is not stmt.rhs.dtype:
        raise LowerError(
            f"tl.dot into {stmt.buffer.name!r} multiplies {stmt.lhs.dtype.value} by "
            f"{stmt.rhs.dtype.value}",
            hint="cast both operands to one type",
        )
    if len([t for t in stmt.batch if t.extent > 1]) > 1:
        raise LowerError(
            f"tl.dot into {stmt.buffer.name!r} has more than one batch axis in its tile",
            hint="bind or serialise all but one batch axis",
        )
    if stmt.buffer.scope is Scope.GLOBAL:
        raise LowerError(
            f"tl.dot accumulates into {stmt.buffer.name!r} in device memory",
            hint="accumulate in a tile: cache_write(T, 'local')",
        )


def block(writer: Writer, expr: Expr, order: tuple[TileAxis, ...]) -> str:
    """An operand as a block of exactly the dimensions `order`."""
    printer = Printer(writer, order, (expr,))
    value = printer.value(expr)
    if isinstance(expr, Const) and not expr.dtype.is_float8:
        value = Value(Text(value.text.text), (), expr.dtype, literal=True)
    return whole(printer, value, tuple(range(len(order))), tuple(t.extent for t in order))
