"""Find matrix products among the reductions over tiles: what becomes `tl.dot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NoReturn

from tedsl.errors import LowerError
from tedsl.expr.index_arith import add, as_index, both, conjuncts, constant, mul
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Const, Expr, Select
from tedsl.expr.printer import print_expr
from tedsl.expr.visit import axes_of, rewrite, structural_equal, substitute, walk
from tedsl.ir.matrix_units import MIN_DEPTH, MIN_EDGE, factors
from tedsl.ir.nodes import (
    Accumulate,
    Buffer,
    Dot,
    For,
    Func,
    Guard,
    Load,
    LoopKind,
    Scope,
    Stmt,
    Store,
    TileAxis,
)
from tedsl.ir.visit import buffers_written, rewrite_stmts, walk_stmts
from tedsl.ir.visit import substitute as substitute_stmt

# Scopes in which a copy is the same until it is filled again.
_HELD = (Scope.SHARED, Scope.LOCAL)
# Products that a reduction without a `Dot` holds in registers at once.
MAX_PRODUCTS = 1 << 17


def find_dots(func: Func) -> Func:
    """Make a multiply-accumulate over tile axes a `Dot`.

    Before:  tile (i:64, j:64, k:32): acc[i, j] += cast(A[i, k]) * cast(B[k, j])
    After:   dot (i:64, j:64, k:32): acc[i, j] += A[i, k] * B[k, j]
    The casts vanish when the product of the narrow operands is exact in the accumulator's type.
    Requires: level TILE, padded tiles.   Ensures: masked elements of both operands are 0,
    or of one where the schedule says that all are finite.
    Order: before widen_accumulators, which takes the reductions that are left.
    Raises:
        LowerError: a mask over both operands leaves a reduction of too many products, and they are
            held in registers.
    """
    staged = _staged(func.body)
    written = frozenset(buffers_written(func.body))
    same = {b: s for b, s in staged.items() if written.isdisjoint(_read(s.value))}
    body = rewrite_stmts(func.body, lambda stmt: _as_dot(stmt, staged, same))
    return func if body is func.body else replace(func, body=body)


def _staged(body: Stmt) -> dict[Buffer, Store]:
    """The copies of memory by the one store that fills them, all their elements: where the mask of
    the load in it fails, they are 0."""
    found: dict[Buffer, Store] = {}
    again: set[Buffer] = set()
    for stmt in walk_stmts(body):
        if not isinstance(stmt, (Store, Accumulate)):
            continue
        for buffer in stmt.buffers if isinstance(stmt, Accumulate) else (stmt.buffer,):
            if isinstance(stmt, Accumulate) or buffer in found:
                again.add(buffer)
            elif isinstance(stmt.value, Load) and stmt.mask is None and _whole(stmt):
                found[buffer] = stmt
            else:
                again.add(buffer)
    return {buffer: stmt for buffer, stmt in found.items() if buffer not in again}


def _read(value: Expr) -> set[Buffer]:
    return {node.buffer for node in walk(value) if isinstance(node, Load)}


def _whole(store: Store) -> bool:
    """True for a tile of a program when the indices are the axes of the statement, in order, but
    for those of dimensions of one element."""
    shape = store.buffer.shape
    indices = [i for i, size in zip(store.indices, shape, strict=True) if constant(size) != 1]
    tile = [t for t in store.tile if t.extent != 1]
    same = len(indices) == len(tile)
    pairs = zip(indices, tile, strict=False)
    return same and store.buffer.scope in _HELD and all(i is t.axis for i, t in pairs)


def _as_dot(
    stmt: Stmt, staged: Mapping[Buffer, Store], same: Mapping[Buffer, Store]
) -> Stmt | None:
    match stmt:
        case Accumulate(buffers=(buffer,), values=(Binary(op=BinaryOp.MUL, a=a, b=b),), tile=tile):
            pass
        case _:
            return None
    if stmt.reducer.operator is not BinaryOp.ADD or buffer.scope is Scope.GLOBAL:
        return None
    if not stmt.products.dot or stmt.call is not None:
        return None
    kept = axes_of(*stmt.indices)
    folded = [t for t in tile if t.axis not in kept]
    if len(folded) != 1:
        return None
    operands = factors(a, b, buffer.dtype)
    if operands is None:
        return None
    lhs, rhs = operands
    row = _alone(lhs, rhs, tile, kept)
    column = _alone(rhs, lhs, tile, kept)
    contract = folded[0]
    if row is None or column is None or not _folds(lhs, rhs, contract.axis):
        return None
    deep = MIN_DEPTH if lhs.dtype.nbytes == 1 else MIN_EDGE
    if min(row.extent, column.extent) < MIN_EDGE or contract.extent < deep:
        return None
    batch = tuple(t for t in tile if t not in (row, column, contract))
    if not batch_in_front(stmt, batch, (row, column)):
        return None
    if not stmt.products.finite and not _only_over(stmt.mask, tile, (*batch, contract)):
        return _in_turns(stmt, contract, same)
    lhs = _zero_where_masked(lhs, stmt.mask, tile, staged)
    rhs = _zero_where_masked(rhs, stmt.mask, tile, staged)
    if not _silenced(stmt.mask, tile, (lhs, rhs)):
        return None
    precision = stmt.products.precision
    dot = Dot(buffer, stmt.indices, lhs, rhs, batch, row, column, contract, precision)
    scalar = _scalar_conditions(stmt.mask, tile)
    return Guard(both(*scalar), dot) if scalar else dot


def batch_in_front(stmt: Accumulate, batch: Sequence[TileAxis], sides: Sequence[TileAxis]) -> bool:
    """True when the accumulator has one batch dimension at most, in front of rows and columns, as a
    batched product of the matrix units has."""
    wide = [t.axis for t in batch if t.extent > 1]
    places = {axis: n for n, index in enumerate(stmt.indices) for axis in axes_of(index)}
    last = min((places[t.axis] for t in sides), default=0)
    return len(wide) <= 1 and all(places[axis] < last for axis in wide)


def _in_turns(stmt: Accumulate, contract: TileAxis, same: Mapping[Buffer, Store]) -> Stmt | None:
    """As many products at once as registers hold, where they cannot be a `Dot`; None for all.
    `same` are copies of memory that the kernel does not change.

    Before:  tile (i:128, j:32, k:256): acc[i, j] += A[i, k] * B[k, j] if i < k
    After:   for k0 in 0..8: tile (i:128, j:32, k:32):
                 acc[i, j] += A[i, k0*32 + k] * B[k0*32 + k, j] if i < k0*32 + k
    """
    around = prod(t.extent for t in stmt.tile if t is not contract)
    if around * contract.extent <= MAX_PRODUCTS:
        return None
    part = max(1, MAX_PRODUCTS // around)
    values = tuple(_from_memory(value, contract.axis, same) for value in stmt.values)
    if any(_in_registers(value, contract.axis) for value in values):
        _refuse(stmt, contract)
    turn = Axis(f"{contract.axis.name}_turn", dtype=contract.axis.dtype)
    here: dict[Expr, Expr] = {contract.axis: add(mul(turn, as_index(part)), contract.axis)}
    inner = replace(contract, extent=part)
    tile = tuple(inner if t is contract else t for t in stmt.tile)
    body = substitute_stmt(replace(stmt, values=values, tile=tile), here)
    return For(turn, as_index(contract.extent // part), LoopKind.SERIAL, body)


def _from_memory(value: Expr, axis: Axis, same: Mapping[Buffer, Store]) -> Expr:
    """`value` that reads the memory a copy was made of, not the copy, at the positions of `axis`:
    a tile in registers cannot be read in part."""

    def loaded(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or node.buffer not in same:
            return None
        if axis not in axes_of(*node.indices):
            return None
        store = same[node.buffer]
        return substitute(store.value, dict(zip(store.indices, node.indices, strict=True)))

    return rewrite(value, loaded)


def _in_registers(value: Expr, axis: Axis) -> bool:
    """True when `value` reads a tile in registers at the positions of `axis`."""
    return any(
        isinstance(node, Load) and node.buffer.scope in _HELD and axis in axes_of(*node.indices)
        for node in walk(value)
    )


def _refuse(stmt: Accumulate, contract: TileAxis) -> NoReturn:
    """Refuse to hold all products of a tile at once, where a word of the user gives a `Dot`."""
    axis = contract.axis.name
    lanes = {t.axis for t in stmt.tile}
    masks = [c for c in conjuncts(stmt.mask) if axes_of(c) & lanes] if stmt.mask is not None else []
    count = prod(t.extent for t in stmt.tile)
    raise LowerError(
        f"{stmt.buffers[0].name} would add up {count} products that a condition masks one by one",
        facts=[
            ("tile", " x ".join(f"{t.axis.name}: {t.extent}" for t in stmt.tile)),
            ("mask", ", ".join(print_expr(c) for c in masks)),
            ("allowed", f"{MAX_PRODUCTS} products"),
        ],
        hint=f"if no operand is infinite or NaN, say so: s[...].dot({axis}, finite=True) makes it "
        "a matrix product whose masked operands are 0; or use smaller tiles",
    )


def _alone(
    mine: Expr, other: Expr, tile: Sequence[TileAxis], kept: frozenset[Axis]
) -> TileAxis | None:
    """The one result axis that only `mine` depends on."""
    found = [t for t in tile if t.axis in kept and t.axis in axes_of(mine) - axes_of(other)]
    return found[0] if len(found) == 1 else None


def _folds(lhs: Expr, rhs: Expr, axis: Axis) -> bool:
    return axis in axes_of(lhs) and axis in axes_of(rhs)


def _only_over(mask: Expr | None, tile: Sequence[TileAxis], allowed: Sequence[TileAxis]) -> bool:
    """True when each condition can silence both operands (0 times infinity would be NaN)."""
    lanes = {t.axis for t in tile}
    common = {t.axis for t in allowed}
    return mask is None or all(axes_of(c) & lanes <= common for c in conjuncts(mask))


def _silenced(mask: Expr | None, tile: Sequence[TileAxis], operands: Sequence[Expr]) -> bool:
    """True when each condition is over the axes of one operand, so that masking that one is
    enough."""
    if mask is None:
        return True
    lanes = {t.axis for t in tile}
    return all(
        any(axes_of(c) & lanes <= axes_of(operand) for operand in operands) for c in conjuncts(mask)
    )


def _scalar_conditions(mask: Expr | None, tile: Sequence[TileAxis]) -> list[Expr]:
    lanes = {t.axis for t in tile}
    return [] if mask is None else [c for c in conjuncts(mask) if axes_of(c).isdisjoint(lanes)]


def _zero_where_masked(
    operand: Expr, mask: Expr | None, tile: Sequence[TileAxis], staged: Mapping[Buffer, Store]
) -> Expr:
    """`operand` with 0 at the points its own axes say are masked; a masked load is 0 already."""
    if mask is None:
        return operand
    lanes = {t.axis for t in tile}
    own = axes_of(operand)
    tests = [c for c in conjuncts(mask) if axes_of(c) & lanes and axes_of(c) & lanes <= own]
    zero = _zero_conditions(operand, staged)
    tests = [c for c in tests if not any(c is z or structural_equal(c, z) for z in zero)]
    if not tests:
        return operand
    return Select(both(*tests), operand, Const(0.0 if operand.dtype.is_float else 0, operand.dtype))


def _zero_conditions(operand: Expr, staged: Mapping[Buffer, Store]) -> list[Expr]:
    """Conditions under whose failure a load is 0: its own, and those of the copy that it reads."""
    if not isinstance(operand, Load):
        return []
    found = [] if operand.mask is None else list(conjuncts(operand.mask))
    store = staged.get(operand.buffer)
    if store is not None and isinstance(store.value, Load) and store.value.mask is not None:
        here: dict[Expr, Expr] = dict(zip(store.indices, operand.indices, strict=True))
        found += [substitute(c, here) for c in conjuncts(store.value.mask)]
    return found
