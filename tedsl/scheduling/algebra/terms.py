"""A scalar expression as a sum of products of functions of tags and functions of elements.

`Reader` turns an expression into a real expression of sympy.  What need not be looked into becomes
a symbol: elements, parameters, and whole sub-expressions of tags alone (`sqrt(S / n + eps)`), so
that what is later written with them is computed exactly as the source does.  Only exponentials are
opened, because exp(m - m') must be one exponential, and logarithms in an exponent.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from math import comb, isfinite
from types import FrameType
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    Const,
    Expr,
    IfThenElse,
    Select,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.expr.visit import variables
from tedsl.index.intern import Interner
from tedsl.scheduling.algebra.real_rewrite import rebuilt
from tedsl.scheduling.algebra.rescaling import Sign
from tedsl.scheduling.algebra.signs import sign_of

MAX_TERMS = 400
_UNDERFLOW = -1100  # exp and exp2 of less are 0 in every dtype: a masked element
NO_PRODUCT = "and is no sum of products of a function of the tags and a function of the elements"
NO_PRODUCT_HINT = (
    "compute the reduction in a pass of its own, or write the value so that its tags can be "
    "separated"
)
_ROUNDING = frozenset({UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.ROUND, UnaryOp.TRUNC})
_WHOLE = frozenset({BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD})
_ARITHMETIC = frozenset({BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.DIV})
_EXACT_BITS = {
    DType.float8_e4m3fn: 4,
    DType.float8_e5m2: 3,
    DType.float16: 11,
    DType.bfloat16: 8,
    DType.float32: 24,
    DType.float64: 53,
}


class Role(StrEnum):
    """What a symbol stands for: a value of tags, of elements, or of neither."""

    TAG = "tag"
    ELEMENT = "element"
    PARAMETER = "parameter"


_LETTERS = {Role.TAG: "r", Role.ELEMENT: "c", Role.PARAMETER: "p"}


class Mixed(Exception):
    """`culprit` joins tags and elements in a way that cannot be separated.

    `why` says so, with {0} where the text of `culprit` belongs; `residue` is what the proof leaves.
    """

    def __init__(
        self, culprit: Expr | None, why: str, hint: str = "", residue: Expr | None = None
    ) -> None:
        super().__init__(why)
        self.culprit = culprit
        self.why = why
        self.hint = hint
        self.residue = residue


class Stopped(Exception):
    """The derivation takes too long."""


class Clock:
    """A limit on this thread's computing time, whatever else the machine is doing.

    sympy has none of its own: `watching` looks at the clock at its calls.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end = time.thread_time() + seconds
        self.calls = 0

    def check(self, at: str) -> None:
        """Raises `Stopped` when the time is up."""
        if time.thread_time() >= self.end:
            raise Stopped(f"the time limit of {self.seconds:g} s was reached while {at}")

    @contextmanager
    def watching(self) -> Generator[None]:
        """Raises `Stopped` from within the body when the time is up.

        Uses the profiling hook of this thread; where a profiler is at work, only `check` stops.
        """
        if sys.getprofile() is not None:
            yield
            return
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, arg: object) -> None:
        # Only where a call of sympy begins: an exception in a finaliser or a callback is lost.
        if event == "call":
            self.calls += 1
            if self.calls % 256 == 0 and frame.f_globals.get("__name__", "").startswith("sympy."):
                self.check("simplifying")


def sympy() -> Any:
    """sympy, loaded at the first call."""
    return importlib.import_module("sympy")


