"""A repair on numbers: folds at random tags, repaired to others, against direct folds there; and
whole passes over elements of large and mixed sizes, in which nothing may overflow that the
definition does not let overflow.

Runs after the symbolic proof, in double precision, with the same numbers every time.  Integers are
those of their type, which wrap, drawn near the ends of their ranges as often as near 0.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr.nodes import Axis, BinaryOp, Expr, Reduce, TensorRead, Var
from tedsl.expr.visit import axes_of, walk
from tedsl.index.intern import Interner, structure
from tedsl.scheduling.algebra.counterexamples import NotEvaluated, Number, evaluate, wrapped
from tedsl.scheduling.algebra.rescaling import Repair, Sign, Tag
from tedsl.scheduling.algebra.wrapping import Span, whole
from tedsl.scheduling.memo import Memory

POINTS, _TRIES, _ELEMENTS = 8, 60, 5
TOLERANCE = 1e-8
_ADVERSE: tuple[tuple[float, ...], ...] = ((1.0,), (100.0,), (1e4,), (1e-3, 1.0, 100.0, 1e4))
_DRAWS = 4
_passes = Memory(512)


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """What is evaluated: `value` is g without consented casts and roundings, the rest as in
    `Repair`; `elements` and `parameters` are the other variables, `spans` the ranges of those that
    are integers."""

    value: Expr
    operator: BinaryOp
    tags: Sequence[Var]
    old: Sequence[Var]
    new: Sequence[Var]
    elements: Sequence[Var]
    parameters: Sequence[Var]
    signs: Mapping[Expr, Sign]
    basis: Sequence[Expr]
    totals: Sequence[Var]
    update: Sequence[Expr]
    finish: Expr
    spans: Mapping[Expr, Span]


def checked(trial: Trial) -> tuple[int, float]:
    """How many points could be evaluated, and the largest relative error at them."""
    rng = random.Random(0)
    done, worst = 0, 0.0
    for _ in range(_TRIES):
        try:
            worst = max(worst, _error(trial, rng))
        except NotEvaluated:
            continue
        done += 1
        if done == POINTS:
            break
    return done, worst


def _draw(var: Var, trial: Trial, rng: random.Random) -> Number:
    if var.dtype.is_bool:
        return rng.random() < 0.5
    if var.dtype.is_integer:
        return _draw_integer(trial.spans.get(var, whole(var.dtype)), rng)
    low, high = (-1.5, 1.5) if trial.signs[var] is Sign.ANY else (0.4, 2.5)
    return rng.uniform(low, high)


def _draw_integer(span: Span, rng: random.Random) -> Number:
    """Near 0, near either end, or anywhere."""
    low, high = span
    near = rng.choice((0, low, high, rng.randint(low, high))) + rng.randint(-2, 2)
    return Fraction(min(max(near, low), high))


def _fold(trial: Trial, expr: Expr, points: Sequence[dict[Expr, Number]]) -> tuple[Any, Any]:
    """The fold of `expr` over `points`, and the size of what was folded."""
    values = [_real(evaluate(expr, point), expr.dtype) for point in points]
    size = sum(map(abs, values))
    match trial.operator:
        case BinaryOp.ADD:
            return _real(sum(values), expr.dtype), size
        case BinaryOp.MIN:
            return min(values), size
        case _:
            return max(values), size


def _real(value: Number, dtype: DType = DType.float64) -> Any:
    """A float, or what an integer of `dtype` holds, which a float need not."""
    if isinstance(value, complex):
        raise NotEvaluated("a complex value")
    return wrapped(Fraction(value), dtype) if dtype.is_integer else float(value)


def _apart(a: Any, b: Any, size: Any) -> float:
    """The relative error; integers are equal or not."""
    if isinstance(a, Fraction) and a.denominator == 1 and isinstance(b, Fraction):
        return float(a != b)
    return float(abs(a - b) / max(size, 1e-300))


def _error(trial: Trial, rng: random.Random) -> float:
    shared = {v: _draw(v, trial, rng) for v in trial.parameters}
    elements = [{v: _draw(v, trial, rng) for v in trial.elements} for _ in range(_ELEMENTS)]
    before = [_draw(v, trial, rng) for v in trial.tags]
    after = [_draw(v, trial, rng) for v in trial.tags]
    here = dict(zip(trial.tags, before, strict=True))
    there = dict(zip(trial.tags, after, strict=True))
    at_old: list[dict[Expr, Number]] = [{**shared, **here, **each} for each in elements]
    at_new: list[dict[Expr, Number]] = [{**shared, **there, **each} for each in elements]
    known: dict[Expr, Number] = {
        **shared,
        **dict(zip(trial.old, before, strict=True)),
        **dict(zip(trial.new, after, strict=True)),
    }
    scale = 0.0
    for total, expr in zip(trial.totals, trial.basis, strict=True):
        known[total], size = _fold(trial, expr, at_old)
        scale = max(scale, size)
    worst, first = 0.0, Fraction(0)
    for k, (update, expr) in enumerate(zip(trial.update, trial.basis, strict=True)):
        repaired = _real(evaluate(update, known), update.dtype)
        direct, size = _fold(trial, expr, at_new)
        worst = max(worst, _apart(repaired, direct, max(size, scale)))
        first = direct if k == 0 else first
    last: dict[Expr, Number] = {**shared, **there, trial.totals[0]: first}
    finished = _real(evaluate(trial.finish, last), trial.finish.dtype)
    direct, size = _fold(trial, trial.value, at_new)
    return max(worst, _apart(finished, direct, size))


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One pass over elements: how many passes could be made, and the elements of one in which
    something overflows, as text; empty when there is none."""

    done: int
    overflow: str = ""


