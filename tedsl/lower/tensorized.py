"""Whether the target has what each intrinsic needs."""

from __future__ import annotations

from tedsl.errors import LowerError
from tedsl.ir.nodes import Accumulate, Func, Scope, Store, TensorCall
from tedsl.ir.visit import walk_stmts


def check_intrinsics(func: Func, *, blocks: bool) -> Func:
    """Refuse tensorized statements that the target cannot carry out; nothing is changed.

    Requires: level TILE.
    Raises:
        LowerError: no implementation for the target, or a tile that is not whole.
    """
    for stmt in walk_stmts(func.body):
        if isinstance(stmt, (Store, Accumulate)) and stmt.call is not None:
            _check(stmt, stmt.call, blocks)
    return func


def _check(stmt: Store | Accumulate, call: TensorCall, blocks: bool) -> None:
    intrin = call.intrin
    subject = f"the intrinsic {intrin.name}"
    if (intrin.gpu if blocks else intrin.cpu) is None:
        where, what = ("Triton", "gpu=te.triton_snippet(source)")
        if not blocks:
            where, what = ("the CPU", "cpu=te.llvm_function(text) or te.c_function(address)")
        raise LowerError(
            f"it has no implementation for {where}",
            subject=subject,
            hint=f"add {what} to te.decl_tensor_intrin, or schedule without tensorize",
        )
    extents = {t.axis: t.extent for t in stmt.tile}
    odd = [a for a, n in zip(call.axes, intrin.extents, strict=True) if extents.get(a, 1) != n]
    if odd or stmt.mask is not None:
        raise LowerError(
            f"its axis {odd[0].name} is padded to {extents.get(odd[0], 1)}"
            if odd
            else f"its tile has a mask: {stmt.mask}",
            subject=subject,
            hint="tiles of Triton have extents that are powers of two: declare such an intrinsic"
            if odd
            else "tensorize loops that are whole in every iteration",
        )
    buffers = (stmt.buffer,) if isinstance(stmt, Store) else stmt.buffers
    own = frozenset(call.axes)
    others = [t.axis for t in stmt.tile if t.extent > 1 and t.axis not in own]
    if others or (blocks and (isinstance(stmt, Store) or buffers[0].scope is Scope.GLOBAL)):
        raise LowerError(
            f"the tile has the axis {others[0].name} beside those of the intrinsic"
            if others
            else "in Triton an intrinsic folds into a tile, and this is stored in memory",
            subject=subject,
            hint="leave other loops serial or bind them to the grid; declare a reduction, or write "
            "what is pointwise without tensorize",
        )