@dataclass(slots=True, eq=False)
class Symbols:
    """What the symbols of a derivation stand for.

    `exprs` gives the expression of each, `roles` its role; `logs` the base of each symbol that
    stands for a logarithm, None for 2; `indicators` the select whose condition a symbol counts as
    1 or 0.
    """

    same: Interner = field(default_factory=Interner)
    known: dict[Expr, Any] = field(default_factory=dict[Expr, Any])
    exprs: dict[Any, Expr] = field(default_factory=dict[Any, Expr])
    roles: dict[Any, Role] = field(default_factory=dict[Any, Role])
    logs: dict[Any, Expr | None] = field(default_factory=dict[Any, "Expr | None"])
    indicators: dict[Any, Select | IfThenElse] = field(
        default_factory=dict[Any, "Select | IfThenElse"]
    )

    def of(self, role: Role) -> tuple[Any, ...]:
        """The symbols of one role, in order of first occurrence."""
        return tuple(symbol for symbol, each in self.roles.items() if each is role)

    def add(self, expr: Expr, role: Role, sign: Sign) -> Any:
        """The symbol of `expr`; equal structures share one."""
        rep = self.same.rep(expr)
        if rep not in self.known:
            symbol = _symbol(f"{_LETTERS[role]}{len(self.roles)}", sign)
            self.known[rep] = symbol
            self.exprs[symbol] = expr
            self.roles[symbol] = role
        return self.known[rep]

    def numbers(self) -> dict[Any, Any]:
        """The symbols of logarithms of known bases, as numbers."""
        two = sympy().Integer(2)
        known = {
            symbol: two if base is None else sympy().Float(base.value)
            for symbol, base in self.logs.items()
            if base is None or (isinstance(base, Const) and base.value > 0)
        }
        return {symbol: sympy().log(base) for symbol, base in known.items()}

    def logarithm(self, base: Expr | None, key: object, role: Role) -> Any:
        """The symbol of log(base), of log(2) for None."""
        for symbol, known in self.logs.items():
            if known is base or (base is not None and known is not None and
                                 self.same.rep(base) is self.same.rep(known)):  # fmt: skip
                return symbol
        symbol = _symbol(f"log{key}", Sign.POSITIVE if base is None else Sign.ANY)
        self.logs[symbol] = base
        self.roles[symbol] = role
        return symbol


def _symbol(name: str, sign: Sign) -> Any:
    match sign:
        case Sign.POSITIVE:
            return sympy().Symbol(name, positive=True)
        case Sign.NONNEGATIVE:
            return sympy().Symbol(name, nonnegative=True)
        case Sign.ANY:
            return sympy().Symbol(name, real=True)