def adverse(repair: Repair, over: Collection[Axis], where: Expr | None) -> Pass:
    """Passes over elements of +-1, +-100, +-1e4 and mixed sizes, element by element; equal chains
    are tried once."""
    axes = frozenset(over)
    return _passes.get(_key(repair, axes, where), lambda: _adverse(repair, axes, where))


def _key(repair: Repair, over: frozenset[Axis], where: Expr | None) -> tuple[object, ...]:
    """All that the passes depend on: equal for chains that differ in names and tensors alone."""
    standing = (*(tag.var for tag in repair.tags), *repair.totals, *repair.old, *repair.new)
    known = {var: place for place, var in enumerate(standing)}
    leaves: dict[Expr, object] = {**known}
    same, numbers = Interner(), dict[Expr, int]()
    roots = _roots(repair, where)
    for leaf in _leaves(roots):
        if leaf not in known:
            number = numbers.setdefault(same.rep(leaf), len(numbers))
            moving = leaf in over, not axes_of(leaf).isdisjoint(over)
            tags = sorted(known[n] for n in walk(leaf) if isinstance(n, Var) and n in known)
            leaves[leaf] = (number, moving, tuple(tags))
    tags = tuple((t.order, t.source is None, t.only is None) for t in repair.tags)
    return repair.reducer, tags, len(repair.basis), where is None, structure(leaves, *roots)


def _roots(repair: Repair, where: Expr | None) -> list[Expr]:
    """All that is evaluated."""
    sources = [e for tag in repair.tags for e in (tag.source, tag.only) if e is not None]
    found = [repair.value, *repair.basis, *repair.update, repair.finish, *sources]
    return found if where is None else [*found, where]


def _adverse(repair: Repair, over: frozenset[Axis], where: Expr | None) -> Pass:
    rng, done = random.Random(1), 0
    for sizes in _ADVERSE:
        for _ in range(_DRAWS):
            run = _Run(repair, over, where, rng, sizes)
            try:
                direct = run.direct()
            except NotEvaluated:
                continue
            try:
                got = run.one_pass()
            except NotEvaluated as error:
                if isinstance(error.__cause__, OverflowError):
                    return Pass(done, run.text())
                continue
            if math.isfinite(direct) and not math.isfinite(got):
                return Pass(done, run.text())
            done += 1
    return Pass(done)


