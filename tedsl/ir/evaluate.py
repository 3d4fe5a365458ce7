"""Expressions of the loop IR as Python closures over numpy values.

Part of the third room; the half of the interpreter that reads.  An environment is a list: the
values of axes and runtime scalars, the lanes that are active, and one cell for each expression
that a statement uses twice.  Under a tile, an axis is an array along its own dimension, so numpy's
broadcasting is the broadcasting of the IR; everything else is a numpy scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np

from tedsl.errors import InternalError
from tedsl.expr.nodes import (
    Axis,
    Binary,
    Cast,
    Compare,
    Const,
    Expr,
    IfThenElse,
    Select,
    Unary,
    Var,
)
from tedsl.expr.visit import walk
from tedsl.ir import numerics
from tedsl.ir.nodes import Buffer, Load, Scope
from tedsl.ir.numerics import Array, Value

Env = list[Any]
Eval = Callable[[Env], Value]
Operand = Eval | int
"""How to find a value: a closure, or the cell that it is in."""
ACTIVE = 0
"""The cell of the statement's mask: True, or the lanes whose result is kept."""


class AccessError(InternalError):
    """A read or write the IR does not allow.  Fields: `buffer`, `index`, `shape`."""

    def __init__(self, what: str, memory: Memory, index: tuple[int, ...]) -> None:
        name, extents = memory.name, memory.data.shape
        place = f"{name}[{', '.join(map(str, index))}]"
        super().__init__(f"{what}: {place}", facts=[("shape", f"{name} has shape {extents}")])
        self.buffer, self.index, self.shape = name, index, extents


class OutOfBounds(AccessError):
    """An index outside its buffer."""


class Unwritten(AccessError):
    """A read of an element that nobody has stored."""


@dataclass(slots=True)
class Memory:
    """The contents of a buffer and which elements may be read (None: all).

    Reading a GLOBAL element before it is written is an error, unless a `Select` discards it.  What
    a program holds itself (LOCAL, SHARED, its part of a private buffer) may be read any time, and
    so may what only aligns rows: it is poison, which a `Select` may discard.
    """

    name: str
    data: Array
    written: Array | None
    writable: bool = True

    @staticmethod
    def fresh(
        buffer: Buffer, shape: tuple[int, ...], held: tuple[int, ...] | None = None
    ) -> Memory:
        """Memory nobody wrote; beyond `held` it is anything."""
        data = np.empty(shape, numerics.numpy_dtype(buffer.dtype))
        data[...] = numerics.poison(buffer.dtype)
        if buffer.scope is not Scope.GLOBAL or buffer.private:
            return Memory(buffer.name, data, None)
        written = np.ones(shape, np.bool_)
        written[tuple(map(slice, shape if held is None else held))] = False
        return Memory(buffer.name, data, written)


@dataclass(slots=True)
class Layout:
    """Where things are: the environment's cells and the memory of each buffer, fixed at compile."""

    cells: dict[Expr, int] = field(default_factory=dict[Expr, int])
    memories: dict[Buffer, int] = field(default_factory=dict[Buffer, int])
    constants: dict[int, Value] = field(default_factory=dict[int, Value])
    size: int = 1

    def cell(self, node: Expr) -> int:
        """The cell of an axis or runtime scalar."""
        if node not in self.cells:
            self.cells[node] = self.new_cell()
        return self.cells[node]

    def memory(self, buffer: Buffer) -> int:
        """The cell that holds the `Memory` of `buffer`."""
        if buffer not in self.memories:
            self.memories[buffer] = self.new_cell()
        return self.memories[buffer]

    def constant(self, node: Const) -> int:
        """The cell that holds a constant from the beginning."""
        cell = self.cell(node)
        if cell not in self.constants:
            self.constants[cell] = numerics.scalar(node.value, node.dtype)
        return cell

    def environment(self) -> Env:
        """All cells, with the constants in theirs."""
        env: Env = [None] * self.size
        for cell, value in self.constants.items():
            env[cell] = value
        env[ACTIVE] = True
        return env

    def new_cell(self) -> int:
        """One more cell."""
        self.size += 1
        return self.size - 1


