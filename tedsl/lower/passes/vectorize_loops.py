"""Turn vectorized loops into the tiles of the statements inside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tedsl.expr.index_arith import (
    ZERO,
    as_index,
    at_most,
    both,
    conjuncts,
    constant,
    less,
    next_power_of_two,
)
from tedsl.expr.nodes import Axis, AxisKind, Binary, BinaryOp, Cast, Const, Expr
from tedsl.expr.visit import axes_of, structural_equal, walk
from tedsl.index.facts import Facts
from tedsl.index.intern import INDEX_DTYPES
from tedsl.index.prove import prove
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
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
from tedsl.ir.visit import buffers_written, map_buffers, map_sub_stmts, walk_stmts
from tedsl.lower.passes.masks import masked
from tedsl.lower.passes.simplify import func_facts


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a statement stands: its tile so far, the conditions over it, what is known, and the
    memory that its kernel writes."""

    tile: tuple[TileAxis, ...]
    conditions: tuple[Expr, ...]
    facts: Facts
    padded: bool
    written: frozenset[Buffer]

    @property
    def lanes(self) -> frozenset[Axis]:
        """The tile's axes."""
        return frozenset(t.axis for t in self.tile)

    def room(self, buffer: Buffer) -> tuple[Expr, ...]:
        """The shape `buffer` will have."""
        if self.padded and buffer.scope is not Scope.GLOBAL:
            return tuple(_power_of_two(e) for e in buffer.shape)
        return buffer.shape

    def filled(self, buffer: Buffer) -> tuple[Expr, ...]:
        """The extents of what memory holds, beyond which a copy of it is to be 0."""
        return self.room(buffer) if buffer.held is None else buffer.held

    def masked(self, expr: Expr, exact: bool = False) -> Expr:
        """`expr` safe to evaluate at every point of the tile; `exact` leaves out the ends of rows
        that nothing is stored in."""
        room = self.filled if exact else self.room
        return masked(expr, self.conditions, self.facts, self.lanes, room, self.written)


def vectorize_loops(func: Func, *, padded: bool) -> Func:
    """Make each vectorized loop a dimension of the tile of every statement inside it.

    Before:  for i in 0..33 (vectorized): if io*33 + i < n: B[i] = A[io*33 + i]
    After:   tile (i:33): B[i] = A[io*33 + i] if io*33 + i < n
    With `padded`, extents and the shapes of LOCAL buffers become powers of two (i:64, i < 33).
    Requires: level NEST.   Ensures: level TILE.
    A loop whose extent is no constant stays serial: the annotation is a hint.
    Order: after partition_loops, which removes most conditions that would become masks.
    """
    body = tiles(func, padded=padded)
    if padded:
        local = {
            s.buffer: replace(s.buffer, shape=tuple(_power_of_two(e) for e in s.buffer.shape))
            for s in walk_stmts(body)
            if isinstance(s, Allocate) and s.buffer.scope is not Scope.GLOBAL
        }
        changed = {b: n for b, n in local.items() if _shape(b) != _shape(n)}
        body = map_buffers(body, changed)
    return replace(func, body=body)


def tiles(func: Func, *, padded: bool) -> Stmt:
    """The body of statements over tiles, its LOCAL buffers of the sizes that they have."""
    written = frozenset(b for b in buffers_written(func.body) if b.scope is Scope.GLOBAL)
    return _vectorized(func.body, _Place((), (), func_facts(func), padded, written))


def _shape(buffer: Buffer) -> list[int | None]:
    return [constant(e) for e in buffer.shape]


def _power_of_two(extent: Expr) -> Expr:
    size = constant(extent)
    return extent if size is None else as_index(next_power_of_two(size))


def _vectorized(stmt: Stmt, place: _Place) -> Stmt:
    match stmt:
        case For(kind=LoopKind.VECTORIZED) if (size := constant(stmt.extent)) is not None:
            return _vectorized(stmt.body, _with_lane(stmt, size, place))
        case For(axis=axis, start=start, extent=extent, body=body):
            facts = _not_empty(extent, place.facts).with_axis(axis, start, extent)
            inside = replace(place, facts=facts)
            kind = LoopKind.SERIAL if stmt.kind is LoopKind.VECTORIZED else stmt.kind
            return replace(stmt, kind=kind, body=_vectorized(body, inside))
        case Guard(condition=condition, body=body):
            return _vectorized_guard(condition, body, place)
        case Store():
            return _vectorized_store(stmt, place)
        case Accumulate():
            return _vectorized_accumulate(stmt, place)
        case _:
            return map_sub_stmts(stmt, lambda s: _vectorized(s, place))


def _not_empty(extent: Expr, facts: Facts) -> Facts:
    """The facts inside a loop: it has an iteration, so no size that its extent is made of is 0.

    ceil(a * b / 4) >= 1  =  a >= 1 and b >= 1,  for a, b >= 0
    """
    match extent:
        case Const():
            return facts
        case Binary(
            op=BinaryOp.FLOORDIV,
            a=Binary(op=BinaryOp.ADD, a=a, b=Const(value=int(k))),
            b=Const(value=int(c)),
        ) if 0 <= k < c:
            return _not_empty(a, facts)
        case Binary(op=BinaryOp.MUL, a=a, b=b) if all(
            prove(at_most(ZERO, factor), facts) for factor in (a, b)
        ):
            return _not_empty(b, _not_empty(a, facts))
        case Cast(a=a) if a.dtype in INDEX_DTYPES:
            return _not_empty(a, facts)
        case _:
            return facts.assume(less(ZERO, extent))


