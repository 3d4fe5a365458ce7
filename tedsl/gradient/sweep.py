"""Reverse mode over the expression of one element: from the adjoint of a body to those of its
reads.

Every node is visited once, after all nodes that use it, so shared parts stay shared and the result
grows with the number of nodes.  The conditions under which a node counts are kept beside its
adjoint instead of being multiplied into it: the derivative of `select(x > 0, log(x), 0)` is
`select(x > 0, g / x, 0)` and not `select(x > 0, g, 0) / x`, which is NaN at 0; and a read that a
condition guards stays guarded.  Imports the scalar rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tedsl.expr import build
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Cast,
    Const,
    Expr,
    IfThenElse,
    Reduce,
    Select,
    TensorRead,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.expr.visit import walk
from tedsl.gradient.rules import FLAT, local, no_derivative
from tedsl.index.intern import Interner
from tedsl.tensor.reducer_stages import in_order
from tedsl.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """That `condition` holds (or fails).  `lazy`: reads behind it need it."""

    condition: Expr
    holds: bool
    lazy: bool

    @property
    def expr(self) -> Expr:
        """The guard as a bool expression."""
        return self.condition if self.holds else build.logical_not(self.condition)


Guards = tuple[Guard, ...]


class Arrival(NamedTuple):
    """An adjoint that counts where all of `guards` pass."""

    guards: Guards
    adjoint: Expr


class Seed(NamedTuple):
    """A root of the sweep: the adjoint of `node` where all of `guards` pass."""

    node: Expr
    guards: Guards
    adjoint: Expr


class Reached(NamedTuple):
    """The adjoint of `read` where all of `guards` pass."""

    read: TensorRead
    guards: Guards
    adjoint: Expr


def guarded(guards: Sequence[Guard], value: Expr) -> Expr:
    """`value` where all `guards` pass, else 0."""
    if not guards:
        return value
    choose = build.if_then_else if any(guard.lazy for guard in guards) else build.select
    return choose(in_order([guard.expr for guard in guards]), value, build.const(0.0, value.dtype))


def total(terms: Sequence[Expr]) -> Expr:
    """The sum of at least one term, nested as little as possible."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return build.add(total(terms[:half]), total(terms[half:]))


def _unchanged(expr: Expr) -> Expr:
    return expr