@dataclass(slots=True, eq=False)
class Reader:
    """Expressions over variables of known role and sign, as real expressions.

    `atoms`: sub-expressions of tags alone become symbols; otherwise only those in `symbols` do.
    `consented` collects the casts and roundings that were taken as exact.
    """

    roles: Mapping[Expr, Role]
    signs: Mapping[Expr, Sign]
    symbols: Symbols
    casts: bool = False
    rounding: bool = False
    atoms: bool = True
    consented: list[Expr] = field(default_factory=list[Expr])

    def __call__(self, expr: Expr) -> Any:
        """`expr` as a real expression.

        Raises:
            Mixed: it joins tags and elements in a way that cannot be separated.
        """
        return self.read(expr, False)

    def occurring(self, expr: Expr) -> frozenset[Role]:
        """The roles of the variables in `expr`."""
        return frozenset(self.roles.get(v, Role.PARAMETER) for v in variables(expr))

    def read(self, expr: Expr, exponent: bool) -> Any:
        """`expr`, as part of an exponent or not."""
        known = self.symbols.known.get(self.symbols.same.rep(expr))
        if known is not None:
            return known
        if isinstance(expr, Const):
            return self.number(expr)
        roles = self.occurring(expr)
        mixed = roles >= {Role.TAG, Role.ELEMENT}
        role = Role.TAG if Role.TAG in roles else Role.ELEMENT if roles else Role.PARAMETER
        if not mixed and Role.TAG not in roles:
            role = Role.ELEMENT if Role.ELEMENT in roles else Role.PARAMETER
        if isinstance(expr, Var):
            return self.opaque(expr, role)
        if role is Role.TAG and not mixed and self.atoms and not self.opened(expr, exponent):
            return self.opaque(expr, role)
        match expr:
            case Binary(op=op) if op in _ARITHMETIC:
                return self.arithmetic(expr, exponent)
            case Binary(op=BinaryOp.POW):
                return self.power(expr, mixed, role)
            case Unary(op=op, a=Select() | IfThenElse() as chosen):
                return self.read(
                    chosen.rebuild((chosen.condition, Unary(op, chosen.a), Unary(op, chosen.b))),
                    False,
                )
            case Unary():
                return self.unary(expr, mixed, role, exponent)
            case Binary(op=BinaryOp.MAX | BinaryOp.MIN) if mixed:
                return self.extreme(expr)
            case Select() | IfThenElse() if Role.TAG not in self.occurring(expr.condition):
                chosen = self.indicator(expr)
                return chosen * self.read(expr.a, False) + (1 - chosen) * self.read(expr.b, False)
            case Cast():
                return self.cast(expr, mixed, role, exponent)
            case _ if not mixed:
                return self.opaque(expr, role)
            case _:
                raise self.mixing(expr)

    def opaque(self, expr: Expr, role: Role) -> Any:
        """A symbol for all of `expr`."""
        return self.symbols.add(expr, role, sign_of(expr, self.signs))

    def number(self, expr: Const) -> Any:
        """A constant; one that is no real number stands for itself."""
        if isinstance(expr.value, float) and not isfinite(expr.value):
            return self.opaque(expr, Role.PARAMETER)
        exact = Fraction(expr.value)
        return sympy().Rational(exact.numerator, exact.denominator)

    def opened(self, expr: Expr, exponent: bool) -> bool:
        """Whether a sub-expression of tags alone is looked into: it has an exponential as a factor,
        or it is an exponent with a logarithm as a term."""
        return (exponent and self.has_log(expr)) or self.has_exp(expr)

    def has_exp(self, expr: Expr) -> bool:
        """An exponential of tags is a factor of `expr`."""
        match expr:
            case Unary(op=UnaryOp.EXP | UnaryOp.EXP2):
                return Role.TAG in self.occurring(expr)
            case Unary(op=UnaryOp.NEG, a=a):
                return self.has_exp(a)
            case Binary(op=BinaryOp.MUL | BinaryOp.DIV, a=a, b=b):
                return self.has_exp(a) or self.has_exp(b)
            case _:
                return False

    def has_log(self, expr: Expr) -> bool:
        """A logarithm of tags is a term of `expr`."""
        match expr:
            case Unary(op=UnaryOp.LOG | UnaryOp.LOG2):
                return Role.TAG in self.occurring(expr)
            case Unary(op=UnaryOp.NEG, a=a):
                return self.has_log(a)
            case Binary(op=BinaryOp.ADD | BinaryOp.SUB, a=a, b=b):
                return self.has_log(a) or self.has_log(b)
            case Binary(op=BinaryOp.MUL, a=a, b=b):
                one_free = Role.TAG not in self.occurring(a) & self.occurring(b)
                return one_free and (self.has_log(a) or self.has_log(b))
            case _:
                return False

    def arithmetic(self, expr: Binary, exponent: bool) -> Any:
        """Sums and products."""
        a, b = self.read(expr.a, exponent), self.read(expr.b, exponent)
        match expr.op:
            case BinaryOp.ADD:
                return a + b
            case BinaryOp.SUB:
                return a - b
            case BinaryOp.MUL:
                return a * b
            case _:
                if b.is_zero:
                    raise Mixed(expr, "{0} divides by 0")
                return a / b

    def power(self, expr: Binary, mixed: bool, role: Role) -> Any:
        """A power with a base or an exponent that is a number or a parameter."""
        base, exponent = self.occurring(expr.a), self.occurring(expr.b)
        if not exponent & {Role.TAG, Role.ELEMENT}:
            return self.read(expr.a, False) ** self.read(expr.b, False)
        if not base & {Role.TAG, Role.ELEMENT}:
            if sign_of(expr.a, self.signs) is Sign.POSITIVE:
                two = isinstance(expr.a, Const) and expr.a.value == 2
                return self.exponential(expr.b, None if two else expr.a)
            raise Mixed(expr, "{0} is defined only for a positive base", "write it with exp")
        if not mixed:
            return self.opaque(expr, role)
        raise self.mixing(expr)

    def exponential(self, exponent: Expr, base: Expr | None) -> Any:
        """base ** exponent, as exp(log(base) * exponent) with a symbol for the logarithm."""
        log = self.symbols.logarithm(base, len(self.symbols.logs), Role.PARAMETER)
        return self.exp(log * self.read(exponent, True))

    def exp(self, exponent: Any) -> Any:
        """exp(`exponent`), apart for each choice of the indicators in it; 0 where it underflows."""
        for bit in sorted(exponent.free_symbols & self.symbols.indicators.keys(), key=str):
            one, zero = (self.exp(exponent.xreplace({bit: sympy().Integer(n)})) for n in (1, 0))
            return bit * one + (1 - bit) * zero
        rest = exponent.xreplace(dict.fromkeys(self.symbols.logs, sympy().S.One))
        if rest.is_Number and rest < _UNDERFLOW:
            return sympy().S.Zero
        return sympy().exp(exponent)

    def unary(self, expr: Unary, mixed: bool, role: Role, exponent: bool) -> Any:
        """The functions that can be taken apart; others only of tags or elements alone."""
        a = expr.a
        match expr.op:
            case UnaryOp.NEG:
                return -self.read(a, exponent)
            case UnaryOp.EXP:
                return self.exp(self.read(a, True))
            case UnaryOp.EXP2:
                return self.exponential(a, None)
            case UnaryOp.EXPM1:
                return self.exp(self.read(a, True)) - 1
            case UnaryOp.LOG:
                return sympy().log(self.read(a, False))
            case UnaryOp.LOG2:
                log = self.symbols.logarithm(None, len(self.symbols.logs), Role.PARAMETER)
                return sympy().log(self.read(a, False)) / log
            case UnaryOp.SQRT:
                return sympy().sqrt(self.read(a, False))
            case UnaryOp.RSQRT:
                return 1 / sympy().sqrt(self.read(a, False))
            case UnaryOp.ABS:
                parts = sympy().Mul.make_args(self.read(a, False))
                return sympy().Mul(*map(_absolute, parts))
            case _ if not mixed:
                return self.opaque(expr, role)
            case op if op in _ROUNDING:
                return self.rounded(expr, a, op.value)
            case _:
                raise self.mixing(expr)

    def extreme(self, expr: Binary) -> Any:
        """max(a, b) of products with a common factor >= 0 of tags: l * max(a / l, b / l)."""
        values = [self.read(each, False) for each in (expr.a, expr.b)]
        tags = set(self.symbols.of(Role.TAG))
        terms = [t for v in values for t in sympy().Add.make_args(sympy().expand(v)) if t != 0]
        factors = {t.as_independent(*tags, as_Add=False)[1] for t in terms}
        if len(factors) == 1 and not_negative(factor := factors.pop()):
            rest = [self.replaced(each, factor.free_symbols, 1) for each in (expr.a, expr.b)]
            again = [factor * self.read(each, False) for each in rest]
            if all(is_zero(v - w) for v, w in zip(values, again, strict=True)):
                return factor * self.opaque(Binary(expr.op, *rest), Role.ELEMENT)
        raise self.mixing(expr)

    def replaced(self, value: Expr, chosen: Collection[Any], number: int) -> Expr:
        """`value` with `number` for the values of tags whose symbols are `chosen`."""
        same, symbols = self.symbols.same, self.symbols
        memo: dict[Expr, Expr] = {}

        def visit(node: Expr) -> Expr:
            if node not in memo:
                symbol = symbols.known.get(same.rep(node))
                if symbol in chosen:
                    memo[node] = build.const(number, node.dtype)
                elif symbol is not None and symbols.roles.get(symbol) is Role.TAG:
                    memo[node] = node
                else:
                    memo[node] = rebuilt(node, visit)
            return memo[node]

        return visit(value)

    def rounded(self, expr: Expr, a: Expr, name: str) -> Any:
        """`a`, when the caller takes rounding as exact."""
        if not self.rounding:
            raise Mixed(
                expr,
                "{0} rounds a value of tags and elements, and a rounded value does not follow when "
                "the tags change",
                f"round after the reduction, or give consent to treat {name} as exact: "
                "rounding=True",
            )
        self.consented.append(expr)
        return self.read(a, False)

    def cast(self, expr: Cast, mixed: bool, role: Role, exponent: bool) -> Any:
        """A cast that loses nothing is its operand; others need consent."""
        a, to = expr.a, expr.dtype
        if not to.is_float and a.dtype.is_float:
            return self.rounded(expr, a, to.value) if mixed else self.opaque(expr, role)
        if a.dtype.is_bool or to.is_bool:
            if mixed:
                raise self.mixing(expr)
            return self.opaque(expr, role)
        if not _exact(a.dtype, to):
            if not self.casts:
                if not mixed:
                    return self.opaque(expr, role)
                raise Mixed(
                    expr,
                    "the cast {0} rounds a value of tags and elements; the proof holds for real "
                    "numbers",
                    "move the cast behind the reduction, or give consent: casts=True",
                )
            self.consented.append(expr)
        return self.read(a, exponent)

    def indicator(self, expr: Select | IfThenElse) -> Any:
        """1 where the condition of `expr` holds, else 0."""
        roles = self.occurring(expr.condition)
        role = Role.ELEMENT if Role.ELEMENT in roles else Role.PARAMETER
        symbol = self.symbols.add(expr.condition, role, Sign.NONNEGATIVE)
        self.symbols.indicators.setdefault(symbol, expr)
        return symbol

    def mixing(self, expr: Expr) -> Mixed:
        """`expr` joins tags and elements."""
        if isinstance(expr, (Select, IfThenElse, Compare)):
            condition = expr if isinstance(expr, Compare) else expr.condition
            return Mixed(
                condition,
                "the condition {0} depends on tags: which elements it chooses changes with them",
                NO_PRODUCT_HINT,
            )
        whole = isinstance(expr, Binary) and expr.op in _WHOLE
        what = "{0} rounds a value of" if whole else "{0} mixes"
        return Mixed(expr, f"{what} tags and elements, {NO_PRODUCT}", NO_PRODUCT_HINT)


