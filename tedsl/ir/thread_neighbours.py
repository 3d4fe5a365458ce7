"""How many neighbours of a tile a thread should have, where its accesses are not all wide.

On a GPU a thread has as many neighbours of a tile as the widest access to it moves at once, 16
bytes of them.  An access that is not aligned, as of a window or a stencil, moves them one by one:
in each of these instructions the threads skip what the others move, and ask for all lines of the
processor's own cache once more.

    4 neighbours each    thread t loads x[4 * t + 1 + n], n = 0 .. 3: 4 lines, 4 times
    1 neighbour each     thread t loads x[32 * n + t + 1], n = 0 .. 3: 1 or 2 lines, 4 times

Where that is what a kernel waits for, fewer neighbours are better, though the others then take more
instructions.  Imports `expr` and `index`.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from math import gcd, prod

from tedsl.expr.index_arith import conjuncts, constant, sub
from tedsl.expr.nodes import Axis, Compare, Const, Expr, Select, Unary
from tedsl.expr.visit import axes_of, substitute, walk
from tedsl.index.affine import known_multiple, stride_of
from tedsl.index.facts import Facts
from tedsl.ir.layout import flat_index
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
    Dot,
    For,
    Func,
    Guard,
    Load,
    LoopKind,
    Scope,
    Stmt,
    Store,
    TensorCall,
    TileAxis,
)
from tedsl.ir.visit import buffers_written, own_exprs, sub_stmts, walk_stmts

WIDEST = 16
"""Bytes of the widest access."""
LINE, LANES = 128, 32
"""Bytes of a line, of which the processor's own cache gives one in a cycle; threads of a warp."""
STREAM = 20
"""Bytes that a processor gets from device memory in a cycle, at most."""
WAITS, FEWER = 0.5, 0.75
"""The share of the time of device memory from which on lines are counted, and the share of them
that fewer neighbours may ask for at most."""
INSTANCES = 64
"""Iterations of unrolled loops that are looked at."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Accesses to as many elements of a tile, of which as many are a run of neighbours."""

    elements: int
    run: int


