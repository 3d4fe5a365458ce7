"""Shorten loops by their masks (causal attention skips blocks above the diagonal): iterations that
a mask makes idle are left out, and only blocks on the boundary keep the mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from tedsl.expr.index_arith import (
    ZERO,
    add,
    at_most,
    both,
    ceil_div,
    conjuncts,
    constant,
    floordiv,
    maximum,
    minimum,
    sub,
)
from tedsl.expr.nodes import Axis, AxisKind, Compare, CompareOp, Const, Expr, Var
from tedsl.expr.visit import axes_of, variables, walk
from tedsl.index.affine import coefficients
from tedsl.index.bounds import lower_bound, upper_bound
from tedsl.index.evaluate import EvaluationError, evaluate_int
from tedsl.index.facts import Facts, inequalities_of
from tedsl.index.intern import INDEX_DTYPES
from tedsl.index.interval import interval
from tedsl.index.linear import combine
from tedsl.index.prove import prove
from tedsl.index.simplify import simplify
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
    Dot,
    For,
    Func,
    Guard,
    Load,
    LoopKind,
    Meet,
    Stmt,
    Store,
)
from tedsl.ir.visit import map_sub_stmts, rewrite_stmts, sub_stmts, walk_stmts
from tedsl.lower.fresh_copies import fresh_copy
from tedsl.lower.passes.run_backwards import in_order
from tedsl.lower.passes.simplify import func_facts, sequence

# A loop nest is not copied more often than this on account of its masks.
MAX_COPIES = 4
# A loop of so few statements without a loop inside is unrolled rather than shortened.
FEW = 4
# Stands for a runtime size where it is asked how often a mask shortens a loop.
PLAUSIBLE = 1021


def shorten_loops(func: Func) -> Func:
    """Leave out the iterations of a serial loop that its masks make idle; in the middle, where the
    masks hold at every point, leave out the masks.

    Before:  for k in 0..n/64: for i, j: acc[i] += A[k*64 + j] if k*64 + j <= q*32 + i
    After:   for k in 0..q/2: for i, j: acc[i] += A[k*64 + j]
             for k in q/2..(q*32 + 31)/64 + 1: (as before)
    An iteration is idle when each statement that outlasts it has a mask or guard that fails at all
    points; with `For.masks_decide`, when every mask in it does.  The bounds come from conditions
    that are affine in the loop's axis; others stay masks.
    Requires: level NEST, simplified.   Ensures: the same values, combined in the same order.
    Order: before partition_loops, which splits what is left on account of guards.
    """
    body = _shortened(func.body, func_facts(func), frozenset(), 1)
    return func if body is func.body else replace(func, body=body)


def _shortened(stmt: Stmt, facts: Facts, lanes: frozenset[Axis], copies: int) -> Stmt:
    """Outer loops first: what is left of a mask may shorten the loops inside."""
    match stmt:
        case For(kind=LoopKind.SERIAL):
            found = _solved_loop(stmt, facts, lanes)
            if found is not None:
                parts = _parts(stmt, found, facts, copies)
                more = copies * len(parts)
                done = [_within(part, facts, lanes, more) for part in parts]
                return sequence(in_order(stmt, done))
            return _within(stmt, facts, lanes, copies)
        case For():
            lanes = lanes | {stmt.axis} if stmt.kind is LoopKind.VECTORIZED else lanes
            return _within(stmt, facts, lanes, copies)
        case Guard(condition=condition):
            inner = facts.assume(condition) if axes_of(condition).isdisjoint(lanes) else facts
            return map_sub_stmts(stmt, lambda s: _shortened(s, inner, lanes, copies))
        case _:
            return map_sub_stmts(stmt, lambda s: _shortened(s, facts, lanes, copies))


def _within(loop: For, facts: Facts, lanes: frozenset[Axis], copies: int) -> Stmt:
    inner = facts.with_axis(loop.axis, loop.start, loop.extent)
    return map_sub_stmts(loop, lambda s: _shortened(s, inner, lanes, copies))


@dataclass(frozen=True, slots=True, eq=False)
class _Condition:
    """Where a condition on a loop's axis holds: somewhere from `first` to before `end`, everywhere
    from `whole_first` to before `whole_end`; None where that side is open."""

    node: Expr
    guards: bool
    first: Expr | None
    end: Expr | None
    whole_first: Expr | None
    whole_end: Expr | None


@dataclass(frozen=True, slots=True, eq=False)
class _Effect:
    """A statement in a loop's body: the conditions it runs under, whether it has a mask, and
    whether its effect is seen after the iteration."""

    conditions: tuple[_Condition, ...]
    masked: bool
    lasting: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Solved:
    """The iterations `first .. end` that are not idle, and the conditions to split them by."""

    first: Expr
    end: Expr
    conditions: tuple[_Condition, ...]


def _solved_loop(loop: For, facts: Facts, lanes: frozenset[Axis]) -> _Solved | None:
    """The range of `loop`, or None when no mask says anything of it."""
    if not any(isinstance(s, Accumulate) and s.mask is not None for s in walk_stmts(loop.body)):
        return None
    trips = constant(loop.extent)
    inside = any(isinstance(s, For) for s in walk_stmts(loop.body))
    if trips is not None and trips <= FEW and not inside:
        return None
    walker = _Walker(loop.axis, lanes)
    inner = facts.with_axis(loop.axis, loop.start, loop.extent)
    walker.visit(loop.body, (), inner, (), frozenset())
    effects = walker.effects
    deciding = [e for e in effects if (e.masked if loop.masks_decide else e.lasting)]
    known = {c.node: c for effect in effects for c in effect.conditions}
    if not any(effect.masked and effect.conditions for effect in effects) or not deciding:
        return None
    first = _hull([[c.first for c in e.conditions] for e in deciding], maximum, minimum)
    end = _hull([[c.end for c in e.conditions] for e in deciding], minimum, maximum)
    if first is None and end is None and loop.axis.kind is not AxisKind.REDUCE:
        return None  # every iteration counts, and results are not computed by two loops for a mask
    low = loop.start if first is None else maximum(first, loop.start)
    high = loop.end if end is None else minimum(end, loop.end)
    return _Solved(simplify(low, facts), simplify(high, facts), tuple(known.values()))


_Join = Callable[[Expr, Expr], Expr]


def _hull(bounds: Sequence[Sequence[Expr | None]], narrow: _Join, widen: _Join) -> Expr | None:
    """The bound that each effect's conditions give together, over all effects; None when open."""
    found: list[Expr] = []
    for own in bounds:
        given = [bound for bound in own if bound is not None]
        if not given:
            return None
        found.append(reduce(narrow, given))
    return reduce(widen, found)


