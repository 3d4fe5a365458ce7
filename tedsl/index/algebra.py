"""The sign of a polynomial from its factors, found by sympy.

The last resort of `prove`, for products of several variables.  sympy is loaded when it is first
needed.
"""

from __future__ import annotations

import importlib
from typing import Any

from tedsl.expr.nodes import Expr
from tedsl.index.facts import Facts
from tedsl.index.inequality import nonnegative
from tedsl.index.linear import ONE, Poly, combine

_MAX_TERMS = 24


def worth_factoring(poly: Poly) -> bool:
    """Whether factors may say more than terms: the polynomial is small and has products."""
    return len(poly) <= _MAX_TERMS and any(len(monomial) > 1 for monomial in poly)


def nonnegative_by_factors(poly: Poly, facts: Facts) -> bool:
    """True when every factor of `poly` has a proved sign and their product is >= 0."""
    negative = False
    constant, factors = _factor(poly)
    if constant < 0:
        negative = True
    if len(factors) == 1 and factors[0][1] == 1:
        return False
    for factor, power in factors:
        if power % 2 == 0 or nonnegative(factor, facts):
            continue
        if not nonnegative(combine({}, factor, -1), facts):
            return False
        negative = not negative
    return not negative


def _factor(poly: Poly) -> tuple[int, list[tuple[Poly, int]]]:
    """poly = constant * product(factor ** power)."""
    sympy: Any = importlib.import_module("sympy")
    symbols: dict[Expr, Any] = {}
    total: Any = sympy.Integer(0)
    for monomial, scale in poly.items():
        term: Any = sympy.Integer(scale)
        for atom in monomial:
            if atom not in symbols:
                symbols[atom] = sympy.Symbol(f"x{len(symbols)}", integer=True)
            term = term * symbols[atom]
        total = total + term
    atoms = list(symbols)
    constant, found = sympy.factor_list(total, *symbols.values())
    factors: list[tuple[Poly, int]] = []
    for factor, power in found:
        back: Poly = {}
        for powers, scale in sympy.Poly(factor, *symbols.values()).terms():
            monomial = [x for x, count in zip(atoms, powers, strict=True) for _ in range(count)]
            back[tuple(sorted(monomial, key=id)) if monomial else ONE] = int(scale)
        factors.append((back, int(power)))
    return int(constant), factors
