"""Whether the target can carry out each intrinsic where it stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tedsl.errors import LowerError
from tedsl.expr.integers import constant
from tedsl.expr.nodes import Axis, Expr
from tedsl.expr.visit import axes_of
from tedsl.ir.nodes import Accumulate, For, Func, Guard, LoopKind, Scope, Stmt, Store, TensorCall
from tedsl.ir.visit import sub_stmts
from tedsl.lower.vectorize import next_power_of_two


@dataclass(frozen=True, slots=True, eq=False)
class _Site:
    """A statement that an intrinsic carries out, the loops around it that become dimensions of its
    tile, and the conditions over it."""

    stmt: Store | Accumulate
    call: TensorCall
    lanes: tuple[Axis, ...]
    conditions: tuple[Expr, ...]


def check_intrinsics(func: Func, *, blocks: bool) -> Func:
    """Refuse intrinsics that the target cannot carry out; nothing is changed.

    Requires: level NEST.   Ensures: vectorize_loops gives each call a whole tile of its own axes.
    Order: before vectorize_loops, which would mask and pad other tiles.
    Raises:
        LowerError: no implementation for the target, an extent that is padded, another loop that
            becomes a dimension of the tile, or a condition on elements of it.
    """
    for site in _sites(func.body, (), ()):
        _check_implemented(site.call, blocks)
        _check_lanes(site)
        _check_whole(site)
        _check_folded(site, blocks)
    return func


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


def _subject(call: TensorCall) -> str:
    return f"the intrinsic {call.intrin.name}"


def _check_implemented(call: TensorCall, blocks: bool) -> None:
    intrin = call.intrin
    if (intrin.gpu if blocks else intrin.cpu) is None:
        where, what = ("Triton", "gpu=te.triton_snippet(source)")
        if not blocks:
            where, what = ("the CPU", "cpu=te.llvm_function(text) or te.c_function(address)")
        raise LowerError(
            f"it has no implementation for {where}",
            subject=_subject(call),
            hint=f"add {what} to te.decl_tensor_intrin, or schedule without tensorize",
        )
    for axis, size in zip(intrin.axes, intrin.extents, strict=True):
        if blocks and next_power_of_two(size) != size:
            raise LowerError(
                f"its axis {axis.name} of {size} is padded to {next_power_of_two(size)}",
                subject=_subject(call),
                hint="tiles of Triton have extents that are powers of two: declare such an "
                "intrinsic",
            )


def _check_lanes(site: _Site) -> None:
    """Also loops that nobody vectorized: a target may have made dimensions of a tile of them."""
    own = frozenset(site.call.axes)
    others = [axis for axis in site.lanes if axis not in own]
    if others:
        raise LowerError(
            f"the tile has the axis {others[0].name} beside those of the intrinsic",
            subject=_subject(site.call),
            hint="leave other loops serial or bind them to the grid; on the GPU a loop along a "
            "tile in registers is a dimension of it: compute what is read there at root, or inside "
            f"{others[0].name}",
        )


def _check_whole(site: _Site) -> None:
    lanes = frozenset(site.lanes)
    for condition in site.conditions:
        if not axes_of(condition).isdisjoint(lanes):
            raise LowerError(
                f"its tile has a mask: {condition}",
                subject=_subject(site.call),
                hint="tensorize loops that are whole in every iteration",
            )


def _check_folded(site: _Site, blocks: bool) -> None:
    stmt = site.stmt
    if not blocks:
        return
    if isinstance(stmt, Store) or stmt.buffers[0].scope is Scope.GLOBAL:
        raise LowerError(
            "in Triton an intrinsic folds into a tile, and this is stored in memory",
            subject=_subject(site.call),
            hint="declare a reduction, or write what is pointwise without tensorize",
        )