@dataclass(slots=True)
class Compiler:
    """Compiles the expressions of one statement; `tile` are the axes that are arrays there."""

    layout: Layout
    tile: frozenset[Axis] = frozenset()
    shared: dict[Expr, int] = field(default_factory=dict[Expr, int])
    done: dict[Expr, Eval] = field(default_factory=dict[Expr, Eval])
    varying: dict[Expr, bool] = field(default_factory=dict[Expr, bool])

    def compile(self, roots: Sequence[Expr]) -> list[Eval]:
        """One closure per root.  Nodes with two users get a cell; `fresh_cells` must be reset."""
        users: dict[Expr, int] = {}
        for node in walk(*roots):
            for child in node.children():
                users[child] = users.get(child, 0) + 1
        for root in roots:
            users[root] = users.get(root, 0) + 1
        for node, count in users.items():
            if count > 1 and (node.children() or isinstance(node, Load)):
                self.shared[node] = self.layout.new_cell()
        return [self.visit(root) for root in roots]

    @property
    def fresh_cells(self) -> tuple[int, ...]:
        """Cells to be emptied before the statement runs."""
        return tuple(self.shared.values())

    def varies(self, node: Expr) -> bool:
        """True when `node` depends on a tile axis, so that its value is an array."""
        known = self.varying.get(node)
        if known is None:
            known = node in self.tile or any(self.varies(c) for c in node.children())
            self.varying[node] = known
        return known

    def visit(self, node: Expr) -> Eval:
        """The closure of `node`, made once."""
        if node not in self.done:
            made = self._make(node)
            self.done[node] = _remembered(made, self.shared[node]) if node in self.shared else made
        return self.done[node]

    def _operand(self, node: Expr) -> Operand:
        """Where the value of a leaf is, which takes no call; else the closure."""
        match node:
            case Const():
                return self.layout.constant(node)
            case Axis() | Var():
                return self.layout.cell(node)
            case _:
                return self.visit(node)

    def _make(self, node: Expr) -> Eval:
        match node:
            case Const() | Axis() | Var():
                cell = self._operand(node)
                assert isinstance(cell, int)
                return itemgetter(cell)
            case Unary(op=op, a=a):
                return _apply1(numerics.unary(op, a.dtype), self._operand(a))
            case Binary(op=op, a=a, b=b):
                return _apply2(numerics.binary(op, a.dtype), self._operand(a), self._operand(b))
            case Compare(op=op, a=a, b=b):
                return _apply2(numerics.compare(op), self._operand(a), self._operand(b))
            case Cast(a=a, dtype=dtype):
                return _apply1(numerics.converter(a.dtype, dtype), self._operand(a))
            case Select(condition=condition, a=a, b=b):
                return self._select(condition, a, b)
            case IfThenElse(condition=condition, a=a, b=b):
                if self.varies(condition):
                    raise InternalError("an IfThenElse over tile axes cannot be lazy")
                return _lazy(self.visit(condition), self.visit(a), self.visit(b))
            case Load():
                return self._load(node)
            case _:
                raise InternalError(f"{type(node).__name__} has no meaning in the loop IR")

    def _select(self, condition: Expr, a: Expr, b: Expr) -> Eval:
        """Both branches, of which what is discarded may read what nobody wrote.

        What is shared with others is not remembered from within a branch: they may need it written.
        """
        parts = self.visit(condition), self.visit(a), self.visit(b)
        inside = list(walk(a, b))
        if not any(isinstance(node, Load) for node in inside):
            return _choose(*parts)
        return _choose_written(*parts, [self.shared[n] for n in inside if n in self.shared])

    def _load(self, node: Load) -> Eval:
        memory = self.layout.memory(node.buffer)
        indices = [self.visit(index) for index in node.indices]
        mask = None if node.mask is None else self.visit(node.mask)
        zero = numerics.scalar(0, node.dtype)
        if self.varies(node):
            return _tile_load(memory, indices, mask, zero)
        return _scalar_load(memory, indices, mask, zero)


def _apply1(fn: numerics.Fn1, a: Operand) -> Eval:
    if isinstance(a, int):
        return lambda env: fn(env[a])
    return lambda env: fn(a(env))


