"""Predication: turn conditions into masks, with loads and divisions safe in idle lanes of a tile.

A guard or a lazy branch says which points may be evaluated.  A tile is evaluated at all its
points, so each load gets the conditions it needs to stay in bounds, and each integer division a
divisor that is not 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import copysign

from tedsl.dtypes import DType
from tedsl.expr.index_arith import ZERO, at_most, both, conjuncts, less, maximum, widened
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Cast,
    Const,
    Expr,
    IfThenElse,
    Select,
    Unary,
    UnaryOp,
)
from tedsl.expr.visit import axes_of, map_children, rewrite_down, walk
from tedsl.index.facts import Facts
from tedsl.index.intern import INDEX_DTYPES
from tedsl.index.prove import prove
from tedsl.ir.layout import collapse
from tedsl.ir.nodes import Buffer, Load

_DIVISIONS = (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD)


def masked(
    expr: Expr,
    conditions: Sequence[Expr],
    facts: Facts,
    tile: frozenset[Axis],
    room: Callable[[Buffer], Sequence[Expr]],
    written: frozenset[Buffer] = frozenset(),
) -> Expr:
    """`expr` safe to evaluate at every point of `facts`, and unchanged where `conditions` hold.

    What is read of `written` memory keeps the conditions of the branch around it: elsewhere it may
    not be there yet.

    Before:  if_then_else(i > 0, A[i - 1], 0)             under  i < n
    After:   select(i > 0, A[i - 1 if i > 0 & i < n], 0)
    Ensures: no IfThenElse; every load is in bounds wherever its mask holds; no integer division by
    0 where a condition fails.
    """
    return _Masker(facts, tile, room, written, len(conditions)).visit(expr, tuple(conditions))


class _Masker:
    """Rebuilds the expressions of one statement, a shared node once for each set of conditions."""

    def __init__(
        self,
        facts: Facts,
        tile: frozenset[Axis],
        room: Callable[[Buffer], Sequence[Expr]],
        written: frozenset[Buffer],
        outer: int,
    ) -> None:
        self.facts = facts
        self.tile = tile
        self.room = room
        self.written = written
        self.outer = outer
        self.memo: dict[tuple[Expr, tuple[Expr, ...]], Expr] = {}

    def visit(self, expr: Expr, conditions: tuple[Expr, ...]) -> Expr:
        key = (expr, conditions)
        done = self.memo.get(key)
        if done is None:
            done = self.memo[key] = self._rebuilt(expr, conditions)
        return done

    def _rebuilt(self, expr: Expr, conditions: tuple[Expr, ...]) -> Expr:
        match expr:
            case IfThenElse(condition=condition, a=a, b=b):
                test = self.visit(condition, conditions)
                holds, fails = (*conditions, test), (*conditions, Unary(UnaryOp.NOT, test))
                self._keep(condition, conditions, (holds, fails))
                return self._choice(test, self.visit(a, holds), self.visit(b, fails))
            case Load():
                return self._load(expr, conditions)
            case Binary(op=op, a=a, b=b) if op in _DIVISIONS and b.dtype.is_integer:
                left, right = self.visit(a, conditions), self.visit(b, conditions)
                if conditions and not isinstance(right, Const):
                    right = self._divisor(right, conditions)
                return expr if left is a and right is b else Binary(op, left, right)
            case _:
                return map_children(expr, lambda child: self.visit(child, conditions))

    def _keep(
        self, condition: Expr, outside: tuple[Expr, ...], branches: Sequence[tuple[Expr, ...]]
    ) -> None:
        """What a condition has read already is not read again, under a mask of its own, in the
        branches."""
        if not any(isinstance(node, Load) for node in walk(condition)):
            return
        for node in walk(condition):
            made = self.memo.get((node, outside))
            if made is not None and any(isinstance(part, Load) for part in walk(made)):
                for branch in branches:
                    self.memo[node, branch] = made

    def _choice(self, test: Expr, yes: Expr, no: Expr) -> Expr:
        """`yes` where `test` holds, else `no`.  A load under a mask gives 0 outside it: what is 0
        where the test fails is the load itself, with the test in its mask."""
        load = yes
        while isinstance(load, Cast):
            load = load.a
        zero = isinstance(no, Const) and no.value == 0 and copysign(1.0, no.value) > 0
        if not (zero and isinstance(load, Load) and load.mask is not None):
            return Select(test, yes, no)
        if not axes_of(test) & self.tile <= axes_of(*load.indices):
            return Select(test, yes, no)
        parts = dict.fromkeys([*conjuncts(load.mask), *conjuncts(test)])
        silent = replace(load, mask=both(*parts))
        return rewrite_down(yes, lambda node: silent if node is load else None)

    def _divisor(self, divisor: Expr, conditions: tuple[Expr, ...]) -> Expr:
        """`divisor` where `conditions` hold, and nowhere 0; over its own dimensions if it can be.

        A size has no dimension, and a division by one that took on those of the mask would spread
        over the tile.
        """
        one = Const(1, divisor.dtype)
        if divisor.dtype in INDEX_DTYPES:
            if prove(at_most(one, divisor), self.facts):
                return divisor
            if prove(at_most(ZERO, divisor), self.facts):
                return maximum(divisor, one)
        return Select(both(*conditions), divisor, one)

    def _load(self, load: Load, conditions: tuple[Expr, ...]) -> Load:
        indices = tuple(self.visit(i, conditions) for i in load.indices)
        same = all(a is b for a, b in zip(indices, load.indices, strict=True))
        plain = load if same else replace(load, indices=indices)
        if not conditions:
            return plain
        mask = self._needed(plain, conditions)
        return plain if mask is None else replace(plain, mask=mask)

    def _needed(self, load: Load, conditions: tuple[Expr, ...]) -> Expr | None:
        """The cheapest mask that keeps `load` in bounds, over its own dimensions where possible."""
        open_ = _open_bounds(load.indices, self.room(load.buffer), self.facts)
        branches = conditions[self.outer :]
        if branches and load.buffer in self.written:
            return both(*conditions, *open_)
        if not open_:
            return None
        own = axes_of(*load.indices)
        mine = [c for c in conditions if axes_of(c) & self.tile <= own]
        known = self.facts
        for condition in mine:
            known = known.assume(condition)
        open_ = [b for b in open_ if not prove(b, known)]
        data = {b for b in open_ if any(isinstance(n, Load) for n in walk(b))}
        kept = conditions if data else mine
        needed = [*kept, *(b for b in open_ if b not in data)]
        return both(*needed) if needed else None


def _open_bounds(indices: Sequence[Expr], shape: Sequence[Expr], facts: Facts) -> list[Expr]:
    """The conditions `0 <= index < size` that are not proved.

    Joined dimensions have simpler conditions, and the same ones where the inner indices are inside
    their dimensions (else an element of another row would do).
    """
    if all(prove(each, facts) for each in _bounds(indices[1:], shape[1:])):
        shape, indices = collapse(shape, indices, facts)
    return [test for test in _bounds(indices, shape) if not prove(test, facts)]


def _bounds(indices: Sequence[Expr], shape: Sequence[Expr]) -> list[Expr]:
    tests: list[Expr] = []
    for index, size in zip(indices, shape, strict=True):
        wide = index if index.dtype in (DType.int32, DType.int64) else widened(index)
        tests += [at_most(ZERO, wide), less(wide, size)]
    return tests
