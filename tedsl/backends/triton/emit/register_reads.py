"""Which tiles in shared memory are read through registers in a pipelined loop.

Triton 3.6 gives wrong numbers on Hopper where TMA fills a tile in a pipelined loop and threads
change an operand of the product before they multiply (a prologue, a mask): seen from two stages on,
not without a pipeline, not with loads by addresses, and not where tensor cores read both tiles
themselves (`tests/helpers/descriptor_prologues.py` has the kernels).  Float32 operands, taken apart
in registers, 8-bit ones that do not lie along K, tiles with a dimension of one element behind a
longer one (taken out in registers) and operands that are not staged count as changed, too; both
operands of a product then have no TMA.  What is computed from another product, as in attention, is
no such operand.
"""

from __future__ import annotations

from collections.abc import Iterator

from tedsl.dtypes import DType
from tedsl.expr.index_arith import constant
from tedsl.expr.nodes import Cast, Expr
from tedsl.expr.visit import axes_of, walk
from tedsl.ir.nodes import Buffer, Dot, For, Func, Load, LoopKind, Scope, Stmt, Store, TileAxis
from tedsl.ir.visit import own_exprs, sub_stmts, walk_stmts


def read_in_registers(func: Func) -> frozenset[Buffer]:
    """The SHARED buffers that a pipelined loop fills and not only tensor cores read."""
    filled = set(_filled(func.body, pipelined=False))
    changed = {buffer for buffer in filled if _is_cut(buffer)}
    dots = [stmt for stmt in walk_stmts(func.body) if isinstance(stmt, Dot)]
    for stmt in walk_stmts(func.body):
        if not isinstance(stmt, Dot):
            changed |= {read.buffer for read in _loads(*own_exprs(stmt))}
    for _ in range(1 + len(dots)):
        for dot in dots:
            read = [
                load for load in _loads(dot.lhs, dot.rhs) if load.buffer.scope is not Scope.LOCAL
            ]
            direct = [load for load in _direct(dot) if load.buffer not in changed]
            if any(not any(load is each for each in direct) for load in read):
                changed |= {load.buffer for load in read}
    return frozenset(filled & changed)


def _loads(*exprs: Expr) -> list[Load]:
    return [node for node in walk(*exprs) if isinstance(node, Load)]


def _is_cut(buffer: Buffer) -> bool:
    """True for a dimension of one element behind a longer one."""
    sizes = [constant(extent) for extent in buffer.shape]
    first = next((n for n, size in enumerate(sizes) if size != 1), len(sizes))
    return 1 in sizes[first:]


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