@dataclass(slots=True)
class _Walker:
    """Finds the effects of one iteration of the loop over `axis`."""

    axis: Axis
    lanes: frozenset[Axis]
    effects: list[_Effect]
    memo: dict[Expr, _Condition | None]

    def __init__(self, axis: Axis, lanes: frozenset[Axis]) -> None:
        self.axis, self.lanes = axis, lanes
        self.effects, self.memo = [], {}

    def visit(
        self,
        stmt: Stmt,
        inner: tuple[Axis, ...],
        facts: Facts,
        guards: tuple[Expr, ...],
        private: frozenset[Buffer],
    ) -> None:
        """Note the effects of `stmt`, in the loops `inner` and under `guards`."""
        match stmt:
            case For(axis=axis, start=start, extent=extent, body=body):
                facts = facts.with_axis(axis, start, extent)
                self.visit(body, (*inner, axis), facts, guards, private)
            case Guard(condition=condition, body=body):
                self.visit(body, inner, facts, (*guards, *conjuncts(condition)), private)
            case Allocate(buffer=buffer, body=body):
                self.visit(body, inner, facts, guards, private | {buffer})
            case Accumulate(buffers=buffers, mask=mask):
                own = () if mask is None else conjuncts(mask)
                lasting = not private.issuperset(buffers)
                solved = (
                    *self._solved(guards, inner, facts, True),
                    *self._solved(own, inner, facts),
                )
                self.effects.append(_Effect(solved, mask is not None, lasting))
            case Store(buffer=buffer) | Dot(buffer=buffer):
                solved = self._solved(guards, inner, facts, True)
                self.effects.append(_Effect(solved, False, buffer not in private))
            case Meet():
                self.effects.append(_Effect(self._solved(guards, inner, facts, True), False, True))
            case _:
                for child in sub_stmts(stmt):
                    self.visit(child, inner, facts, guards, private)

    def _solved(
        self,
        conditions: Sequence[Expr],
        inner: tuple[Axis, ...],
        facts: Facts,
        guards: bool = False,
    ) -> tuple[_Condition, ...]:
        for node in conditions:
            if node not in self.memo:
                found = _solved(node, self.axis, inner, self.lanes, facts)
                self.memo[node] = None if found is None else replace(found, guards=guards)
        solved = [self.memo[node] for node in conditions]
        return tuple(c for c in solved if c is not None)