def _absolute(value: Any) -> Any:
    """|value|, of a power as a power."""
    base, power = value.as_base_exp()
    return sympy().Abs(base) ** power if power.is_Integer else sympy().Abs(value)


def rounds(expr: Unary | Cast) -> bool:
    """`expr` takes a float to a whole number."""
    if isinstance(expr, Unary):
        return expr.op in _ROUNDING
    return expr.a.dtype.is_float and not expr.dtype.is_float and not expr.dtype.is_bool


def _exact(source: DType, target: DType) -> bool:
    """Every value of `source` is one of `target`."""
    if source.is_float and target.is_float:
        half = {source, target} == {DType.float16, DType.bfloat16}
        return source is target or (source.bits < target.bits and not half)
    if source.is_float:
        return False
    if target.is_float:
        return source.bits <= _EXACT_BITS[target]
    return source.kind is target.kind and source.bits <= target.bits


Terms = dict[Any, Any]
"""From each function of elements (a product) to its coefficient, free of elements."""


def separated(value: Any, symbols: Symbols, clock: Clock) -> Terms:
    """`value` as the sum of coefficient * function of elements.

    Raises:
        MixedFactor: a factor of a term has both tags and elements.
        Stopped: too many terms, or the time is up.
    """
    tags, elements = set(symbols.of(Role.TAG)), set(symbols.of(Role.ELEMENT))
    clock.check("expanding the value")
    if term_count(value) > MAX_TERMS:
        raise Stopped(f"the value has more than {MAX_TERMS} terms when its products are expanded")
    expanded = _bits(sympy().expand(value), symbols)
    terms: Terms = {}
    for term in sympy().Add.make_args(expanded):
        coefficient, function = sympy().S.One, sympy().S.One
        for factor in sympy().Mul.make_args(term):
            free = factor.free_symbols
            if free & elements:
                if free & tags:
                    raise MixedFactor(factor)
                function *= factor
            else:
                coefficient *= factor
        terms[function] = terms.get(function, 0) + coefficient
    return {function: c for function, c in terms.items() if c != 0}


