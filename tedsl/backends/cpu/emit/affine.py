"""Index expressions as polynomials over axes, sizes and whatever else is opaque.

Addresses are computed from this form: terms over unrolled tile axes become constant offsets, the
term of the SIMD axis gives the stride, and the rest is grouped by the loop in which it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from tedsl.dtypes import DType
from tedsl.expr.index_arith import add as plus
from tedsl.expr.index_arith import as_index, mul
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Cast, Const, Expr, Var
from tedsl.expr.visit import walk
from tedsl.ir.nodes import Load

# A product of atoms, sorted by identity so that equal products are equal keys; () is the constant.
Monomial = tuple[Expr, ...]
Poly = dict[Monomial, int]


def _sorted(atoms: Iterable[Expr]) -> Monomial:
    return tuple(sorted(atoms, key=id))


def add(a: Poly, b: Poly, scale: int = 1) -> Poly:
    """`a + scale * b`."""
    result = dict(a)
    for monomial, coefficient in b.items():
        total = result.get(monomial, 0) + scale * coefficient
        if total:
            result[monomial] = total
        else:
            result.pop(monomial, None)
    return result


def multiply(a: Poly, b: Poly) -> Poly:
    """`a * b`."""
    result: Poly = {}
    for left, x in a.items():
        for right, y in b.items():
            key = _sorted((*left, *right))
            result[key] = result.get(key, 0) + x * y
    return {key: value for key, value in result.items() if value}


def polynomial(expr: Expr) -> Poly:
    """The normal form of an integer expression that does not overflow, but for what it has of
    values in memory: arithmetic over these wraps as its dtype does."""
    if isinstance(expr, Binary) and is_data(expr):
        return _wrapping(expr)
    return _expanded(expr)


@lru_cache(maxsize=4096)
def _wrapping(expr: Expr) -> Poly:
    """A sum with all it has of values in memory as one atom, which is computed in its dtype.

    One such value plus or minus what stays small is inside a tensor exactly if it is without
    wrapping.
    """
    poly = _expanded(expr)
    data = {atoms: scale for atoms, scale in poly.items() if any(map(is_data, atoms))}
    if all(len(atoms) == 1 and abs(scale) == 1 for atoms, scale in data.items()) and len(data) < 2:
        return poly
    whole: Expr = as_index(0)
    for atoms, scale in data.items():
        term: Expr = as_index(scale)
        for atom in atoms:
            term = mul(term, atom)
        whole = plus(whole, term)
    return {**{atoms: scale for atoms, scale in poly.items() if atoms not in data}, (whole,): 1}


def is_data(expr: Expr) -> bool:
    """True when an expression depends on values in memory."""
    return any(isinstance(node, Load) for node in walk(expr))


def _expanded(expr: Expr) -> Poly:
    match expr:
        case Const(value=value):
            return {(): int(value)} if value else {}
        case Binary(op=BinaryOp.ADD, a=a, b=b):
            return add(_expanded(a), _expanded(b))
        case Binary(op=BinaryOp.SUB, a=a, b=b):
            return add(_expanded(a), _expanded(b), -1)
        case Binary(op=BinaryOp.MUL, a=a, b=b):
            return multiply(_expanded(a), _expanded(b))
        case Cast(a=a, dtype=DType.int32) if a.dtype is DType.int64 and _of_loops(a):
            return _expanded(a)  # the place along an axis, counted by wider loops
        case Cast(a=a, dtype=dtype) if dtype.is_integer and isinstance(a, (Axis, Var)):
            widens = a.dtype.is_integer and dtype.bits >= a.dtype.bits
            return _expanded(a) if widens else {(expr,): 1}
        case _:
            return {(expr,): 1}


def _of_loops(expr: Expr) -> bool:
    """Whether an expression is made of axes and sizes only."""
    return all(isinstance(node, (Axis, Var, Const, Binary, Cast)) for node in walk(expr))


def flatten(indices: Sequence[Expr], strides: Sequence[Poly]) -> Poly:
    """The flat element offset of `indices` in memory with these strides."""
    total: Poly = {}
    for index, stride in zip(indices, strides, strict=True):
        total = add(total, multiply(polynomial(index), stride))
    return total


class Dependence:
    """Which of a set of tile axes an expression depends on, remembered per node."""

    def __init__(self, axes: Sequence[Axis], bound: Mapping[Expr, frozenset[Axis]] | None = None):
        self._known: dict[Expr, frozenset[Axis]] = {axis: frozenset((axis,)) for axis in axes}
        self._known.update(bound or {})

    def __call__(self, expr: Expr) -> frozenset[Axis]:
        known = self._known.get(expr)
        if known is None:
            known = frozenset[Axis]().union(*(self(child) for child in expr.children()))
            self._known[expr] = known
        return known

    def poly(self, poly: Poly) -> frozenset[Axis]:
        """The axes any term depends on."""
        return frozenset[Axis]().union(*(self(atom) for key in poly for atom in key))


def step_along(depends: Dependence, poly: Poly, axis: Axis | None) -> int | None:
    """How far one step along `axis` moves in memory, where that is one number."""
    step: Poly = {}
    for atoms, coefficient in poly.items():
        varying = [a for a in atoms if axis in depends(a)]
        if not varying:
            continue
        if len(varying) > 1 or varying[0] is not axis:
            return None
        rest = tuple(a for a in atoms if a is not axis)
        step[rest] = coefficient
    return const_poly(step)


def const_poly(poly: Poly) -> int | None:
    """The integer a polynomial is, if it is constant."""
    if not poly:
        return 0
    return poly.get(()) if len(poly) == 1 else None
