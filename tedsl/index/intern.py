"""Structural identity of expressions: one representative object for every distinct structure.

Integer reasoning compares sub-expressions all the time.  An `Interner` gives two structurally
equal expressions the same representative, so that comparing is `is` and hashing is by identity.
It also holds the constructors that this package uses to build results.  Imports `expr.nodes` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from tedsl.dtypes import DType
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Folded,
    Reduce,
    TensorRead,
    Unary,
    UnaryOp,
    Var,
)

INDEX_DTYPES = frozenset({DType.int32, DType.int64})
PURE_NODES = frozenset({Axis, Var, Const})


class Interner:
    """Representatives of structures seen so far.  Shared by all facts derived from one another."""

    __slots__ = ("_data", "_order", "_reps", "_sequence", "_table")

    def __init__(self) -> None:
        self._reps: dict[Expr, Expr] = {}
        self._table: dict[tuple[object, ...], Expr] = {}
        self._data: dict[Expr, bool] = {}
        self._order: dict[Expr, str] = {}
        self._sequence: dict[Expr, int] = {}

    def rep(self, expr: Expr) -> Expr:
        """The representative of `expr`; itself when its structure is new."""
        found = self._reps.get(expr)
        if found is not None:
            return found
        kind = type(expr)
        if kind is Axis or kind is Var:
            self._reps[expr] = expr
            self._sequence[expr] = len(self._sequence)
            return expr
        found = self._table.setdefault(self._key(expr), expr)
        self._reps[expr] = found
        return found

    def _key(self, expr: Expr) -> tuple[object, ...]:
        """What makes a structure: operators and payload by identity, children by representative."""
        if isinstance(expr, (Binary, Compare)):
            return id(expr.op), id(self.rep(expr.a)), id(self.rep(expr.b))
        if isinstance(expr, Const):
            value = expr.value
            return ("c", value if type(value) is int else repr(value), id(expr.dtype))
        if isinstance(expr, Cast):
            return "cast", id(expr.dtype), id(self.rep(expr.a))
        if isinstance(expr, Unary):
            return "u", id(expr.op), id(self.rep(expr.a))
        if isinstance(expr, TensorRead):
            return ("read", id(expr.tensor), *(id(self.rep(c)) for c in expr.indices))
        if isinstance(expr, Reduce):  # binds axes: equal only to itself
            return "reduce", id(expr)
        payload: list[object] = [type(expr)]
        for spec in fields(expr):  # pyright: ignore[reportArgumentType]
            value = getattr(expr, spec.name)
            if not _holds_expressions(value):
                payload.append(id(value))
        return (*payload, *(id(self.rep(c)) for c in expr.children()))

    def is_data(self, expr: Expr) -> bool:
        """True when `expr` holds a value read from memory (or a node unknown here), whose
        arithmetic may wrap.
        """
        known = self._data.get(expr)
        if known is None:
            kind = type(expr)
            if kind in PURE_NODES:
                known = False
            elif kind in (TensorRead, Reduce, Folded) or kind.__module__ != Expr.__module__:
                known = True
            else:
                known = any(self.is_data(child) for child in expr.children())
            self._data[expr] = known
        return known

    def order(self, expr: Expr) -> str:
        """A text that orders expressions the same way in every run."""
        known = self._order.get(expr)
        if known is None:
            known = self._order[expr] = self._describe(expr)
        return known

    def ordered(self, atoms: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Atoms in an order that is the same in every run (a monomial is sorted by identity)."""
        return atoms if len(atoms) < 2 else tuple(sorted(atoms, key=self.order))

    def _describe(self, expr: Expr) -> str:
        match expr:
            case Axis(name=name) | Var(name=name):
                self.rep(expr)
                return f"{name}#{self._sequence[expr]:06d}"
            case Const(value=value):
                return str(value)
            case _:
                label = getattr(expr, "op", type(expr).__name__)
                return f"~{label}({','.join(map(self.order, expr.children()))})"

    # Constructors: the representative of the result, so that equal results are one object.

    def const(self, value: int, dtype: DType) -> Expr:
        """`value` of an integer type."""
        key = ("c", value, id(dtype))
        found = self._table.get(key)
        if found is None:
            found = Const(value, dtype)
            self._table[key] = self._reps[found] = found
        return found

    def binary(self, op: BinaryOp, a: Expr, b: Expr) -> Expr:
        """`a op b`."""
        key = (id(op), id(self.rep(a)), id(self.rep(b)))
        found = self._table.get(key)
        if found is None:
            found = Binary(op, a, b)
            self._table[key] = self._reps[found] = found
        return found

    def compare(self, op: CompareOp, a: Expr, b: Expr) -> Expr:
        """The bool `a op b`."""
        return self.rep(Compare(op, a, b))

    def unary(self, op: UnaryOp, a: Expr) -> Expr:
        """`op(a)`."""
        return self.rep(Unary(op, a))

    def cast(self, a: Expr, dtype: DType) -> Expr:
        """`a` as `dtype`; `a` itself when it already is."""
        return a if a.dtype is dtype else self.rep(Cast(a, dtype))


def structure(leaves: Mapping[Expr, object], *values: Expr) -> tuple[object, ...]:
    """Equal for equal structures over the same placeholders, and `leaves` of which the same is
    said."""
    numbers: dict[Expr, int] = {}
    rows: list[tuple[object, ...]] = []

    def visit(node: Expr) -> int:
        if node not in numbers:
            inside = () if node in leaves else node.children()
            children = tuple(visit(child) for child in inside)
            match node:
                case _ if node in leaves:
                    payload: object = leaves[node]
                case Var(name=name):
                    payload = name
                case Const(value=number):
                    payload = repr(number)
                case Cast():
                    payload = None
                case _:
                    payload = getattr(node, "op", None)
            rows.append((type(node).__name__, payload, node.dtype, children))
            numbers[node] = len(numbers)
        return numbers[node]

    roots = tuple(visit(value) for value in values)
    return (*rows, roots)


def _holds_expressions(value: object) -> bool:
    if isinstance(value, Expr):
        return True
    return isinstance(value, tuple) and len(value) > 0 and isinstance(value[0], Expr)  # pyright: ignore[reportUnknownArgumentType]
