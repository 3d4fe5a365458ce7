"""How the partial result of a reduction follows when results it depends on change.

A reduction X = fold over k of g(r, c_k) uses finished results r of other reductions over k (its
*tags*): a maximum that exponents are relative to, a mean.  Computed in one pass, its partial
result belongs to the tags known so far, and is *repaired* as they move on:

    h(fold g(r, c_k), r, r') = fold g(r', c_k)       for every prefix, every r and every r'.

Two properties are enough: (i) h(g(r, c), r, r') = g(r', c), and (ii) h(x f y) = h(x) f h(y) for
the reducer f.  `derive_repair` finds such an h, proves both over the real numbers and checks the
result on numbers, or says what stands in the way.  Three things may be combined:

- a factor (or, for a maximum, an addend) of tags alone leaves the loop and is applied at the end:
  sum(c / l) = sum(c) / l; never exp(-m), without which the rest would overflow;
- a scalar repair, t * G(r') / G(r) or t + G(r') - G(r);
- a matrix repair of a sum: g and its derivatives by the tags span a space of rank at most 3, and
  the folds of a basis of it follow linearly: (c - m)^2 needs those of (c - m)^2, c - m and 1.

Because (i) holds for any two values of the tags, r need not be the exact partial result: it may lag
behind (see `primitives/online/lazy_rescaling`), and a sum may be scaled up to an estimate of the
whole, as long as the last repair goes to the finished value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tedsl.expr.nodes import BinaryOp, Expr, Var
from tedsl.expr.visit import substitute, variables


class Sign(StrEnum):
    """A proved range of a real value."""

    POSITIVE = "positive"
    NONNEGATIVE = "nonnegative"
    ANY = "any"


class Kind(StrEnum):
    """What happens to the partial result when the tags move on: nothing (no folded expression reads
    a tag), one total is repaired, or several together."""

    NONE = "none"
    SCALAR = "scalar"
    MATRIX = "matrix"


@dataclass(frozen=True, slots=True, eq=False)
class Tag:
    """The finished result of another reduction over the same axes, as a scalar in g.

    `var` stands for it in g.  `operator` is its reducer, None when that is no single operator.
    `sign` is proved for every partial result of at least one element (see `fold_sign`).
    `source` is what it folds, over the axes and tags of g, where that is known; `only` the
    condition on the elements that it folds; `ordered` is maximum or minimum where
    it is one component of a tuple that is folded by it.
    """

    var: Var
    operator: BinaryOp | None
    sign: Sign = Sign.ANY
    source: Expr | None = None
    only: Expr | None = None
    ordered: BinaryOp | None = None

    @property
    def order(self) -> BinaryOp | None:
        """The operator that its elements are folded with."""
        return self.ordered or self.operator


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """What a repair relies on: `holds`, a bool over `Repair.old` and `Repair.new`, and why it does.

    It is proved for partial results of at least one element, and need not hold for the identity of
    a tag: a repair must be skipped while nothing has been folded.
    """

    holds: Expr
    proof: str


@dataclass(frozen=True, slots=True, eq=False)
class Repair:
    """A proved way to compute `fold of value` in one pass with its tags.

    In a loop over tiles, with `totals` one accumulator per expression of `basis`:

        new = old combined with the tile's tags
        totals = repaired(totals, old, new)  combined by `reducer` with  fold over the tile of
                 folded(new)
        ... at the end ...  X = finished(totals[0], tags)

    The tags of all `tags` are positional in `old`, `new` and the arguments of the methods.  Before
    anything has been folded, and where the tags did not change, the totals stay as they are: use
    `select(unchanged, total, repaired)`, which keeps infinite tags from giving NaN.

    Fields:
        value: g as given.
        tags: as given; those that no expression of `basis` reads need no repair.
        reducer: the operator that folds.
        basis: the expressions to fold, over the tags' variables and what `value` reads; the first
            one's fold gives X.
        totals: stand for the folds of `basis` in `update` and `finish`.
        old, new: stand for the tags in `update`.
        update: one expression per total, over `totals`, `old`, `new` and parameters.
        finish: X, over `totals[0]` and the tags' variables; `totals[0]` itself when nothing was
            deferred.
        matrix: the coefficients of `update` when it is linear (rows for totals), else empty.
        extrapolate: the tags that are sums of floats and are read by `basis`.  A partial sum S
            after j of K elements may stand as S * (K / j), an estimate of the finished one that
            moves less.
        conditions: what must hold for `update` to be defined, each proved.
        consented: casts and roundings that the proof takes as exact, by the caller's consent.
        steps: the lines of the proof.
        rates: a, for each tag, where h is proved to be t * exp(sum of a * (r' - r)): an action of
            the differences of tags, so that totals may lag behind; else empty.
    """

    value: Expr
    tags: tuple[Tag, ...]
    reducer: BinaryOp
    basis: tuple[Expr, ...]
    totals: tuple[Var, ...]
    old: tuple[Var, ...]
    new: tuple[Var, ...]
    update: tuple[Expr, ...]
    finish: Expr
    matrix: tuple[tuple[Expr, ...], ...] = ()
    extrapolate: tuple[Tag, ...] = ()
    conditions: tuple[Condition, ...] = ()
    consented: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()

    @property
    def kind(self) -> Kind:
        """Whether and how the totals are repaired."""
        if not self.moving:
            return Kind.NONE
        return Kind.SCALAR if len(self.basis) == 1 else Kind.MATRIX

    @property
    def moving(self) -> tuple[Tag, ...]:
        """The tags that the folded expressions read, which is why totals are repaired."""
        used = set(variables(*self.basis))
        return tuple(tag for tag in self.tags if tag.var in used)

    @property
    def deferred(self) -> bool:
        """True when part of g is applied after the loop."""
        return self.finish is not self.totals[0]

    def folded(self, tags: Sequence[Expr]) -> tuple[Expr, ...]:
        """The expressions to fold, with values for the tags."""
        mapping = self._tags(tags)
        return tuple(substitute(each, mapping) for each in self.basis)

    def repaired(
        self, totals: Sequence[Expr], old: Sequence[Expr], new: Sequence[Expr]
    ) -> tuple[Expr, ...]:
        """h: the totals that belong to the tags `new`, from those that belong to `old`."""
        mapping: dict[Expr, Expr] = {
            **dict(zip(self.totals, totals, strict=True)),
            **dict(zip(self.old, old, strict=True)),
            **dict(zip(self.new, new, strict=True)),
        }
        return tuple(substitute(each, mapping) for each in self.update)

    def finished(self, total: Expr, tags: Sequence[Expr]) -> Expr:
        """X, from the first total and the finished tags."""
        return substitute(self.finish, {**self._tags(tags), self.totals[0]: total})

    def explain(self) -> str:
        """The proof, as text of several lines."""
        return "\n".join(self.steps)

    def _tags(self, values: Sequence[Expr]) -> Mapping[Expr, Expr]:
        return dict(zip((tag.var for tag in self.tags), values, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Refusal:
    """Why no repair was found.

    Fields:
        reason: one sentence that names the sub-expression in the way.
        culprit: that sub-expression, over the tags' variables; None when there is no single one.
        residue: what is left of the proof, as text; empty when there is none.
        hint: what to do.
    """

    reason: str
    culprit: Expr | None = None
    residue: str = ""
    hint: str = ""

    def facts(self) -> tuple[tuple[str, str], ...]:
        """(label, text) lines for an error."""
        rows: list[tuple[str, str]] = []
        if self.culprit is not None:
            rows.append(("mixes", repr(self.culprit)))
        if self.residue:
            rows.append(("residue", self.residue))
        return tuple(rows)

    def explain(self) -> str:
        """The refusal, as text of several lines."""
        rows = [*self.facts(), *([("do", self.hint)] if self.hint else [])]
        return "\n".join([f"no repair: {self.reason}", *(f"  {a:<9} {b}" for a, b in rows)])
