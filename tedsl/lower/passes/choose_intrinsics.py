"""Which intrinsics the target carries out where they stand; elsewhere the loops run themselves.

An intrinsic means what its loops compute, so that leaving it out changes no number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tedsl.expr.index_arith import constant
from tedsl.expr.nodes import Axis, Expr
from tedsl.expr.visit import axes_of
from tedsl.ir.nodes import Accumulate, For, Func, Guard, LoopKind, Scope, Stmt, Store, TensorCall
from tedsl.ir.visit import rewrite_stmts, sub_stmts


@dataclass(frozen=True, slots=True, eq=False)
class _Site:
    """A statement that an intrinsic carries out, the loops around it that become dimensions of its
    tile, and the conditions over it."""

    stmt: Store | Accumulate
    call: TensorCall
    lanes: tuple[Axis, ...]
    conditions: tuple[Expr, ...]


def choose_intrinsics(func: Func, *, blocks: bool) -> Func:
    """Leave out intrinsics that the target cannot carry out where they stand: the tile has other
    axes too, or a condition on elements of it, or in Triton is no value in registers.

    Before:  vectorized io: vectorized ii: dot4(...) as C[io*4 + ii] = f(io*4 + ii)
    After:   vectorized io: vectorized ii: C[io*4 + ii] = f(io*4 + ii)
    Requires: level NEST.   Ensures: vectorize_loops gives each call a whole tile of its own axes.
    Order: before vectorize_loops, which would mask and pad other tiles; in Triton after
    through_memory, which says what is in registers.
    """
    left_out = frozenset(
        site.stmt for site in _sites(func.body, (), ()) if not _fits(site, blocks=blocks)
    )
    if not left_out:
        return func

    def plain(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Store | Accumulate) and stmt in left_out:
            return replace(stmt, call=None)
        return None

    return replace(func, body=rewrite_stmts(func.body, plain))


def _sites(stmt: Stmt, lanes: tuple[Axis, ...], conditions: tuple[Expr, ...]) -> Iterator[_Site]:
    match stmt:
        case Store() | Accumulate() if stmt.call is not None:
            own = () if stmt.mask is None else (stmt.mask,)
            yield _Site(stmt, stmt.call, lanes, (*conditions, *own))
        case For(kind=LoopKind.VECTORIZED, axis=axis, extent=extent):
            if constant(extent) != 1:
                lanes = (*lanes, axis)
        case Guard(condition=condition):
            conditions = (*conditions, condition)
        case _:
            pass
    for inner in sub_stmts(stmt):
        yield from _sites(inner, lanes, conditions)


def _fits(site: _Site, *, blocks: bool) -> bool:
    """Whether the statement is a whole tile of the intrinsic's own axes, and of no others (also
    loops that nobody vectorized: a target may have made dimensions of a tile of them)."""
    lanes = frozenset(site.lanes)
    if not lanes <= frozenset(site.call.axes):
        return False
    if any(not axes_of(condition).isdisjoint(lanes) for condition in site.conditions):
        return False
    return not blocks or _folds_into_registers(site)


def _folds_into_registers(site: _Site) -> bool:
    """Whether the statement updates a tile in registers whose dimensions are in the order of the
    intrinsic's: that is what a function of Triton is called with."""
    stmt, call = site.stmt, site.call
    if isinstance(stmt, Store) or stmt.buffers[0].scope is Scope.GLOBAL:
        return False
    own = dict(zip(call.intrin.axes, call.axes, strict=True))
    lanes = frozenset(site.lanes)
    wanted = [own[axis] for axis in call.intrin.op.axes if own[axis] in lanes]
    found = [axis for index in stmt.indices for axis in wanted if axis in axes_of(index)]
    return len(found) == len(wanted) and all(a is b for a, b in zip(found, wanted, strict=True))
