"""Choose `num_warps` of a kernel when the schedule does not say."""

from __future__ import annotations

from dataclasses import replace

from tedsl.expr.index_arith import constant
from tedsl.ir.nodes import Allocate, Func, Scope
from tedsl.ir.visit import walk_stmts

THREADS = 32
# Elements of the largest tile that one thread holds; more would spill.
PER_THREAD = 128
MIN_WARPS, MAX_WARPS = 4, 16


def choose_warps(func: Func) -> Func:
    """Enough warps for the largest tile in registers: warps = tile / (32 * 128), between 4 and 16.

    Before:  alloc C: local float32[128, 256]
    After:   launch(num_warps=8)
    Requires: level TILE, padded tiles.   Ensures: `launch.num_warps` is given.
    """
    if func.launch.num_warps is not None:
        return func
    largest = 1
    for stmt in walk_stmts(func.body):
        if isinstance(stmt, Allocate) and stmt.buffer.scope is Scope.LOCAL:
            size = 1
            for extent in stmt.buffer.shape:
                size *= constant(extent) or 1
            largest = max(largest, size)
    warps = MIN_WARPS
    while warps < MAX_WARPS and warps * THREADS * PER_THREAD < largest:
        warps *= 2
    return replace(func, launch=replace(func.launch, num_warps=warps))
