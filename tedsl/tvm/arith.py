"""TVM's module `arith`: an `Analyzer` of integer expressions.  Imports `index`."""

from __future__ import annotations

from typing import Any

from tedsl.expr import build
from tedsl.expr.nodes import Const, Expr, Range
from tedsl.index.facts import Facts
from tedsl.index.prove import equal, prove
from tedsl.index.simplify import simplify
from tedsl.tvm.modules import of_te

__all__ = ["Analyzer"]


class Analyzer:
    """What is known of integers, and what follows."""

    def __init__(self) -> None:
        self._facts = Facts.EMPTY

    def bind(self, var: Any, expr: Any) -> None:
        """Know the value of a variable, or the `Range` that it is in."""
        if isinstance(expr, Range):
            self._facts = self._facts.assume(build.ge(var, expr.min))
            self._facts = self._facts.assume(build.lt(var, build.add(expr.min, expr.extent)))
        else:
            self._facts = self._facts.assume(build.eq(var, expr))

    def simplify(self, expr: Any, steps: int = 2) -> Expr:
        """An equal expression that is as small as is known."""
        return simplify(build.as_expr(expr), self._facts)

    rewrite_simplify = canonical_simplify = simplify

    def can_prove(self, expr: Any) -> bool:
        """Whether a condition is known to hold."""
        return prove(build.as_expr(expr), self._facts)

    def can_prove_equal(self, lhs: Any, rhs: Any) -> bool:
        """Whether two values are known to be equal."""
        left, right = self.simplify(lhs), self.simplify(rhs)
        if isinstance(left, Const) and isinstance(right, Const):
            return left.value == right.value
        return equal(left, right) or self.can_prove(build.eq(left, right))


__getattr__ = of_te
