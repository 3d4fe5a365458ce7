"""Linear normal form of integer expressions over non-linear atoms.

`linear(expr)` sees through additions, multiplications, negations, constant left shifts and casts
between index types, multiplies products of sums out, and collects equal monomials; whatever else
occurs (variables, divisions, reads, ...) is an atom.  Atoms are compared structurally.  Inside the
package the same form is a `Poly`: monomials are tuples of atoms.  Integers are mathematical here:
index arithmetic is required not to overflow.  Imports `expr`, `index.intern`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tedsl.dtypes import DType
from tedsl.expr.nodes import Binary, BinaryOp, Cast, Const, Expr, Unary, UnaryOp
from tedsl.index.intern import INDEX_DTYPES, Interner

ADD, SUB, MUL, SHL = BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.SHL
NEG = UnaryOp.NEG

Monomial = tuple[Expr, ...]
Poly = dict[Monomial, int]
ONE: Monomial = ()

_MAX_TERMS = 64  # a product with more terms stays an atom
_MAX_VISITS = (
    200  # after so many nodes in one sum, shared parts are memoised instead of walked again
)


@dataclass(frozen=True, slots=True)
class Linear:
    """`constant + sum(coefficient * atom)`; no coefficient is 0, a product of atoms is one atom."""

    terms: Mapping[Expr, int] = field(default_factory=dict[Expr, int])
    constant: int = 0


class Expander:
    """Turns expressions into polynomials; memoised by identity."""

    __slots__ = ("_memo", "interner")

    def __init__(self, interner: Interner) -> None:
        self.interner = interner
        self._memo: dict[Expr, Poly] = {}

    def poly(self, expr: Expr) -> Poly:
        """The polynomial of `expr`.  Shared: do not change it."""
        known = self._memo.get(expr)
        if known is not None:
            return known
        result: Poly = {}
        stack: list[tuple[Expr, int]] = [(expr, 1)]
        visits = 0
        while stack:
            node, scale = stack.pop()
            visits += 1
            parts = self._parts(node, scale)
            if parts is None or (visits > _MAX_VISITS and node is not expr):
                accumulate(result, self.poly(node) if parts else self._leaf(node), scale)
            else:
                stack.extend(parts)
        self._memo[expr] = result
        return result

    def _parts(self, node: Expr, scale: int) -> tuple[tuple[Expr, int], ...] | None:
        """The summands of a node that is linear in its operands."""
        if type(node) is Binary:
            a, b = node.a, node.b
            if node.dtype not in INDEX_DTYPES:
                return None
            match node.op:
                case BinaryOp.ADD:
                    return (b, scale), (a, scale)
                case BinaryOp.SUB:
                    return (b, -scale), (a, scale)
                case BinaryOp.MUL:
                    if type(b) is Const:
                        return ((a, scale * int(b.value)),)
                    if type(a) is Const:
                        return ((b, scale * int(a.value)),)
                case BinaryOp.SHL:
                    if type(b) is Const and 0 <= b.value < 64:
                        return ((a, scale << int(b.value)),)
                case _:
                    return None
        elif type(node) is Unary:
            if node.op is NEG and node.dtype in INDEX_DTYPES:
                return ((node.a, -scale),)
        elif type(node) is Cast and node.dtype in INDEX_DTYPES and node.a.dtype in INDEX_DTYPES:
            return ((node.a, scale),)
        return None

    def _leaf(self, node: Expr) -> Poly:
        if type(node) is Const and not isinstance(node.value, float):
            return {ONE: int(node.value)} if node.value else {}
        known = self._memo.get(node)
        if known is None:
            known = self._memo[node] = self._product(node) or {(self.interner.rep(node),): 1}
        return known

    def _product(self, node: Expr) -> Poly | None:
        if type(node) is not Binary or node.op is not MUL or node.dtype not in INDEX_DTYPES:
            return None
        a, b = self.poly(node.a), self.poly(node.b)
        return multiply(a, b) if len(a) * len(b) <= _MAX_TERMS else None

    def expression(self, poly: Poly, dtype: DType | None = None) -> Expr:
        """The expression of a polynomial, of `dtype` or the widest type of its atoms."""
        if dtype is None:
            wide = any(atom.dtype is DType.int64 for monomial in poly for atom in monomial)
            dtype = DType.int64 if wide else DType.int32
        terms: dict[Expr, int] = {}
        for monomial, coefficient in poly.items():
            if monomial:
                terms[product(self.interner, monomial, dtype)] = coefficient
        return build_sum(self.interner, terms, poly.get(ONE, 0), dtype)


def accumulate(target: Poly, source: Poly, scale: int = 1) -> None:
    """target += scale * source, in place; terms that become 0 vanish."""
    for monomial, coefficient in source.items():
        total = target.get(monomial, 0) + coefficient * scale
        if total:
            target[monomial] = total
        else:
            target.pop(monomial, None)


def combine(a: Poly, b: Poly, scale: int = 1) -> Poly:
    """a + scale * b."""
    result = dict(a)
    accumulate(result, b, scale)
    return result


def multiply(a: Poly, b: Poly) -> Poly:
    """a * b."""
    result: Poly = {}
    for left, p in a.items():
        for right, q in b.items():
            accumulate(result, {join(left, right): p * q})
    return result


def join(left: Monomial, right: Monomial) -> Monomial:
    """The product of two monomials."""
    if not left:
        return right
    if not right:
        return left
    return tuple(sorted((*left, *right), key=id))


def without(factors: Monomial, removed: Monomial) -> Monomial | None:
    """`factors` without `removed`; None when they are not all there.  By identity: `==` builds a
    comparison.
    """
    rest = list(factors)
    for factor in removed:
        for index, candidate in enumerate(rest):
            if candidate is factor:
                del rest[index]
                break
        else:
            return None
    return tuple(rest)


def product(interner: Interner, factors: Iterable[Expr], dtype: DType) -> Expr:
    """The product of at least one factor, in stable order."""
    ordered = sorted((interner.cast(f, dtype) for f in factors), key=interner.order)
    result = ordered[0]
    for factor in ordered[1:]:
        result = interner.binary(MUL, result, factor)
    return result


def degree(term: Expr) -> int:
    """How many factors a term has."""
    count = 1
    while type(term) is Binary and term.op is MUL:
        count += 1
        term = term.a
    return count


def build_sum(interner: Interner, terms: Mapping[Expr, int], constant: int, dtype: DType) -> Expr:
    """`c1*t1 + c2*t2 + ... + constant`: positive before negative, products and larger strides
    first.
    """
    if len(terms) < 2:
        ordered = list(terms.items())
    else:
        ordered = sorted(
            terms.items(),
            key=lambda item: (
                item[1] < 0,
                -degree(item[0]),
                -abs(item[1]),
                interner.order(item[0]),
            ),
        )
    result: Expr | None = None
    if ordered and ordered[0][1] < 0 and constant > 0:
        result, constant = interner.const(constant, dtype), 0
    for term, coefficient in ordered:
        scale = coefficient if result is None else abs(coefficient)
        scaled = term if scale == 1 else interner.binary(MUL, term, interner.const(scale, dtype))
        if result is None:
            result = scaled
        else:
            result = interner.binary(SUB if coefficient < 0 else ADD, result, scaled)
    if result is None:
        return interner.const(constant, dtype)
    if constant:
        op = ADD if constant > 0 else SUB
        result = interner.binary(op, result, interner.const(abs(constant), dtype))
    return result


def linear(expr: Expr) -> Linear:
    """The linear normal form of an integer expression.

    Atoms are sub-expressions of `expr` where possible, one object for all structurally equal ones;
    a product of atoms is one atom.  Casts between int32 and int64 are transparent.
    """
    expander = Expander(Interner())
    terms: dict[Expr, int] = {}
    constant = 0
    for monomial, coefficient in expander.poly(expr).items():
        if not monomial:
            constant = coefficient
            continue
        types = {atom.dtype for atom in monomial}
        dtype = DType.int64 if len(types) > 1 else types.pop()
        terms[product(expander.interner, monomial, dtype)] = coefficient
    return Linear(terms, constant)


def from_linear(form: Linear) -> Expr:
    """The expression of a linear form, int64 when one of its atoms is, else int32."""
    wide = any(term.dtype is DType.int64 for term in form.terms)
    dtype = DType.int64 if wide else DType.int32
    interner = Interner()
    terms = {interner.cast(term, dtype): scale for term, scale in form.terms.items() if scale}
    return build_sum(interner, terms, form.constant, dtype)
