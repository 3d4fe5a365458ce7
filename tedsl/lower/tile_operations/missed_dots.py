"""Why a sum of products over a tile becomes no `tl.dot`, and what would make it one.

Reads the program that `find_dots` is given, in the order of its conditions.  Imports `dots`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tedsl.expr.nodes import Axis, Binary, BinaryOp
from tedsl.expr.visit import axes_of
from tedsl.ir.matrix_units import MIN_DEPTH, MIN_EDGE, factors
from tedsl.ir.nodes import Accumulate, Func, Scope, TileAxis
from tedsl.ir.visit import walk_stmts
from tedsl.lower.tile_operations.find_dots import batch_in_front


@dataclass(frozen=True, slots=True)
class Missed:
    """A sum of products that is no `tl.dot`: its stage, why, and what to do."""

    stage: str
    reason: str
    hint: str

    def __str__(self) -> str:
        return f"{self.stage} is a product of two operands, but no tl.dot: {self.reason}"


def missed_dots(func: Func) -> Iterator[Missed]:
    """The sums of products of two operands that each have rows of their own, and become no `Dot`.

    Args:
        func: at TILE level, before `find_dots`.
    """
    seen: set[int] = set()
    for stmt in walk_stmts(func.body):
        if isinstance(stmt, Accumulate) and id(stmt) not in seen:
            seen.add(id(stmt))
            found = _missed(stmt)
            if found is not None:
                yield Missed(stmt.buffers[0].name, *found)


def _missed(stmt: Accumulate) -> tuple[str, str] | None:
    match stmt:
        case Accumulate(buffers=(buffer,), values=(Binary(op=BinaryOp.MUL, a=a, b=b),)):
            pass
        case _:
            return None
    if stmt.reducer.operator is not BinaryOp.ADD or stmt.call is not None or not stmt.products.dot:
        return None
    kept, left, right = axes_of(*stmt.indices), axes_of(a), axes_of(b)
    if not kept & (left - right) or not kept & (right - left):
        return None  # of one operand, or element by element: no product of matrices
    if buffer.scope is Scope.GLOBAL:
        return (
            "it is added up in device memory",
            "s.cache_write(T, 'local') adds it up in registers, or attach it to what reads it",
        )
    operands = factors(a, b, buffer.dtype)
    if operands is None:
        return (
            f"no matrix unit adds up {a.dtype} times {b.dtype} in {buffer.dtype}",
            "cast both factors to one of float16, bfloat16, float32, or int8 for an int32 sum",
        )
    deep = MIN_DEPTH if operands[0].dtype.nbytes == 1 else MIN_EDGE
    return _of_tile(stmt, kept, left, right, deep)


def _of_tile(
    stmt: Accumulate,
    kept: frozenset[Axis],
    left: frozenset[Axis],
    right: frozenset[Axis],
    deep: int,
) -> tuple[str, str] | None:
    folded = [t for t in stmt.tile if t.axis not in kept]
    rows = [t for t in stmt.tile if t.axis in kept & (left - right)]
    columns = [t for t in stmt.tile if t.axis in kept & (right - left)]
    if not folded:
        return (
            "what is added up is a loop, not a dimension of the tile",
            f"split the reduce axis and vectorize its inner part: s[T].vectorize(k), of {deep} or "
            "more",
        )
    if len(folded) > 1 or len(rows) > 1 or len(columns) > 1:
        return (
            f"its tile has {len(rows)} x {len(columns)} x {len(folded)} dimensions of rows, columns"
            " and products, one of each is needed",
            "fuse them first: s[T].fuse(a, b), or vectorize one of each",
        )
    if not rows or not columns:
        return (
            f"the {'columns' if rows else 'rows'} are a loop, not a dimension of the tile",
            "vectorize an axis of them as well, of 16 or more",
        )
    return _of_sizes(stmt, rows[0], columns[0], folded[0], deep)


def _of_sizes(
    stmt: Accumulate, row: TileAxis, column: TileAxis, contract: TileAxis, deep: int
) -> tuple[str, str] | None:
    if min(row.extent, column.extent) < MIN_EDGE or contract.extent < deep:
        return (
            f"its tile is {row.extent} x {column.extent} x {contract.extent}, the least is "
            f"{MIN_EDGE} x {MIN_EDGE} x {deep}",
            "take larger factors in split or tile",
        )
    batch = [t for t in stmt.tile if t not in (row, column, contract)]
    if not batch_in_front(stmt, batch, (row, column)):
        return (
            "its tile has several batch dimensions, or one behind rows or columns",
            "leave all but one loops, s[T].serial(b), and define that one in front: T[b, i, j]",
        )
    if stmt.mask is not None:
        return (
            "a condition masks its products",
            f"s[T].dot({contract.axis.name}, finite=True), where no operand is infinite or NaN",
        )
    return None