def _solved(
    node: Expr, axis: Axis, inner: tuple[Axis, ...], lanes: frozenset[Axis], facts: Facts
) -> _Condition | None:
    """A condition that is affine in `axis`, solved for it while the axes `inner` run.

    c*axis + r >= 0  <=>  axis >= ceil(-r / c), c > 0;  axis < r // -c + 1, c < 0
    It holds somewhere for the greatest r, everywhere for the least.
    """
    match node:
        case Compare(op=op, a=a, b=b) if a.dtype in INDEX_DTYPES and op is not CompareOp.NE:
            pass
        case _:
            return None
    nodes = set(walk(node))
    if axis not in nodes or any(isinstance(n, Load) for n in nodes) or not lanes.isdisjoint(nodes):
        return None
    facts = facts.own()
    poly = facts.expander.poly
    some: list[tuple[bool, Expr]] = []
    every: list[tuple[bool, Expr]] = []
    for difference in inequalities_of(op, combine(poly(b), poly(a), -1)):
        expr = facts.expander.expression(difference)
        for bound, out in ((upper_bound, some), (lower_bound, every)):
            end = bound(expr, inner, facts)
            solved = None if end is None else _bound_of(end, axis, facts)
            if solved is None:
                return None
            out.append(solved)
    first, end = _ends(some)
    whole_first, whole_end = _ends(every)
    return _Condition(node, False, first, end, whole_first, whole_end)


def _ends(bounds: Sequence[tuple[bool, Expr]]) -> tuple[Expr | None, Expr | None]:
    first = [bound for is_first, bound in bounds if is_first]
    end = [bound for is_first, bound in bounds if not is_first]
    return (reduce(maximum, first) if first else None), (reduce(minimum, end) if end else None)


def _bound_of(expr: Expr, axis: Axis, facts: Facts) -> tuple[bool, Expr] | None:
    """(True, the first value of `axis`) or (False, the one after its last) with `expr >= 0`."""
    found = coefficients(expr, (axis,), facts)
    if found is None:
        return None
    scale, rest = found[0].get(axis, 0), found[1]
    if scale == 0:
        return None
    size = Const(abs(scale), rest.dtype)
    if scale > 0:
        return True, simplify(ceil_div(sub(ZERO, rest), size), facts)
    return False, simplify(add(floordiv(rest, size), 1), facts)


def _parts(loop: For, found: _Solved, facts: Facts, copies: int) -> list[For]:
    """The loop over its range; in up to three parts, of which the middle one has no solved mask."""
    first, end = found.first, found.end
    middle = _middle(found, facts)
    start, stop = middle.first, middle.end
    count = 1 + (start is not first) + (stop is not end)
    longest = interval(simplify(sub(stop, start), facts), facts).hi
    masks = replace(found, conditions=tuple(c for c in found.conditions if not c.guards))
    if count > 1 and _is_rare(loop, first, end, _middle(masks, facts), facts):
        return [loop]
    if count == 1 or longest == 0 or copies * count > MAX_COPIES:
        return [_part(loop, first, end, _holding(found, first, end, facts), facts)]
    parts = [(start, stop, {c.node for c in found.conditions})]
    if start is not first:
        parts.insert(0, (first, start, _holding(found, first, start, facts)))
    if stop is not end:
        parts.append((stop, end, _holding(found, stop, end, facts)))
    return [_fresh(_part(loop, low, high, true, facts)) for low, high, true in parts]


