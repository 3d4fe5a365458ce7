"""What a proof over the real numbers says of integers, which wrap.

Integers of n bits are those modulo 2**n.  Let R(e) be the real expression that the algebra reads e
as.  An integer node is *exact* when its value is R(e): a value that is read, or arithmetic that
ranges show not to wrap.  It is *congruent* when its value is R(e) modulo 2**n: sums, differences
and products of exact or congruent nodes are, and casts of them to as many or fewer bits.  All
else (minima, maxima, comparisons, quotients, functions, casts to more bits or to floats) depends on
which of the congruent numbers it is given, and needs exact operands.

An identity of real expressions that is proved holds for

- a sum, when the value, what is folded, the repair and the result are congruent: sums of congruent
  terms are, and in the repair the totals are no better than that;
- a maximum or minimum, when the value and what is folded are exact at all tags: then the repair is
  congruent to a number within their range, and so it is that number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tedsl.dtypes import DType
from tedsl.expr.nodes import (
    Binary,
    BinaryOp,
    Cast,
    Const,
    Expr,
    IfThenElse,
    Select,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.expr.visit import walk
from tedsl.index.intern import Interner
from tedsl.index.interval import interval
from tedsl.scheduling.algebra.rescaling import Tag

Span = tuple[int, int]
"""The least and the greatest value of an integer."""

_RING = frozenset({BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL})
_EXTREMES = frozenset({BinaryOp.MIN, BinaryOp.MAX})


class Wraps(Exception):
    """`culprit` is no homomorphism of wrapping arithmetic; `of`, its operand, may have wrapped."""

    def __init__(self, culprit: Expr, of: Expr) -> None:
        super().__init__()
        self.culprit = culprit
        self.of = of


def whole(dtype: DType) -> Span:
    """The range of an integer type."""
    return int(dtype.info.lowest), int(dtype.info.highest)


def span_of(expr: Expr, tags: Mapping[Expr, Span]) -> Span:
    """A range around the values of an integer expression, over variables with the ranges `tags`.

    Arithmetic that may wrap has the range of its type.
    """
    return Exactness(tags, ()).span(expr)


def tag_spans(tags: Sequence[Tag]) -> dict[Expr, Span]:
    """The ranges of the tags that are integers: of a maximum or minimum, that of its elements."""
    found: dict[Expr, Span] = {t.var: whole(t.var.dtype) for t in tags if t.var.dtype.is_integer}
    for tag in tags:
        known = tag.source is not None and tag.source.dtype is tag.var.dtype
        if tag.var in found and known and tag.source is not None and tag.order in _EXTREMES:
            found[tag.var] = span_of(tag.source, dict(found))
    return found


@dataclass(slots=True, eq=False)
class Exactness:
    """Which integer nodes of expressions are exact.

    `spans` are the ranges of variables; `atoms` the nodes that stand for themselves, which are
    exact but for those in `loose` (both as representatives in `same`); `ranged` and `rings` are set
    when arithmetic is exact by its range, and when it is only congruent.
    """

    spans: Mapping[Expr, Span]
    atoms: Collection[Expr]
    loose: Collection[Expr] = ()
    same: Interner = field(default_factory=Interner)
    ranged: bool = False
    rings: bool = False
    memo: dict[Expr, bool] = field(default_factory=dict[Expr, bool])
    known: dict[Expr, Span] = field(default_factory=dict[Expr, Span])

    def exact(self, node: Expr) -> bool:
        """Whether `node` is exact; if not it is congruent.

        Raises:
            Wraps: it is neither.
        """
        if node not in self.memo:
            self.memo[node] = self.judge(node)
        return self.memo[node]

    def judge(self, node: Expr) -> bool:
        """The same for a node that is new."""
        rep = self.same.rep(node)
        if rep in self.loose:
            return False
        if rep in self.atoms or not node.children():
            return True
        if isinstance(node, (Select, IfThenElse)) and not node.dtype.is_bool:
            self.need(node, node.condition)
            chosen = [self.exact(each) for each in (node.a, node.b)]
            return all(chosen)
        if not self.homomorphic(node):
            for child in node.children():
                self.need(node, child)
            return not node.dtype.is_integer or self.fits(node)
        kept = all([self.exact(child) for child in node.children()])
        if not kept or not self.fits(node):
            self.rings = True
            return False
        self.ranged = True
        return True

    def need(self, node: Expr, child: Expr) -> None:
        """The operand `child` of `node` has to be exact."""
        if not self.exact(child):
            raise Wraps(node, child)

    def homomorphic(self, node: Expr) -> bool:
        """Whether `node` of congruent operands is congruent."""
        if not node.dtype.is_integer:
            return False
        match node:
            case Binary(op=op):
                return op in _RING
            case Unary(op=op):
                return op is UnaryOp.NEG
            case Cast(a=a, dtype=dtype):
                return a.dtype.is_integer and (dtype.bits <= a.dtype.bits or self.exact(a))
            case _:
                return False

    def fits(self, node: Expr) -> bool:
        """Whether the arithmetic of an integer node stays within its type."""
        raw = self.raw(node)
        low, high = whole(node.dtype)
        return raw is not None and low <= raw[0] and raw[1] <= high

    def span(self, node: Expr) -> Span:
        """A range around the values of an integer node."""
        if node not in self.known:
            raw = self.raw(node)
            low, high = whole(node.dtype)
            inside = raw is not None and low <= raw[0] and raw[1] <= high
            self.known[node] = raw if raw is not None and inside else (low, high)
        return self.known[node]

    def raw(self, node: Expr) -> Span | None:
        """A range of the real value of one operation on its operands; None when there is none."""
        if node in self.spans:
            return self.spans[node]
        match node:
            case Const(value=value):
                return int(value), int(value)
            case Binary(op=op, a=a, b=b) if op in _RING or op in _EXTREMES:
                return _combined(op, self.span(a), self.span(b))
            case Unary(op=UnaryOp.NEG, a=a):
                low, high = self.span(a)
                return -high, -low
            case Unary(op=UnaryOp.ABS, a=a):
                low, high = self.span(a)
                return max(0, low, -high), max(abs(low), abs(high))
            case Cast(a=a) if a.dtype.is_integer:
                return self.span(a)
            case Cast(a=a) if a.dtype.is_bool:
                return 0, 1
            case Cast():
                return None
            case Select(a=a, b=b) | IfThenElse(a=a, b=b):
                (low, high), (least, most) = self.span(a), self.span(b)
                return min(low, least), max(high, most)
            case _:
                return self.leaf(node)

    def leaf(self, node: Expr) -> Span:
        """The range of what is not looked into."""
        low, high = whole(node.dtype)
        # A variable stands for a value of memory here; `interval` takes it as a size.
        if any(isinstance(each, Var) and each.lower is None for each in walk(node)):
            return low, high
        found = interval(node)
        least = low if found.lo is None else max(low, found.lo)
        most = high if found.hi is None else min(high, found.hi)
        return (least, most) if least <= most else (low, high)


def _combined(op: BinaryOp, a: Span, b: Span) -> Span:
    match op:
        case BinaryOp.ADD:
            return a[0] + b[0], a[1] + b[1]
        case BinaryOp.SUB:
            return a[0] - b[1], a[1] - b[0]
        case BinaryOp.MUL:
            found = [x * y for x in a for y in b]
            return min(found), max(found)
        case BinaryOp.MIN:
            return min(a[0], b[0]), min(a[1], b[1])
        case _:
            return max(a[0], b[0]), max(a[1], b[1])
