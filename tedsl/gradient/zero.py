"""Adjoints that are zero by algebra, though no part of them is.

The maximum in a softmax changes nothing, and neither does the mean in a variance to first order:
`sum(x - sum(x) / n)` is 0 for all x.  Such an adjoint costs passes over the data and gives rounding
noise.  `Algebra.vanishes` proves it: expressions become sums of products of atoms with whole
exponents, sums over axes become atoms for each product inside (what does not depend on the axes
stands outside), and definitions that are sums, or plain arithmetic, are looked into.  When
everything cancels the adjoint is 0 as a function of real numbers.  What is not understood is an
atom, so the answer may be a false no and never a false yes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from tedsl.dtypes import DType
from tedsl.errors import InternalError
from tedsl.expr.nodes import (
    Axis,
    AxisKind,
    Binary,
    BinaryOp,
    Cast,
    Const,
    Expr,
    Range,
    Reduce,
    TensorRead,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.expr.visit import reads, walk
from tedsl.index.intern import INDEX_DTYPES
from tedsl.tensor.tensor import ComputeOp, Tensor

Monomial = frozenset[tuple[int, int]]
"""Atoms with their exponents."""

Poly = dict[Monomial, Fraction]
"""Monomials with their factors, none of which is 0."""

Frozen = frozenset[tuple[Monomial, Fraction]]

ONE: Monomial = frozenset()
MAX_TERMS = 64
MAX_STEPS = 4000
MAX_NODES = 32
MAX_DEFINITIONS = 3
_ARITHMETIC = {BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.DIV}


class _Key(NamedTuple):
    """What an atom is: a kind, what it holds besides expressions, and those."""

    kind: str
    payload: object
    parts: tuple[Frozen, ...]


class _Large(Exception):
    """More terms than are worth looking at."""


@dataclass(slots=True)
class Algebra:
    """Normal forms of the expressions of one graph, with one number for each atom."""

    numbers: dict[_Key, int] = field(default_factory=dict[_Key, int])
    keys: list[_Key] = field(default_factory=list[_Key])
    axes: list[frozenset[Axis]] = field(default_factory=list[frozenset[Axis]])
    levels: list[int] = field(default_factory=list[int])
    known: dict[Expr, Poly] = field(default_factory=dict[Expr, Poly])
    definitions: dict[Tensor, tuple[Poly, int] | None] = field(
        default_factory=dict[Tensor, "tuple[Poly, int] | None"]
    )
    bound: dict[tuple[int, int, Frozen, Frozen], Axis] = field(
        default_factory=dict[tuple[int, int, Frozen, Frozen], Axis]
    )

    steps: int = 0

    def vanishes(self, terms: Sequence[tuple[Expr, Sequence[Axis], Sequence[Expr]]]) -> bool:
        """Whether the sum of `terms` is 0 everywhere.

        Args:
            terms: values, the axes that each is summed over, and the conditions for it to count.
        """
        self.steps = 0
        try:
            result: Poly = {}
            for value, axes, conditions in terms:
                result = _plus(result, self._sum(self.of(value), axes, conditions))
        except _Large:
            return False
        return not result

    def of(self, expr: Expr) -> Poly:
        """The normal form of an expression."""
        done = self.known.get(expr)
        if done is None:
            done = self.known[expr] = _limited(self._of(expr))
        return done

    def _of(self, expr: Expr) -> Poly:
        if expr.dtype.is_integer and not isinstance(expr, Const) and reads(expr):
            return self._other(expr)  # integers from memory may wrap
        match expr:
            case Const(value=value):
                return self._const(expr, value)
            case Axis():
                return self._atom("axis", expr, ())
            case Var():
                return self._atom("var", expr, ())
            case Binary(op=BinaryOp.ADD, a=a, b=b):
                return _plus(self.of(a), self.of(b))
            case Binary(op=BinaryOp.SUB, a=a, b=b):
                return _plus(self.of(a), self.of(b), -1)
            case Binary(op=BinaryOp.MUL, a=a, b=b):
                return _times(self.of(a), self.of(b))
            case Binary(op=BinaryOp.DIV, a=a, b=b):
                return _times(self.of(a), self._inverse(self.of(b)))
            case Unary(op=UnaryOp.NEG, a=a):
                return _plus({}, self.of(a), -1)
            case Cast(a=a) if _is_exact(expr):
                return self.of(a)
            case TensorRead():
                return self._read(expr)
            case _:
                return self._other(expr)

    def _other(self, expr: Expr) -> Poly:
        """A function of normal forms, or something that equals only itself."""
        if isinstance(expr, Reduce):
            return self._atom("itself", expr, ())
        if isinstance(expr, TensorRead):
            return self._atom("read", expr.tensor, tuple(map(self._frozen, expr.indices)))
        payload = (type(expr).__name__, getattr(expr, "op", ""), str(expr.dtype))
        return self._atom("node", payload, tuple(self._frozen(each) for each in expr.children()))

    def _const(self, expr: Expr, value: bool | int | float) -> Poly:
        if isinstance(value, float) and not math.isfinite(value):
            return self._atom("const", repr(value), ())
        return {ONE: Fraction(value)} if value else {}

    def _frozen(self, expr: Expr) -> Frozen:
        return frozenset(self.of(expr).items())

    def _atom(self, kind: str, payload: object, parts: tuple[Frozen, ...]) -> Poly:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise _Large
        key = _Key(kind, payload, parts)
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.keys)
            self.keys.append(key)
            inside = {atom for part in parts for monomial, _ in part for atom, _ in monomial}
            own = frozenset((payload,)) if isinstance(payload, Axis) else frozenset[Axis]()
            self.axes.append(own.union(*(self.axes[atom] for atom in inside)))
            level = max((self.levels[atom] for atom in inside), default=0)
            self.levels.append(level + (kind == "sum"))
        return {frozenset(((number, 1),)): Fraction(1)}

    def _inverse(self, poly: Poly) -> Poly:
        """1 / poly."""
        if len(poly) == 1:
            ((monomial, scale),) = poly.items()
            return {frozenset((atom, -power) for atom, power in monomial): 1 / scale}
        return self._atom("inverse", None, (frozenset(poly.items()),))

    # Sums

    def _sum(self, poly: Poly, axes: Sequence[Axis], conditions: Sequence[Expr]) -> Poly:
        """The sum of `poly` over `axes`, where all `conditions` hold."""
        tests = tuple(map(self._frozen, conditions))
        result: Poly = {}
        for monomial, scale in poly.items():
            result = _plus(result, self._sum_of_product(monomial, axes, tests), scale)
        return _limited(result)

    def _sum_of_product(
        self, monomial: Monomial, axes: Sequence[Axis], tests: tuple[Frozen, ...]
    ) -> Poly:
        inside = frozenset(pair for pair in monomial if not self.axes[pair[0]].isdisjoint(axes))
        met = frozenset[Axis]().union(*(self.axes[atom] for atom, _ in inside))
        met = met.union(*map(self._axes_of, tests))
        used = [axis for axis in axes if axis in met]
        result: Poly = {monomial - inside: Fraction(1)}
        for axis in axes:
            if axis not in met:
                result = _times(result, self.of(_domain(axis).extent))
        if not used and not tests:
            return _times(result, {inside: Fraction(1)})
        level = max((self.levels[atom] for atom, _ in inside), default=0)
        level = max([level, *(self._level_of(test) for test in tests)])
        renamed: dict[Axis, Poly] = {}
        domains: list[Frozen] = []
        for position, axis in enumerate(used):
            domain = _domain(axis)
            low, extent = self._frozen(domain.min), self._frozen(domain.extent)
            place = (level, position, low, extent)
            name = self.bound.setdefault(place, Axis(f"_{position}", AxisKind.REDUCE, domain))
            renamed[axis] = self.of(name)
            domains += (low, extent)
        body = self._renamed({inside: Fraction(1)}, renamed)
        moved = [frozenset(self._renamed(dict(test), renamed).items()) for test in tests]
        parts = (frozenset(body.items()), *domains, *sorted(moved, key=hash))
        return _times(result, self._atom("sum", (level, len(used)), parts))

    def _axes_of(self, poly: Frozen) -> frozenset[Axis]:
        atoms = {atom for monomial, _ in poly for atom, _ in monomial}
        return frozenset[Axis]().union(*(self.axes[atom] for atom in atoms))

    def _level_of(self, poly: Frozen) -> int:
        return max((self.levels[atom] for monomial, _ in poly for atom, _ in monomial), default=0)

    # Substitution

    def _renamed(self, poly: Poly, mapping: Mapping[Axis, Poly]) -> Poly:
        """`poly` with axes replaced."""
        return self._moved(poly, mapping, {})

    def _moved(self, poly: Poly, mapping: Mapping[Axis, Poly], memo: dict[int, Poly]) -> Poly:
        result: Poly = {}
        for monomial, scale in poly.items():
            product: Poly = {ONE: scale}
            for atom, power in monomial:
                factor = self._moved_atom(atom, mapping, memo)
                if power < 0:
                    factor = self._inverse(factor)
                for _ in range(abs(power)):
                    product = _times(product, factor)
            result = _plus(result, product)
        return _limited(result)

    def _moved_atom(self, atom: int, mapping: Mapping[Axis, Poly], memo: dict[int, Poly]) -> Poly:
        done = memo.get(atom)
        if done is None:
            key = self.keys[atom]
            if self.axes[atom].isdisjoint(mapping):
                done = {frozenset(((atom, 1),)): Fraction(1)}
            elif isinstance(key.payload, Axis):
                done = mapping[key.payload]
            else:
                parts = [self._moved(dict(part), mapping, memo) for part in key.parts]
                frozen = tuple(frozenset(part.items()) for part in parts)
                done = self._atom(key.kind, key.payload, frozen)
            memo[atom] = done
        return done

    # Definitions

    def _read(self, expr: TensorRead) -> Poly:
        """The value that is read, in terms of what defines it where that is simple."""
        known = self._definition(expr.tensor)
        if known is None:
            return self._other(expr)
        mapping = {
            axis: self.of(index)
            for axis, index in zip(expr.tensor.op.axis, expr.indices, strict=True)
        }
        return self._renamed(known[0], mapping)

    def _definition(self, tensor: Tensor) -> tuple[Poly, int] | None:
        """A sum or plain arithmetic over its axes, and how many definitions deep it looks."""
        if tensor not in self.definitions:
            self.definitions[tensor] = None
            self.definitions[tensor] = self._define(tensor)
        return self.definitions[tensor]

    def _define(self, tensor: Tensor) -> tuple[Poly, int] | None:
        if not isinstance(tensor.op, ComputeOp) or not tensor.dtype.is_float:
            return None
        body = tensor.op.bodies[tensor.index]
        nodes = list(walk(body))
        if len(nodes) > MAX_NODES:
            return None
        below = [self._definition(each.tensor) for each in nodes if isinstance(each, TensorRead)]
        depth = 1 + max((known[1] for known in below if known is not None), default=0)
        if depth > MAX_DEFINITIONS:
            return None
        if isinstance(body, Reduce):
            if body.reducer.operator is not BinaryOp.ADD or body.init is not None:
                return None
            where = () if body.where is None else (body.where,)
            return self._sum(self.of(body.sources[0]), body.axes, where), depth
        return (self.of(body), depth) if all(map(_is_arithmetic, nodes)) else None


def _domain(axis: Axis) -> Range:
    if axis.domain is None:
        raise InternalError(f"the axis {axis.name} of a definition has no domain")
    return axis.domain


def _is_exact(cast: Cast) -> bool:
    """Whether a cast keeps every number (an integer beyond the float's precision aside)."""
    old, new = cast.a.dtype, cast.dtype
    if old in INDEX_DTYPES:
        return new is DType.int64 or (new.is_float and new.bits >= 32)
    return old.is_float and new.is_float and new.bits > old.bits


def _is_arithmetic(node: Expr) -> bool:
    match node:
        case Binary(op=op):
            return op in _ARITHMETIC
        case Unary(op=op):
            return op is UnaryOp.NEG
        case Cast():
            return _is_exact(node)
        case _:
            return isinstance(node, (Const, Axis, Var, TensorRead))


def _limited(poly: Poly) -> Poly:
    if len(poly) > MAX_TERMS:
        raise _Large
    return poly


def _plus(a: Poly, b: Poly, scale: int | Fraction = 1) -> Poly:
    """a + scale * b."""
    result = dict(a)
    for monomial, factor in b.items():
        total = result.get(monomial, Fraction(0)) + factor * scale
        if total:
            result[monomial] = total
        else:
            result.pop(monomial, None)
    return result


def _times(a: Poly, b: Poly) -> Poly:
    """a * b."""
    if len(a) * len(b) > MAX_TERMS:
        raise _Large
    result: Poly = {}
    for left, p in a.items():
        for right, q in b.items():
            powers = dict(left)
            for atom, power in right:
                powers[atom] = powers.get(atom, 0) + power
            monomial = frozenset((atom, power) for atom, power in powers.items() if power)
            result = _plus(result, {monomial: p * q})
    return result