def _middle(found: _Solved, facts: Facts) -> _Solved:
    """The iterations in which every condition holds at every point; a bound that is that of
    `found` is the same object."""
    first, end = found.first, found.end
    firsts = [c.whole_first for c in found.conditions if c.whole_first is not None]
    ends = [c.whole_end for c in found.conditions if c.whole_end is not None]
    firsts = [bound for bound in firsts if not prove(at_most(bound, first), facts)]
    ends = [bound for bound in ends if not prove(at_most(end, bound), facts)]
    start = simplify(minimum(reduce(maximum, firsts, first), end), facts) if firsts else first
    stop = simplify(maximum(reduce(minimum, ends, end), start), facts) if ends else end
    return replace(found, first=start, end=stop)


def _fresh(loop: For) -> For:
    copy = fresh_copy(loop)
    return copy if isinstance(copy, For) else loop


def _is_rare(loop: For, first: Expr, end: Expr, middle: _Solved, facts: Facts) -> bool:
    """True when, half-way through the loops around, the masks neither shorten the loop nor split
    it: they cut off the overrun of a last iteration, which is not worth a second loop."""
    gaps = ((loop.start, first), (first, middle.first), (middle.end, end), (end, loop.end))
    try:
        return all(_halfway(low, facts) >= _halfway(high, facts) for low, high in gaps)
    except EvaluationError:
        return False


def _halfway(expr: Expr, facts: Facts) -> int:
    """The value of `expr` in the middle of all ranges, for some plausible sizes."""
    values: dict[Axis | Var, int] = {}
    for node in variables(expr):
        known = facts.range_of(node)
        if isinstance(node, Var) and node not in facts.ranges:
            values[node] = max(node.lower or 0, PLAUSIBLE)
        elif known is not None:
            trips = _halfway(known.extent, facts)
            values[node] = _halfway(known.min, facts) + trips // 2
    return evaluate_int(expr, values)


def _holding(found: _Solved, first: Expr, end: Expr, facts: Facts) -> set[Expr]:
    """The conditions that hold at every point of the iterations `first .. end`."""
    return {
        c.node
        for c in found.conditions
        if (c.whole_first is None or prove(at_most(c.whole_first, first), facts))
        and (c.whole_end is None or prove(at_most(end, c.whole_end), facts))
    }


def _part(loop: For, first: Expr, end: Expr, true: set[Expr], facts: Facts) -> For:
    """The iterations `first .. end` of a loop, without the conditions `true`."""
    body = _without(loop.body, true)
    if body is loop.body and _same(first, loop.start, facts) and _same(end, loop.end, facts):
        return loop
    return replace(loop, start=first, end=end, body=body)


def _same(a: Expr, b: Expr, facts: Facts) -> bool:
    return a is b or constant(simplify(sub(a, b), facts)) == 0


def _without(stmt: Stmt, true: set[Expr]) -> Stmt:
    """`stmt` without the conditions `true` in its guards and masks."""

    def kept(condition: Expr) -> Expr | None:
        left = [c for c in conjuncts(condition) if c not in true]
        return both(*left) if left else None

    def visit(node: Stmt) -> Stmt | None:
        match node:
            case Accumulate(mask=mask) if mask is not None and not true.isdisjoint(conjuncts(mask)):
                return replace(node, mask=kept(mask))
            case Guard(condition=condition, body=body) if not true.isdisjoint(conjuncts(condition)):
                left = kept(condition)
                return body if left is None else Guard(left, body)
            case _:
                return None

    return rewrite_stmts(stmt, visit) if true else stmt
