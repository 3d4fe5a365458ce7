"""Products with a side too short for tensor cores, padded to what these take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tedsl.expr.index_arith import as_index, constant, less
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Expr
from tedsl.expr.visit import axes_of, walk
from tedsl.ir.matrix_units import MIN_DEPTH, MIN_EDGE, factors, worth_padding
from tedsl.ir.nodes import (
    Accumulate,
    Buffer,
    For,
    Func,
    Guard,
    Load,
    LoopKind,
    Precision,
    Scope,
    Stmt,
    Store,
    TensorCall,
)
from tedsl.ir.visit import map_buffers, own_exprs, rewrite_stmts, sub_stmts

Lanes = Mapping[Axis, int]
Place = tuple[Buffer, int]


def pad_products(func: Func) -> Func:
    """Make the tile of a product as large as a `Dot` has to be, where one of its sides is shorter.

    Before:  for i in 0..64, j in 0..3, k in 0..32 (vectorized): acc[i, j] += A[i, k] * B[k, j]
    After:   for i in 0..64, j in 0..16, k in 0..32 (vectorized): if j < 3: (as before)
    The dimension of the accumulator grows with it, and so does every loop over that dimension; a
    product is left as it is where one of these is more than a loop over all of it.
    Requires: level NEST.   Ensures: the same values.
    Order: before vectorize_loops, which makes the guards masks; find_dots finds the product then.
    """
    found = _Found()
    _collect(func.body, {}, found)
    wanted: dict[Axis, int] = {}
    for short in found.wanted:  # all sides of a product, or none
        if all(map(found.may_grow, short)):
            wanted |= short
    if not wanted:
        return func
    grown = {found.root(axis): size for axis, size in wanted.items()}
    loops = {a: grown[r] for a in found.sizes if (r := found.root(a)) in grown}
    sizes: dict[Buffer, dict[int, int]] = {}
    for buffer, number in found.places:
        size = grown.get(found.root((buffer, number)))
        if size is not None:
            sizes.setdefault(buffer, {})[number] = size
    buffers = {buffer: _grown(buffer, by) for buffer, by in sizes.items()}

    def longer(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For) or stmt.axis not in loops:
            return None
        inside = Guard(less(stmt.axis, stmt.end), stmt.body)
        return replace(stmt, end=as_index(loops[stmt.axis]), body=inside)

    return replace(func, body=map_buffers(rewrite_stmts(func.body, longer), buffers))


@dataclass(slots=True)
class _Found:
    """Which vectorized loops run over which dimensions of buffers in registers, as a union-find;
    `fixed` are those that are used in any other way, `wanted` the sides that are too short."""

    above: dict[Axis | Place, Axis | Place] = field(
        default_factory=dict[Axis | Place, Axis | Place]
    )
    sizes: dict[Axis, int] = field(default_factory=dict[Axis, int])
    places: set[Place] = field(default_factory=set[Place])
    fixed: set[Axis | Place] = field(default_factory=set["Axis | Place"])
    wanted: list[Lanes] = field(default_factory=list["Lanes"])

    def root(self, node: Axis | Place) -> Axis | Place:
        """What stands for all that is as long as `node`, the same object for all of it."""
        while (up := self.above.setdefault(node, node)) is not node:
            node = up
        return node

    def same(self, axis: Axis, place: Place) -> None:
        """That a loop runs over a dimension."""
        one, other = self.root(axis), self.root(place)
        if one is not other:
            self.above[one] = other

    def may_grow(self, axis: Axis) -> bool:
        """True when all that is as long as the loop is of one size and may be longer."""
        root = self.root(axis)
        inside = {self.sizes[a] for a in self.sizes if self.root(a) is root}
        inside |= {n for b, d in self.places if self.root((b, d)) is root for n in _size(b, d)}
        return len(inside) == 1 and all(self.root(each) is not root for each in self.fixed)


def _size(buffer: Buffer, number: int) -> list[int]:
    size = constant(buffer.shape[number])
    return [-1 if size is None else size]


def _grown(buffer: Buffer, sizes: Mapping[int, int]) -> Buffer:
    shape = [as_index(sizes[n]) if n in sizes else e for n, e in enumerate(buffer.shape)]
    return replace(buffer, shape=tuple(shape))


def _collect(stmt: Stmt, lanes: Lanes, found: _Found) -> None:
    """What `stmt`, within the vectorized loops `lanes`, says of loops and dimensions."""
    if isinstance(stmt, For) and stmt.kind is LoopKind.VECTORIZED:
        size = constant(stmt.end)
        if size is not None:
            lanes = {**lanes, stmt.axis: size}
            found.sizes[stmt.axis] = size
    called = isinstance(stmt, (Store, Accumulate)) and isinstance(stmt.call, TensorCall)
    for buffer, indices in _accesses(stmt):
        if buffer.scope is Scope.GLOBAL:
            continue
        for number, index in enumerate(indices):
            place = buffer, number
            found.places.add(place)
            if isinstance(index, Axis) and index in lanes:
                found.same(index, place)
            else:
                found.fixed.add(place)
                found.fixed |= axes_of(index) & lanes.keys()
    if called:
        found.fixed |= lanes.keys()
    elif isinstance(stmt, Accumulate):
        found.wanted.append(_short(stmt, lanes))
    for each in sub_stmts(stmt):
        _collect(each, lanes, found)


def _accesses(stmt: Stmt) -> Iterator[tuple[Buffer, Sequence[Expr]]]:
    match stmt:
        case Store(buffer=buffer, indices=indices):
            yield buffer, indices
        case Accumulate(buffers=buffers, indices=indices):
            yield from ((each, indices) for each in buffers)
        case _:
            pass
    for node in walk(*own_exprs(stmt)):
        if isinstance(node, Load):
            yield node.buffer, node.indices


def _short(stmt: Accumulate, lanes: Lanes) -> Lanes:
    """The axes of a product that are too short for tensor cores, with what these take."""
    match stmt:
        case Accumulate(buffers=(buffer,), values=(Binary(op=BinaryOp.MUL, a=a, b=b),)):
            operands = factors(a, b, buffer.dtype)
        case _:
            return {}
    if stmt.reducer.operator is not BinaryOp.ADD or not stmt.products.dot or operands is None:
        return {}
    nbytes = operands[0].dtype.nbytes
    if nbytes > 2 and stmt.products.precision is Precision.IEEE:  # CUDA cores take any tile
        return {}
    left, right, kept = axes_of(operands[0]), axes_of(operands[1]), axes_of(*stmt.indices)
    wide = [axis for axis, size in lanes.items() if size > 1]
    rows = [a for a in wide if a in kept and a in left and a not in right]
    columns = [a for a in wide if a in kept and a in right and a not in left]
    folded = [a for a in wide if a not in kept and a in left and a in right]
    if not len(rows) == len(columns) == len(folded) == 1:
        return {}
    (row,), (column,), (k,) = rows, columns, folded
    deep = MIN_DEPTH if nbytes == 1 else MIN_EDGE
    if not worth_padding(lanes[row], lanes[column], lanes[k]):
        return {}
    short = {axis: MIN_EDGE for axis in (row, column) if lanes[axis] < MIN_EDGE}
    return short | ({k: deep} if lanes[k] < deep else {})
