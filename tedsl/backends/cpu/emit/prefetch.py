"""Pipelined loops: an iteration asks the caches for what a later one reads.

A read is fetched ahead where its address moves with the loop by one distance, which may be made of
sizes.  What an iteration reads is the box over the loops and tile axes inside it; each of its cache
lines is asked for once, as far as the shape says where lines are: bytes that the iterations in
between have read are left out, and where an iteration moves on by a fraction of a line, only the
first of those that share it asks.  A prefetch is a wish, which does nothing where there is no
memory: no guard is needed.  Its address is that of this iteration, moved on without any claim
(`inbounds`, `nsw`) that LLVM might take for a fact about the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tedsl.backends.cpu.emit.affine import Dependence, Poly, add, const_poly
from tedsl.backends.cpu.emit.frame import Frame
from tedsl.backends.cpu.emit.llvm_text import I1, I32, I64, PTR, Value, const
from tedsl.backends.cpu.emit.memory import STREAM_BYTES, Accessor
from tedsl.backends.cpu.emit.tiling import NO_UNROLL
from tedsl.backends.cpu.emit.values import Pos
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Cast, Const, Expr, Var
from tedsl.expr.visit import walk
from tedsl.ir import nodes as ir
from tedsl.ir.visit import buffers_written, own_exprs, sub_stmts, tile_axes

LINE = STREAM_BYTES
MOST_LINES = 2048  # per read and iteration; more would push out what is in use
UNROLLED = 8  # lines asked for one after the other, without a loop
_DIVISIONS = (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD)
_ARITHMETIC = (BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX)


@dataclass(frozen=True, slots=True)
class Inner:
    """An axis inside the loop: it runs from `start` over `extent` values."""

    axis: Axis
    start: int
    extent: int


@dataclass(frozen=True, slots=True)
class Box:
    """What one iteration reads of a buffer, in elements.

    `start` is where the box begins in the current iteration, and `step` how far it moves in one;
    `run` elements follow each other, once for every point of `rows` (a distance and a count each).
    """

    buffer: ir.Buffer
    start: Poly
    step: Poly
    run: int
    rows: tuple[tuple[Poly, int], ...]


def fetch_ahead(frame: Frame, loop: ir.For) -> None:
    """Ask for what iteration `axis + num_stages - 1` reads.  Requires: the loop's axis has its
    value in `frame.env`."""
    ahead = loop.num_stages - 1
    trips = loop.extent
    if ahead < 1 or (isinstance(trips, Const) and int(trips.value) <= ahead):
        return
    accessor = Accessor(frame, ())
    for box in map(fresh, _merged(_leading(_boxes(frame, loop)))):
        if _lines(box) <= MOST_LINES:
            _ask(accessor, frame.env[loop.axis], box, ahead)


# --- what is read


def _boxes(frame: Frame, loop: ir.For) -> list[Box]:
    """The reads of the loop's body that move with it, each once."""
    written = set(buffers_written(loop.body))
    found: list[Box] = []
    seen: set[ir.Load] = set()
    stack: list[tuple[ir.Stmt, tuple[Inner, ...], frozenset[Axis]]] = [(loop.body, (), frozenset())]
    while stack:
        stmt, inner, unknown = stack.pop()
        inside = (*inner, *(Inner(t.axis, 0, t.extent) for t in tile_axes(stmt)))
        for node in walk(*own_exprs(stmt)):
            if not isinstance(node, ir.Load) or node in seen or node.buffer in written:
                continue
            seen.add(node)
            if node.buffer.scope is ir.Scope.GLOBAL and node.buffer in frame.memory:
                box = _box(frame, loop.axis, node, inside, unknown)
                found += [] if box is None else [box]
        if isinstance(stmt, ir.For):
            if isinstance(stmt.start, Const) and isinstance(stmt.end, Const):
                first, count = int(stmt.start.value), int(stmt.end.value) - int(stmt.start.value)
                inner = (*inner, Inner(stmt.axis, first, max(count, 0)))
            else:
                unknown |= {stmt.axis}
        stack.extend((child, inner, unknown) for child in reversed(sub_stmts(stmt)))
    return found


