"""Scans as prefixes of an associative combination: associative_scan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tedsl.expr.build import const
from tedsl.expr.index_arith import (
    add,
    as_index,
    at_most,
    both,
    ceil_div,
    constant,
    floordiv,
    floormod,
    less,
    mul,
    sub,
)
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Const,
    Expr,
    IfThenElse,
    Reduce,
    Reducer,
    TensorRead,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.expr.visit import axes_of, structural_equal, substitute
from tedsl.index.facts import Facts
from tedsl.index.prove import prove
from tedsl.index.simplify import simplify
from tedsl.ir.nodes import Scope
from tedsl.scheduling.algebra.counterexamples import with_rest
from tedsl.scheduling.algebra.step_combination import Combination, combination, scaled_sums
from tedsl.scheduling.plan import At, Plan, StagePlan, by_itself
from tedsl.scheduling.plan.copies import stage_name
from tedsl.scheduling.plan.graph import (
    data_axis_like,
    fresh_stage,
    insert_before,
    is_output,
    readers,
    reroute,
    rewrite_reads,
)
from tedsl.scheduling.plan.scan_structure import crossing
from tedsl.scheduling.primitives.arguments import computed_stage, size
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.graph_rewrites.cache import data_axis
from tedsl.scheduling.primitives.graph_rewrites.legality import (
    factor_place,
    require_loops_of_definition,
    require_no_marks,
)
from tedsl.scheduling.primitives.graph_rewrites.rfactor import reduce_axis
from tedsl.scheduling.primitives.placement.legality import require_places
from tedsl.tensor.compute import compute, placeholder
from tedsl.tensor.scan import scan as make_scan
from tedsl.tensor.scan_body import body_of
from tedsl.tensor.tensor import ComputeOp, PlaceholderOp, ScanOp, Tensor

Element: TypeAlias = Callable[[Expr, tuple[Expr, ...]], tuple[Expr, ...]]


def associative_scan(plan: Plan, call: Call, block: object, step_axis: object) -> tuple[Plan, str]:
    """S[t] = S[t - 1] . x[t] --> S.prefix[t] = fold of x[k], k <= t; S[t] = S.prefix[t]."""
    stage, op = computed_stage(plan, call, call.stage)
    if not isinstance(op, ScanOp):
        raise call.refuse(
            plan,
            f"{stage.name} is no scan",
            hint="a fold over k <= j is a running fold as it is: vectorize j and k",
        )
    length = None if block is None else size(plan, call, "block", block)
    place = factor_place(plan, call, len(op.axes) - 1, step_axis, "step_axis")
    _require_fresh(plan, call, stage, op)
    found = _combination(plan, call, stage, op)
    steps = _Steps.of(op, found, place)
    made = _Made(plan, stage.name)
    element = steps.whole(made) if length is None else steps.in_blocks(made, length)
    axes = tuple(map(data_axis_like, op.axes))
    final = ComputeOp(op.name, axes, steps.row(element, axes), op.shape, (), op.tag)
    after = plan.with_stage(
        replace(fresh_stage(stage.name, final), placement=by_itself(stage.placement))
    )
    after = reroute(after, dict(zip(op.outputs, final.outputs, strict=True)))
    for each in made.stages:
        after = insert_before(after, stage.name, each)

    def read(number: int, indices: tuple[Expr, ...]) -> Expr:
        return steps.row(element, indices)[number]

    after = rewrite_reads(after, dict.fromkeys(final.outputs, read))
    gone = {*(state.op for state in op.states), *body_of(op)}
    unread = [final, *dict.fromkeys(tensor.op for tensor in op.inits)]
    gone |= {each for each in unread if not readers(after, each) and not is_output(after, each)}
    lost = {each.name for each in after.stages if each.op in gone}
    for each in after.stages:
        host = each.placement.host
        if each.op not in gone and (host in lost or host == stage.name):
            after_it = "is no stage" if host in lost else "has other loops"
            raise call.refuse(
                plan,
                f"{each.name} is computed in a loop of {host}, which {after_it} afterwards",
                hint=f"call associative_scan before s[{each.name}].compute_at",
            )
    after = replace(after, stages=tuple(s for s in after.stages if s.op not in gone))
    require_places(plan, call, after)
    return after, made.stages[-1].name


def _require_fresh(plan: Plan, call: Call, stage: StagePlan, op: ScanOp) -> None:
    """Nothing has been said of the scan and its steps but what is inlined: it would be lost."""
    steps = frozenset(body_of(op))
    for part in (stage, *(each for each in plan.stages if each.op in steps)):
        if not part.placement.inlined:
            require_loops_of_definition(plan, call, part)
            require_no_marks(plan, call, part)


def _combination(plan: Plan, call: Call, stage: StagePlan, op: ScanOp) -> Combination:
    crossed = (crossing(op, place) for place in range(1, len(op.axes)))
    over = next((each for each in crossed if each is not None), None)
    rows = constant(op.first)
    if over is not None:
        found: Combination | str = f"{over}, an element at another place of an earlier step"
    elif rows != 1:
        found = f"{op.first} rows are given, and one is allowed"
    else:
        found = combination(op)
    if isinstance(found, Combination):
        return found
    raise call.refuse(
        plan,
        f"the steps of the scan {stage.name} are not known to combine terms in any order",
        facts=[("because", found)],
        hint="leave its steps in order, or write each step as state[t - 1] . x[t] with a . that is "
        "associative and commutative: + * min max & | ^, or the better one of two elements",
    )


class _Made:
    """The stages that a rewrite adds, producers first."""

    def __init__(self, plan: Plan, base: str) -> None:
        self._plan, self._base = plan, base
        self.stages: list[StagePlan] = []

    def name(self, suffix: str) -> str:
        """A name that no stage has."""
        return stage_name(self._plan, self._base, suffix)

    def add(self, op: ComputeOp | PlaceholderOp) -> None:
        """A stage with the loops of its definition."""
        self.stages.append(fresh_stage(op.name, op))

    def add_step(self, op: ComputeOp, scan: ScanOp) -> None:
        """A stage in the steps of a scan."""
        place = At(scan.name, scan.scan_axis)
        self.stages.append(replace(fresh_stage(op.name, op), placement=place, scope=Scope.LOCAL))


@dataclass(frozen=True, slots=True)
class _Steps:
    """What is folded: `count` terms, over `time` and the axes beside it; the row that the first of
    them makes is `offset`, which is 1 where the given row changes nothing."""

    reducer: Reducer
    terms: tuple[Expr, ...]
    time: Axis
    beside: tuple[Axis, ...]
    count: Expr
    offset: int
    sizes: tuple[Expr, ...]
    place: int
    summed: bool = False

    @staticmethod
    def of(op: ScanOp, found: Combination, place: int) -> _Steps:
        """The given row is the first term, where it is not the identity, or the only row."""
        steps = _Steps._of_states(op, found, place)
        if not found.summed:
            return steps
        (term,) = steps.terms
        sums = scaled_sums(term.dtype)
        return replace(steps, reducer=sums, terms=(term, const(1, term.dtype)), summed=True)

    @staticmethod
    def _of_states(op: ScanOp, found: Combination, place: int) -> _Steps:
        """The terms and their combination as the states are."""
        rows = op.output_shapes[0][0]
        sizes = op.output_shapes[0][1:]
        reducer, time = found.reducer, op.axes[0]
        if constant(rows) != 1 and all(map(_is_start, op.inits, reducer.identity)):
            here: dict[Expr, Expr] = {time: add(time, 1)}
            terms = tuple(substitute(term, here) for term in found.terms)
            return _Steps(
                reducer, terms, time, op.axes[1:], simplify(sub(rows, 1)), 1, sizes, place
            )
        pairs = zip(op.inits, found.terms, strict=True)
        terms = tuple(_with_first(init, term, op.axes) for init, term in pairs)
        return _Steps(reducer, terms, time, op.axes[1:], rows, 0, sizes, place)

    def whole(self, made: _Made) -> Element:
        """All terms in one fold over a triangle."""
        row, others = data_axis("t", self.count), self._others()
        k = reduce_axis("k", self.count)
        axes = self._with(row, others)
        fold = self._fold(made.name("prefix"), axes, k, at_most(k, row), k, others)
        made.add(fold)
        return lambda t, i: tuple(TensorRead(each, self._with(t, i)) for each in fold.outputs)

    def in_blocks(self, made: _Made, length: Expr) -> Element:
        """A fold over a triangle in each block, after what the blocks before it come to."""
        blocks = simplify(ceil_div(self.count, length))
        b, others = data_axis("b", blocks), self._others()
        k = reduce_axis("k", length)
        term = add(mul(b, length), k)
        held = less(term, self.count)
        axes = self._with(b, others)
        total = self._fold(made.name("total"), axes, k, held, term, others)
        before = self._before(made, total, blocks)
        row, others = data_axis("t", self.count), self._others()
        k = reduce_axis("k", length)
        term = add(mul(floordiv(row, length), length), k)
        where = both(at_most(k, floormod(row, length)), less(term, self.count))
        axes = self._with(row, others)
        fold = self._fold(made.name("prefix"), axes, k, where, term, others)
        made.add(fold)

        def element(t: Expr, i: tuple[Expr, ...]) -> tuple[Expr, ...]:
            a = tuple(TensorRead(each, (floordiv(t, length), *i)) for each in before)
            return self._joined(a, [TensorRead(each, self._with(t, i)) for each in fold.outputs])

        return element

    def row(self, element: Element, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """A row of the scan out of the folded elements."""
        about = axes_of(indices[0])
        t, beside = indices[0], indices[1:]
        if self.offset:
            t = sub(t, 1)
        found = tuple(_simpler(each, about) for each in element(_simpler(t, about), beside))
        start = self.reducer.identity
        if self.summed:
            largest, total = found
            found = (Binary(BinaryOp.ADD, largest, Unary(UnaryOp.LOG, total)),)
            start = start[:1]
        if not self.offset or prove(less(as_index(0), indices[0]), Facts.EMPTY):
            return found
        test = less(indices[0], 1)
        pairs = zip(start, found, strict=True)
        return tuple(IfThenElse(test, start, row) for start, row in pairs)

    def _with(self, step: Expr, beside: tuple[Expr, ...]) -> tuple[Any, ...]:
        """Indices of a fold."""
        return (*beside[: self.place], step, *beside[self.place :])

    def _others(self) -> tuple[Axis, ...]:
        return tuple(map(data_axis_like, self.beside))

    def _fold(
        self,
        name: str,
        axes: tuple[Axis, ...],
        k: Axis,
        where: Expr,
        term: Expr,
        others: Sequence[Axis],
    ) -> ComputeOp:
        here: dict[Expr, Expr] = {self.time: term, **dict(zip(self.beside, others, strict=True))}
        about = frozenset((*axes, k)) - {*others}
        sources = tuple(_simpler(substitute(each, here), about) for each in self.terms)
        fold = Reduce(self.reducer, sources, (k,), where)
        bodies = tuple(replace(fold, index=n) for n in range(len(sources)))
        shape = tuple(axis.domain.extent for axis in axes if axis.domain is not None)
        return ComputeOp(name, axes, bodies, shape, (k,))

    def _joined(self, a: Sequence[Expr], b: Sequence[Expr]) -> tuple[Expr, ...]:
        reducer = with_rest(self.reducer)
        names = (*reducer.lhs, *reducer.rhs)
        here: dict[Expr, Expr] = dict(zip(names, (*a, *b), strict=True))
        return tuple(substitute(each, here) for each in reducer.combine)

    def _before(self, made: _Made, total: ComputeOp, blocks: Expr) -> tuple[Tensor, ...]:
        """What all blocks before each come to: a scan again."""
        shape = (blocks, *self.sizes)
        dtypes = [each.dtype for each in self.reducer.lhs]
        states = [
            placeholder(shape, dtype, name=made.name(f"before.state{n}"))
            for n, dtype in enumerate(dtypes)
        ]

        def following(*i: Axis) -> tuple[Expr, ...]:
            past = (sub(i[0], 1), *i[1:])
            a = tuple(TensorRead(state, past) for state in states)
            at = self._with(past[0], past[1:])
            ended = (TensorRead(each, at) for each in total.outputs)
            pairs = zip(ended, self.reducer.identity, strict=True)
            some = less(
                as_index(0), i[0]
            )  # the first row is given, and what comes before it is not there
            return self._joined(a, tuple(IfThenElse(some, b, start) for b, start in pairs))

        init = compute((1, *self.sizes), lambda *_: self.reducer.identity, name=made.name("first"))
        step = compute(shape, following, name=made.name("step"))
        found = make_scan(list(init), list(step), states, name=made.name("before"))
        assert isinstance(found, list)  # as lists are given
        results = tuple(found)
        op = results[0].op
        assert isinstance(op, ScanOp)
        for each in (total, *dict.fromkeys(t.op for t in op.inits), *(s.op for s in states)):
            assert isinstance(each, (ComputeOp, PlaceholderOp))
            made.add(each)
        for each in body_of(op):
            made.add_step(each, op)
        made.add(op)
        return results


def _simpler(expr: Expr, about: Collection[Axis]) -> Expr:
    """`expr` simplified by the domains of some axes; others stay indices, those of one element,
    too."""
    held: dict[Expr, Expr] = {a: Var(a.name, a.dtype) for a in axes_of(expr) if a not in about}
    back = {variable: axis for axis, variable in held.items()}
    return substitute(simplify(substitute(expr, held)), back)


def _with_first(init: Tensor, term: Expr, axes: Sequence[Axis]) -> Expr:
    """The term of each row, with the given row as the first; where that is the term there, too,
    nothing is chosen."""
    place = (as_index(0), *axes[1:])
    if isinstance(init.op, ComputeOp) and not init.op.reduce_axes:
        body = substitute(init.op.bodies[init.index], dict(zip(init.op.axes, place, strict=True)))
        there = simplify(substitute(term, {axes[0]: as_index(0)}))
        if structural_equal(simplify(body), there):
            return term
    return IfThenElse(less(axes[0], 1), TensorRead(init, place), term)


def _is_start(init: Tensor, identity: Expr) -> bool:
    """True when the given row is the identity itself."""
    body = init.op.bodies[init.index] if isinstance(init.op, ComputeOp) else None
    return isinstance(body, Const) and isinstance(identity, Const) and body.value == identity.value
