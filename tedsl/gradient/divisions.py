"""Divisions of one index by several numbers, each written by the next smaller one.

`i // 12`, `i // 4 % 3` and `i % 4` are digits of i.  Inverting them needs one chain:
`i // 12` is `(i // 4) // 3`, and `i % 12` is `(i // 4 % 3) * 4 + i % 4`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tedsl.expr import build
from tedsl.expr.nodes import Binary, BinaryOp, Expr
from tedsl.expr.visit import map_children, walk
from tedsl.index.facts import Facts
from tedsl.index.linear import without
from tedsl.index.prove import prove

_FLOOR = {BinaryOp.FLOORDIV, BinaryOp.FLOORMOD}


def in_chains(indices: Sequence[Expr], facts: Facts) -> list[Expr]:
    """Equal indices, in which divisions of one dividend by multiples of one another are chains.

    Divisors that are not known to be positive in `facts` are left alone.
    """
    chains = _Chains(facts)
    for node in walk(*indices):
        if isinstance(node, Binary) and node.op in _FLOOR and not node.dtype.is_float:
            chains.note(node)
    return [chains.visit(each) for each in indices]


@dataclass(slots=True)
class _Chains:
    """The divisors of each dividend."""

    facts: Facts
    divisors: dict[Expr, dict[Expr, Expr]] = field(default_factory=dict[Expr, "dict[Expr, Expr]"])
    memo: dict[Expr, Expr] = field(default_factory=dict[Expr, Expr])

    def note(self, node: Binary) -> None:
        """Remember a division."""
        if prove(build.ge(node.b, 1), self.facts):
            rep = self.facts.interner.rep
            self.divisors.setdefault(rep(node.a), {})[rep(node.b)] = node.b

    def visit(self, node: Expr) -> Expr:
        """`node`, rewritten."""
        done = self.memo.get(node)
        if done is None:
            done = map_children(node, self.visit)
            if isinstance(node, Binary) and isinstance(done, Binary) and node.op in _FLOOR:
                known = list(self.divisors.get(self.facts.interner.rep(node.a), {}).values())
                if len(known) > 1 and node.op is BinaryOp.FLOORDIV:
                    done = self._quotient(done.a, node.b, known)
                elif len(known) > 1:
                    done = self._remainder(done.a, node.b, known)
            self.memo[node] = done
        return done

    def _quotient(self, dividend: Expr, divisor: Expr, known: Sequence[Expr]) -> Expr:
        step = self._step(divisor, known)
        if step is None:
            return build.floordiv(dividend, divisor)
        smaller, ratio = step
        return build.floordiv(self._quotient(dividend, smaller, known), ratio)

    def _remainder(self, dividend: Expr, divisor: Expr, known: Sequence[Expr]) -> Expr:
        step = self._step(divisor, known)
        if step is None:
            return build.floormod(dividend, divisor)
        smaller, ratio = step
        high = build.floormod(self._quotient(dividend, smaller, known), ratio)
        low = self._remainder(dividend, smaller, known)
        return build.add(build.mul(high, smaller), low)

    def _step(self, divisor: Expr, known: Sequence[Expr]) -> tuple[Expr, Expr] | None:
        """The greatest of `known` that `divisor` is a proper multiple of, and how many times."""
        best: tuple[tuple[int, int], Expr, Expr] | None = None
        for each in known:
            ratio = self._ratio(divisor, each)
            if ratio is not None and (best is None or ratio[0] < best[0]):
                best = (ratio[0], each, ratio[1])
        return None if best is None else best[1:]

    def _ratio(self, divisor: Expr, by: Expr) -> tuple[tuple[int, int], Expr] | None:
        """divisor / by when that is a product other than 1, with its size."""
        expander = self.facts.expander
        whole, part = expander.poly(divisor), expander.poly(by)
        if len(whole) != 1 or len(part) != 1:
            return None
        ((factors, scale),) = whole.items()
        ((taken, unit),) = part.items()
        left = without(factors, taken)
        if left is None or scale % unit or (not left and scale == unit):
            return None
        return (len(left), scale // unit), expander.expression({left: scale // unit})