def _box(
    frame: Frame, axis: Axis, load: ir.Load, inner: Sequence[Inner], unknown: frozenset[Axis]
) -> Box | None:
    """What a read touches in one iteration, or None where its address is not affine."""
    poly = frame.offset(load.buffer, load.indices)
    depends = Dependence([axis, *(i.axis for i in inner), *unknown])
    accessor = Accessor(frame, ())
    for each in inner:
        accessor.at[each.axis] = Pos(None, each.start)
    moving: dict[Axis, Poly] = {}
    for atoms, coefficient in poly.items():
        varying = [atom for atom in atoms if depends(atom)]
        if not all(_plain(frame, atom) or atom in varying for atom in atoms):
            return None
        if len(varying) > 1 or not all(isinstance(atom, Axis) for atom in varying):
            return None
        for atom in varying:
            if not isinstance(atom, Axis) or atom in unknown:
                return None
            rest = tuple(other for other in atoms if other is not atom)
            moving[atom] = add(moving.get(atom, {}), accessor.place_poly({rest: coefficient}))
    step = moving.pop(axis, {})
    if not step or any(each.extent == 0 for each in inner):
        return None
    counts = {each.axis: each.extent for each in inner}
    steps = [(along, counts[by]) for by, along in moving.items() if counts[by] > 1 and along]
    return _folded(load.buffer, accessor.place_poly(poly), step, steps)


def _plain(frame: Frame, expr: Expr) -> bool:
    """Whether an atom is known before the loop's body, and safe to compute there: no memory is
    read and nothing is divided by what might be 0."""
    for node in walk(expr):
        match node:
            case Axis() | Var():
                if node not in frame.env or not node.dtype.is_integer:
                    return False
            case Const() | Cast():
                pass
            case Binary(op=op) if op in _ARITHMETIC:
                pass
            case Binary(op=op, b=Const(value=value)) if op in _DIVISIONS and value:
                pass
            case _:
                return False
    return True