def _with_lane(loop: For, size: int, place: _Place) -> _Place:
    extent = next_power_of_two(size) if place.padded else size
    conditions = place.conditions
    if extent != size:
        conditions = (*conditions, less(loop.axis, size))
    tile = (*place.tile, TileAxis(loop.axis, extent))
    facts = place.facts.with_axis(loop.axis, 0, extent)
    return replace(place, tile=tile, conditions=conditions, facts=facts)


def _vectorized_guard(condition: Expr, body: Stmt, place: _Place) -> Stmt:
    """Conditions without tile axes stay a guard around the tile, the others become its mask."""
    lanes = place.lanes
    test = place.masked(condition)
    scalar = [c for c in conjuncts(test) if axes_of(c).isdisjoint(lanes)]
    tiled = [c for c in conjuncts(test) if not axes_of(c).isdisjoint(lanes)]
    facts = place.facts.assume(both(*scalar)) if scalar else place.facts
    inside = replace(place, conditions=(*place.conditions, *tiled), facts=facts)
    new = _vectorized(body, inside)
    return Guard(both(*scalar), new) if scalar else new


def _vectorized_store(store: Store, place: _Place) -> Stmt:
    value = place.masked(store.value, exact=store.buffer.scope is Scope.SHARED)
    conditions = _needed_for_store(store.buffer, store.indices, place.conditions, place)
    conditions = _to_the_end(store, conditions)
    mask = both(*conditions) if conditions else None
    # Along an axis that nothing here depends on, one value would be stored in one place repeatedly.
    used = axes_of(value, *store.indices, *conditions)
    tile = tuple(t for t in place.tile if t.axis in used or store.call is not None)
    return replace(store, value=value, mask=mask, tile=tile)


def _to_the_end(store: Store, conditions: Sequence[Expr]) -> Sequence[Expr]:
    """Conditions under which rows are written to their end, where more of them is memory than what
    they hold: no mask then splits an aligned store."""
    held = store.buffer.held
    if held is None or store.buffer.scope is not Scope.GLOBAL:
        return conditions
    ends = [
        (less(index, size), less(index, extent))
        for index, size, extent in zip(store.indices, held, store.buffer.shape, strict=True)
    ]
    return [
        next((wider for end, wider in ends if structural_equal(condition, end)), condition)
        for condition in conditions
    ]


def _vectorized_accumulate(stmt: Accumulate, place: _Place) -> Stmt:
    """The guard's conditions and the reduction's own `where=`, which is never dropped."""
    lanes = place.lanes
    own: list[Expr] = []
    if stmt.mask is not None:
        own = list(conjuncts(place.masked(stmt.mask)))
    scalar = [c for c in own if axes_of(c).isdisjoint(lanes)]
    tiled = [c for c in own if not axes_of(c).isdisjoint(lanes)]
    conditions = (*place.conditions, *tiled)
    facts = place.facts.assume(both(*scalar)) if scalar else place.facts
    inside = replace(place, conditions=conditions, facts=facts)
    values = tuple(inside.masked(v) for v in stmt.values)
    kept = axes_of(*stmt.indices)
    data = {c for c in place.conditions if _is_data(c, lanes, kept)}
    if not _needed_for_store(stmt.buffers[0], stmt.indices, list(data), place):
        conditions = tuple(c for c in conditions if c not in data)
    mask = both(*conditions) if conditions else None
    cheap = (*place.conditions, *(c for c in tiled if not _reads_memory(c)))
    indices = tuple(map(replace(inside, conditions=cheap).masked, stmt.indices))
    update = replace(stmt, indices=indices, values=values, mask=mask, tile=place.tile)
    return Guard(both(*scalar), update) if scalar else update


def _reads_memory(expr: Expr) -> bool:
    return any(isinstance(node, Load) for node in walk(expr))


def _is_data(condition: Expr, lanes: frozenset[Axis], kept: frozenset[Axis]) -> bool:
    """True when a condition only says which results exist, not what is reduced into them."""
    axes = axes_of(condition)
    return axes & lanes <= kept and all(a.kind is AxisKind.DATA for a in axes)


def _needed_for_store(
    buffer: Buffer, indices: tuple[Expr, ...], conditions: Sequence[Expr], place: _Place
) -> Sequence[Expr]:
    """Of a LOCAL buffer those without which a lane would lie outside of it: nothing reads the lanes
    that a guard leaves out, but sums of whole vectors add them up, slowly where they hold whatever
    was in memory (subnormal numbers); written, they are 0 or numbers like the others."""
    if buffer.scope is Scope.GLOBAL:
        return conditions

    def inside(facts: Facts) -> bool:
        return all(
            prove(both(less(i, size), less(as_index(-1), i)), facts)
            for i, size in zip(indices, place.room(buffer), strict=True)
        )

    if not conditions or inside(place.facts):
        return ()
    needed = list(conditions)
    for condition in conditions if len(conditions) > 1 else ():
        rest = [each for each in needed if each is not condition]
        if rest and inside(place.facts.assume(both(*rest))):
            needed = rest
    return needed
