"""Floor division and remainder of sums: the rules that undo splits and fusions.

A `Sum` is what `simplify` works on: atoms of one dtype with constant factors; a product is one
atom.  A divisor is a constant times symbolic factors, `s * f1 * f2 ...`.  Rules that need a
positive divisor ask for it; one that is known not to be negative counts as positive, since
division by zero has no meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tedsl.dtypes import DType
from tedsl.expr.nodes import Binary, BinaryOp, Const, Expr
from tedsl.index.facts import Facts, Interval
from tedsl.index.inequality import nonnegative
from tedsl.index.interval import interval
from tedsl.index.linear import ONE, Poly, accumulate, build_sum, combine, product, without

ADD, SUB, MUL = BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL
FLOORDIV, FLOORMOD = BinaryOp.FLOORDIV, BinaryOp.FLOORMOD


@dataclass(slots=True, eq=False)
class Sum:
    """`constant + sum(coefficient * atom)` of one dtype.  Not changed once it is shared."""

    terms: dict[Expr, int]
    constant: int
    dtype: DType

    def add(self, other: Sum, scale: int) -> None:
        """self += scale * other: of a sum that nobody else has yet."""
        for atom, coefficient in other.terms.items():
            add_term(self.terms, atom, coefficient * scale)
        self.constant += other.constant * scale

    def plus(self, other: Sum, scale: int = 1) -> Sum:
        """self + scale * other."""
        result = Sum(dict(self.terms), self.constant, self.dtype)
        result.add(other, scale)
        return result

    def scaled(self, scale: int) -> Sum:
        """scale * self."""
        if scale == 1:
            return self
        terms = {atom: c * scale for atom, c in self.terms.items()} if scale else {}
        return Sum(terms, self.constant * scale, self.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Divisor:
    """`scale * product(factors)`."""

    scale: int
    factors: tuple[Expr, ...] = ()


def add_term(terms: dict[Expr, int], atom: Expr, coefficient: int) -> None:
    """terms[atom] += coefficient, in place."""
    total = terms.get(atom, 0) + coefficient
    if total:
        terms[atom] = total
    else:
        terms.pop(atom, None)


def factors_of(term: Expr) -> tuple[Expr, ...]:
    """The factors of a product atom, itself for any other."""
    if type(term) is not Binary or term.op is not MUL:
        return (term,)
    return (*factors_of(term.a), *factors_of(term.b))


def expression(form: Sum, facts: Facts) -> Expr:
    """The expression of a sum."""
    return build_sum(facts.interner, form.terms, form.constant, form.dtype)


def to_poly(form: Sum, facts: Facts) -> Poly:
    """The expanded polynomial of a sum."""
    result: Poly = {ONE: form.constant} if form.constant else {}
    for atom, coefficient in form.terms.items():
        accumulate(result, facts.expander.poly(atom), coefficient)
    return result


def range_of(form: Sum, facts: Facts) -> Interval:
    """Constant bounds of a sum."""
    lo: int | None = form.constant
    hi: int | None = form.constant
    for atom, scale in form.terms.items():
        low, high = interval(atom, facts)
        if scale < 0:
            low, high = high, low
        lo = None if lo is None or low is None else lo + low * scale
        hi = None if hi is None or high is None else hi + high * scale
        if lo is None and hi is None:
            break
    return Interval(lo, hi)


def collect(expr: Expr, facts: Facts) -> Sum:
    """The sum that an expression made by `expression` stands for; nothing below its atoms is
    looked at.
    """
    terms: dict[Expr, int] = {}
    constant = 0
    stack = [(expr, 1)]
    while stack:
        node, scale = stack.pop()
        if type(node) is Const:
            constant += int(node.value) * scale
        elif type(node) is Binary and node.op is ADD:
            stack += [(node.b, scale), (node.a, scale)]
        elif type(node) is Binary and node.op is SUB:
            stack += [(node.b, -scale), (node.a, scale)]
        elif type(node) is Binary and node.op is MUL and type(node.b) is Const:
            stack.append((node.a, scale * int(node.b.value)))
        else:
            add_term(terms, facts.interner.rep(node), scale)
    return Sum(terms, constant, expr.dtype)


def divisor_of(form: Sum, facts: Facts) -> Divisor:
    """A sum as a divisor."""
    if not form.terms:
        return Divisor(form.constant)
    if len(form.terms) == 1 and not form.constant:
        ((atom, scale),) = form.terms.items()
        return Divisor(scale, factors_of(atom))
    scale = gcd(form.constant, *form.terms.values())
    rest = Sum({a: c // scale for a, c in form.terms.items()}, form.constant // scale, form.dtype)
    return Divisor(scale, (expression(rest, facts),))


def divisor_sum(divisor: Divisor, dtype: DType, facts: Facts) -> Sum:
    """A divisor as a sum."""
    if not divisor.factors:
        return Sum({}, divisor.scale, dtype)
    if len(divisor.factors) == 1:
        return collect(divisor.factors[0], facts).scaled(divisor.scale)
    return Sum({product(facts.interner, divisor.factors, dtype): divisor.scale}, 0, dtype)


def is_positive(divisor: Divisor, facts: Facts) -> bool:
    """Whether the divisor is known not to be negative."""
    if divisor.scale <= 0:
        return False
    return all(is_natural(factor, facts) for factor in divisor.factors)


def is_natural(expr: Expr, facts: Facts) -> bool:
    """Whether `expr >= 0` is proved."""
    low = interval(expr, facts).lo
    if low is not None:
        return low >= 0
    return nonnegative(facts.expander.poly(expr), facts)


def divide(form: Sum, divisor: Divisor, facts: Facts) -> Sum:
    """floor(form / divisor); a division by the constant 0 stays as it is."""
    if divisor.scale == 0:
        return _kept(FLOORDIV, form, facts)
    if divisor.scale < 0:
        return divide(form.scaled(-1), Divisor(-divisor.scale, divisor.factors), facts)
    if divisor.scale == 1 and not divisor.factors:
        return form
    quotient, rest = _parted(form, divisor, facts)
    if not rest.terms and (not divisor.factors or not rest.constant):
        return quotient
    positive = is_positive(divisor, facts)
    if positive:
        block = block_of(rest, divisor, facts)
        if block is not None:
            return Sum(quotient.terms, quotient.constant + block, form.dtype)
        smaller = _reduce_division(rest, divisor, facts)
        if smaller is not None:
            return quotient.plus(smaller)
    bottom = divisor_sum(divisor, form.dtype, facts)
    atom = facts.interner.binary(FLOORDIV, expression(rest, facts), expression(bottom, facts))
    return quotient.plus(Sum({atom: 1}, 0, form.dtype))


def modulo(form: Sum, divisor: Divisor, facts: Facts) -> Sum:
    """form - divisor * floor(form / divisor); a remainder by the constant 0 stays as it is."""
    if divisor.scale == 0:
        return _kept(FLOORMOD, form, facts)
    if divisor.scale < 0:
        flipped = Divisor(-divisor.scale, divisor.factors)
        return modulo(form.scaled(-1), flipped, facts).scaled(-1)
    dtype = form.dtype
    if divisor.scale == 1 and not divisor.factors:
        return Sum({}, 0, dtype)
    _, rest = _parted(_open_remainders(form, divisor, facts), divisor, facts)
    if not rest.terms and (not divisor.factors or not rest.constant):
        return Sum({}, rest.constant, dtype)
    if is_positive(divisor, facts):
        block = block_of(rest, divisor, facts)
        if block is not None:
            return rest.plus(divisor_sum(divisor, dtype, facts), -block)
        smaller = _reduce_modulo(rest, divisor, facts)
        if smaller is not None:
            return smaller
    bottom = divisor_sum(divisor, dtype, facts)
    atom = facts.interner.binary(FLOORMOD, expression(rest, facts), expression(bottom, facts))
    return Sum({atom: 1}, 0, dtype)


def _kept(op: BinaryOp, form: Sum, facts: Facts) -> Sum:
    """A division by 0, which stands in loops that never run."""
    zero = facts.interner.const(0, form.dtype)
    return Sum({facts.interner.binary(op, expression(form, facts), zero): 1}, 0, form.dtype)


def _parted(form: Sum, divisor: Divisor, facts: Facts) -> tuple[Sum, Sum]:
    """`extract` where that decides the division, else only whole multiples of the divisor.

    `(64*i + j) // 33` is kept: a quotient and a remainder of one sum still join to that sum, and
    its bounds can be proved from those of the sum.
    """
    quotient, rest = extract(form, divisor, facts)
    if divisor.factors or not rest.terms or divisor.scale < 0:
        return quotient, rest
    if block_of(rest, divisor, facts) is not None:
        return quotient, rest
    whole: dict[Expr, int] = {}
    kept: dict[Expr, int] = {}
    taken = to_poly(quotient, facts)
    for atom, coefficient in form.terms.items():
        exact = coefficient % divisor.scale == 0
        (whole if exact else kept)[atom] = coefficient // divisor.scale if exact else coefficient
    if any(atom in facts.multiples for atom in kept) or not taken:
        return quotient, rest
    count, constant = divmod(form.constant, divisor.scale)
    return Sum(whole, count, form.dtype), Sum(kept, constant, form.dtype)


def extract(form: Sum, divisor: Divisor, facts: Facts) -> tuple[Sum, Sum]:
    """form = divisor * quotient + rest, exactly, with as much as possible in the quotient."""
    quotient: dict[Expr, int] = {}
    rest: dict[Expr, int] = {}
    scale, factors = divisor.scale, divisor.factors
    whole = 0
    for atom, coefficient in form.terms.items():
        others = without(factors_of(atom), factors) if factors else (atom,)
        if others is None:
            rest[atom] = coefficient
            continue
        if atom in facts.multiples and not factors and coefficient % scale:
            common = gcd(coefficient, scale)
            if facts.multiples[atom] % (scale // common) == 0:  # atom = part * (atom // part)
                part = facts.interner.const(scale // common, form.dtype)
                exact = facts.interner.binary(FLOORDIV, atom, part)
                found = interval(exact, facts)
                if found.lo is not None and found.lo == found.hi:
                    whole += found.lo * (coefficient // common)
                else:
                    add_term(quotient, exact, coefficient // common)
                continue
        remainder = coefficient % scale if coefficient > 0 else -(-coefficient % scale)
        count = (coefficient - remainder) // scale
        if remainder:
            rest[atom] = remainder
        if count and others:
            add_term(quotient, product(facts.interner, others, form.dtype), count)
        elif count:
            whole += count
    if factors:
        return Sum(quotient, whole, form.dtype), Sum(rest, form.constant, form.dtype)
    whole += form.constant // scale
    return Sum(quotient, whole, form.dtype), Sum(rest, form.constant % scale, form.dtype)


def block_of(rest: Sum, divisor: Divisor, facts: Facts) -> int | None:
    """The constant floor(rest / divisor), when it is one.  Requires: a positive divisor."""
    if not divisor.factors:
        found = range_of(rest, facts)
        if found.lo is not None and found.hi is not None:
            block = found.lo // divisor.scale
            return block if found.hi // divisor.scale == block else None
    elif not rest.terms and rest.constant == -1:  # a positive divisor is at least 1
        return -1
    value = to_poly(rest, facts)
    bottom = to_poly(divisor_sum(divisor, rest.dtype, facts), facts)
    below = combine(value, bottom)  # -divisor <= rest < 0
    if nonnegative(value, facts):
        top = combine(combine(bottom, value, -1), {ONE: -1})
        return 0 if nonnegative(top, facts) else None
    if nonnegative(combine({ONE: -1}, value, -1), facts) and nonnegative(below, facts):
        return -1
    return None


def _split_off(
    rest: Sum, divisor: Divisor, facts: Facts
) -> tuple[Sum, Divisor, Divisor, Sum] | None:
    """rest = d * high + low with d a proper factor of the divisor and 0 <= low < d: (high,
    divisor/d, d, low).
    """
    if not divisor.factors:
        return _split_constant(rest, divisor.scale, facts)
    if divisor.scale > 1:
        found = _split_constant(rest, divisor.scale, facts)
        if found is not None:
            high, smaller, part, low = found
            return high, Divisor(smaller.scale, divisor.factors), part, low
    for factor in dict.fromkeys(divisor.factors):
        found = _split_factor(rest, divisor, factor, facts)
        if found is not None:
            return found
    return None


def _split_factor(
    rest: Sum, divisor: Divisor, factor: Expr, facts: Facts
) -> tuple[Sum, Divisor, Divisor, Sum] | None:
    """`_split_off` for the symbolic factor d = `factor`."""
    part = Divisor(1, (factor,))
    high: dict[Expr, int] = {}
    low: dict[Expr, int] = {}
    constant = 0
    for atom, coefficient in rest.terms.items():
        others = without(factors_of(atom), (factor,))
        if others is None:
            low[atom] = coefficient
        elif others:
            add_term(high, product(facts.interner, others, rest.dtype), coefficient)
        else:
            constant += coefficient
    left = without(divisor.factors, (factor,))
    lower = Sum(low, rest.constant, rest.dtype)
    if (not high and not constant) or left is None or block_of(lower, part, facts) != 0:
        return None
    return Sum(high, constant, rest.dtype), Divisor(divisor.scale, left), part, lower


def _split_constant(
    rest: Sum, scale: int, facts: Facts
) -> tuple[Sum, Divisor, Divisor, Sum] | None:
    steps = {gcd(c, scale) for c in rest.terms.values()}
    for step in sorted(steps, reverse=True):
        if step == 1:
            continue
        high: dict[Expr, int] = {}
        low: dict[Expr, int] = {}
        for atom, coefficient in rest.terms.items():
            if coefficient % step == 0:
                high[atom] = coefficient // step
            else:
                low[atom] = coefficient
        if not high:
            continue
        found = range_of(Sum(low, rest.constant, rest.dtype), facts)
        if found.lo is None or found.hi is None or found.lo // step != found.hi // step:
            continue
        block = found.lo // step
        lower = Sum(low, rest.constant - block * step, rest.dtype)
        return Sum(high, block, rest.dtype), Divisor(scale // step), Divisor(step), lower
    return None


def _reduce_division(rest: Sum, divisor: Divisor, facts: Facts) -> Sum | None:
    """rest // divisor with a smaller divisor, or with one division instead of two."""
    common = gcd(divisor.scale, *rest.terms.values())
    if common > 1:
        terms = {atom: c // common for atom, c in rest.terms.items()}
        smaller = Sum(terms, rest.constant // common, rest.dtype)
        return divide(smaller, Divisor(divisor.scale // common, divisor.factors), facts)
    split = _split_off(rest, divisor, facts)
    if split is not None:
        return divide(split[0], split[1], facts)
    if len(rest.terms) != 1:
        return None
    ((atom, coefficient),) = rest.terms.items()
    if coefficient != 1 or not isinstance(atom, Binary):
        return None
    if atom.op is FLOORDIV:  # (x // a + k) // c = (x + k*a) // (a*c)
        bottom = collect(atom.b, facts)
        inner = divisor_of(bottom, facts)
        if is_positive(inner, facts):
            both = Divisor(inner.scale * divisor.scale, inner.factors + divisor.factors)
            top = collect(atom.a, facts).plus(bottom, rest.constant)
            return divide(top, both, facts)
    if atom.op is FLOORMOD and not rest.constant:  # (x % (a*c)) // c = (x // c) % a
        inner = divisor_of(collect(atom.b, facts), facts)
        left = without(inner.factors, divisor.factors)
        if left is not None and inner.scale % divisor.scale == 0 and is_positive(inner, facts):
            top = divide(collect(atom.a, facts), divisor, facts)
            return modulo(top, Divisor(inner.scale // divisor.scale, left), facts)
    return None


def _open_remainders(form: Sum, divisor: Divisor, facts: Facts) -> Sum:
    """(k * (x % (a*c)) + y) % c = (k * x + y) % c."""
    result = form
    for atom, coefficient in form.terms.items():
        if not isinstance(atom, Binary) or atom.op is not FLOORMOD:
            continue
        inner = divisor_of(collect(atom.b, facts), facts)
        left = without(inner.factors, divisor.factors)
        if left is not None and (inner.scale * coefficient) % divisor.scale == 0:
            result = result.plus(Sum({atom: 1}, 0, form.dtype), -coefficient)
            result = result.plus(collect(atom.a, facts), coefficient)
    return result


def _reduce_modulo(rest: Sum, divisor: Divisor, facts: Facts) -> Sum | None:
    """rest % divisor with a smaller divisor."""
    common = gcd(divisor.scale, *rest.terms.values())
    if common > 1:
        terms = {atom: c // common for atom, c in rest.terms.items()}
        smaller = Sum(terms, rest.constant // common, rest.dtype)
        inner = modulo(smaller, Divisor(divisor.scale // common, divisor.factors), facts)
        result = inner.scaled(common)
        return Sum(result.terms, result.constant + rest.constant % common, rest.dtype)
    split = _split_off(rest, divisor, facts)
    if split is None:
        return None
    high, smaller_divisor, part, low = split
    inner = modulo(high, smaller_divisor, facts)
    return times(inner, part, facts).plus(low)


def times(form: Sum, divisor: Divisor, facts: Facts) -> Sum:
    """form * divisor."""
    if not divisor.factors:
        return form.scaled(divisor.scale)
    terms: dict[Expr, int] = {}
    for atom, coefficient in form.terms.items():
        whole = product(facts.interner, (*factors_of(atom), *divisor.factors), form.dtype)
        add_term(terms, whole, coefficient * divisor.scale)
    if form.constant:
        whole = product(facts.interner, divisor.factors, form.dtype)
        add_term(terms, whole, form.constant * divisor.scale)
    return Sum(terms, 0, form.dtype)
