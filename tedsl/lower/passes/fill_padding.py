"""Zeros where rows of a copy end, in place of masks where the copy is read.

Rows of what is copied for a product are longer than what they hold, so that each begins aligned.  A
mask at the end of what they hold splits a load into single elements, unless it ends where a vector
does; of zeros in memory no mask is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import copysign

from tedsl.dtypes import DType
from tedsl.expr.index_arith import ZERO, at_most, both, conjuncts, constant, less, sub
from tedsl.expr.nodes import Axis, Cast, Const, Expr, Select
from tedsl.expr.visit import axes_of, rewrite, walk
from tedsl.index.affine import divisible
from tedsl.index.facts import Facts
from tedsl.index.prove import prove
from tedsl.index.simplify import simplify
from tedsl.ir.nodes import Buffer, For, Func, Guard, Load, Module, Scope, Stmt, Store
from tedsl.ir.visit import (
    buffers_written,
    map_buffers,
    map_own_exprs,
    map_sub_stmts,
    own_exprs,
    sub_stmts,
    tile_axes,
)
from tedsl.lower.passes.simplify import func_facts


@dataclass(frozen=True, slots=True)
class _End:
    """The dimension along which rows of a buffer are longer than what they hold."""

    dimension: int
    held: Expr
    size: Expr

    def inside(self, indices: Sequence[Expr]) -> Expr:
        """The condition that a row holds an element."""
        return less(indices[self.dimension], self.held)

    def in_row(self, indices: Sequence[Expr]) -> Expr:
        """The condition that an element lies in a row."""
        return less(indices[self.dimension], self.size)


Ends = Mapping[Buffer, _End]


def fill_padding(module: Module) -> Module:
    """Make the ends of rows zeros where the one store of a buffer reaches them, and read them.

    Before:  kernel 1: tile (i:32): B[r*32 + i] = A[r, i; i < 18]
             kernel 2: acc += B[r*32 + i; i < 18] * select(i < 18, C[i*32 + k], 0)
    After:   kernel 2: acc += B[r*32 + i] * C[i*32 + k]
    Requires: level TILE.   Ensures: a buffer whose ends are read holds them, like all else.
    Order: after all passes over kernels: a mask and a zero are one value, of which only the first
    tells what no product needs.
    """
    written = {b for func in module.funcs for b in _written(func) if b in module.workspaces}
    ends: dict[Buffer, _End] = {}
    # What is called between kernels takes an array of what has a meaning.
    called = {b for func in module.funcs if func.host_call is not None for b in func.params}
    for buffer in written:
        end = None if buffer in called else _end(buffer)
        if end is not None and all(_alone(func, buffer, end) for func in module.funcs):
            ends[buffer] = end
    read: set[Buffer] = set()
    funcs = [_Reader(ends, read).func(func) for func in module.funcs] if ends else []
    if not read:
        return module
    whole = {buffer: replace(buffer, held=None) for buffer in read}
    used = {buffer: ends[buffer] for buffer in read}
    return replace(
        module,
        funcs=tuple(_whole(_zeroed(func, used), whole) for func in funcs),
        workspaces=tuple(whole.get(b, b) for b in module.workspaces),
    )


def _written(func: Func) -> Sequence[Buffer]:
    return [b for b in buffers_written(func.body) if b.scope is Scope.GLOBAL and not b.private]


def _end(buffer: Buffer) -> _End | None:
    """Where rows end, of a buffer that is longer along one dimension only."""
    if buffer.held is None:
        return None
    pairs = enumerate(zip(buffer.held, buffer.shape, strict=True))
    longer = [_End(n, held, size) for n, (held, size) in pairs if held is not size]
    known = len(longer) == 1 and constant(longer[0].held) is not None
    return longer[0] if known and constant(longer[0].size) is not None else None


def _alone(func: Func, buffer: Buffer, end: _End) -> bool:
    """True when a kernel does not write the buffer, or with one store alone, which reaches the ends
    of the rows that it writes, and does not read it."""
    if buffer not in buffers_written(func.body):
        return True
    found = list[bool]()

    def look(stmt: Stmt, facts: Facts) -> Stmt:
        if any(isinstance(n, Load) and n.buffer is buffer for n in walk(*own_exprs(stmt))):
            found.append(False)
        if buffer in buffers_written(stmt):
            found.append(isinstance(stmt, Store) and _reaches(stmt, end, facts))
        return stmt

    _each(func.body, func_facts(func), look)
    return found == [True]


def _reaches(store: Store, end: _End, facts: Facts) -> bool:
    """True when the tile that stores the last element that a row holds stores all up to the end:
    it begins at a multiple of its length, of which the row's end is none beyond the first."""
    index = store.indices[end.dimension]
    held, size = constant(end.held), constant(end.size)
    if held is None or size is None or store.call is not None:
        return False
    for lane in store.tile:
        base = simplify(sub(index, lane.axis), facts)
        if lane.axis in axes_of(base) or lane.axis not in axes_of(index):
            continue
        near = facts.assume(end.in_row(store.indices))
        tests = () if store.mask is None else conjuncts(store.mask)
        own = [c for c in tests if lane.axis in axes_of(c)]
        whole = -(-held // lane.extent) * lane.extent >= size
        return whole and divisible(base, lane.extent, facts) and all(prove(c, near) for c in own)
    return False


class _Reader:
    """Drops the masks of loads at the ends of rows; `read` gets the buffers where one was."""

    def __init__(self, ends: Ends, read: set[Buffer]) -> None:
        self.ends, self.read = ends, read

    def func(self, func: Func) -> Func:
        """The kernel without them."""
        if self.ends.keys().isdisjoint(func.params):
            return func
        body = _each(func.body, func_facts(func), self.stmt)
        return func if body is func.body else replace(func, body=body)

    def stmt(self, stmt: Stmt, facts: Facts) -> Stmt:
        """A statement that holds no other."""
        return map_own_exprs(stmt, lambda e: rewrite(e, lambda node: self.node(node, facts)))

    def node(self, node: Expr, facts: Facts) -> Expr | None:
        """What stands for a node whose children are done, or None."""
        match node:
            case Load(buffer=buffer, mask=Expr() as mask) if buffer in self.ends:
                kept = self.without(conjuncts(mask), node, facts, bound=True)
                return None if kept is None else replace(node, mask=_joined(kept))
            case Select(condition=test, a=a, b=b) if _is_zero(b):
                load = a.a if isinstance(a, Cast) else a
                if not isinstance(load, Load) or load.buffer not in self.ends:
                    return None
                kept = self.without(conjuncts(test), load, facts, bound=False)
                if kept is None:
                    return None
                return Select(both(*kept), a, b) if kept else a
            case _:
                return None

    def without(
        self, tests: Sequence[Expr], load: Load, facts: Facts, *, bound: bool
    ) -> list[Expr] | None:
        """The conditions but for those that fail at the ends of rows alone, where zeros are read;
        None where there are none.  With `bound` one that the load lies in its row, where that is
        not proved, stands for them."""
        end = self.ends[load.buffer]
        own = axes_of(load.indices[end.dimension])
        inside = facts.assume(end.inside(load.indices))
        ended = [c for c in tests if axes_of(c) & own and prove(c, inside)]
        if not ended:
            return None
        kept = [c for c in tests if not any(c is each for each in ended)]
        read = kept if bound else () if load.mask is None else conjuncts(load.mask)
        for condition in read:
            facts = facts.assume(condition)
        in_row = end.in_row(load.indices)
        if not prove(in_row, facts):
            if not bound:
                return None
            kept.append(in_row)
        if bound and not _in_bounds(load, end, axes_of(*ended), facts):
            return None
        self.read.add(load.buffer)
        return kept


def _in_bounds(load: Load, end: _End, axes: frozenset[Axis], facts: Facts) -> bool:
    """True when an element has a place along other dimensions wherever it has one along its row, as
    far as conditions on `axes` may have said so."""
    facts = facts.assume(end.in_row(load.indices))
    return all(
        prove(both(at_most(ZERO, index), less(index, size)), facts)
        for n, (index, size) in enumerate(zip(load.indices, load.buffer.shape, strict=True))
        if n != end.dimension and axes_of(index) & axes
    )


def _joined(conditions: Sequence[Expr]) -> Expr | None:
    return both(*conditions) if conditions else None


def _zeroed(func: Func, ends: Ends) -> Func:
    """The kernel that stores zeros at the ends of rows, where it stores anything else."""
    if ends.keys().isdisjoint(_written(func)):
        return func

    def look(stmt: Stmt, facts: Facts) -> Stmt:
        if not isinstance(stmt, Store) or stmt.buffer not in ends:
            return stmt
        inside = ends[stmt.buffer].inside(stmt.indices)
        if _vanishes(stmt.value, inside, facts):
            return stmt
        zero = Const(0.0 if stmt.value.dtype.is_float else 0, stmt.value.dtype)
        return replace(stmt, value=Select(inside, stmt.value, zero))

    return replace(func, body=_each(func.body, func_facts(func), look))


def _vanishes(value: Expr, inside: Expr, facts: Facts) -> bool:
    """True when a value is 0 where `inside` fails: of loads that read nothing there."""

    def nothing(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or node.mask is None:
            return None
        if not any(prove(inside, facts.assume(test)) for test in conjuncts(node.mask)):
            return None
        return Const(0.0 if node.dtype.is_float else 0, node.dtype)

    if value.dtype is DType.bool:
        return False
    found = simplify(rewrite(value, nothing), facts)
    return _is_zero(found)


def _is_zero(expr: Expr) -> bool:
    """True of the zero that a load gives where its mask fails: its sign is +."""
    return isinstance(expr, Const) and expr.value == 0 and copysign(1.0, expr.value) > 0


def _each(stmt: Stmt, facts: Facts, made: Callable[[Stmt, Facts], Stmt]) -> Stmt:
    """`stmt` with what is made of each statement that holds no other, where so much is known."""
    match stmt:
        case For():
            facts = facts.with_axis(stmt.axis, stmt.start, stmt.extent)
        case Guard():
            facts = facts.assume(stmt.condition)
        case _ if not sub_stmts(stmt):
            for tile in tile_axes(stmt):
                facts = facts.with_axis(tile.axis, 0, tile.extent)
            return made(stmt, facts)
        case _:
            pass
    return map_sub_stmts(stmt, lambda each: _each(each, facts, made))


def _whole(func: Func, whole: Mapping[Buffer, Buffer]) -> Func:
    """The kernel with other buffers."""
    if whole.keys().isdisjoint(func.params):
        return func
    params = tuple(whole.get(b, b) for b in func.params)
    return replace(func, params=params, body=map_buffers(func.body, whole))