class MixedFactor(Mixed):
    """A factor that has both tags and elements, as a real expression."""

    def __init__(self, factor: Any) -> None:
        super().__init__(None, "a factor has both tags and elements")
        self.factor = factor


def term_count(value: Any) -> int:
    """An upper bound of the number of terms after expansion."""
    if value.is_Add:
        return sum(term_count(arg) for arg in value.args)
    if value.is_Mul:
        count = 1
        for arg in value.args:
            count *= term_count(arg)
        return count
    if value.is_Pow and value.exp.is_Integer and value.exp > 1:
        inside, power = term_count(value.base), int(value.exp)
        return comb(inside + power - 1, power) if inside <= MAX_TERMS >= power else MAX_TERMS + 1
    return max((term_count(arg) for arg in value.args), default=1)


def is_zero(value: Any, symbols: Symbols | None = None) -> bool:
    """True when `value` is 0 whatever its symbols are (the indicators of `symbols`: 0 or 1)."""
    expanded = sympy().expand(value)
    if symbols is not None:
        expanded = sympy().expand(_bits(expanded, symbols))
    return expanded == 0 or sympy().cancel(sympy().together(expanded)) == 0


def _bits(value: Any, symbols: Symbols) -> Any:
    """`value` with powers of indicators, which are 0 or 1, as the indicators themselves."""
    if not value.free_symbols & symbols.indicators.keys():
        return value
    powers = [p for p in value.atoms(sympy().Pow) if p.base in symbols.indicators]
    return value.xreplace({p: p.base for p in powers if p.exp.is_Integer and p.exp > 0})


def not_negative(value: Any) -> bool:
    """`value` is proved >= 0 wherever it is defined."""
    defined = {s: sympy().Dummy(positive=True) for s in value.free_symbols if s.is_nonnegative}
    divides = any(p.exp.is_negative for p in value.atoms(sympy().Pow))
    return bool((value.xreplace(defined) if divides else value).is_nonnegative)