class _Run:
    """A chain over a few drawn elements: the tags are folded of them."""

    def __init__(
        self,
        repair: Repair,
        over: frozenset[Axis],
        where: Expr | None,
        rng: random.Random,
        sizes: Sequence[float],
    ) -> None:
        self.repair, self.where, self.rng, self.sizes = repair, where, rng, sizes
        self.vars = {tag.var for tag in repair.tags}
        self.taken: dict[Var, list[float | None]] = {}
        known = {*self.vars, *repair.totals, *repair.old, *repair.new}
        self.leaves = [leaf for leaf in _leaves(_roots(repair, where)) if leaf not in known]
        same, drawn = Interner(), list[dict[Expr, Number]]()
        shared: dict[Expr, Number] = {}
        for place in range(_ELEMENTS):
            own: dict[Expr, Number] = {}
            for leaf in self.leaves:
                rep = same.rep(leaf)
                moving = not over.isdisjoint(axes_of(leaf))
                table = own if moving else shared
                if rep not in table:
                    table[rep] = place if leaf in over else self.draw(leaf)
            drawn.append({leaf: {**shared, **own}[same.rep(leaf)] for leaf in self.leaves})
        self.points = drawn

    def draw(self, leaf: Expr) -> Number:
        if leaf.dtype.is_bool:
            return self.rng.random() < 0.5
        if isinstance(leaf, Axis):
            return self.rng.randrange(_ELEMENTS)
        if not leaf.dtype.is_float:
            return self.rng.randint(1, 4)
        size = self.rng.choice(self.sizes)
        return self.rng.choice((size, -size, self.rng.uniform(-size, size)))

    def counted(self, point: Mapping[Expr, Number], condition: Expr | None) -> bool:
        return condition is None or bool(evaluate(condition, point))

    def tags(self, count: int) -> dict[Var, Number]:
        """The tags of the first elements."""
        found: dict[Var, Number] = {}
        waiting = list(self.repair.tags)
        for _ in self.repair.tags:
            for tag in list(waiting):
                below = {t.var for t in self.repair.tags} - set(found)
                if tag.source is None:
                    raise NotEvaluated("a tag of unknown elements")
                if not below.isdisjoint(walk(tag.source)):
                    continue
                found[tag.var] = self.tag(tag, count, found)
                waiting.remove(tag)
        if waiting:
            raise NotEvaluated("tags that depend on each other")
        return found

    def tag(self, tag: Tag, count: int, known: Mapping[Var, Number]) -> float:
        if tag.source is None:
            raise NotEvaluated("a tag of unknown elements")
        values = [each for each in self.folded(tag, count, known) if each is not None]
        if not values:
            raise NotEvaluated("a tag of no elements")
        match tag.order:
            case BinaryOp.ADD:
                return sum(values)
            case BinaryOp.MAX:
                return max(values)
            case BinaryOp.MIN:
                return min(values)
            case _:
                raise NotEvaluated("a tag of another reducer")

    def folded(self, tag: Tag, count: int, known: Mapping[Var, Number]) -> list[float | None]:
        """What a tag takes of the first elements, None where it does not count one; of a tag that
        depends on no other, found once."""
        taken = self.taken.get(tag.var)
        if taken is not None:
            return taken[:count]
        assert tag.source is not None
        alone = self.vars.isdisjoint(walk(*(e for e in (tag.source, tag.only) if e is not None)))
        points: list[dict[Expr, Number]] = [
            {**point, **known} for point in (self.points if alone else self.points[:count])
        ]
        found = [
            _real(evaluate(tag.source, point)) if self.counted(point, tag.only) else None
            for point in points
        ]
        if alone:
            self.taken[tag.var] = found
        return found[:count]

    def fold(self, values: Sequence[float]) -> float:
        match self.repair.reducer:
            case BinaryOp.ADD:
                return sum(values)
            case BinaryOp.MIN:
                return min(values)
            case _:
                return max(values)

    def direct(self) -> float:
        """The definition."""
        last = self.tags(len(self.points))
        points: list[dict[Expr, Number]] = [{**point, **last} for point in self.points]
        kept = [point for point in points if self.counted(point, self.where)]
        if not kept:
            raise NotEvaluated("a fold of no elements")
        return self.fold([_real(evaluate(self.repair.value, point)) for point in kept])

    def one_pass(self) -> float:
        """The same by the repair."""
        repair, totals, old = self.repair, list[float](), list[Number]()
        shared = {leaf: self.points[0][leaf] for leaf in self.leaves}
        for count, point in enumerate(self.points, 1):
            now = self.tags(count)
            new = [now[tag.var] for tag in repair.tags]
            if totals:
                known: dict[Expr, Number] = {
                    **shared,
                    **dict(zip(repair.old, old, strict=True)),
                    **dict(zip(repair.new, new, strict=True)),
                    **dict(zip(repair.totals, totals, strict=True)),
                }
                totals = [_real(evaluate(update, known)) for update in repair.update]
            here: dict[Expr, Number] = {**point, **now}
            if self.counted(here, self.where):
                parts = [_real(evaluate(each, here)) for each in repair.basis]
                pairs = zip(totals, parts, strict=True)
                totals = [self.fold(pair) for pair in pairs] if totals else parts
            old = new
        if not totals:
            raise NotEvaluated("a fold of no elements")
        last: dict[Expr, Number] = {**shared, **self.tags(len(self.points))}
        return _real(evaluate(repair.finish, {**last, repair.totals[0]: totals[0]}))

    def text(self) -> str:
        """The floats that are folded, element by element."""
        read = [leaf for leaf in self.leaves if leaf.dtype.is_float]
        values = ([f"{float(point[leaf]):g}" for leaf in read] for point in self.points)
        return "; ".join(", ".join(each) for each in values)


def _leaves(roots: Sequence[Expr]) -> Iterator[Expr]:
    """What has a value of its own: reads, axes, variables."""
    seen: set[Expr] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, (TensorRead, Axis, Var, Reduce)):
            yield node
        else:
            stack.extend(node.children())
