"""Which tiles in shared memory are read through registers in a pipelined loop.

Triton 3.6 gives wrong numbers on Hopper where TMA fills a tile in a pipelined loop and threads
change what they read of it before they multiply (a prologue, a mask): seen from two stages on, not
without a pipeline, not with loads by addresses, and not where tensor cores read the tile themselves
(`tests/helpers/descriptor_prologues.py` has the kernels).  Float32 operands, taken apart in
registers, and 8-bit ones that do not lie along K count as changed, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from tedsl.dtypes import DType
from tedsl.expr.nodes import Cast, Expr
from tedsl.expr.visit import axes_of, walk
from tedsl.ir.nodes import Buffer, Dot, For, Func, Load, LoopKind, Scope, Stmt, Store, TileAxis
from tedsl.ir.visit import own_exprs, sub_stmts, walk_stmts


def read_in_registers(func: Func) -> frozenset[Buffer]:
    """The SHARED buffers that a pipelined loop fills and not only tensor cores read."""
    filled = set(_filled(func.body, pipelined=False))
    changed: set[Buffer] = set()
    for stmt in walk_stmts(func.body):
        direct = _direct(stmt) if isinstance(stmt, Dot) else ()
        for node in walk(*own_exprs(stmt)):
            if isinstance(node, Load) and not any(node is each for each in direct):
                changed.add(node.buffer)
    return frozenset(filled & changed)


def _filled(stmt: Stmt, *, pipelined: bool) -> Iterator[Buffer]:
    if isinstance(stmt, For):
        serial = stmt.kind is LoopKind.SERIAL
        pipelined = stmt.num_stages != 1 if serial else pipelined
    if isinstance(stmt, Store) and stmt.buffer.scope is Scope.SHARED and pipelined:
        yield stmt.buffer
    for each in sub_stmts(stmt):
        yield from _filled(each, pipelined=pipelined)


def _direct(stmt: Dot) -> tuple[Load, ...]:
    """The operands that tensor cores read from shared memory."""
    found = (_tile(operand, stmt.contract) for operand in (stmt.lhs, stmt.rhs))
    return tuple(each for each in found if each is not None)


def _tile(operand: Expr, contract: TileAxis) -> Load | None:
    match operand:
        case Cast(a=Load() as read, dtype=DType.float32) if read.dtype.is_short_float:
            operand = read  # multiplied as it is
        case _:
            pass
    if not isinstance(operand, Load) or operand.mask is not None:
        return None
    along = contract.axis in axes_of(*operand.indices[-1:])
    return operand if operand.dtype.nbytes == 2 or (operand.dtype.nbytes == 1 and along) else None