def _folded(buffer: ir.Buffer, start: Poly, step: Poly, steps: Sequence[tuple[Poly, int]]) -> Box:
    """The box of these steps: those that leave no line between them become one run."""
    size = buffer.dtype.nbytes
    run, rows = 1, [pair for pair in steps if const_poly(pair[0]) is None]
    known = [(number, count) for along, count in steps if (number := const_poly(along)) is not None]
    for number, count in sorted(known, key=lambda pair: abs(pair[0])):
        if number < 0:
            start = add(start, {(): number * (count - 1)})
        if abs(number) <= max(run, LINE // size):
            run += abs(number) * (count - 1)
        else:
            rows.append(({(): abs(number)}, count))
    return Box(buffer, start, step, run, tuple(rows))


def fresh(box: Box) -> Box:
    """The box without what the iteration before has read."""
    step = const_poly(box.step)
    if step is None or abs(step) >= box.run:
        return box
    start = add(box.start, {(): box.run - step}) if step > 0 else box.start
    return replace(box, start=start, run=abs(step))


def _leading(boxes: Sequence[Box]) -> list[Box]:
    """The boxes without those that another one has read in an earlier iteration."""
    kept: list[Box] = []
    for box in boxes:
        for place, other in enumerate(kept):
            lead = _lead(box, other)
            if lead is not None:
                kept[place] = box if lead > 0 else other
                break
        else:
            kept.append(box)
    return kept


def _lead(box: Box, other: Box) -> int | None:
    """How many iterations `box` is in front of `other`, where one reads what the other does."""
    step, between = const_poly(box.step), _between(box, other)
    if step is None or between is None or box.run != other.run or between % step:
        return None
    return between // step


def _between(box: Box, other: Box) -> int | None:
    """How many elements `box` begins after `other`, where they move alike."""
    if box.buffer is not other.buffer or add(box.step, other.step, -1):
        return None
    if [_row(row) for row in box.rows] != [_row(row) for row in other.rows]:
        return None
    return const_poly(add(box.start, other.start, -1))


def _merged(boxes: Sequence[Box]) -> list[Box]:
    """The boxes, with one for those between which no line lies."""
    kept: list[Box] = []
    for box in boxes:
        for place, other in enumerate(kept):
            between = _between(box, other)
            gap = LINE // box.buffer.dtype.nbytes
            if between is not None and -box.run - gap < between < other.run + gap:
                end = max(other.run, between + box.run)
                first = other if between >= 0 else box
                kept[place] = replace(first, run=end - min(between, 0))
                break
        else:
            kept.append(box)
    return kept


def _row(row: tuple[Poly, int]) -> tuple[frozenset[tuple[tuple[int, ...], int]], int]:
    """A row's distance and count, to be compared."""
    return frozenset((tuple(map(id, atoms)), n) for atoms, n in row[0].items()), row[1]


# --- asking for it


def places(box: Box) -> tuple[int, ...]:
    """The elements of a run to ask for: one in each line, wherever lines begin.

    Where the next iteration goes on at the end of the run, a line's width of elements needs one:
    that at the far end, since the line of the near end has been asked for before.
    """
    line = LINE // box.buffer.dtype.nbytes
    step = const_poly(box.step)
    if step is not None and abs(step) == box.run:
        far = range(0, box.run, line) if step < 0 else range(box.run - 1, -1, -line)
        return tuple(sorted(far))
    firsts = range(0, box.run, line)
    return tuple(firsts) if firsts[-1] == box.run - 1 else (*firsts, box.run - 1)


def together(box: Box) -> int:
    """How many iterations in a row share a line of which one asks for it."""
    step = const_poly(box.step)
    apart = LINE if step is None else abs(step) * box.buffer.dtype.nbytes
    return LINE // apart if LINE % apart == 0 else 1


def _lines(box: Box) -> int:
    """How many lines an iteration asks for."""
    total = len(places(box))
    for _, count in box.rows:
        total *= count
    return total


def _ask(accessor: Accessor, index: Value, box: Box, ahead: int) -> None:
    """The prefetches of a box, `ahead` iterations from here."""
    fn, size = accessor.fn, box.buffer.dtype.nbytes
    step = const_poly(box.step)
    if step is None:
        by = fn.op(f"mul i64 {_elements(accessor, box.step).text}, {ahead * size}", I64)
        _ask_now(accessor, box, by)
        return
    sharing = together(box)
    if sharing == 1:
        _ask_now(accessor, box, const(ahead * step * size, I64))
        return
    # The first of the iterations that share a line asks for what the last of them looks ahead to.
    turn = fn.op(f"and i64 {index.text}, {sharing - 1}", I64)
    with fn.when(fn.op(f"icmp eq i64 {turn.text}, 0", I1)), accessor.memo.scope():
        _ask_now(accessor, box, const((ahead + sharing - 1) * step * size, I64))


def _ask_now(accessor: Accessor, box: Box, by: Value) -> None:
    memory = accessor.frame.memory[box.buffer]
    here = accessor.address(memory, box.buffer, box.start, inbounds=False)
    _rows(accessor, box, _moved(accessor, here, by), box.rows)


def _rows(accessor: Accessor, box: Box, ptr: Value, rows: Sequence[tuple[Poly, int]]) -> None:
    """One row after the other, in loops where they are many."""
    fn, size = accessor.fn, box.buffer.dtype.nbytes
    if not rows:
        _run(accessor, box, ptr)
        return
    (along, count), rest = rows[0], rows[1:]
    step = const_poly(along)
    if step is not None and count * _lines(replace(box, rows=tuple(rest))) <= UNROLLED:
        for n in range(count):
            _rows(accessor, box, _moved(accessor, ptr, const(n * step * size, I64)), rest)
        return
    wide = fn.op(f"mul i64 {_elements(accessor, along).text}, {size}", I64)
    with fn.loop(const(count, I64), hint=NO_UNROLL) as n, accessor.memo.scope():
        far = fn.op(f"mul i64 {wide.text}, {n.text}", I64)
        _rows(accessor, box, _moved(accessor, ptr, far), rest)


def _run(accessor: Accessor, box: Box, ptr: Value) -> None:
    """The lines of one run."""
    fn, size = accessor.fn, box.buffer.dtype.nbytes
    wanted = places(box)
    if len(wanted) <= UNROLLED:
        for place in wanted:
            _touch(accessor, _moved(accessor, ptr, const(place * size, I64)))
        return
    first = _moved(accessor, ptr, const(wanted[0] * size, I64))
    even = (wanted[-2] - wanted[0]) * size + LINE
    with fn.loop(const(even, I64), LINE, hint=NO_UNROLL) as far:
        _touch(accessor, _moved(accessor, first, far))
    _touch(accessor, _moved(accessor, ptr, const(wanted[-1] * size, I64)))


def _moved(accessor: Accessor, ptr: Value, by: Value) -> Value:
    """A pointer `by` bytes further, wherever that is."""
    if by.const == 0:
        return ptr
    return accessor.fn.op(f"getelementptr i8, ptr {ptr.text}, i64 {by.text}", PTR)


def _touch(accessor: Accessor, ptr: Value) -> None:
    """Fetch a line for reading, into all levels of the cache."""
    flags = [const(0, I32), const(3, I32), const(1, I32)]
    accessor.fn.module.declare("llvm.prefetch.p0", None, [PTR, I32, I32, I32])
    accessor.fn.call("llvm.prefetch.p0", None, [ptr, *flags])


def _elements(accessor: Accessor, poly: Poly) -> Value:
    """A distance in elements as an i64."""
    fixed = poly.get((), 0)
    terms = [(atoms, n) for atoms, n in poly.items() if atoms]
    if not terms:
        return const(fixed, I64)
    total = accessor.sum_of(terms)
    return accessor.fn.op(f"add i64 {total.text}, {fixed}", I64) if fixed else total