@dataclass(frozen=True, slots=True)
class _Access:
    """Of each iteration that is written out: how many elements its address and its mask allow at
    once.  Neighbours are `step` elements apart."""

    buffer: Buffer
    step: int
    allowed: tuple[tuple[int, int], ...]

    def widest(self) -> int:
        """Elements that are moved at once where the address alone counts."""
        return min(WIDEST // self.buffer.dtype.nbytes, max(place for place, _ in self.allowed))

    def lines(self, each: int, run: int) -> float:
        """Lines that a warp asks for, a line for each element, of a thread with so many."""
        row = min(LANES * each, run)
        across = max(1.0, row * self.step * self.buffer.dtype.nbytes / LINE)
        once = min(LANES, LANES * each / row * across)
        return sum(once / min(each, *widths) for widths in self.allowed)


@dataclass(slots=True)
class _Found:
    """The accesses to each block, and those already seen."""

    facts: Facts
    blocks: dict[Neighbours, list[_Access]] = field(default_factory=dict[Neighbours, list[_Access]])
    seen: set[tuple[object, ...]] = field(default_factory=set[tuple[object, ...]])


def neighbours_of_thread(func: Func, facts: Facts, threads: int) -> Mapping[Neighbours, int]:
    """The blocks of which a thread should have fewer neighbours than the widest access moves, and
    how many.

    Args:
        func: at TILE level.
        facts: of its sizes.
        threads: of a program.
    """
    if _most_reads(func.body) < 2 or not _by_elements(func.body):
        return {}
    found = _Found(facts)
    _collect(func.body, (), found)
    largest = max((block.elements for block in found.blocks), default=0)
    chosen: dict[Neighbours, int] = {}
    for block, accesses in found.blocks.items():
        usual = min(largest // threads, max(access.widest() for access in accesses))
        each = _best(block, accesses, usual) if block.elements == largest else usual
        if each < usual:
            chosen[block] = each
    return chosen


def neighbours_of(
    buffer: Buffer, indices: Sequence[Expr], tile: Sequence[TileAxis], facts: Facts
) -> tuple[Neighbours, Axis, bool] | None:
    """The block of an access, the axis of the tile along which it has neighbours, and whether these
    are one after the other in memory; None for a scalar."""
    used = axes_of(*indices)
    axes = [t for t in tile if t.axis in used and t.extent > 1]
    if not axes:
        return None
    flat = flat_index(buffer, indices)
    run = next((t for t in reversed(axes) if _is_one(_stride(flat, t.axis, facts))), None)
    along = axes[-1] if run is None else run
    block = Neighbours(prod(t.extent for t in axes), along.extent)
    return block, along.axis, run is not None


def _best(block: Neighbours, accesses: Sequence[_Access], usual: int) -> int:
    """How many neighbours ask for the fewest lines, where those of the usual number take long
    enough to be worth it."""

    def lines(each: int) -> float:
        return sum(access.lines(each, block.run) for access in accesses)

    once = {access.buffer: access.buffer.dtype.nbytes for access in accesses}
    if usual < 2 or lines(usual) * STREAM < sum(once.values()) * LANES * WAITS:
        return usual
    choices = [1 << n for n in reversed(range(usual.bit_length()))]
    best = min(choices, key=lines)
    return best if lines(best) <= FEWER * lines(usual) else usual


def _most_reads(body: Stmt) -> int:
    """How often the buffer is loaded that a program loads most often: what is under a condition is
    another part of the iterations, as the last tile is, not more of the same."""
    parts: list[Counter[Buffer]] = []

    def visit(stmt: Stmt, times: int, count: Counter[Buffer]) -> None:
        for node in walk(*own_exprs(stmt)):
            if isinstance(node, Load) and node.buffer.scope is Scope.GLOBAL:
                count[node.buffer] += times
        if isinstance(stmt, For) and stmt.kind is LoopKind.UNROLLED:
            times *= max(1, _number(stmt.end) - _number(stmt.start))
        if isinstance(stmt, Guard):
            count = Counter[Buffer]()
            parts.append(count)
        for child in sub_stmts(stmt):
            visit(child, times, count)

    parts.append(Counter[Buffer]())
    visit(body, 1, parts[0])
    return max((number for count in parts for number in count.values()), default=0)


def _by_elements(body: Stmt) -> bool:
    """True when each element of a tile is computed by itself, and nothing is loaded ahead."""
    for stmt in walk_stmts(body):
        match stmt:
            case Dot():
                return False
            case For(num_stages=stages) if stages:
                return False
            case Accumulate(along=Axis()) | Allocate(buffer=Buffer(scope=Scope.SHARED)):
                return False
            case Store(call=TensorCall()) | Accumulate(call=TensorCall()):
                return False
            case Accumulate(indices=indices, tile=tile):
                kept = axes_of(*indices)
                if any(t.extent > 1 and t.axis not in kept for t in tile):
                    return False
            case _:
                pass
    return True


def _collect(stmt: Stmt, loops: tuple[For, ...], found: _Found) -> None:
    match stmt:
        case Store() | Accumulate():
            _accesses(stmt, loops, found)
        case For(kind=LoopKind.UNROLLED, start=Const(), end=Const()):
            loops = (*loops, stmt)
        case _:
            pass
    for child in sub_stmts(stmt):
        _collect(child, loops, found)


def _accesses(stmt: Store | Accumulate, loops: Sequence[For], found: _Found) -> None:
    """What one statement loads from memory, and stores there."""
    always = () if stmt.mask is None else conjuncts(stmt.mask)
    for load in walk(*own_exprs(stmt)):
        if isinstance(load, Load) and load.buffer.scope is Scope.GLOBAL:
            masks = always if load.mask is None else (*always, *conjuncts(load.mask))
            _access(load.buffer, load.indices, masks, stmt.tile, loops, found)
    for buffer in buffers_written(stmt):
        if buffer.scope is Scope.GLOBAL:
            _access(buffer, stmt.indices, always, stmt.tile, loops, found)


def _access(
    buffer: Buffer,
    indices: Sequence[Expr],
    masks: Sequence[Expr],
    tile: Sequence[TileAxis],
    loops: Sequence[For],
    found: _Found,
) -> None:
    """One access, if it is another than those before and its neighbours are not all elsewhere."""
    facts, used = found.facts, axes_of(*indices)
    key = (buffer, *(facts.interner.rep(index) for index in indices))
    place = neighbours_of(buffer, indices, tile, facts)
    if place is None or key in found.seen:
        return
    found.seen.add(key)
    block, along, in_a_run = place
    if any(isinstance(node, Load) and along in axes_of(node) for node in walk(*indices)):
        return
    loops = [loop for loop in loops if loop.axis in used]
    numbers = product(*(range(_number(loop.start), _number(loop.end)) for loop in loops))
    turns = _Turns(along, [loop.axis for loop in loops], list(islice(numbers, INSTANCES)), facts)
    flat = flat_index(buffer, indices)
    step = _stride(flat, along, facts)
    places = turns.widths(flat) if in_a_run else [1] * len(turns.numbers)
    shown = [turns.widths(_sides(part)) for part in masks if along in axes_of(part)]
    allowed = [(n, gcd(n, *others)) for n, *others in zip(places, *shown, strict=True)]
    apart = max(1, abs(step)) if isinstance(step, int) else 1
    found.blocks.setdefault(block, []).append(_Access(buffer, apart, tuple(allowed)))


@dataclass(frozen=True, slots=True)
class _Turns:
    """The iterations of the unrolled loops around an access with neighbours along an axis."""

    along: Axis
    axes: Sequence[Axis]
    numbers: Sequence[tuple[int, ...]]
    facts: Facts

    def widths(self, expr: Expr | None) -> list[int]:
        """By iteration, what is proved to divide an index at the first of its neighbours."""
        if expr is None:
            return [1] * len(self.numbers)
        first = substitute(expr, {self.along: Const(0, self.along.dtype)})
        steps = [stride_of(first, axis, self.facts) for axis in self.axes]
        known = [step for step in steps if isinstance(step, int)]
        if len(known) < len(steps):
            return [1] * len(self.numbers)
        first = substitute(first, {axis: Const(0, axis.dtype) for axis in self.axes})
        least = known_multiple(first, self.facts, WIDEST)
        return [gcd(least, sum(map(operator.mul, known, place))) for place in self.numbers]


def _sides(part: Expr) -> Expr | None:
    """What a condition compares with 0."""
    if isinstance(part, Compare) and part.a.dtype.is_integer:
        return sub(part.a, part.b)
    return None


def _stride(flat: Expr, axis: Axis, facts: Facts) -> int | Expr | None:
    """How far apart neighbours are; None where that is not only of whole numbers."""
    computed = any(isinstance(n, (Select, Unary)) or n.dtype.is_float for n in walk(flat))
    return None if computed else stride_of(flat, axis, facts)


def _is_one(step: int | Expr | None) -> bool:
    return isinstance(step, int) and step == 1


def _number(expr: Expr) -> int:
    return constant(expr) or 0
