"""From the terms of g to a repair: what leaves the loop, and how the rest follows the tags."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Binary, BinaryOp, Cast, Expr, Unary, UnaryOp, Var
from tedsl.expr.promote import promote_types
from tedsl.expr.visit import structural_equal, substitute, walk
from tedsl.scheduling.algebra.derivative_space import RankAbove, close, common_exponent
from tedsl.scheduling.algebra.from_sympy import Writer
from tedsl.scheduling.algebra.problem import Problem, placeholder
from tedsl.scheduling.algebra.rescaling import Sign
from tedsl.scheduling.algebra.signs import sign_of
from tedsl.scheduling.algebra.terms import (
    NO_PRODUCT,
    NO_PRODUCT_HINT,
    Clock,
    Mixed,
    MixedFactor,
    Reader,
    Role,
    Symbols,
    Terms,
    is_zero,
    not_negative,
    rounds,
    separated,
    sympy,
)

ORDERED = frozenset({BinaryOp.MAX, BinaryOp.MIN})
DOMAINS = {
    UnaryOp.SQRT: Sign.NONNEGATIVE,
    UnaryOp.RSQRT: Sign.POSITIVE,
    UnaryOp.LOG: Sign.POSITIVE,
    UnaryOp.LOG2: Sign.POSITIVE,
    UnaryOp.LOG10: Sign.POSITIVE,
    UnaryOp.LOG1P: Sign.NONNEGATIVE,
}
"""Functions that are not defined everywhere, and a sign of the argument for which they are."""

Line = tuple[str, tuple[str | Expr, ...]]
"""A label, and pieces of text and expressions."""


@dataclass(slots=True, eq=False)
class Form:
    """A repair over placeholders; `entries` are its lines of proof so far."""

    basis: list[Expr]
    totals: list[Var]
    update: list[Expr]
    finish: Expr
    matrix: list[list[Expr]] = field(default_factory=list[list[Expr]])
    conditions: list[tuple[Expr, str]] = field(default_factory=list[tuple[Expr, str]])
    consented: list[Expr] = field(default_factory=list[Expr])
    lines: list[Line] = field(default_factory=list[Line])
    rates: list[Any] = field(default_factory=list[Any])


@dataclass(slots=True, eq=False)
class Derivation:
    """One derivation; `moved` takes the symbol of a value of tags to that of its new value."""

    problem: Problem
    reader: Reader
    clock: Clock
    defer: bool
    moved: dict[Any, Any] = field(default_factory=dict[Any, Any])
    writers: dict[str, Writer] = field(default_factory=dict[str, Writer])

    @property
    def symbols(self) -> Symbols:
        return self.reader.symbols

    def form(self) -> Form:
        """The repair.

        Raises:
            Mixed: there is none.
            Stopped: the time is up.
        """
        value = self.reader(self.problem.value)
        terms = self.terms(value)
        self.prepare()
        if any(isinstance(node, (Unary, Cast)) and rounds(node) for node in self.reader.consented):
            self.defer = False  # rounding a value without its factor is another rounding
        if self.problem.operator in ORDERED:
            return self.ordered(value, terms)
        return self.summed(value, terms)

    def terms(self, value: Any) -> Terms:
        """`value` separated; a factor in the way is named."""
        try:
            return separated(value, self.symbols, self.clock)
        except MixedFactor as mixed:
            culprit = Writer(self.symbols, self.dtype())(mixed.factor)
            raise Mixed(
                culprit, "{0} mixes tags and elements, " + NO_PRODUCT, NO_PRODUCT_HINT
            ) from None

    def dtype(self) -> DType:
        """What repairs are computed in: wide enough for the value and everything in it."""
        dtype = self.problem.value.dtype
        if not dtype.is_float:
            return dtype
        dtype = promote_types(dtype, DType.float32)
        for symbol in self.symbols.of(Role.TAG):
            dtype = promote_types(dtype, self.symbols.exprs[symbol].dtype)
        return dtype

    def prepare(self) -> None:
        """Symbols for the new values of tags and for the totals, and writers of repairs."""
        problem, symbols = self.problem, self.symbols
        variables = [tag.var for tag in problem.tags]
        to_old = dict[Expr, Expr](zip(variables, problem.old, strict=True))
        to_new = dict[Expr, Expr](zip(variables, problem.new, strict=True))
        exprs: dict[Any, Expr] = {}
        for symbol in symbols.of(Role.TAG):
            expr = symbols.exprs[symbol]
            after = sympy().Symbol(f"{symbol.name}n", **symbol.assumptions0)
            self.moved[symbol] = after
            exprs[symbol], exprs[after] = substitute(expr, to_old), substitute(expr, to_new)
            for each in (symbol, after):
                symbols.known[symbols.same.rep(exprs[each])] = each
        dtype = self.dtype()
        self.writers["repair"] = Writer(symbols, dtype, exprs, self.moved)
        self.writers["final"] = Writer(symbols, dtype)
        self.writers["element"] = Writer(symbols, dtype)

    def total(self, number: int) -> Var:
        """Stands for the fold of basis expression `number`."""
        return placeholder(f"t{number}" if number else "t", self.problem.value.dtype)

    def fold_symbol(self, total: Var) -> Any:
        """The symbol of a total."""
        rep = self.symbols.same.rep(total)
        if rep not in self.symbols.known:
            self.symbols.known[rep] = sympy().Symbol(f"fold.{total.name}", real=True)
            self.symbols.exprs[self.symbols.known[rep]] = total
        return self.symbols.known[rep]

    def zero(self, value: Any) -> bool:
        """`value` is 0 for all real values of its symbols."""
        self.clock.check("proving an identity")
        return is_zero(value, self.symbols)

    def narrow(self, expr: Expr) -> Expr:
        """`expr` in the dtype of the value."""
        return build.cast(expr, self.problem.value.dtype)

    def wide(self, total: Var) -> Expr:
        """`total` in the dtype of repairs."""
        return build.cast(total, self.dtype())

    def used(self, terms: Terms) -> tuple[Any, ...]:
        """The symbols of tags in the coefficients."""
        free = {s for c in terms.values() for s in c.free_symbols}
        return tuple(s for s in self.symbols.of(Role.TAG) if s in free)

    # A sum.

    def summed(self, value: Any, terms: Terms) -> Form:
        """The repair of a sum: factors leave the loop, the rest follows by a factor or a matrix."""
        form = Form([self.problem.value], [self.total(0)], [], self.total(0))
        form, terms = self.leave(value, terms, form, always_positive=True)
        if not self.used(terms):
            return self.still(form)
        factor = self.common_factor(terms)
        if factor is None:
            return self.closed(form, terms)
        if self.defer and not self.reader.consented:
            factor = self.leave_whole(terms, form, factor)
        return self.scaled(form, factor) if factor is not None else self.still(form)

    def still(self, form: Form) -> Form:
        """Nothing that is folded depends on tags."""
        value = self.again(form.basis[0])
        for number in (0, 1):
            rest = self.reader.replaced(form.basis[0], set(self.moved), number)
            again = self.again(rest)
            if not again.has(sympy().zoo, sympy().nan) and self.zero(value - again):
                form.basis = [rest]
                break
        form.update = [form.totals[0]]
        return form

    def leave(
        self, value: Any, terms: Terms, form: Form, always_positive: bool
    ) -> tuple[Form, Terms]:
        """Powers of tags that all terms share leave the loop."""
        powers = self.shared_powers(terms) if self.defer else {}
        if not always_positive:
            powers = {u: p for u, p in powers.items() if not_negative(u**p)}
        if not powers:
            return form, terms
        product = reduce(lambda x, y: x * y, (u**p for u, p in powers.items()))
        rest = self.reader.replaced(self.problem.value, powers, 1)
        if not self.zero(value - product * self.again(rest)):
            return form, terms
        top, bottom = sympy().fraction(product)
        finish = self.wide(form.totals[0])
        if top != 1:
            finish = build.mul(finish, self.writers["final"](top))
        if bottom != 1:
            finish = build.div(finish, self.writers["final"](bottom))
        form.basis, form.finish = [rest], self.narrow(finish)
        form.lines.append(("deferred", ("the factor ", self.writers["final"](product))))
        return form, {m: sympy().expand(c / product) for m, c in terms.items()}

    def leave_whole(self, terms: Terms, form: Form, factor: Any) -> Any | None:
        """A sum of tags that all terms share leaves the loop; what is left of `factor`, None when
        it does not depend on tags."""
        exponent = common_exponent([factor], tuple(self.moved))
        rest = sympy().factor(sympy().expand(factor * sympy().exp(-exponent)))
        left = sympy().exp(exponent)
        if rest.free_symbols & set(self.moved):
            inside = sympy().Add(*(sympy().cancel(c / factor) * m for m, c in terms.items()))
            final = self.writers["final"](rest)
            form.basis = [self.narrow(self.writers["element"](inside * left))]
            form.finish = self.narrow(build.mul(build.cast(form.finish, final.dtype), final))
            form.lines.append(("deferred", ("the factor ", final)))
        return None if exponent == 0 else left

    def shared_powers(self, terms: Terms) -> dict[Any, Any]:
        """The tags that every term has to the same power, and nowhere else."""
        rows = [
            sympy().Mul.make_args(monomial)
            for coefficient in terms.values()
            for monomial in sympy().Add.make_args(coefficient)
        ]
        found: dict[Any, Any] = {}
        for u in self.used(terms):
            powers: set[Any] = set()
            for row in rows:
                mine = [f for f in row if u in f.free_symbols]
                base, power = mine[0].as_base_exp() if len(mine) == 1 else (None, sympy().S.Zero)
                powers.add(power if base == u and power.is_Rational else sympy().S.Zero)
            if len(powers) == 1 and (power := powers.pop()) != 0:
                found[u] = power
        return found

    def again(self, expr: Expr) -> Any:
        """`expr` with the same symbols; what it consents to was consented to already."""
        exact = replace(self.reader, casts=True, rounding=True, atoms=False, consented=[])
        return exact(expr)

    def common_factor(self, terms: Terms) -> Any | None:
        """The function of tags that all coefficients are multiples of, when there is one."""
        coefficients = list(terms.values())
        first, tags = coefficients[0], set(self.used(terms))
        for each in coefficients[1:]:
            self.clock.check("comparing the coefficients")
            ratio = sympy().cancel(sympy().powsimp(sympy().expand(each / first)))
            if ratio.free_symbols & tags:
                return None
        return first

    def scaled(self, form: Form, factor: Any) -> Form:
        """t * G(r') / G(r)."""
        exponent = common_exponent([factor], tuple(self.moved))
        rest = sympy().factor(sympy().expand(factor * sympy().exp(-exponent)))
        ratio = self.ratio(exponent, rest, form)
        form.matrix = [[ratio]]
        form.update = [self.narrow(build.mul(self.wide(form.totals[0]), ratio))]
        writer = self.writers["final"]
        form.lines.append(("factor", ("G(r) = ", writer(sympy().exp(exponent) * rest))))
        form.rates = self.rates(exponent, rest)
        if exponent != 0 and self.bounded(exponent):
            form.lines.append(("stable", ("the exponential in h is in (0, 1]",)))
        return form

    def ratio(self, exponent: Any, rest: Any, form: Form) -> Expr:
        """exp(exponent(r') - exponent(r)) * rest(r') / rest(r)."""
        writer = self.writers["repair"]
        parts: list[Expr] = []
        if exponent != 0:
            parts.append(writer.change(exponent, {}, self.moved))
        if rest.free_symbols & set(self.moved):
            after, before = rest.xreplace(self.moved), rest
            self.nonzero(rest, form)
            parts.append(writer(after / before))
        return reduce(build.mul, parts)

    def rates(self, exponent: Any, rest: Any) -> list[Any]:
        """a, for each tag, when G(r) is exp(sum of a * r) with known numbers a; else nothing.

        Logarithms of bases are symbols in them (see `Symbols.numbers`).
        """
        if rest.free_symbols & set(self.moved):
            return []
        found = dict.fromkeys((tag.var for tag in self.problem.tags), sympy().S.Zero)
        for symbol in self.moved:
            slope = sympy().expand(sympy().diff(exponent, symbol))
            tag = self.symbols.exprs[symbol]
            while isinstance(tag, Cast) and tag.dtype.bits >= tag.a.dtype.bits:
                tag = tag.a
            if slope == 0:
                continue
            if (
                not slope.xreplace(self.symbols.numbers()).is_number
                or not isinstance(tag, Var)
                or tag not in found
            ):
                return []
            found[tag] += slope
        return list(found.values())

    def bounded(self, exponent: Any) -> bool:
        """exp(exponent(r)) can only fall as the tags move on, each of its tags being a maximum or a
        minimum."""
        signs = {BinaryOp.MAX: -1, BinaryOp.MIN: 1}
        falling: dict[Expr | None, int] = {
            tag.var: 0 if tag.operator is None else signs.get(tag.operator, 0)
            for tag in self.problem.tags
        }
        for term in sympy().Add.make_args(sympy().expand(exponent)):
            scale, core = term.as_independent(*self.moved, as_Add=False)
            tag = self.symbols.exprs.get(core)
            while isinstance(tag, Cast):
                tag = tag.a
            if not (scale * falling.get(tag, 0)).is_positive:
                return False
        return True

    def nonzero(self, divisor: Any, form: Form) -> None:
        """Notes the condition under which the repair may divide by `divisor`.

        Raises:
            Mixed: it could be 0.
        """
        if not divisor.is_nonzero:
            raise Mixed(
                self.writers["repair"](divisor),
                "the repair divides by {0}, which is not known to differ from 0",
                "let the factor leave the loop, or compute the reduction in a pass of its own",
            )
        plain = [f for f in sympy().Mul.make_args(divisor) if not isinstance(f, sympy().exp)]
        for part in sympy().fraction(sympy().Mul(*plain)):
            if part.free_symbols & set(self.moved):
                held = build.ne(self.writers["repair"](part), 0)
                why = "positive" if part.is_positive else "never 0"
                if not any(structural_equal(held, known) for known, _ in form.conditions):
                    form.conditions.append((held, f"{why} by the signs of the tags"))

    def closed(self, form: Form, terms: Terms) -> Form:
        """A matrix repair."""
        tags = self.used(terms)
        try:
            closure = close(terms, tags, self.moved, self.clock)
        except RankAbove as above:
            left = self.writers["element"](above.left)
            raise Mixed(self.problem.value, above.why, above.hint, left) from None
        exponent = closure.exponent
        below = [sympy().fraction(sympy().together(e))[1] for row in closure.h for e in row]
        for divisor in (*closure.pivots, *below):
            self.nonzero(divisor, form)
        rank = len(closure.rows)
        form.totals = [self.total(k) for k in range(rank)]
        form.basis += [self.narrow(self.writers["element"](e)) for e in closure.basis()]
        writer = self.writers["repair"]
        change = writer.change(exponent, {}, self.moved) if exponent != 0 else None
        for row in closure.h:
            entries = [writer(entry) for entry in row]
            parts = [
                build.mul(entry, self.wide(t))
                for value, entry, t in zip(row, entries, form.totals, strict=True)
                if value != 0
            ]
            total = reduce(build.add, parts)
            if change is not None:
                total = build.mul(total, change)
                entries = [build.mul(e, change) if v != 0 else e
                           for v, e in zip(row, entries, strict=True)]  # fmt: skip
            form.update.append(self.narrow(total))
            form.matrix.append(entries)
        return form

    # A maximum or minimum.

    def ordered(self, value: Any, terms: Terms) -> Form:
        """The repair of a maximum: an addend, or a factor that is not negative."""
        form = Form([self.problem.value], [self.total(0)], [], self.total(0))
        tags = set(self.used(terms))
        if not tags:
            return self.still(form)
        one = sympy().S.One
        if not any(c.free_symbols & tags for m, c in terms.items() if m != one):
            return self.shifted(value, form, terms[one], tags)
        factor = self.common_factor(terms)
        if factor is None:
            raise self.unordered()
        form, rest = self.leave(value, terms, form, always_positive=False)
        if not self.used(rest):
            return self.still(form)
        factor = next(iter(rest.values()))
        change = factor.xreplace(self.moved) / factor
        if not not_negative(change):
            raise self.unordered(change)
        return self.scaled(form, factor)

    def shifted(self, value: Any, form: Form, addend: Any, tags: set[Any]) -> Form:
        """An addend of tags alone leaves the loop, or is exchanged."""
        terms = [t for t in sympy().Add.make_args(addend) if t.free_symbols & tags]
        moving = sympy().Add(*terms)
        if self.defer:
            rest = self.reader.replaced(self.problem.value, moving.free_symbols & tags, 0)
            if self.zero(value - moving - self.again(rest)):
                fold = self.fold_symbol(form.totals[0])
                writer = self.writers["final"]
                form.basis, form.finish = [rest], self.narrow(writer(fold + moving))
                form.lines.append(("deferred", ("the addend ", writer(moving))))
                return self.still(form)
        writer = self.writers["repair"]
        differences = [
            build.sub(writer(term.xreplace(self.moved)), writer(term))
            if not term.could_extract_minus_sign()
            else build.sub(writer(-term), writer((-term).xreplace(self.moved)))
            for term in terms
        ]
        total = self.wide(form.totals[0])
        form.update = [self.narrow(build.add(total, reduce(build.add, differences)))]
        form.lines.append(("addend", ("G(r) = ", self.writers["final"](moving))))
        return form

    def unordered(self, change: Any = None) -> Mixed:
        """Why a maximum cannot follow."""
        name = self.problem.operator.value
        if change is not None:
            return Mixed(
                self.problem.value,
                f"when the tags change, {{0}} is scaled by a factor of unknown sign, and a {name} "
                "follows only a factor that is not negative",
                "make the sign of the tag known, e.g. by a maximum of absolute values",
                self.writers["repair"](change),
            )
        return Mixed(
            self.problem.value,
            f"{{0}} is neither a product nor a sum of a function of the tags and a function of the "
            f"elements, which is what a {name} follows",
            "compute the reduction in a pass of its own",
            self.quotient(),
        )

    def quotient(self) -> Expr:
        """g at the new tags over g at the old ones."""
        problem = self.problem
        variables = [tag.var for tag in problem.tags]
        before = dict[Expr, Expr](zip(variables, problem.old, strict=True))
        after = dict[Expr, Expr](zip(variables, problem.new, strict=True))
        return Binary(
            BinaryOp.DIV, substitute(problem.value, after), substitute(problem.value, before)
        )


def undefined(derivation: Derivation, form: Form) -> Mixed | None:
    """What is folded but may be undefined where the tags are partial results; None for nothing.

    The source is evaluated at finished tags only: sqrt(S - 1) may exist there and nowhere before.
    """
    reader, signs = derivation.reader, derivation.problem.signs
    for node in walk(*form.basis):
        needed: Sign | None = None
        argument = node
        match node:
            case Unary(op=op, a=a) if op in DOMAINS:
                needed, argument = DOMAINS[op], a
            case Binary(op=BinaryOp.DIV, b=b):
                needed, argument = Sign.POSITIVE, b
            case Binary(op=BinaryOp.POW, a=a):
                needed, argument = Sign.POSITIVE, a
            case _:
                continue
        roles = reader.occurring(argument)
        if Role.TAG not in roles or Role.ELEMENT in roles:
            continue
        if sign_of(argument, signs) not in (needed, Sign.POSITIVE):
            return Mixed(
                node,
                f"{{0}} may be undefined for a partial result: its argument is not known to be "
                f"{needed.value}",
                "let it leave the loop as a factor, or keep its argument positive, e.g. by adding "
                "a small number",
            )
    return None


def prove(derivation: Derivation, form: Form) -> str | None:
    """What could not be proved of `form`; None when (i) and (ii) hold.

    The finished expressions are read back, so that the proof is of what will be computed.
    """
    problem = derivation.problem
    totals = [derivation.fold_symbol(total) for total in form.totals]
    reader = replace(derivation.reader, casts=True, atoms=False, consented=[])
    basis = [derivation.again(each) for each in form.basis]
    moved = [each.xreplace(derivation.moved) for each in basis]
    for update, after in zip(form.update, moved, strict=True):
        h = reader(update)
        at = h.xreplace(dict(zip(totals, basis, strict=True)))
        if not derivation.zero(at - after):
            return "h(g(r, c), r, r') = g(r', c)"
        slopes = [sympy().diff(h, t) for t in totals]
        if any(s.free_symbols & set(totals) for s in slopes):
            return "h is linear"
        if problem.operator in ORDERED:
            if not not_negative(slopes[0]):
                return "h does not fall"
        elif not derivation.zero(h - sum(s * t for s, t in zip(slopes, totals, strict=True))):
            return "h(x + y) = h(x) + h(y)"
    if form.rates and not _is_action(derivation, form, reader):
        return "h(h(t, r, s), s, r') = h(t, r, r')"
    finish = reader(form.finish).xreplace({totals[0]: basis[0]})
    whole = finish - derivation.again(problem.value)
    return None if derivation.zero(whole) else "the deferred part"


def _is_action(derivation: Derivation, form: Form, reader: Reader) -> bool:
    """(iv) h = t * exp(sum of a * (r' - r)); h(h(t, r, s), s, r') = h(t, r, r'); h(t, r, r) = t."""
    problem, moved = derivation.problem, derivation.moved
    total = derivation.fold_symbol(form.totals[0])
    h = reader(form.update[0])
    ratio = sympy().diff(h, total)
    places = {tag.var: n for n, tag in enumerate(problem.tags)}
    change, middle = sympy().S.Zero, dict[Any, Any]()
    for symbol, after in moved.items():
        middle[symbol] = sympy().Symbol(f"{symbol.name}s", **symbol.assumptions0)
        tag = derivation.symbols.exprs[symbol]
        while isinstance(tag, Cast):
            tag = tag.a
        if isinstance(tag, Var) and symbol in ratio.free_symbols:
            change += form.rates[places[tag]] * (after - symbol)
    first = ratio.xreplace({after: middle[symbol] for symbol, after in moved.items()})
    second = ratio.xreplace(middle)
    back = ratio.xreplace({after: symbol for symbol, after in moved.items()})
    return (
        derivation.zero(h - total * sympy().exp(change))
        and derivation.zero(first * second - ratio)
        and derivation.zero(back - 1)
    )
