"""Real expressions of sympy as scalar expressions, written for stable arithmetic.

Exponentials of one product become one exponential of a sum; a difference of two values of the same
sub-expression is taken before it is scaled; quotients divide once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Binary, BinaryOp, Expr, IfThenElse, UnaryOp
from tedsl.scheduling.algebra.terms import Symbols, sympy

_MAX_POWER = 8
_WHOLE = 2**24  # integers below it are exact in single precision


class NotWritten(Exception):
    """A real expression that has no counterpart in the dtype asked for."""


@dataclass(slots=True, eq=False)
class Writer:
    """Writes real expressions over `symbols` as expressions of one dtype.

    `exprs` gives expressions for symbols that stand for something else than in `symbols`; `moved`
    the symbols for the new values of those for old ones.
    """

    symbols: Symbols
    dtype: DType
    exprs: Mapping[Any, Expr] = field(default_factory=dict[Any, Expr])
    moved: Mapping[Any, Any] = field(default_factory=dict[Any, Any])
    memo: dict[Any, Expr] = field(default_factory=dict[Any, Expr])

    def __call__(self, value: Any) -> Expr:
        """`value` as an expression.

        Raises:
            NotWritten: it has no counterpart.
        """
        done = self.memo.get(value)
        if done is None:
            done = self.memo[value] = self.write(value)
        return done

    def write(self, value: Any) -> Expr:
        """Conditions first: each becomes a select over the rest."""
        for symbol in sorted(value.free_symbols & self.symbols.indicators.keys(), key=str):
            node = self.symbols.indicators[symbol]
            a = self(value.xreplace({symbol: sympy().S.One}))
            b = self(value.xreplace({symbol: sympy().S.Zero}))
            lazy = isinstance(node, IfThenElse)
            choose = build.if_then_else if lazy else build.select
            return choose(node.condition, a, b)
        if value.is_Rational:
            return self.number(value)
        if value == sympy().E:
            return build.unary(UnaryOp.EXP, build.const(1, self.dtype))
        if value.has(sympy().zoo, sympy().nan):
            raise NotWritten("it divides by 0 where a condition does not hold")
        if value in self.symbols.logs:
            return self.logarithm(value)
        if value.is_Symbol:
            expr = self.exprs.get(value)
            return build.cast(self.symbols.exprs[value] if expr is None else expr, self.dtype)
        if value.is_Add:
            return self.sum(value)
        if value.is_Mul or value.is_Pow or isinstance(value, sympy().exp):
            return self.product(value)
        if isinstance(value, sympy().log):
            return build.unary(UnaryOp.LOG, self(value.args[0]))
        if isinstance(value, sympy().Abs):
            return build.unary(UnaryOp.ABS, self(value.args[0]))
        raise NotWritten(f"{value} cannot be written as {self.dtype}")

    def logarithm(self, symbol: Any) -> Expr:
        """The logarithm that a symbol stands for; reading it back gives the symbol."""
        base = self.symbols.logs[symbol]
        of = build.const(2, self.dtype) if base is None else build.cast(base, self.dtype)
        expr = build.unary(UnaryOp.LOG, of)
        self.symbols.known[self.symbols.same.rep(expr)] = symbol
        return expr

    def number(self, value: Any) -> Expr:
        """A constant of the dtype; a quotient where it would be rounded."""
        if value.is_Integer and not self.dtype.is_float:
            return build.const(int(value), self.dtype)
        if not self.dtype.is_float:
            raise NotWritten(f"{value} is not an {self.dtype}")
        if sympy().Rational(float(value)) != value and max(abs(value.p), value.q) < _WHOLE:
            above, below = (build.const(int(n), self.dtype) for n in (value.p, value.q))
            return Binary(BinaryOp.DIV, above, below)
        return build.const(float(value), self.dtype)

    def sum(self, value: Any) -> Expr:
        """Terms added, those with a minus sign subtracted last; but first of all the differences of
        one term at old and at new values, which would drown in the sum of others."""
        plus: list[Any] = []
        minus: list[Any] = []
        for term in value.as_ordered_terms():
            negative = term.could_extract_minus_sign()
            (minus if negative else plus).append(-term if negative else term)
        if not plus:
            return build.neg(self(-value))
        differences: list[Expr] = []
        for term in plus[:]:
            other = self.counterpart(term)
            if other is not None and other in minus:
                plus.remove(term)
                minus.remove(other)
                differences.append(build.sub(self(term), self(other)))
        total = reduce(build.add, [*differences, *map(self, plus)])
        return reduce(build.sub, map(self, minus), total)

    def counterpart(self, term: Any) -> Any | None:
        """`term` with old values for new ones, or the other way round; None when it has neither or
        both."""
        back = {new: old for old, new in self.moved.items()}
        found = term.free_symbols
        at_old, at_new = bool(found & self.moved.keys()), bool(found & back.keys())
        if at_old is at_new:
            return None
        return term.xreplace(dict(self.moved) if at_old else back)

    def product(self, value: Any) -> Expr:
        """Factors over one division, with all exponentials in one."""
        top: list[Expr] = []
        bottom: list[Expr] = []
        exponents: list[Any] = []
        factors, negative = _without_sign(value)
        for factor in factors:
            if isinstance(factor, sympy().exp):
                exponents.append(factor.args[0])
            elif factor.is_Rational:
                top.append(self.number(factor))
            else:
                base, power = factor.as_base_exp()
                self.power(base, power, top, bottom)
        if exponents:
            exponent = sympy().Add(*exponents)
            if exponent != 0:
                self.exponentials(exponent, top)
        result = reduce(build.mul, top) if top else build.const(1, self.dtype)
        if bottom:
            if not self.dtype.is_float:
                raise NotWritten(f"{value} divides integers")
            result = build.div(result, reduce(build.mul, bottom))
        return build.neg(result) if negative else result

    def power(self, base: Any, power: Any, top: list[Expr], bottom: list[Expr]) -> None:
        """`base ** power` as a factor of the numerator or the denominator."""
        if power.is_Rational and power.q <= 2 and abs(power.p) <= _MAX_POWER:
            x = self(base)
            whole, half = divmod(abs(power.p), power.q) if power.q == 2 else (abs(power.p), 0)
            if power == sympy().Rational(-1, 2):
                top.append(build.unary(UnaryOp.RSQRT, x))
                return
            side = top if power > 0 else bottom
            side.extend([x] * int(whole))
            if half:
                side.append(build.unary(UnaryOp.SQRT, x))
        else:
            top.append(build.power(self(base), self(power)))

    def exponentials(self, exponent: Any, top: list[Expr]) -> None:
        """exp(`exponent`), with the terms that are multiples of a logarithm in a power of its
        base."""
        groups: dict[Any, list[Any]] = {}
        for term in sympy().Add.make_args(sympy().expand(exponent)):
            logs = [s for s in self.symbols.logs if s in sympy().Mul.make_args(term)]
            key = logs[0] if logs else None
            groups.setdefault(key, []).append(term / key if logs else term)
        for key, terms in groups.items():
            self.exponential(key, self(_collected(sympy().Add(*terms))), top)

    def exponential(self, log: Any, exponent: Expr, top: list[Expr]) -> None:
        """One exponential; `log` is the symbol of the logarithm of its base, None for e."""
        base = self.symbols.logs[log] if log is not None else None
        if log is None:
            top.append(build.unary(UnaryOp.EXP, exponent))
        elif base is None:
            top.append(build.unary(UnaryOp.EXP2, exponent))
        else:
            top.append(build.power(build.cast(base, self.dtype), exponent))

    def change(self, logarithm: Any, old: Mapping[Any, Any], new: Mapping[Any, Any]) -> Expr:
        """exp(Q(r') - Q(r)) for the exponent Q(r) of tags: differences of equal terms first."""
        moved = [s for s in logarithm.free_symbols if s in new]
        groups: dict[Any, list[Expr]] = {}
        for term in sympy().Add.make_args(sympy().expand(logarithm)):
            scale, core = term.as_independent(*moved, as_Add=False)
            first, last = core.xreplace(old), core.xreplace(new)
            if scale.could_extract_minus_sign():
                scale, first, last = -scale, last, first
            logs = [s for s in self.symbols.logs if s in sympy().Mul.make_args(scale)]
            key = logs[0] if logs else None
            if logs:
                scale = scale / key
            difference = build.sub(self(last), self(first))
            groups.setdefault(key, []).append(build.mul(self(scale), difference))
        top: list[Expr] = []
        for key, terms in groups.items():
            self.exponential(key, reduce(build.add, terms), top)
        return reduce(build.mul, top)


def _without_sign(value: Any) -> tuple[list[Any], bool]:
    """The factors of a product without a minus sign, put into a difference where there is one, and
    whether one is left."""
    factors: list[Any] = []
    negative = False
    for factor in sympy().Mul.make_args(value):
        minus = factor.is_Rational and factor < 0
        negative = negative != minus
        if not minus or factor != -1:
            factors.append(-factor if minus else factor)
    if negative:
        for n, factor in enumerate(factors):
            if factor.is_Add and any(t.could_extract_minus_sign() for t in factor.args):
                factors[n] = -factor
                return factors, False
    return factors, negative


def _collected(value: Any) -> Any:
    """A sum with what its terms share taken out: s * c - s * m is s * (c - m)."""
    return sympy().factor_terms(value) if value.is_Add else value
