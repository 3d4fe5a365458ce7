"""Prefetch: load what the next iteration of a loop reads while its programs wait for each other at
a grid barrier, or, what is too narrow for asynchronous copies, while this one is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from tedsl.expr.index_arith import add, as_index, constant, minimum, sub, widened
from tedsl.expr.nodes import Axis, Binary, Cast, Compare, Expr, Select, Unary
from tedsl.expr.visit import axes_of, rewrite, structural_equal, walk
from tedsl.expr.visit import substitute as in_expr
from tedsl.index.affine import divisible
from tedsl.index.facts import Facts
from tedsl.index.simplify import simplify
from tedsl.ir.layout import collapse
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
    For,
    Func,
    Guard,
    Load,
    LoopKind,
    Meet,
    Scope,
    Seq,
    Stmt,
    Store,
    TileAxis,
)
from tedsl.ir.visit import (
    buffers_written,
    map_own_exprs,
    own_exprs,
    rewrite_stmts,
    sub_stmts,
    walk_stmts,
)
from tedsl.lower.fresh_copies import fresh_tile
from tedsl.lower.passes.simplify import func_facts, sequence

# Bytes that a thread copies to shared memory at least (cp.async).
WORD = 4
# Iterations from which it pays to have the next one's loads under way, and how many a thread has.
TURNS, EACH = 4, 16
# Operations on an element up to which ptxas unrolls such a loop, and has more loads under way.
LIGHT = 4
WARP = 32


@dataclass(frozen=True, slots=True, eq=False)
class _Copy:
    """A tile that a loop fills from memory once an iteration, and the one that it is taken from."""

    store: Store
    next: Buffer


def fetch_ahead(func: Func) -> Func:
    """Load the tiles of the next iteration between arriving at a grid barrier and waiting there.

    Before:  for t (in 2 stages): tile (i:32): a[i] = X[t, i];  ...;  meet;  ...
    After:   tile (i:32): a[i] = X[0, i]
             for t: ...;  meet, meanwhile: tile (i:32): next[i] = X[min(t + 1, T - 1), i]
                    ...;  tile (i:32): a[i] = next[i]
    Only tiles that are copies of memory which the kernel does not store; a loop with a grid barrier
    that has none, or of which it is not known that it runs, has one stage.
    Before:  for t: tile (i:4096): a[i] += X[t*4095 + i] * 2
    After:   tile (i:4096): now[i] = X[i]
             for t: tile (i:4096): next[i] = X[min(t + 1, T - 1)*4095 + i]
                    tile (i:4096): a[i] += now[i] * 2;  tile (i:4096): now[i] = next[i]
    Only loads of less than a word, few for each thread, in loops around statements alone that
    reduce what takes some arithmetic.
    Requires: level TILE.   Ensures: no loop with a grid barrier has several stages.
    Order: after what rewrites single statements (find_dots, widen_accumulators).
    """
    stored, facts = frozenset(buffers_written(func.body)), func_facts(func)
    threads = func.launch.warps * WARP
    inside = dict(_inside(func.body, facts))

    def made(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For):
            return None
        if _meets(stmt):
            return _ahead(stmt, stored, facts)
        known = inside.get(id(stmt))  # none of a loop around one that changed
        return None if known is None else _Narrow(stmt, stored, known, threads).made()

    body = rewrite_stmts(func.body, made)
    return func if body is func.body else replace(func, body=body)


def _inside(stmt: Stmt, facts: Facts) -> Iterator[tuple[int, Facts]]:
    """What is known inside of each loop."""
    if isinstance(stmt, For):
        facts = facts.with_axis(stmt.axis, stmt.start, stmt.extent)
        yield id(stmt), facts
    elif isinstance(stmt, Guard):
        facts = facts.assume(stmt.condition)
    for child in sub_stmts(stmt):
        yield from _inside(child, facts)


def _meets(loop: For) -> bool:
    return loop.num_stages > 0 and any(isinstance(s, Meet) for s in walk_stmts(loop.body))


def _ahead(loop: For, stored: frozenset[Buffer], facts: Facts) -> Stmt:
    plain = replace(loop, num_stages=0)
    first, end = constant(loop.start), constant(loop.end)
    if loop.num_stages < 2 or first is None or end is None or end - first < 2:
        return plain
    straight = tuple(_straight(loop.body))
    meeting = next((n for n, stmt in enumerate(straight) if isinstance(stmt, Meet)), 0)
    copies = {copy.store.buffer: copy for copy in _copies(loop, straight[:meeting], stored)}
    if not copies:
        return plain
    body = partial(_without, loop.body, copies, straight[meeting])
    return _fetching(plain, list(copies.values()), facts, body)


def _fetching(
    loop: For, copies: Sequence[_Copy], facts: Facts, body: Callable[[Stmt], Stmt]
) -> Stmt:
    """A loop of several iterations with copies that are filled before it and, for the next one, by
    a statement that `body` has a place for; at its end they become those of this one."""
    following = minimum(add(loop.axis, 1), sub(loop.end, 1))
    later, now = ({loop.axis: widened(e, loop.axis.dtype)} for e in (following, loop.start))
    inside = body(sequence([_filled(copy.store, copy.next, later, facts) for copy in copies]))
    inside = sequence([inside, *(_moved(copy) for copy in copies)])
    for copy in copies:
        inside = Allocate(copy.next, inside)
    starts = [_filled(copy.store, copy.store.buffer, now, facts) for copy in copies]
    result = sequence([*starts, replace(loop, body=inside)])
    for copy in copies:
        result = Allocate(copy.store.buffer, result)
    return result


def _straight(stmt: Stmt) -> Iterator[Stmt]:
    """What runs in every iteration of a loop with this body, in order."""
    match stmt:
        case Seq(stmts=stmts):
            for child in stmts:
                yield from _straight(child)
        case Allocate(body=body):
            yield stmt
            yield from _straight(body)
        case _:
            yield stmt


def _copies(loop: For, before: Sequence[Stmt], stored: frozenset[Buffer]) -> Iterator[_Copy]:
    """The tiles that are loaded from memory `before` the grid barrier, and by nothing else."""
    own = {stmt.buffer for stmt in before if isinstance(stmt, Allocate)}
    leaves = (stmt for stmt in walk_stmts(loop.body) if not sub_stmts(stmt))
    times = [buffer for stmt in leaves for buffer in buffers_written(stmt)]
    for stmt in before:
        if isinstance(stmt, Store) and stmt.buffer in own and times.count(stmt.buffer) == 1:
            loads = [node for node in walk(*own_exprs(stmt)) if isinstance(node, Load)]
            known = all(b.buffer.scope is Scope.GLOBAL and b.buffer not in stored for b in loads)
            if isinstance(stmt.value, Load) and known and stmt.buffer.scope is Scope.LOCAL:
                yield _Copy(stmt, replace(stmt.buffer, name=f"{stmt.buffer.name}_next"))


def _without(stmt: Stmt, copies: Mapping[Buffer, _Copy], meet: Stmt, meanwhile: Stmt) -> Stmt:
    """The body of a loop without the copies, those of the next iteration made at the barrier."""
    match stmt:
        case Allocate(buffer=buffer, body=body) if buffer in copies:
            return _without(body, copies, meet, meanwhile)
        case Store(buffer=buffer) if buffer in copies:
            return Seq(())
        case Meet() if stmt is meet:
            return replace(stmt, meanwhile=meanwhile)
        case Seq(stmts=stmts):
            return sequence([_without(child, copies, meet, meanwhile) for child in stmts])
        case Allocate(body=body):
            return replace(stmt, body=_without(body, copies, meet, meanwhile))
        case _:
            return stmt


def _filled(store: Store, buffer: Buffer, place: Mapping[Axis, Expr], facts: Facts) -> Store:
    """A copy into `buffer` of what is read where the loop is at `place`."""
    tile, axes = fresh_tile(store.tile)

    def there(expr: Expr) -> Expr:
        return simplify(in_expr(expr, {**axes, **place}), facts)

    return replace(
        store,
        buffer=buffer,
        indices=tuple(map(there, store.indices)),
        value=there(store.value),
        mask=None if store.mask is None else there(store.mask),
        tile=tile,
    )


def _moved(copy: _Copy) -> Store:
    """The tile of the next iteration becomes that of this one."""
    tile, axes = fresh_tile(copy.store.tile)
    indices = tuple(in_expr(index, axes) for index in copy.store.indices)
    return replace(
        copy.store, indices=indices, value=Load(copy.next, indices), mask=None, tile=tile
    )


def _arithmetic(stmt: Accumulate) -> int:
    """Operations on an element that is reduced, but those on indices."""
    waiting, count = [*stmt.values, *stmt.reducer.combine], 0
    while waiting:
        node = waiting.pop()
        if isinstance(node, (Binary, Cast, Compare, Select, Unary)):
            count += 1
            waiting += node.children()
    return count


class _Narrow:
    """The loads of less than a word in a loop of statements without loops of their own."""

    def __init__(self, loop: For, stored: frozenset[Buffer], facts: Facts, threads: int) -> None:
        self.loop, self.stored, self.facts, self.threads = loop, stored, facts, threads
        self.copies: list[_Copy] = []

    def made(self) -> Stmt | None:
        """The loop that fetches them an iteration ahead; None where there are none."""
        loop = self.loop
        first, end = constant(loop.start), constant(loop.end)
        if loop.num_stages or loop.kind is not LoopKind.SERIAL or first is None or end is None:
            return None
        plain = all(isinstance(s, (Store, Accumulate, Allocate)) for s in _straight(loop.body))
        if end - first < TURNS or not plain:
            return None
        body = rewrite_stmts(loop.body, self._read)
        if not self.copies:
            return None
        return _fetching(loop, self.copies, self.facts, lambda fetched: sequence([fetched, body]))

    def _read(self, stmt: Stmt) -> Stmt | None:
        """A statement that reads what was fetched."""
        if not isinstance(stmt, Accumulate) or _arithmetic(stmt) <= LIGHT:
            return None
        tile = stmt.tile

        def fetched(node: Expr) -> Expr | None:
            return self._copied(node, tile) if isinstance(node, Load) else None

        done = map_own_exprs(stmt, lambda expr: rewrite(expr, fetched))
        return None if done is stmt else done

    def _copied(self, load: Load, tile: Sequence[TileAxis]) -> Expr | None:
        """The copy of a load, one of all loads that are the same."""
        own = axes_of(load)
        lanes = [t for t in tile if t.axis in own]
        points = prod(t.extent for t in lanes)
        inside = any(isinstance(n, Load) and n is not load for n in walk(load))
        if inside or load.buffer.scope is not Scope.GLOBAL or load.buffer in self.stored:
            return None
        if self.loop.axis not in own or points < self.threads or points > EACH * self.threads:
            return None
        if not self._narrow(load, lanes):
            return None
        axes = tuple(t.axis for t in lanes)
        copy = next((c for c in self.copies if self._same(c, load, lanes)), None)
        if copy is None:
            shape = tuple(as_index(t.extent) for t in lanes)
            name = f"{load.buffer.name}_now"
            now = Buffer(name, load.dtype, shape, Scope.LOCAL)
            later = replace(now, name=f"{load.buffer.name}_next")
            copy = _Copy(Store(now, axes, load, None, tuple(lanes)), later)
            self.copies.append(copy)
        return Load(copy.store.buffer, axes)

    def _narrow(self, load: Load, lanes: Sequence[TileAxis]) -> bool:
        """True when neighbours in memory are loaded one by one: they begin at no word."""
        if load.dtype.nbytes >= WORD or load.dtype.is_bool:
            return False
        facts = self.facts
        for lane in lanes:
            facts = facts.with_axis(lane.axis, 0, lane.extent)
        known = load.buffer.shape, load.indices
        return not any(
            self._in_words(*each, lanes, facts) for each in (known, collapse(*known, facts))
        )

    @staticmethod
    def _in_words(
        shape: Sequence[Expr], indices: Sequence[Expr], lanes: Sequence[TileAxis], facts: Facts
    ) -> bool:
        """True when lanes lie beside each other in memory, from even elements on."""
        row = constant(shape[-1])
        if len(indices) > 1 and (row is None or row % 2):
            return False
        bases = [simplify(sub(indices[-1], lane.axis), facts) for lane in lanes]
        pairs = zip(bases, lanes, strict=True)
        return any(
            lane.axis not in axes_of(base) and divisible(base, 2, facts) for base, lane in pairs
        )

    def _same(self, copy: _Copy, load: Load, lanes: Sequence[TileAxis]) -> bool:
        """True when a copy is of this load, but for the names of lanes."""
        store = copy.store
        if [t.extent for t in store.tile] != [t.extent for t in lanes]:
            return False
        pairs = zip(lanes, store.tile, strict=True)
        there: dict[Expr, Expr] = {mine.axis: other.axis for mine, other in pairs}
        return structural_equal(in_expr(load, there), store.value)
