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

from tedsl.scheduling.algebra_terms import Clock, Mixed, Terms, is_zero, sympy

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


def close(terms: Terms, tags: Sequence[Any], new: Mapping[Any, Any], clock: Clock) -> Closure:
    """The closure of g = sum of coefficient * function under derivatives by `tags`.

    Args:
        terms: g, see `separated`.
        tags: the symbols of tags.
        new: from each of them to the one for its new value.
        clock: the time limit.

    Raises:
        Mixed: the rank is above `MAX_RANK`.
        Stopped: the time is up.
    """
    columns = tuple(terms)
    if len(columns) > _MAX_COLUMNS:
        raise Mixed(None, f"the value has {len(columns)} terms that follow the tags differently")
    exponent = common_exponent(list(terms.values()), tags)
    slopes = {u: sympy().diff(exponent, u) for u in tags}
    first = tuple(sympy().expand(terms[c] * sympy().exp(-exponent)) for c in columns)
    rows, pivots = [first], [_pivot(first, tags)]
    todo = [0]
    while todo:
        row = rows[todo.pop(0)]
        for u in tags:
            clock.check("closing the value under derivatives")
            moved = tuple(sympy().diff(entry, u) + entry * slopes[u] for entry in row)
            rest = _reduced(moved, rows, pivots)
            if rest is None:
                continue
            if len(rows) == MAX_RANK:
                raise Mixed(
                    None,
                    f"its derivatives by the tags span a space of rank above {MAX_RANK}",
                    "compute the sum in a pass of its own, or write it as sums of lower powers",
                )
            pivot = _pivot(rest, tags)
            rows.append(_scaled(rest, pivot))
            pivots.append(pivot)
            todo.append(len(rows) - 1)
    h = _solved(rows, pivots, new, clock)
    divisors = tuple(rows[k][p] for k, p in enumerate(pivots))
    return Closure(exponent, columns, tuple(rows), h, divisors)


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


def _pivot(row: Sequence[Any], tags: Sequence[Any]) -> int:
    """The column to divide by: a number, else free of tags, else the first that is not 0."""
    nonzero = [k for k, entry in enumerate(row) if entry != 0]
    numbers = [k for k in nonzero if row[k].is_number]
    free = [k for k in nonzero if not row[k].free_symbols & set(tags)]
    return (numbers or free or nonzero)[0]


def _reduced(
    row: Sequence[Any], rows: Sequence[Sequence[Any]], pivots: Sequence[int]
) -> tuple[Any, ...] | None:
    """`row` less multiples of `rows` so that it is 0 at their pivots; None when nothing is left."""
    rest = list(row)
    for known, p in zip(rows, pivots, strict=True):
        if rest[p] != 0:
            factor = rest[p] / known[p]
            rest = [a - factor * b for a, b in zip(rest, known, strict=True)]
            rest[p] = sympy().S.Zero
    rest = [sympy().S.Zero if is_zero(entry) else sympy().expand(entry) for entry in rest]
    return tuple(rest) if any(entry != 0 for entry in rest) else None


def _scaled(row: Sequence[Any], pivot: int) -> tuple[Any, ...]:
    """`row` with 1 at its pivot."""
    return tuple(sympy().expand(sympy().cancel(entry / row[pivot])) for entry in row)


def _solved(
    rows: Sequence[Sequence[Any]], pivots: Sequence[int], new: Mapping[Any, Any], clock: Clock
) -> tuple[tuple[Any, ...], ...]:
    """H with H B(r) = B(r') at the pivots; later rows are 0 at the pivots of earlier ones."""
    result: list[tuple[Any, ...]] = []
    for row in rows:
        target = [entry.xreplace(new) for entry in row]
        solved: list[Any] = []
        for k, p in enumerate(pivots):
            clock.check("solving for the repair")
            known = sum((x * rows[j][p] for j, x in enumerate(solved)), sympy().S.Zero)
            solved.append(sympy().factor((target[p] - known) / rows[k][p]))
        result.append(tuple(solved))
    return tuple(result)
