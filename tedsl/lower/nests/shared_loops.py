"""Horizontal fusion: nests inside shared loops, or side by side in one grid.

Part of `build_nests`; imports `context` and `ir`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from tedsl.dtypes import DType
from tedsl.expr.index_arith import (
    add,
    at_most,
    both,
    constant,
    floordiv,
    floormod,
    less,
    mul,
    sub,
    widened,
)
from tedsl.expr.nodes import Axis, Const, Expr
from tedsl.index.simplify import simplify
from tedsl.ir.nodes import For, Guard, LoopKind, Seq, Stmt
from tedsl.ir.visit import substitute
from tedsl.lower.nests.context import Context, loops
from tedsl.lower.nests.reduction import Reduction
from tedsl.scheduling.kernels.tree import depth
from tedsl.scheduling.plan import StagePlan

GRID = (LoopKind.PARALLEL, LoopKind.PROGRAM)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The nest of one stage: of a reduction, or what a pointwise stage does inside the `depth`
    outermost loops."""

    stage: StagePlan
    made: Reduction | Callable[[int], Stmt]

    @property
    def first_fold(self) -> int | None:
        """How many loops stand outside the accumulators."""
        return len(self.made.prefix) if isinstance(self.made, Reduction) else None

    def inside(self, depth: int) -> Stmt:
        """The nest inside the `depth` outermost loops: only the accumulation, where those include
        loops of the accumulators."""
        return self.made.nest(depth) if isinstance(self.made, Reduction) else self.made(depth)

    def around(self, fold: Stmt) -> Stmt:
        """The initialisation of a reduction before `fold`, its results after it."""
        if isinstance(self.made, Reduction):
            return self.made.around(fold, self.made.outer_guards())
        return fold


def merged(context: Context, parts: Sequence[Part]) -> Stmt:
    """The nest of the first part, with the other ones in its outer loops.

    Before:  for i: B[i] = f(i)       for i: (acc = 0; for k: acc += g(i, k); C[i] = acc)
    After:   for i: (B[i] = f(i); acc = 0; for k: acc += g(i, k); C[i] = acc)
    Where the loops of a reduction are shared, its initialisation stands before them and its result
    after.
    """
    leader = parts[0]
    depths = [depth(context.plan, part.stage) for part in parts[1:]]
    if not depths:
        return leader.inside(0)
    level = max(depths)
    body: Stmt = leader.inside(level)
    inner: list[tuple[Part, int]] = [(leader, level)]
    while True:
        here = [p for p, d in zip(parts[1:], depths, strict=True) if d == level]
        if here:
            body = Seq((body, *(part.inside(level) for part in here)))
            inner.extend((part, level) for part in here)
        if level == 0:
            return body
        level -= 1
        body = loops(context, leader.stage, (leader.stage.loop_order[level],), body, ())
        for part, end in inner:
            if part.first_fold == level and level < end:
                body = part.around(body)


def one_grid(nests: Sequence[Stmt]) -> Stmt:
    """The nests side by side: one loop over the iterations of all their parallel loops, in order.

    Before:  parallel for i in 0..n: A[i] = f(i)        parallel for j in 0..m: B[j] = g(j)
    After:   parallel for p in 0..n + m: (if p < n: A[p] = f(p)), (if p >= n: B[p - n] = g(p - n))
    """
    peeled = [_peel(nest) for nest in nests]
    kinds = {loop.kind for grid, _ in peeled for loop in grid}
    if not kinds:
        return Seq(tuple(nests))
    dtype = _index_type([grid for grid, _ in peeled])
    place = Axis("program", dtype=dtype)
    bodies: list[Stmt] = []
    start: Expr = Const(0, dtype)
    for number, (grid, body) in enumerate(peeled):
        count = reduce(mul, (widened(loop.end, dtype) for loop in grid), Const(1, dtype))
        end = simplify(add(start, count))
        tests = [at_most(start, place)] if number else []
        tests += [less(place, end)] if number < len(nests) - 1 else []
        bodies.append(Guard(both(*tests), _unfused(grid, body, sub(place, start))))
        start = end
    kind = LoopKind.PROGRAM if LoopKind.PROGRAM in kinds else LoopKind.PARALLEL
    return For(place, start, kind, Seq(tuple(bodies)))


def _index_type(grids: Sequence[Sequence[For]]) -> DType:
    """int32 when all iterations together are surely few enough."""
    total = 0
    for grid in grids:
        sizes = [constant(loop.end) for loop in grid]
        if any(loop.axis.dtype is DType.int64 for loop in grid):
            return DType.int64
        total += math.prod(1 if size is None else size for size in sizes)
    return DType.int32 if total <= DType.int32.info.highest else DType.int64


def _peel(nest: Stmt) -> tuple[list[For], Stmt]:
    """The outermost parallel loops, and what is inside them."""
    grid: list[For] = []
    while isinstance(nest, For) and nest.kind in GRID:
        grid.append(nest)
        nest = nest.body
    return grid, nest


def _unfused(grid: Sequence[For], body: Stmt, index: Expr) -> Stmt:
    """`body` where the loops of `grid` are at iteration `index` of all of them, inner ones fastest.

    index = (a * extent(b) + b) * extent(c) + c
    """
    values: dict[Expr, Expr] = {}
    for number, loop in enumerate(reversed(grid)):
        last = number == len(grid) - 1
        value = index if last else floormod(index, widened(loop.end, index.dtype))
        values[loop.axis] = widened(value, loop.axis.dtype)
        index = index if last else floordiv(index, widened(loop.end, index.dtype))
    return substitute(body, values)