def _apply2(fn: numerics.Fn2, a: Operand, b: Operand) -> Eval:
    if isinstance(a, int):
        if isinstance(b, int):
            return lambda env: fn(env[a], env[b])
        return lambda env: fn(env[a], b(env))
    if isinstance(b, int):
        return lambda env: fn(a(env), env[b])
    return lambda env: fn(a(env), b(env))


def _choose(condition: Eval, a: Eval, b: Eval) -> Eval:
    return lambda env: numerics.choose(condition(env), a(env), b(env))


def _choose_written(condition: Eval, a: Eval, b: Eval, cells: list[int]) -> Eval:
    def run(env: Env) -> Value:
        chosen, active = condition(env), env[ACTIVE]
        fresh = [cell for cell in cells if env[cell] is None]
        try:
            return numerics.choose(chosen, a(env), b(env))
        except Unwritten:
            pass
        values: list[Value] = []
        for branch, taken in ((a, chosen), (b, np.logical_not(chosen))):
            for cell in fresh:
                env[cell] = None
            env[ACTIVE] = np.logical_and(active, taken)
            values.append(branch(env))
        for cell in fresh:
            env[cell] = None
        env[ACTIVE] = active
        return numerics.choose(chosen, *values)

    return run


def _lazy(condition: Eval, a: Eval, b: Eval) -> Eval:
    return lambda env: a(env) if condition(env) else b(env)


def _remembered(fn: Eval, cell: int) -> Eval:
    def run(env: Env) -> Value:
        value = env[cell]
        if value is None:
            value = env[cell] = fn(env)
        return value

    return run


def _scalar_load(memory: int, indices: list[Eval], mask: Eval | None, zero: Value) -> Eval:
    def run(env: Env) -> Value:
        if mask is not None and not mask(env):
            return zero
        held: Memory = env[memory]
        place = tuple([int(index(env)) for index in indices])
        check_place(held, place, "read outside")
        if held.written is not None and not held.written[place] and np.any(env[ACTIVE]):
            raise Unwritten("read of an element never written", held, place)
        return held.data[place]

    return run


def _tile_load(memory: int, indices: list[Eval], mask: Eval | None, zero: Value) -> Eval:
    def run(env: Env) -> Value:
        held: Memory = env[memory]
        lanes = True if mask is None else mask(env)
        if mask is not None and np.ndim(lanes) == 0 and not lanes:
            return zero
        places = np.broadcast_arrays(*[index(env) for index in indices])
        places = check_places(held, places, lanes, "read outside")
        value = held.data[places] if held.data.size else zero
        if held.written is not None and held.data.size:
            missing = ~held.written[places] & lanes & env[ACTIVE]
            if np.any(missing):
                place = _first(places, missing)
                raise Unwritten("read of an element never written", held, place)
        return value if mask is None else np.where(lanes, value, zero)

    return run


def shape(memory: Memory) -> tuple[int, ...]:
    """The shape of the memory, as ints."""
    return memory.data.shape


def check_place(memory: Memory, place: tuple[int, ...], what: str) -> None:
    """Raise OutOfBounds unless every index is within its dimension."""
    for index, extent in zip(place, memory.data.shape, strict=True):
        if not 0 <= index < extent:
            raise OutOfBounds(f"{what} the buffer", memory, place)


def check_places(
    memory: Memory, places: Sequence[Array], lanes: Value, what: str
) -> tuple[Array, ...]:
    """Raise OutOfBounds unless every index of an active lane is within its dimension.

    Returns:
        The indices with those of inactive lanes moved to 0, fit for numpy indexing.
    """
    safe: list[Array] = []
    for index, extent in zip(places, memory.data.shape, strict=True):
        outside = (index < 0) | (index >= extent)
        if np.any(outside):
            if np.any(outside & lanes):
                place = _first(places, outside & lanes)
                raise OutOfBounds(f"{what} the buffer", memory, place)
            index = np.where(outside, index.dtype.type(0), index)
        safe.append(index)
    return tuple(safe)


def _first(places: Sequence[Array], wrong: Value) -> tuple[int, ...]:
    """The indices at the first lane where `wrong` holds."""
    spread = np.broadcast_arrays(wrong, *places)
    lane = tuple(int(n[0]) for n in np.nonzero(spread[0]))
    return tuple(int(index[lane]) for index in spread[1:])
