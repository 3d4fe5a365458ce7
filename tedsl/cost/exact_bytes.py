"""Bytes that the statements of a kernel access, counted exactly: each access for itself (no caches
at all), and every element once (caches that lose nothing).

An access is a set of points: the iterations of the loops around it and the points of its tile for
which guards, masks and lazy choices hold.  Axes that no bound, condition or index ties together are
counted apart and multiplied; the others are gone through.  What only data decide is not counted
exactly, and is said so.  Imports `expr`, `ir` and the other files of `cost`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from tedsl.cost.sampled_indices import Points, Values, row_major
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Expr, IfThenElse, Unary, UnaryOp, Var
from tedsl.expr.numerics import distinct
from tedsl.expr.visit import walk
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
    Dot,
    Finish,
    For,
    Func,
    Guard,
    Load,
    Scope,
    Stmt,
    Store,
)
from tedsl.ir.visit import own_exprs, sub_stmts, tile_axes

MOST = 1 << 22
"""Points that are gone through for one access; where there are more, nothing is said."""
LARGEST = 1 << 25
"""Elements of a buffer whose parts are put together one by one."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Counted:
    """What a kernel accesses of one buffer, in bytes of all its launches.

    Attributes:
        loads, stores: of every access that is made, none spared by a cache.
        read, written: of every element once in a launch; None where data or too many points decide.
        exact: False where data decide how often something is accessed: then `loads` and `stores`
            are the most there can be.
    """

    loads: int = 0
    stores: int = 0
    read: int | None = 0
    written: int | None = 0
    exact: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class _Dimension:
    """A loop or a tile axis: from `start` to before `end`."""

    axis: Expr
    start: Expr | int
    end: Expr | int

    def free(self) -> frozenset[Expr]:
        """Axes that its bounds depend on."""
        return _free(*(e for e in (self.start, self.end) if isinstance(e, Expr)))