@dataclass(slots=True)
class Sweep:
    """One or several bodies.  `counts` tells the tensors that derivatives are wanted for; `closed`
    makes what is computed of an expression over their reads."""

    counts: Callable[[Tensor], bool]
    closed: Callable[[Expr], Expr] = _unchanged
    interner: Interner = field(default_factory=Interner)
    _active: dict[Expr, bool] = field(default_factory=dict[Expr, bool])
    _guards: dict[Expr, tuple[Guard, ...]] = field(default_factory=dict[Expr, tuple[Guard, ...]])

    def run(self, seeds: Sequence[Seed]) -> list[Reached]:
        """The adjoints of all reads that count, one for each distinct read."""
        arrivals: dict[Expr, list[Arrival]] = {}
        roots: list[Expr] = []
        for node, guards, adjoint in seeds:
            node = self.interner.rep(node)
            if self.is_active(node):
                roots.append(node)
                arrivals.setdefault(node, []).append(Arrival(guards, adjoint))
        found: list[Reached] = []
        for node in reversed(self._after_their_parts(roots)):
            guards, adjoint = self._joined(arrivals.pop(node))
            if isinstance(node, TensorRead):
                found.append(Reached(node, guards, adjoint))
                continue
            for child, more, reached in self._parts(node, adjoint):
                rep = self.interner.rep(child)
                if self.is_active(rep):
                    arrivals.setdefault(rep, []).append(Arrival((*guards, *more), reached))
        return found

    def guard(self, condition: Expr, holds: bool = True, lazy: bool = False) -> Guard:
        """The guard of `condition`, one object for each."""
        rep = self.interner.rep(condition)
        known = self._guards.get(rep, ())
        for each in known:
            if each.holds is holds and each.lazy is lazy:
                return each
        made = Guard(rep, holds, lazy)
        self._guards[rep] = (*known, made)
        return made

    def is_active(self, node: Expr) -> bool:
        """Whether the value of `node` depends, smoothly, on a tensor that counts."""
        known = self._active.get(node)
        if known is None:
            known = node.dtype.is_float and self._depends(node)
            self._active[node] = known
        return known

    def _depends(self, node: Expr) -> bool:
        match node:
            case Const() | Axis() | Var():
                return False
            case TensorRead(tensor=tensor):
                return self.counts(tensor)
            case Unary(op=op) if op in FLAT:
                return False
            case Unary(op=UnaryOp.BITS):
                parts = (part for part in walk(node) if isinstance(part, Unary))
                if any(part.op is UnaryOp.BITS and self.is_active(part.a) for part in parts):
                    raise no_derivative("reinterpret")
                return False
            case Select(a=a, b=b) | IfThenElse(a=a, b=b):
                return self.is_active(a) or self.is_active(b)
            case _:
                return any(self.is_active(child) for child in node.children())

    def _after_their_parts(self, roots: Iterable[Expr]) -> list[Expr]:
        """Every active node below `roots`, each after the nodes that it is made of."""
        order: dict[Expr, None] = {}
        stack = [(root, False) for root in roots]
        while stack:
            node, ready = stack.pop()
            if node in order:
                continue
            if ready:
                order[node] = None
                continue
            stack.append((node, True))
            if not isinstance(node, TensorRead):
                parts = [self.interner.rep(child) for child in node.children()]
                stack.extend((part, False) for part in parts if self.is_active(part))
        return list(order)

    def _parts(self, node: Expr, g: Expr) -> list[tuple[Expr, Guards, Expr]]:
        """The operands of `node`, the guards under which they count, and what reaches them."""
        match node:
            case Select(condition=condition, a=a, b=b):
                return self._choice(condition, a, b, g, lazy=False)
            case IfThenElse(condition=condition, a=a, b=b):
                return self._choice(condition, a, b, g, lazy=True)
            case Binary(op=BinaryOp.MIN | BinaryOp.MAX, a=a, b=b):
                return self._choice(_first_wins(node), a, b, g, lazy=False)
            case Unary() | Binary() | Cast():
                return [(child, (), reached) for child, reached in local(node, g)]
            case Reduce():
                raise no_derivative("a reduction inside an expression")
            case _:
                raise no_derivative(type(node).__name__)

    def _choice(
        self, condition: Expr, a: Expr, b: Expr, g: Expr, lazy: bool
    ) -> list[tuple[Expr, Guards, Expr]]:
        yes, no = self.guard(condition, True, lazy), self.guard(condition, False, lazy)
        return [(a, (yes,), g), (b, (no,), g)]

    def _joined(self, arrivals: Sequence[Arrival]) -> Arrival:
        """All that reaches one node, under guards that pass wherever one of them does."""
        shared: list[Guard] = []
        shortest = min(len(arrival.guards) for arrival in arrivals)
        first = arrivals[0].guards
        while len(shared) < shortest:
            guard = first[len(shared)]
            if any(arrival.guards[len(shared)] is not guard for arrival in arrivals):
                break
            shared.append(guard)
        rest = [Arrival(guards[len(shared) :], adjoint) for guards, adjoint in arrivals]
        if any(not arrival.guards for arrival in rest):
            return Arrival(tuple(shared), self._total([guarded(*arrival) for arrival in rest]))
        groups: dict[Expr, list[Arrival]] = {}
        for arrival in rest:
            groups.setdefault(arrival.guards[0].condition, []).append(arrival)
        terms: list[Expr] = []
        covers: list[Expr | None] = []
        lazy = False
        for condition, group in groups.items():
            value, cover, late = self._either(condition, group)
            terms.append(value)
            covers.append(cover)
            lazy = lazy or late
        known = [cover for cover in covers if cover is not None]
        if len(known) == len(covers):
            some: Expr = build.FALSE
            for cover in known:
                some = build.logical_or(some, cover)
            shared.append(self.guard(some, True, lazy))
        return Arrival(tuple(shared), total(terms))

    def _total(self, terms: Sequence[Expr]) -> Expr:
        """The sum of `terms`; equal ones are counted."""
        counts: dict[Expr, int] = {}
        for term in terms:
            rep = self.interner.rep(term)
            counts[rep] = counts.get(rep, 0) + 1
        return total([term if n == 1 else term * float(n) for term, n in counts.items()])

    def _either(self, condition: Expr, group: list[Arrival]) -> tuple[Expr, Expr | None, bool]:
        """What arrives over the two sides of one condition, where it does (None: everywhere), and
        whether a read needs that."""
        sides: list[Arrival | None] = []
        for holds in (True, False):
            side = [Arrival(t[1:], g) for t, g in group if t[0].holds is holds]
            sides.append(self._joined(side) if side else None)
        yes, no = sides
        lazy = any(guard.lazy for arrival in group for guard in arrival.guards)
        choose = build.if_then_else if lazy else build.select
        values = [None if side is None else guarded(*side) for side in sides]
        known = [value for value in values if value is not None]
        zero = build.const(0.0, known[0].dtype)
        a, b = (zero if value is None else value for value in values)
        if yes is not None and no is not None and not yes.guards and not no.guards:
            return choose(condition, a, b), None, lazy
        cover: Expr = build.FALSE
        for side, guard in ((yes, condition), (no, build.logical_not(condition))):
            if side is not None:
                conditions = [guard, *(each.expr for each in side.guards)]
                inside = in_order(conditions) if lazy else build.conjunction(conditions)
                cover = build.logical_or(cover, inside)
        return choose(condition, a, b), cover, lazy


def _first_wins(node: Binary) -> Expr:
    """Where `min(a, b)` or `max(a, b)` is `a`.  Of equal operands a constant wins, else `a`."""
    strict = isinstance(node.b, Const)
    if node.op is BinaryOp.MAX:
        return build.gt(node.a, node.b) if strict else build.ge(node.a, node.b)
    return build.lt(node.a, node.b) if strict else build.le(node.a, node.b)
