"""No intermediate value of a repair overflows where the definition does not.

What is folded is evaluated at *partial* results of the tags, and repaired by factors of their
changes: values that the definition never computes.  An exponential of them may be infinite where
that of the finished tags is 0, and infinity times 0 is no number.  So each exponential that is
folded has to be dominated.  With m a maximum of the elements s(c), a partial result is m = s(c) + d
with d >= 0 for every element c that it has seen, and the exponent has to be, once s(c) + d is put
in for m,

    e(m, c) = a * d + rest        a of one sign, rest without elements and tags

    a < 0   g(m, c) <= exp(rest) at every partial result, with equality at one element, so that
            h = g(m', c) / g(m, c) <= 1 there, whatever else has been folded
    a > 0   g(m, c) only grows as m moves on: every intermediate is at most what the definition
            itself folds

(a minimum is s(c) - d).  A sum moves either way: it dominates nothing.  Values that are no
exponentials grow like powers, and are bounded by those of the tags and elements; a cast to a
float of a smaller range may cut them off, and is left out of what is folded at partial sums.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from tedsl.expr import build
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Cast,
    Const,
    Expr,
    IfThenElse,
    Select,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.expr.printer import print_expr
from tedsl.expr.visit import rewrite, substitute, variables
from tedsl.expr.wider import with_wider
from tedsl.index.intern import Interner
from tedsl.scheduling.algebra.problem import pose
from tedsl.scheduling.algebra.rescaling import Refusal, Repair, Sign, Tag
from tedsl.scheduling.algebra.terms import Clock, Mixed, Reader, Role, Symbols, sympy

_EXPONENTIALS = frozenset({UnaryOp.EXP, UnaryOp.EXP2, UnaryOp.EXPM1})
_GROWING = frozenset({UnaryOp.SINH, UnaryOp.COSH})
_MOVES = {BinaryOp.MAX: 1, BinaryOp.MIN: -1}
_SHOWN: Mapping[BinaryOp | None, str] = {BinaryOp.MAX: "+", BinaryOp.MIN: "-"}
_MOST_BITS, _MOST_POWER = 6, 2

Conditions = tuple[tuple[Expr, bool], ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Grown:
    """A function in what is folded that grows faster than any power, its exponent (None when it is
    no exponential of one), and the conditions under which its value counts."""

    node: Expr
    exponent: Expr | None
    under: Conditions


class _Unbounded(Exception):
    """Why an exponent is not dominated."""


def range_proof(
    repair: Repair,
    over: Collection[Axis],
    where: Expr | None,
    signs: Mapping[Expr, Sign],
    clock: Clock,
) -> tuple[str, ...] | Refusal:
    """Why no value that is folded, and no factor of a repair, overflows where the definition does
    not, a line for each exponential; or which one may.

    Args:
        repair: the repair.
        over: the axes being reduced.
        where: the condition of the reduction, None for none.
        signs: of sub-expressions without tags.
        clock: the limit on the time.
    """
    moving = {tag.var for tag in repair.moving}
    same = Interner()
    lines: dict[str, None] = {}
    given = tuple((each, True) for each in _conjuncts(where))
    for grown in (each for expr in repair.basis for each in _grown(expr, given)):
        if moving.isdisjoint(variables(grown.node)):
            continue
        prover = _Prover(repair.tags, frozenset(over), signs, same, clock)
        try:
            lines[f"{print_expr(grown.node)}: {prover.proved(grown)}"] = None
        except _Unbounded as why:
            return _refusal(repair, grown.node, str(why))
        except Mixed:
            return _refusal(repair, grown.node, "its exponent cannot be taken apart")
    return tuple(lines)


def in_range(repair: Repair) -> Repair:
    """The repair without casts of partial sums to floats of a smaller range, where they may
    overflow and the sums do not: what is computed of them keeps its type.  A maximum (minimum) only
    moves towards its result, and a float of the range of its operand holds it.

    Before:  fold of float16(x - float16(s)), repaired by float16(s) - float16(s')
    After:   fold of x - s, repaired by s - s'
    """
    sums = [n for n, tag in enumerate(repair.tags) if tag.order not in _MOVES]
    partial = {v for n in sums for v in (repair.tags[n].var, repair.old[n], repair.new[n])}

    def whole(node: Expr) -> Expr | None:
        if isinstance(node, Cast) and _is_shorter(node) and not partial.isdisjoint(variables(node)):
            return with_wider(node.a, whole)
        return None

    def each(exprs: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple(build.cast(with_wider(expr, whole), expr.dtype) for expr in exprs)

    return replace(repair, basis=each(repair.basis), update=each(repair.update))


def _is_shorter(node: Cast) -> bool:
    """True for a cast to a float that ends well before its operand does."""
    both = node.dtype.is_float and node.a.dtype.is_float
    return both and 2 * node.dtype.info.highest < node.a.dtype.info.highest


def _refusal(repair: Repair, node: Expr, why: str) -> Refusal:
    names = ", ".join(t.var.name for t in repair.moving if t.var in frozenset(variables(node)))
    return Refusal(
        f"{print_expr(node)} may overflow at a partial result of {names} where the finished one "
        f"gives a finite value: {why}",
        node,
        print_expr(repair.update[0]),
        "let the exponent be relative to the maximum of all that is in it, or compute the tag in "
        "a pass of its own",
    )


def _conjuncts(condition: Expr | None) -> Iterator[Expr]:
    """The conditions of which all hold when `condition` does."""
    match condition:
        case None:
            return
        case Binary(op=BinaryOp.AND, a=a, b=b) if condition.dtype.is_bool:
            yield from _conjuncts(a)
            yield from _conjuncts(b)
        case IfThenElse(condition=c, a=a, b=Const(value=False)):
            yield from _conjuncts(c)
            yield from _conjuncts(a)
        case _:
            yield condition


def _grown(root: Expr, given: Conditions) -> Iterator[_Grown]:
    """The functions in `root` that grow faster than any power."""
    seen: set[tuple[Expr, Conditions]] = set()
    stack: list[tuple[Expr, Conditions]] = [(root, given)]
    while stack:
        node, under = stack.pop()
        if (node, under) in seen:
            continue
        seen.add((node, under))
        match node:
            case Select(condition=c, a=a, b=b) | IfThenElse(condition=c, a=a, b=b):
                holds = tuple((each, True) for each in _conjuncts(c))
                stack += [(c, under), (a, (*under, *holds)), (b, (*under, (c, False)))]
                continue
            case Unary(op=op, a=a) if op in _EXPONENTIALS:
                yield _Grown(node, a, under)
            case Unary(op=op) if op in _GROWING:
                yield _Grown(node, None, under)
            case Binary(op=BinaryOp.POW, a=a, b=b):
                fixed = isinstance(b, Const) and abs(b.value) <= _MOST_POWER
                if not fixed:
                    yield _Grown(node, _power_exponent(a, b), under)
            case _:
                pass
        stack += [(child, under) for child in node.children()]


def _power_exponent(base: Expr, exponent: Expr) -> Expr | None:
    """e with base ** exponent = exp(e) up to a positive factor in e; None for a base that is no
    positive number."""
    if not isinstance(base, Const) or not base.value > 0:
        return None
    return exponent if base.value > 1 else build.neg(exponent)


@dataclass(frozen=True, slots=True, eq=False)
class _Prover:
    """Shows that exponents are dominated by tags."""

    tags: Sequence[Tag]
    over: frozenset[Axis]
    signs: Mapping[Expr, Sign]
    same: Interner
    clock: Clock
    ahead: dict[Var, Tag] = field(default_factory=dict[Var, Tag])

    def proved(self, grown: _Grown) -> str:
        """Why a value does not overflow before the definition's does.

        Raises:
            _Unbounded: it may.
            Mixed: its exponent cannot be read.
        """
        if grown.exponent is None:
            raise _Unbounded("nothing bounds it")
        value = grown.exponent
        # What depends on other tags first: those are in its elements, too.
        for tag in sorted(self.tags, key=self.nested, reverse=True):
            if tag.var in frozenset(variables(value)):
                value = substitute(value, {tag.var: self.relative(tag, grown.under)})
        value = self.chosen(rewrite(value, self.apart), grown.under)
        found = self.coefficients(value)
        if not found:
            return "the same at every partial result"
        tags = self.ahead.items()
        put = ", ".join(f"{t.var.name} = element {_SHOWN[t.order]} {d.name}" for d, t in tags)
        steps = " and ".join(step.name for step in self.ahead)
        given = f"with {put} ({steps} >= 0) it"
        if all(sign < 0 for sign in found):
            return f"{given} falls as {steps} rises: its factor in h is in (0, 1]"
        if all(sign > 0 for sign in found):
            return f"{given} rises with {steps}, up to what the definition folds, and so does h"
        return f"{given} moves one way: its factor in h is in (0, 1], or the definition folds more"

    def relative(self, tag: Tag, under: Conditions) -> Expr:
        """A tag as an element of it and how far it is ahead of that."""
        name, moves = tag.var.name, _MOVES.get(tag.order or BinaryOp.ADD, 0)
        if not moves:
            kind = "a sum" if tag.operator is BinaryOp.ADD else "a reduction"
            raise _Unbounded(f"{name} is {kind}, which moves either way as it is folded")
        if tag.source is None:
            raise _Unbounded(f"nothing is known of the elements of {name}")
        held = {self.same.rep(each) for each, holds in under if holds}
        for each in _conjuncts(tag.only):
            if self.same.rep(each) not in held:
                raise _Unbounded(
                    f"{name} is folded only where {print_expr(each)}, and this is read elsewhere"
                )
        step = Var(f"{name}.ahead", tag.var.dtype)
        self.ahead[step] = tag
        source = build.cast(tag.source, tag.var.dtype)
        return build.add(source, step) if moves > 0 else build.sub(source, step)

    def apart(self, node: Expr) -> Expr | None:
        """A cast of an element and a step, which are numbers here, as casts of either."""
        match node:
            case Cast(a=Binary(op=op, a=a, b=Var() as step), dtype=dtype) if step in self.ahead:
                return Binary(op, build.cast(a, dtype), build.cast(step, dtype))
            case _:
                return None

    def chosen(self, value: Expr, under: Conditions) -> Expr:
        """`value` where the conditions are decided."""
        decided = {self.same.rep(each): holds for each, holds in under}

        def choose(node: Expr) -> Expr | None:
            if not isinstance(node, (Select, IfThenElse)):
                return None
            parts = list(_conjuncts(node.condition))
            if decided.get(self.same.rep(node.condition)) is False:
                return node.b
            if all(decided.get(self.same.rep(each)) is True for each in parts):
                return node.a
            return None

        return rewrite(value, choose)

    def coefficients(self, value: Expr) -> list[int]:
        """The signs (0 for one sign that is not known) of what the steps are multiplied with, in
        each case of the conditions left."""
        steps = [Tag(step, None, Sign.NONNEGATIVE) for step in self.ahead]
        problem = pose(value, steps, BinaryOp.ADD, self.over, self.signs)
        reader = Reader(
            problem.roles, problem.signs, Symbols(), casts=True, rounding=True, atoms=False
        )
        with self.clock.watching():
            whole = sympy().expand(reader(problem.value))
            symbols = reader.symbols
            bits = sorted(symbols.indicators, key=str)
            if len(bits) > _MOST_BITS:
                raise _Unbounded("its exponent depends on too many conditions")
            moving = symbols.of(Role.TAG)
            found: list[int] = []
            for values in product((0, 1), repeat=len(bits)):
                numbers: list[Any] = [sympy().Integer(value) for value in values]
                case = whole.xreplace(dict(zip(bits, numbers, strict=True)))
                found += self.signs_of(sympy().expand(case), moving, symbols)
            return found

    def signs_of(self, value: Any, moving: Sequence[Any], symbols: Symbols) -> list[int]:
        """The same for one real expression."""
        fixed = frozenset(symbols.of(Role.PARAMETER)) | frozenset(symbols.logs)
        scales = [sympy().expand(sympy().diff(value, step)) for step in moving]
        rest = sympy().expand(value - sum(a * d for a, d in zip(scales, moving, strict=True)))
        scales = [scale for scale in scales if scale != 0]
        if not scales:
            return []
        if any(scale.free_symbols - fixed for scale in scales):
            raise _Unbounded("how fast it moves depends on the elements")
        ratios = [sympy().cancel(scale / scales[0]) for scale in scales]
        if not all(ratio.is_positive for ratio in ratios):
            raise _Unbounded("its tags move it both ways")
        first = scales[0] if scales else sympy().S.Zero
        sign = -1 if first.is_negative else 1 if first.is_positive else 0
        if any(self.nested(tag) for tag in self.ahead.values()) and (len(scales) > 1 or sign >= 0):
            raise _Unbounded("one of its tags depends on another, and moves either way with it")
        if rest.free_symbols - fixed and not (sign and (sign * rest).is_nonnegative):
            raise _Unbounded("elements are left in its exponent when the tags are taken relative "
                             "to what they are folded of")  # fmt: skip
        return [sign]

    def nested(self, tag: Tag) -> bool:
        """True when the elements of a tag depend on tags."""
        own = {each.var for each in self.tags}
        return tag.source is not None and not own.isdisjoint(variables(tag.source))
