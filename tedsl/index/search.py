"""Bounded, deterministic search for a point inside `Facts` where a condition has a given truth."""

from __future__ import annotations

from collections.abc import Iterator

from tedsl.expr.nodes import Axis, Const, Expr, Var
from tedsl.expr.visit import variables, walk
from tedsl.index.evaluate import EvaluationError, evaluate_int
from tedsl.index.facts import Facts, Interval
from tedsl.index.interval import interval

Point = dict[Axis | Var, int]

_WIDTHS = (2, 4, 8)  # candidates of each variable, round by round
_MAX_POINTS = 400  # in each round
_MAX_ENUMERATION = 2048
_MAX_DEAD_ENDS = 1000  # in each round: partial points that leave a variable without a value
_SAMPLES = (0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 127, 128, 129, 1000, 1024)


def find_point(cond: Expr, wanted: bool, facts: Facts) -> Point | None:
    """A point inside `facts` where `cond` is `wanted`."""
    search = _prepare(cond, wanted, facts)
    for width in _WIDTHS:
        found = search.run(width)
        if found is not None:
            return {axis: found[axis] for axis in _variables_in_order((cond,), facts)}
    found = search.run(0) if search.is_small() else None
    if found is None:
        return None
    return {axis: found[axis] for axis in _variables_in_order((cond,), facts)}


def refuted_at_corner(cond: Expr, facts: Facts) -> bool:
    """Whether a corner of the ranges, or a point that cannot be judged, speaks against `cond`."""
    if any(facts.interner.is_data(truth) for truth in facts.truths):
        return True
    return facts.interner.is_data(cond) or _prepare(cond, False, facts).run(2) is not None


def _prepare(cond: Expr, wanted: bool, facts: Facts) -> _Search:
    known = tuple(facts.truths.items())
    order = _variables_in_order((cond, *(truth for truth, _ in known)), facts)
    constants = sorted({n for n in map(_integer_value, walk(cond)) if n is not None})
    return _Search(cond, wanted, facts, known, order, constants)


def _integer_value(node: Expr) -> int | None:
    if not isinstance(node, Const) or isinstance(node.value, float):
        return None
    return int(node.value)


def _variables_in_order(roots: tuple[Expr, ...], facts: Facts) -> tuple[Axis | Var, ...]:
    """The variables below `roots` and in their ranges, each after those that its range depends
    on."""
    order: dict[Axis | Var, None] = {}
    active: set[Expr] = set()

    def add(axis: Axis | Var) -> None:
        if axis in order or axis in active:
            return
        active.add(axis)
        known = facts.range_of(axis)
        if known is not None:
            for other in variables(known.min, known.extent):
                add(other)
        order[axis] = None

    found = variables(*roots)
    for axis in sorted(found, key=lambda v: isinstance(v, Axis)):  # sizes first, else as they occur
        add(axis)
    return tuple(order)


class _Search:
    def __init__(
        self,
        cond: Expr,
        wanted: bool,
        facts: Facts,
        known: tuple[tuple[Expr, bool], ...],
        order: tuple[Axis | Var, ...],
        constants: list[int],
    ) -> None:
        self.cond, self.wanted, self.facts = cond, wanted, facts
        self.known, self.order, self.constants = known, order, constants
        self.budget = self.dead_ends = 0

    def run(self, width: int) -> Point | None:
        """One round with `width` values of each variable; with all values for width 0, if they are
        few.
        """
        self.budget = _MAX_POINTS if width else _MAX_ENUMERATION
        self.dead_ends = _MAX_DEAD_ENDS
        return self._assign({}, 0, width)

    def is_small(self) -> bool:
        """Whether there are few points in all."""
        count = 1
        for axis in self.order:
            lo, hi = interval(axis, self.facts)
            if lo is None or hi is None:
                return False
            count *= max(hi - lo + 1, 1)
        return count <= _MAX_ENUMERATION

    def _assign(self, point: Point, index: int, width: int) -> Point | None:
        if self.budget <= 0 or self.dead_ends <= 0:
            return None
        if index == len(self.order):
            self.budget -= 1
            return dict(point) if self._fits(point) else None
        axis = self.order[index]
        for value in self._values(axis, point, width):
            point[axis] = value
            found = self._assign(point, index + 1, width)
            if found is not None:
                return found
        if axis not in point:
            self.dead_ends -= 1
        point.pop(axis, None)
        return None

    def _fits(self, point: Point) -> bool:
        try:
            if any(bool(evaluate_int(cond, point)) != truth for cond, truth in self.known):
                return False
            return bool(evaluate_int(self.cond, point)) == self.wanted
        except EvaluationError:
            return False

    def _values(self, axis: Axis | Var, point: Point, width: int) -> Iterator[int]:
        limits = self._limits(axis, point)
        lo, hi = limits
        if lo is not None and hi is not None and hi - lo < max(width, 3):
            yield from range(lo, hi + 1)
            return
        if width == 0:
            if lo is not None and hi is not None:
                yield from range(lo, min(hi, lo + _MAX_ENUMERATION) + 1)
            else:
                yield from (v for v in (*_SAMPLES, -1) if limits.contains(v))
            return
        tried: dict[int, None] = {}
        for value in self._candidates(lo, hi):
            if limits.contains(value):
                tried.setdefault(value)
                if len(tried) == width:
                    break
        yield from tried

    def _candidates(self, lo: int | None, hi: int | None) -> Iterator[int]:
        if lo is not None and hi is not None:
            yield from (hi, lo, hi - 1, lo + 1)
        elif lo is not None:
            yield from (max(lo, 1) + 6, lo + 1, lo, lo + 63)
        elif hi is not None:
            yield from (hi, hi - 1, hi - 7, hi - 64)
        else:
            yield from (0, -1, 1, 100)
        for constant in self.constants:
            yield from (constant, constant - 1, constant + 1)
        if lo is not None and hi is not None:
            yield from (lo + (hi - lo) // 2, lo + (hi - lo) // 3)
        yield from _SAMPLES

    def _limits(self, axis: Axis | Var, point: Point) -> Interval:
        found = self.facts.bounds.get(axis, Interval(None, None))
        if isinstance(axis, Var):
            found = found.meet(Interval(axis.lower, None))
        known = self.facts.range_of(axis)
        if known is None:
            return found
        try:
            low = evaluate_int(known.min, point)
            high = low + evaluate_int(known.extent, point) - 1
        except EvaluationError:
            return Interval(0, -1)
        return found.meet(Interval(low, high))
