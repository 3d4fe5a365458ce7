"""Random integer expressions with facts about their variables, and points inside those facts."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

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
    IfThenElse,
    Select,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.index.facts import Facts

N = Var("n", lower=1)
M = Var("m", lower=1)
A, B, ROW, COLUMN, OUTER, INNER = (Axis(name) for name in ("a", "b", "i", "j", "io", "ii"))
SIZES = (1, 2, 3, 7, 8, 33)


def number(value: int) -> Expr:
    """An int32 constant."""
    return Const(value, DType.int32)


def binary(op: BinaryOp, a: Expr, b: Expr) -> Expr:
    """`a op b`."""
    return Binary(op, a, b)


@dataclass(frozen=True)
class World:
    """Facts, and how to draw a point inside them."""

    facts: Facts
    factor: int
    low: int
    count: int

    def draw_point(self, draw: st.DrawFn) -> dict[Expr, int]:
        """Values of all variables, inside the facts."""
        n, m = draw(st.sampled_from(SIZES)), draw(st.sampled_from(SIZES))
        outer = -(-n // self.factor)
        return {
            N: n,
            M: m,
            A: self.low + draw(st.integers(0, self.count - 1)),
            B: draw(st.integers(-20, 20)),
            ROW: draw(st.integers(0, n - 1)),
            COLUMN: draw(st.integers(0, m - 1)),
            OUTER: draw(st.integers(0, outer - 1)),
            INNER: draw(st.integers(0, self.factor - 1)),
        }


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """`a` in a constant range, `i < n`, `j < m`, (io, ii) the split of n by a factor, `b` free."""
    factor = draw(st.sampled_from((1, 2, 4, 5, 32)))
    low, count = draw(st.integers(-9, 9)), draw(st.sampled_from((1, 2, 7, 32)))
    top = binary(BinaryOp.ADD, N, number(factor - 1))
    ranges: dict[Expr, tuple[int | Expr, int | Expr]] = {
        A: (low, count),
        ROW: (0, N),
        COLUMN: (0, M),
        OUTER: (0, binary(BinaryOp.FLOORDIV, top, number(factor))),
        INNER: (0, factor),
    }
    return World(Facts.of(ranges), factor, low, count)


LEAVES = st.one_of(
    st.sampled_from((A, B, ROW, COLUMN, OUTER, INNER, N, M)),
    st.sampled_from((-7, -1, 0, 1, 2, 3, 4, 5, 8, 31, 32, 33)).map(number),
)
DIVISORS = st.one_of(
    st.sampled_from((1, 2, 3, 4, 8, 32, -3)).map(number),
    st.sampled_from((N, M, Binary(BinaryOp.MUL, N, M), Binary(BinaryOp.MUL, M, number(4)))),
)


def _grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    plain = (BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX)
    division = (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD)
    factors = st.sampled_from((4, 8, 32, -1)).map(number)
    return st.one_of(
        st.builds(binary, st.sampled_from(plain), inner, inner),
        st.builds(binary, st.just(BinaryOp.ADD), inner, inner),
        st.builds(binary, st.just(BinaryOp.MUL), inner, factors),
        st.builds(binary, st.sampled_from(division), inner, DIVISORS),
        st.builds(binary, st.sampled_from(division[:2]), inner, DIVISORS),
        st.builds(binary, st.sampled_from((BinaryOp.SHR, BinaryOp.AND)), inner, st.just(number(3))),
        st.builds(Unary, st.sampled_from((UnaryOp.NEG, UnaryOp.ABS)), inner),
        st.builds(Select, comparisons(inner), inner, inner),
        st.builds(IfThenElse, comparisons(inner), inner, inner),
        inner.map(lambda x: Cast(Cast(x, DType.int64), DType.int32)),
    )


def comparisons(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    """`a op b`."""
    return st.builds(Compare, st.sampled_from(CompareOp), inner, inner)


def _logic(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(binary, st.sampled_from((BinaryOp.AND, BinaryOp.OR)), inner, inner),
        st.builds(Unary, st.just(UnaryOp.NOT), inner),
    )


integers = st.recursive(LEAVES, _grow, max_leaves=8)
small_integers = st.recursive(LEAVES, _grow, max_leaves=4)
conditions = st.recursive(comparisons(small_integers), _logic, max_leaves=3)
