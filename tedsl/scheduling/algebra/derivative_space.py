"""Repairs of several sums together: the space that g and its derivatives by the tags span.

In terms of the functions M_i of elements, g(r, c) = sum of A_i(r) M_i(c) is a row of coefficients.
A row for g, then rows for derivatives, until each derivative is a combination of the rows so far
with coefficients that may depend on r: that is B(r), of rank K.  Then b(r', c) = H(r, r') b(r, c)
with H = B(r') B(r)^-1, and so for the folds of b.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tedsl.scheduling.algebra.terms import Clock, Mixed, Stopped, Terms, is_zero, sympy

MAX_RANK = 3
_MAX_COLUMNS = 24


@dataclass(frozen=True, slots=True)
class Closure:
    """The rows B(r) over the functions `columns` of elements, times exp(`exponent`).

    `h` is H(r, r') without its factor exp(exponent(r') - exponent(r)); `pivots` are the values of r
    that H divides by.
    """

    exponent: Any
    columns: tuple[Any, ...]
    rows: tuple[tuple[Any, ...], ...]
    h: tuple[tuple[Any, ...], ...]
    pivots: tuple[Any, ...]

    def basis(self) -> list[Any]:
        """What is folded besides g."""
        scale = sympy().exp(self.exponent)
        return [_sum(row, self.columns) * scale for row in self.rows[1:]]


class RankAbove(Mixed):
    """The rank is above `MAX_RANK`; `left` is a derivative outside the span of those before."""

    def __init__(self, left: Any) -> None:
        super().__init__(
            None,
            f"the derivatives of {{0}} by the tags span a space of rank above {MAX_RANK}",
            "compute the sum in a pass of its own, or write it as sums of lower powers",
        )
        self.left = left


def close(terms: Terms, tags: Sequence[Any], new: Mapping[Any, Any], clock: Clock) -> Closure:
    """The closure of g = sum of coefficient * function under derivatives by `tags`.

    Args:
        terms: g, see `separated`.
        tags: the symbols of tags.
        new: from each of them to the one for its new value.
        clock: the time limit.

    Raises:
        RankAbove: the rank is above `MAX_RANK`.
        Stopped: the time is up.
    """
    columns = tuple(terms)
    if len(columns) > _MAX_COLUMNS:
        raise Stopped(f"the value has {len(columns)} terms that follow the tags differently")
    exponent = common_exponent(list(terms.values()), tags)
    slopes = {u: sympy().diff(exponent, u) for u in tags}
    first = tuple(sympy().expand(terms[c] * sympy().exp(-exponent)) for c in columns)
    rows, pivots = [first], [_pivot(first, tags)]
    todo = [0]
    while todo:
        current = rows[todo.pop(0)]
        for u in tags:
            clock.check("closing the value under derivatives")
            moved = tuple(sympy().diff(entry, u) + entry * slopes[u] for entry in current)
            rest = _reduced(moved, rows, pivots)
            if rest is None:
                continue
            if len(rows) == MAX_RANK:
                row, _ = _normal(rest, tags)
                raise RankAbove(_sum(row, columns) * sympy().exp(exponent))
            row, pivot = _normal(rest, tags)
            rows.append(row)
            pivots.append(pivot)
            todo.append(len(rows) - 1)
    h = _solved(rows, pivots, new, clock)
    divisors = tuple(rows[k][p] for k, p in enumerate(pivots) if p is not None)
    return Closure(exponent, columns, tuple(rows), h, divisors)


def _sum(row: Sequence[Any], columns: Sequence[Any]) -> Any:
    """The function of elements that a row stands for, in factors unless that takes exponentials
    of tags apart from those of elements."""
    total = sympy().Add(*(a * m for a, m in zip(row, columns, strict=True)))
    if any(entry.has(sympy().exp) for entry in row):
        return sympy().expand(total)
    factors = sympy().Mul.make_args(sympy().factor(total))
    return sympy().Mul(*(_grouped(each) if each.is_Add else each for each in factors))


def _grouped(total: Any) -> Any:
    """A sum with a symbol that several terms share taken out of them: s * n - m * n is (s - m) * n,
    a difference that is taken before it is scaled."""
    total = sympy().expand(total)
    shared = [
        symbol
        for symbol in sorted(total.free_symbols, key=str)
        if sum(term.has(symbol) for term in total.args) > 1
    ]
    return min(
        [total, *(sympy().collect(total, symbol) for symbol in shared)],
        key=lambda form: form.count_ops(),
    )


def common_exponent(values: Sequence[Any], tags: Sequence[Any]) -> Any:
    """The exponent of tags of the first exponential that all `values` have as a factor, else 0."""
    found: list[Any] = []
    for value in values:
        for term in sympy().Add.make_args(value):
            total = sympy().S.Zero
            for factor in sympy().Mul.make_args(term):
                if isinstance(factor, sympy().exp) and factor.free_symbols & set(tags):
                    total += factor.args[0]
            found.append(sympy().expand(total))
    return found[0] if all(each == found[0] for each in found) else sympy().S.Zero


def _pivot(row: Sequence[Any], tags: Sequence[Any]) -> int | None:
    """The column of g to divide by: a number, else free of tags and never 0; None when there is
    none, and nothing is to be divided by g."""
    free = [k for k, e in enumerate(row) if e.is_nonzero and not e.free_symbols & set(tags)]
    return next((k for k in free if row[k].is_number), free[0] if free else None)


def _normal(row: Sequence[Any], tags: Sequence[Any]) -> tuple[tuple[Any, ...], int | None]:
    """`row` with 1 at a column, where that divides by nothing that may be 0, and the column."""
    columns = [k for k, entry in enumerate(row) if entry != 0]
    columns.sort(key=lambda k: (not row[k].is_number, bool(row[k].free_symbols & set(tags))))
    for pivot in columns:
        scaled = _scaled(row, pivot)
        below = (sympy().fraction(sympy().together(entry))[1] for entry in scaled)
        if all(divisor.is_nonzero for divisor in below):
            return scaled, pivot
    return tuple(row), None


def _reduced(
    row: Sequence[Any], rows: Sequence[Sequence[Any]], pivots: Sequence[int | None]
) -> tuple[Any, ...] | None:
    """`row` less multiples of `rows` so that it is 0 at their pivots; None when nothing is left."""
    rest = list(row)
    for known, p in zip(rows, pivots, strict=True):
        if p is not None and rest[p] != 0:
            factor = rest[p] / known[p]
            rest = [a - factor * b for a, b in zip(rest, known, strict=True)]
            rest[p] = sympy().S.Zero
    rest = [sympy().S.Zero if is_zero(entry) else sympy().expand(entry) for entry in rest]
    return tuple(rest) if any(entry != 0 for entry in rest) else None


def _scaled(row: Sequence[Any], pivot: int) -> tuple[Any, ...]:
    """`row` with 1 at its pivot, or with an exponential: exp(c - m) may be folded, exp(c) not."""
    lead = row[pivot]
    kept = sympy().exp(common_exponent([lead], tuple(lead.free_symbols)))
    return tuple(sympy().expand(sympy().cancel(entry / lead) * kept) for entry in row)


def _solved(
    rows: Sequence[Sequence[Any]],
    pivots: Sequence[int | None],
    new: Mapping[Any, Any],
    clock: Clock,
) -> tuple[tuple[Any, ...], ...]:
    """H with H B(r) = B(r') at the pivots; later rows are 0 at the pivots of earlier ones.  A row
    without a pivot has 1 on the diagonal: it changes by what its derivatives span."""
    result: list[tuple[Any, ...]] = []
    for n, row in enumerate(rows):
        target = [entry.xreplace(new) for entry in row]
        solved: list[Any] = []
        for k, p in enumerate(pivots):
            clock.check("solving for the repair")
            if p is None:
                solved.append(sympy().S.One if k == n else sympy().S.Zero)
                continue
            known = sympy().Add(*(x * rows[j][p] for j, x in enumerate(solved)))
            solved.append(_tidy((target[p] - known) / rows[k][p]))
        result.append(tuple(solved))
    return tuple(result)


def _tidy(value: Any) -> Any:
    """In factors, for powers of differences; as a sum when there are exponentials, whose quotients
    are then exponentials of differences."""
    return sympy().expand(value) if value.has(sympy().exp) else sympy().factor(value)