@dataclass(frozen=True, slots=True)
class _Place:
    """The loops and conditions around a statement; of `groups` programs one alone comes there."""

    dims: tuple[_Dimension, ...] = ()
    conditions: tuple[Expr, ...] = ()
    groups: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Access:
    """An access to `buffer[indices]`; `folded` are tile axes over which one is made in all."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    place: _Place
    writes: bool
    folded: frozenset[Axis] = frozenset()


@dataclass(slots=True)
class _Found:
    """The counts of a buffer while they are put together; `parts` are sets of elements."""

    loads: int = 0
    stores: int = 0
    exact: bool = True
    parts: dict[bool, list[Sequence[Ints]] | None] = field(
        default_factory=lambda: {False: list[Sequence[Ints]](), True: list[Sequence[Ints]]()}
    )


class _TooMany(Exception):
    """More points than are gone through."""


def exact_bytes(func: Func, values: Mapping[Expr, Values]) -> dict[Buffer, Counted]:
    """What a kernel accesses of each buffer in device memory.

    Args:
        func: a kernel of loops, at any level.
        values: of the runtime sizes; one that is an array stands for as many launches, of which the
            counts are the sums.
    """
    steps = [expr for expr, value in values.items() if np.ndim(value)]
    known = {expr: value for expr, value in values.items() if not np.ndim(value)}
    dims = tuple(_Dimension(expr, 0, int(np.size(values[expr]))) for expr in steps)
    found: dict[Buffer, _Found] = {}
    sets = _Sets(known, frozenset(steps))
    for access in _accesses(func.body, _Place(dims)):
        here = found.setdefault(access.buffer, _Found())
        try:
            count, exact = sets.count(access)
        except _TooMany:
            count, exact = 0, False
        here.exact = here.exact and exact
        here.loads += 0 if access.writes else count
        here.stores += count if access.writes else 0
        _add_part(here, access, sets)
    return {buffer: _summed(buffer, one, sets) for buffer, one in found.items()}


def _add_part(here: _Found, access: _Access, sets: _Sets) -> None:
    parts = here.parts[access.writes]
    if parts is None:
        return
    try:
        part = sets.elements(access)
    except _TooMany:
        part = None
    if part is None:
        here.parts[access.writes] = None
    else:
        parts.append(part)


def _summed(buffer: Buffer, found: _Found, sets: _Sets) -> Counted:
    each = buffer.dtype.nbytes
    touched = [sets.union(buffer, found.parts[writes]) for writes in (False, True)]
    read, written = (None if count is None else count * each for count in touched)
    return Counted(found.loads * each, found.stores * each, read, written, found.exact)


# What is accessed.


def _accesses(stmt: Stmt, place: _Place) -> Iterator[_Access]:
    """All accesses to device memory inside a statement."""
    match stmt:
        case For(axis=axis, start=start, end=end, body=body):
            yield from _read((start, end), place)
            dim = _Dimension(axis, start, end)
            yield from _accesses(body, replace(place, dims=(*place.dims, dim)))
        case Guard(condition=condition, body=body):
            yield from _read((condition,), place)
            yield from _accesses(body, _when(place, condition))
        case Finish(count=count, body=body):
            yield from _accesses(body, replace(place, groups=(*place.groups, count)))
        case Allocate(body=body):
            yield from _accesses(body, place)
        case Store() | Accumulate() | Dot():
            yield from _of_leaf(stmt, place)
        case _:
            for inner in sub_stmts(stmt):
                yield from _accesses(inner, place)


def _of_leaf(stmt: Store | Accumulate | Dot, place: _Place) -> Iterator[_Access]:
    tile = tile_axes(stmt)
    dims = tuple(_Dimension(t.axis, 0, t.extent) for t in tile)
    mask = None if isinstance(stmt, Dot) else stmt.mask
    yield from _read(own_exprs(stmt), place, dims, mask)
    written = _when(replace(place, dims=(*place.dims, *dims)), mask)
    buffers = stmt.buffers if isinstance(stmt, Accumulate) else (stmt.buffer,)
    used = _free(*stmt.indices)
    folded = frozenset(t.axis for t in tile if t.axis not in used)
    for buffer in buffers:
        if buffer.scope is not Scope.GLOBAL:
            continue
        yield _Access(buffer, stmt.indices, written, True, folded)
        if not isinstance(stmt, Store):
            yield _Access(buffer, stmt.indices, written, False, folded)


def _read(
    roots: Sequence[Expr], place: _Place, tile: Sequence[_Dimension] = (), mask: Expr | None = None
) -> Iterator[_Access]:
    """The loads of a statement, each once, over the tile axes that it depends on.  A tile is loaded
    whole: the mask of the statement keeps results; without a tile nothing is done where it fails.
    """
    axes = frozenset(d.axis for d in tile)
    always: list[tuple[Expr, ...]] = [()]
    reached: dict[Expr, list[tuple[Expr, ...]]] = {}
    for root in roots:
        reached[root] = [(mask,)] if mask is not None and root is not mask and not tile else always
    if mask is not None:
        reached[mask] = always
    for node in _parents_first(roots):
        ways = reached[node]
        for child, condition in _children(node, axes):
            own = [way if condition is None else (*way, condition) for way in ways]
            reached[child] = always if () in own else [*reached.get(child, ()), *own]
            reached[child] = always if () in reached[child] else reached[child]
        if isinstance(node, Load) and node.buffer.scope is Scope.GLOBAL:
            free = _free(node)
            dims = tuple(d for d in tile if d.axis in free)
            here = _when(replace(place, dims=(*place.dims, *dims)), node.mask, _any_of(ways))
            yield _Access(node.buffer, node.indices, here, False)


def _parents_first(roots: Sequence[Expr]) -> list[Expr]:
    """Every node below `roots`, each after all that it is a child of."""
    order: list[Expr] = []
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in roots]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((child, False) for child in node.children())
    return order[::-1]


def _children(node: Expr, tile: frozenset[Expr]) -> Iterator[tuple[Expr, Expr | None]]:
    """The children of an expression and the condition under which each is come to."""
    match node:
        case IfThenElse(condition=condition, a=a, b=b):
            yield condition, None
            yield a, condition
            yield b, Unary(UnaryOp.NOT, condition)
        case Load(indices=indices, mask=mask) if mask is not None:
            yield mask, None
            whole = bool(_free(mask) & tile)
            yield from ((index, None if whole else mask) for index in indices)
        case _:
            yield from ((child, None) for child in node.children())


def _any_of(ways: Sequence[tuple[Expr, ...]]) -> Expr | None:
    """That one of several ways is taken; None for always."""
    if not all(ways):
        return None
    every = [reduce(lambda a, b: Binary(BinaryOp.AND, a, b), way) for way in ways]
    return reduce(lambda a, b: Binary(BinaryOp.OR, a, b), every)


def _when(place: _Place, *conditions: Expr | None) -> _Place:
    """The place where these hold as well, conjunctions taken apart."""
    found = list(place.conditions)
    stack = [condition for condition in conditions if condition is not None]
    while stack:
        match stack.pop():
            case Binary(op=BinaryOp.AND, a=a, b=b):
                stack += [a, b]
            case one:
                found.append(one)
    return replace(place, conditions=tuple(dict.fromkeys(found)))


def _free(*roots: Expr) -> frozenset[Expr]:
    return frozenset(node for node in walk(*roots) if isinstance(node, (Axis, Var)))


# How much that is.


@dataclass(slots=True)
class _Rows:
    """Points: the values of axes in each, and how many points of axes that were dropped a row
    stands for."""

    columns: dict[Expr, Ints]
    weights: Ints

    def dropped(self, axes: frozenset[Expr], whole: bool) -> _Rows:
        """Without these axes, equal rows made one: of all their weight, or of that of one."""
        if not axes:
            return self
        kept = {axis: column for axis, column in self.columns.items() if axis not in axes}
        key = np.zeros(len(self.weights), np.int64)
        for column in kept.values():
            low = int(column.min(initial=0))
            key = key * (int(column.max(initial=0)) - low + 1) + column - low
        _, first, place = np.unique(key, return_index=True, return_inverse=True)
        weights = self.weights[first]
        if whole:
            weights = np.bincount(place.reshape(-1), self.weights, len(first)).astype(np.int64)
        return _Rows({axis: column[first] for axis, column in kept.items()}, weights)


@dataclass(frozen=True, slots=True)
class _Group:
    """Dimensions that conditions or bounds tie together, outer first, and these conditions."""

    dims: tuple[_Dimension, ...]
    conditions: tuple[Expr, ...]


@dataclass(slots=True)
class _Sets:
    """Counts accesses, the sizes and the axes of launches known."""

    known: Mapping[Expr, Values]
    steps: frozenset[Expr]
    remembered: dict[tuple[object, ...], _Rows] = field(
        default_factory=dict[tuple[object, ...], _Rows]
    )

    def count(self, access: _Access) -> tuple[int, bool]:
        """How many accesses there are, and whether only what is known decides it."""
        total, exact = 1, True
        groups, decided = self._groups(access.place)
        for group in groups:
            total *= int(self._rows(group, frozenset(), access.folded).weights.sum())
        for programs in access.place.groups:
            exact = exact and not self._unknown(programs)
            total //= max(1, int(np.max(np.asarray(Points(self.known).value(programs)))))
        return total, exact and decided

    def elements(self, access: _Access) -> list[Ints] | None:
        """The elements that are accessed: all sums of one offset of each array; None where data
        decide."""
        groups, decided = self._groups(access.place)
        if not decided or any(self._unknown(index) for index in access.indices):
            return None
        strides = row_major(access.buffer, self.shape(access.buffer))
        parts = list(zip(access.indices, strides, strict=True))
        size = math.prod(self.shape(access.buffer))
        parts += [(step, size) for step in self.steps]
        found: list[Ints] = []
        for group, terms in self._tied(groups, parts):
            needed = _free(*(index for index, _ in terms)) & {d.axis for d in group.dims}
            rows = self._rows(group, needed, access.folded)
            points = Points({**self.known, **rows.columns})
            offsets: Values = np.zeros(len(rows.weights), np.int64)
            for index, stride in terms:
                offsets = offsets + points.value(index) * stride
            found.append(distinct(np.asarray(offsets)))
        return found

    def union(self, buffer: Buffer, parts: list[Sequence[Ints]] | None) -> int | None:
        """How many elements are in any of the sets; None where that is not counted."""
        if parts is None:
            return None
        sizes = [math.prod(len(offsets) for offsets in part) for part in parts]
        if len(sizes) < 2 or len({_key(part) for part in parts}) == 1:
            return max(sizes, default=0)
        last = max(sum(int(o.max(initial=0)) for o in part) for part in parts) + 1
        if last > LARGEST:
            whole = math.prod(self.shape(buffer)) if not self.steps else -1
            return whole if max(sizes) == whole else None
        seen = np.zeros(last, np.bool_)
        for part in parts:
            flat = np.zeros(1, np.int64)
            for offsets in part:
                flat = (flat[:, None] + offsets[None, :]).reshape(-1)
            seen[flat] = True
        return int(np.count_nonzero(seen))

    def shape(self, buffer: Buffer) -> tuple[int, ...]:
        """The extents of a buffer."""
        points = Points(self.known)
        return tuple(int(np.max(np.asarray(points.value(n)))) for n in buffer.shape)

    def _unknown(self, expr: Expr) -> bool:
        """True when data decide, or what has no whole number."""
        return any(
            isinstance(node, Load)
            or node.dtype.is_float
            or (isinstance(node, Var) and node not in self.known and node not in self.steps)
            for node in walk(expr)
        )

    def _groups(self, place: _Place) -> tuple[list[_Group], bool]:
        """The dimensions by what ties them together; and that no data decide."""
        conditions = [c for c in place.conditions if not self._unknown(c)]
        bounds = [e for d in place.dims for e in (d.start, d.end) if isinstance(e, Expr)]
        if any(self._unknown(bound) for bound in bounds):
            raise _TooMany
        ties = [_free(c) for c in conditions] + [d.free() | {d.axis} for d in place.dims]
        groups = _components(place.dims, ties, conditions)
        return groups, len(conditions) == len(place.conditions)

    def _tied(
        self, groups: Sequence[_Group], parts: Sequence[tuple[Expr, int]]
    ) -> Iterator[tuple[_Group, list[tuple[Expr, int]]]]:
        """Groups that an index ties together as one, with the indices and strides of each."""
        dims = tuple(d for group in groups for d in group.dims)
        conditions = [c for group in groups for c in group.conditions]
        own = [frozenset(d.axis for d in group.dims) for group in groups]
        ties = own + [
            frozenset(d.axis for d in group.dims)
            for group in groups
            for index, _ in parts
            if _free(index) & {d.axis for d in group.dims}
        ]
        ties += [_free(index) for index, _ in parts]
        order = {d: n for n, d in enumerate(dims)}
        left = list(parts)
        for group in _components(tuple(sorted(dims, key=order.__getitem__)), ties, conditions):
            axes = {d.axis for d in group.dims}
            mine = [part for part in left if _free(part[0]) & axes]
            left = [part for part in left if not _free(part[0]) & axes]
            yield group, mine
        yield _Group((), ()), left

    def _rows(self, group: _Group, keep: frozenset[Expr], folded: frozenset[Axis]) -> _Rows:
        """The points of a group, of axes to keep; over `folded` ones it is enough that one is."""
        mine = frozenset(d.axis for d in group.dims) & folded
        conditions = frozenset(map(id, group.conditions))
        key = (group.dims, conditions, keep, mine)
        if key not in self.remembered:
            self.remembered[key] = self._gone_through(group, keep, mine)
        return self.remembered[key]

    def _gone_through(self, group: _Group, keep: frozenset[Expr], folded: frozenset[Expr]) -> _Rows:
        if len(group.dims) == 1 and not group.conditions and not keep:
            trips = self._trips(group.dims[0])
            here = [min(trips, 1) if folded else trips] if trips else []
            return _Rows({}, np.array(here, np.int64))
        rows = _Rows({}, np.ones(1, np.int64))
        left = dict.fromkeys(group.conditions)
        axes = frozenset(dim.axis for dim in group.dims)
        rows = self._filtered(rows, [c for c in left if not _free(c) & axes])
        for place, dim in enumerate(group.dims):
            rows = self._expanded(rows, dim)
            later = group.dims[place + 1 :]
            to_come = frozenset(d.axis for d in later)
            rows = self._filtered(rows, [c for c in left if not _free(c) & to_come])
            left = {c: None for c in left if _free(c) & to_come}
            needed = keep.union(*(_free(c) for c in left), *(d.free() for d in later))
            gone = rows.columns.keys() - needed
            rows = rows.dropped(frozenset(gone & folded), whole=False)
            rows = rows.dropped(frozenset(gone - folded), whole=True)
        return rows

    def _trips(self, dim: _Dimension) -> int:
        points = Points(self.known)
        start, end = (e if isinstance(e, int) else points.value(e) for e in (dim.start, dim.end))
        return max(0, int(np.max(np.asarray(end))) - int(np.max(np.asarray(start))))

    def _expanded(self, rows: _Rows, dim: _Dimension) -> _Rows:
        points = Points({**self.known, **rows.columns})
        count = rows.weights.shape
        start, end = (
            np.broadcast_to(np.asarray(e if isinstance(e, int) else points.value(e)), count)
            for e in (dim.start, dim.end)
        )
        trips = np.maximum(end - start, 0)
        total = int(trips.sum())
        if total > MOST:
            raise _TooMany
        outer = np.repeat(np.arange(len(trips)), trips)
        inside = np.arange(total) - (np.cumsum(trips) - trips)[outer]
        columns = {axis: column[outer] for axis, column in rows.columns.items()}
        columns[dim.axis] = (start[outer] + inside).astype(np.int64)
        return _Rows(columns, rows.weights[outer])

    def _filtered(self, rows: _Rows, conditions: Sequence[Expr]) -> _Rows:
        if not conditions:
            return rows
        points = Points({**self.known, **rows.columns})
        holds = np.ones(rows.weights.shape, np.bool_)
        for condition in conditions:
            holds = holds & (np.asarray(points.value(condition)) != 0)
        columns = {axis: column[holds] for axis, column in rows.columns.items()}
        return _Rows(columns, rows.weights[holds])


def _components(
    dims: tuple[_Dimension, ...], ties: Sequence[frozenset[Expr]], conditions: Sequence[Expr]
) -> list[_Group]:
    """The dimensions in groups such that every tie is within one."""
    label: dict[Expr, int] = {dim.axis: n for n, dim in enumerate(dims)}
    for tie in ties:
        mine = {label[axis] for axis in tie if axis in label}
        if mine:
            least = min(mine)
            label = {axis: least if n in mine else n for axis, n in label.items()}
    found: list[_Group] = []
    for number in dict.fromkeys(label.values()):
        inside = tuple(dim for dim in dims if label[dim.axis] == number)
        axes = {dim.axis for dim in inside}
        found.append(_Group(inside, tuple(c for c in conditions if _free(c) & axes)))
    loose = tuple(c for c in conditions if not _free(c) & label.keys())
    return [*found, _Group((), loose)] if loose else found


def _key(part: Sequence[Ints]) -> tuple[bytes, ...]:
    return tuple(offsets.tobytes() for offsets in part)
