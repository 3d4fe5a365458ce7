"""The repairs of a chain of reductions, and the expressions that apply them.

Joins `chain` (what depends on what) with `algebra.derive` (how a value follows); used by the
primitives that compute a chain in one pass.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tedsl.expr.build import select
from tedsl.expr.index_arith import ZERO, at, both, conjuncts, less
from tedsl.expr.nodes import (
    Axis,
    Before,
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Const,
    Expr,
    Folded,
    IfThenElse,
    Reduce,
    Reducer,
    TensorRead,
    Var,
)
from tedsl.expr.numerics import Value, xp
from tedsl.expr.promote import make_const
from tedsl.expr.visit import axes_of, reads, rewrite, structural_equal, substitute, walk
from tedsl.index.facts import Facts
from tedsl.index.prove import prove
from tedsl.reference.evaluate import Block
from tedsl.scheduling.algebra.associativity import component_operator
from tedsl.scheduling.algebra.rescaling import Kind, Refusal, Repair, Sign, Tag
from tedsl.scheduling.algebra.signs import fold_sign, sign_of, started_sign, weaker
from tedsl.scheduling.algebra.tuple_rescaling import adds, joined
from tedsl.scheduling.memo import Memory
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.graph_rewrites.legality import reduction
from tedsl.scheduling.primitives.online.chain import (
    Chain,
    TagReads,
    all_with_tags,
    expanded,
    kept,
    reduce_of,
    with_tags,
)
from tedsl.scheduling.primitives.online.legality import (
    refuse_repair,
    require_no_init,
    require_no_tags_in_where,
)
from tedsl.tensor.tensor import ComputeOp, Operation, Tensor

_PROBES = (-1e4, -1.0, 0.0, 1.0, 1e4)


@dataclass(frozen=True, slots=True)
class Consent:
    """What the user takes as exact, how long a derivation may take, and by how much what repairs
    follow may lag behind (as given; see `lazy_rescaling`)."""

    casts: bool = False
    rounding: bool = False
    time_limit: float = 2.0
    lag: object = None


@dataclass(frozen=True, slots=True, eq=False)
class Derived:
    """The derivation for the reduction `owner`: with pointwise producers written out (`full`), and
    what was split off before (`split`, when part of the value leaves the loop while its producers
    stay)."""

    owner: Operation
    tags: TagReads
    full: Repair
    split: tuple[TagReads, Repair] | None

    @property
    def proof(self) -> str:
        """What was proved, as text."""
        first = "" if self.split is None else self.split[1].explain() + "\n"
        return first + self.full.explain()


_derived = Memory(64)


def derive_chain(
    plan: Plan, call: Call, chain: Chain, consent: Consent, *, finished: bool
) -> Mapping[str, Derived]:
    """The repairs of the reductions of a chain that depend on others, by stage.

    With `finished` all of them are read when they are finished; otherwise the members are read
    while they are folded, and nothing of theirs can be left for the end.  What was derived for the
    same operations before, in whatever schedule, is not derived again.
    """
    key = (
        tuple((stage.name, stage.op) for stage in (*chain.members, chain.last)),
        frozenset(s.op for s in plan.stages if s.placement.inlined),
        (consent.casts, consent.rounding, consent.time_limit),
        finished,
    )
    return _derived.get(key, lambda: _derive_chain(plan, call, chain, consent, finished))


def _derive_chain(
    plan: Plan, call: Call, chain: Chain, consent: Consent, finished: bool
) -> Mapping[str, Derived]:
    """The same, of operations that are new."""
    members, stays = {stage.op for stage in chain.members}, kept(plan, chain)
    signs: dict[Tensor, Sign] = {}
    found: dict[str, Derived] = {}
    for stage in (*chain.members, chain.last):
        _, reduce = reduction(plan, call, stage)
        values = [expanded(source, stays) for source in reduce.sources]
        tags = all_with_tags(values, members, reduce.axes)
        if reduce.where is not None:
            where = with_tags(expanded(reduce.where, stays), members, reduce.axes)
            require_no_tags_in_where(plan, call, stage, where)
        if tags[0].reads:
            require_no_init(plan, call, stage, reduce)
            whole = finished or stage is chain.last
            result = _derive(plan, stage.op, reduce, tags, (members, stays), signs, consent, whole)
            if isinstance(result, Refusal):
                raise refuse_repair(plan, call, stage, result)
            found[stage.name] = result
        bodies = stage.op.bodies if isinstance(stage.op, ComputeOp) else ()
        for tensor, body in zip(stage.op.outputs, bodies, strict=True):
            place = body.index if isinstance(body, Reduce) else 0
            value = _sign(expanded(reduce.sources[place], members), signs, reduce, stays)
            signs[tensor] = _sign_of_fold(reduce, place, value)
    return found


def _sign_of_fold(reduce: Reduce, place: int, value: Sign) -> Sign:
    """The sign of a result of a reduction, of at least one element where it has any, from that of
    what it folds."""
    operator = BinaryOp.ADD if adds(reduce.reducer) else reduce.reducer.operator
    sign = fold_sign(operator, value, reduce.sources[place].dtype)
    if reduce.init:
        sign = started_sign(operator, sign, sign_of(reduce.init[place]))
    return sign if _takes_one(reduce) else weaker(sign)


def _sign(
    value: Expr, signs: Mapping[Tensor, Sign], reader: Reduce, stays: Collection[Operation]
) -> Sign:
    """The sign of an element that `reader` folds."""
    known: dict[Expr, Sign] = {}
    for read in reads(value):
        own = reduce_of(read.tensor.op)
        if own is None or not isinstance(read.tensor.op, ComputeOp):
            continue
        if read.tensor in signs:
            with_it = _folded_with(own, _places(read, own, reader), reader, stays)
            known[read] = signs[read.tensor] if with_it else weaker(signs[read.tensor])
        elif _has_elements(own):  # finished before, such as the partial results of lanes
            body = read.tensor.op.bodies[read.tensor.index]
            place = body.index if isinstance(body, Reduce) else 0
            element = sign_of(expanded(own.sources[place], stays))
            known[read] = _sign_of_fold(own, place, element)
    return sign_of(value, known)


def _has_elements(reduce: Reduce) -> bool:
    """Whether the axes of a reduction are of at least one element at all sizes."""
    extents = [axis.domain.extent for axis in reduce.axes if axis.domain is not None]
    return len(extents) == len(reduce.axes) and all(prove(less(ZERO, e)) for e in extents)


def _takes_one(reduce: Reduce) -> bool:
    """Whether a reduction folds its first point, whatever else it leaves out."""
    if reduce.where is None:
        return True
    first: dict[Expr, Expr] = {a: a.domain.min for a in reduce.axes if a.domain is not None}
    return prove(substitute(reduce.where, first))


def _folded_with(
    own: Reduce, places: Mapping[Expr, Expr], reader: Reduce, stays: Collection[Operation]
) -> bool:
    """Whether a reduction has folded each point that `reader` has, so that its partial result is of
    at least one element."""
    if own.where is None:
        return True
    if reader.where is None:
        return False
    theirs = conjuncts(expanded(reader.where, stays))
    return all(
        any(structural_equal(each, other) for other in theirs)
        for each in conjuncts(substitute(expanded(own.where, stays), places))
    )


def _places(read: TensorRead, own: Reduce, reader: Reduce) -> dict[Expr, Expr]:
    """The axes of a reduction that is read, as the reader has them."""
    op = read.tensor.op
    assert isinstance(op, ComputeOp)
    return {
        **at(op.axes, read.indices),
        **dict(zip(own.axes, reader.axes, strict=True)),
    }


def _derive(
    plan: Plan,
    owner: Operation,
    reduce: Reduce,
    tags: Sequence[TagReads],
    stops: tuple[Collection[Operation], Collection[Operation]],
    signs: Mapping[Tensor, Sign],
    consent: Consent,
    defer: bool,
) -> Derived | Refusal:
    """First split off what leaves the loop, with the stages between as they are; then the rest with
    all of them written out, down to the members and to what stays (`stops`).  Nothing leaves it
    without `defer`, or of several sums."""

    # Loaded at the first chain: it is large, and few programs have one.
    engine = importlib.import_module("tedsl.scheduling.algebra.derive")
    derive_repair: Callable[..., Repair | Refusal] = engine.derive_repair

    several, (members, stays) = len(tags) > 1 and adds(reduce.reducer), stops

    def repair(found: TagReads, defer: bool) -> Repair | Refusal:
        return derive_repair(
            found.value,
            [
                _tag(read, var, signs, found, reduce, stays)
                for read, var in zip(found.reads, found.names, strict=True)
            ],
            BinaryOp.ADD if several else reduce.reducer,
            reduce.axes,
            consent_casts=consent.casts,
            consent_rounding=consent.rounding,
            defer=defer,
            time_limit=consent.time_limit,
            where=None if reduce.where is None else expanded(reduce.where, stays),
        )

    if several:
        repairs: list[Repair] = []
        for each in tags:
            result = repair(each, False)
            if isinstance(result, Refusal):
                return result
            repairs.append(result)

        def same(a: Expr, b: Expr) -> bool:
            return structural_equal(a, b) or engine.same_value(
                a, b, repairs[0].tags, reduce.axes, time_limit=consent.time_limit
            )

        return Derived(owner, tags[0], joined(repairs, same), None)
    near = with_tags(expanded(reduce.sources[0], members, plan), members, reduce.axes)
    first = repair(near, True) if defer else None
    if isinstance(first, Repair) and first.deferred and first.kind is not Kind.MATRIX:
        rest = near.restored(first.basis[0])
        inner = with_tags(expanded(rest, stays), members, reduce.axes)
        second = repair(inner, False)
        if isinstance(second, Repair):
            return Derived(owner, inner, second, (near, first))
    whole = repair(tags[0], defer)
    return whole if isinstance(whole, Refusal) else Derived(owner, tags[0], whole, None)


def _tag(
    read: TensorRead,
    var: Var,
    signs: Mapping[Tensor, Sign],
    tags: TagReads,
    reader: Reduce,
    stays: Collection[Operation],
) -> Tag:
    """What is known of a result that is read: over the axes of what reads it, whose other tags are
    variables."""
    tensor = read.tensor
    sign, own = signs.get(tensor, Sign.ANY), reduce_of(tensor.op)
    body = tensor.op.bodies[tensor.index] if isinstance(tensor.op, ComputeOp) else None
    if own is None or not isinstance(body, Reduce) or not isinstance(tensor.op, ComputeOp):
        return Tag(var, None, sign)
    operator = own.reducer.operator
    ordered = component_operator(own.reducer, body.index) if operator is None else None
    places = _places(read, own, reader)
    if not _folded_with(own, places, reader, stays):
        sign = weaker(sign)

    def here(value: Expr) -> Expr:
        """A value of the other reduction where this one reads it."""
        moved = substitute(expanded(value, stays), places)
        return rewrite(moved, lambda node: _variable(node, tags))

    only = None if own.where is None else here(own.where)
    return Tag(var, operator, sign, here(own.sources[body.index]), only, ordered)


def _variable(node: Expr, tags: TagReads) -> Expr | None:
    """The variable of a tag."""
    if isinstance(node, TensorRead):
        for read, var in zip(tags.reads, tags.names, strict=True):
            if structural_equal(read, node):
                return var
    return None


def started(reduce: Reduce) -> Reduce:
    """A maximum (minimum) that starts from the lowest (highest) finite value: no inf - inf."""
    start = _finite_start(reduce)
    return reduce if start is None or reduce.init else replace(reduce, init=(start,))


def _finite_start(reduce: Reduce) -> Const | None:
    operator, dtype = reduce.reducer.operator, reduce.sources[0].dtype
    if operator not in (BinaryOp.MAX, BinaryOp.MIN) or not dtype.is_float:
        return None
    limits = dtype.info
    return Const(limits.lowest if operator is BinaryOp.MAX else limits.highest, dtype)


def over_folded(repair: Repair) -> Expr:
    """What is applied at the end, to the first folded value."""
    total = repair.totals[0]
    return substitute(repair.finish, {total: Folded(0, total.dtype)})


def held(reduce: Reduce) -> Expr | None:
    """Under what a result has anything to fold, of what no element has a part in: tags may be read
    inside of that alone, where a layout has padding."""
    if reduce.where is None:
        return None
    folded = frozenset(reduce.axes)
    each = [c for c in conjuncts(reduce.where) if folded.isdisjoint(axes_of(c)) and not reads(c)]
    return both(*each) if each else None


def unless_empty(finish: Expr | None, reduce: Reduce) -> Expr | None:
    """`finish`, and the first folded value as it is where the definition has nothing to fold: a sum
    of no quotients is 0, no quotient of sums is."""
    if finish is None:
        return None
    extents = [axis.domain.extent for axis in reduce.axes if axis.domain is not None]
    needed = [c for e in extents if not prove(c := less(ZERO, e), Facts.EMPTY)]
    nothing = Folded(0, finish.dtype)
    finish = select(both(*needed), finish, nothing) if needed else finish
    only = held(reduce)
    return finish if only is None else IfThenElse(only, finish, nothing)


def updates(
    repair: Repair, tags: TagReads, reduce: Reduce, followed: Sequence[Expr]
) -> tuple[Expr, ...]:
    """What becomes of the values folded so far, one for each of the basis, when what they follow
    (the reads of the tags, or of references to them) moves."""
    totals = [Folded(n, total.dtype) for n, total in enumerate(repair.totals)]
    return _moved(repair, tags, reduce, totals, [Before(r) for r in followed], followed, totals)


def last_repair(repair: Repair, tags: TagReads, reduce: Reduce, followed: Sequence[Expr]) -> Expr:
    """The first folded value, moved on from the references `followed` to the tags."""
    totals = [Folded(n, total.dtype) for n, total in enumerate(repair.totals)]
    return _moved(repair, tags, reduce, totals, followed, tags.reads, totals)[0]


def merged(
    repair: Repair,
    tags: TagReads,
    reduce: Reduce,
    totals: Sequence[Expr],
    old: Sequence[Expr],
) -> tuple[Expr, ...]:
    """What a part with the folded values `totals`, which belong to the tags `old`, adds to the
    whole: one value for each that the reduction folds."""
    # Of several totals an empty part adds numbers, so that a later repair sees what they share.
    nothing = _zeros(totals) if len(totals) > 1 else totals
    moved = _moved(repair, tags, reduce, totals, old, tags.reads, nothing)
    return moved[: len(reduce.sources)]


def _moved(
    repair: Repair,
    tags: TagReads,
    reduce: Reduce,
    totals: Sequence[Expr],
    old: Sequence[Expr],
    new: Sequence[Expr],
    nothing: Sequence[Expr],
) -> tuple[Expr, ...]:
    """h of the totals, from the tags `old` to `new`; while nothing has been folded, `nothing`,
    which has the values of the totals there."""
    if repair.kind is Kind.NONE:
        return tuple(totals)
    moved = repair.repaired(totals, old, new)
    moved = tuple(tags.restored(each) for each in moved)
    if _keeps_identity(repair, tags, reduce):
        return moved
    start = _zeros(totals) if len(totals) > 1 else list(reduce.reducer.identity)
    empty = both(*(Compare(CompareOp.EQ, t, e) for t, e in zip(totals, start, strict=True)))
    return tuple(select(empty, a, b) for a, b in zip(nothing, moved, strict=True))


def _keeps_identity(repair: Repair, tags: TagReads, reduce: Reduce) -> bool:
    """True when h leaves the reducer's identity alone as the tags leave their finite start.

    Tried on numbers, where h depends on nothing but maxima and minima.
    """
    starts = [_finite_start(own) for r in tags.reads if (own := reduce_of(r.tensor.op)) is not None]
    if len(repair.totals) > 1 or any(start is None for start in starts):
        return False
    known = {*repair.totals, *repair.old, *repair.new}
    if any(isinstance(node, (TensorRead, Axis)) for node in walk(*repair.update)):
        return False
    if any(isinstance(node, Var) and node not in known for node in walk(*repair.update)):
        return False
    (identity,) = reduce.reducer.identity
    old = [start for start in starts if start is not None]
    tried = (
        repair.repaired([identity], old, [Const(probe, start.dtype) for start in old])[0]
        for probe in _PROBES
    )
    with xp.errstate(all="ignore"):
        return all(bool(_number(h) == _number(identity)) for h in tried)


def _number(expr: Expr) -> Value:
    return Block({}, 0, {}, {})(expr)


def sums(sources: Sequence[Expr]) -> Reducer:
    """The reducer that adds tuples, place by place."""
    lhs = tuple(Var(f"x{n}", s.dtype) for n, s in enumerate(sources))
    rhs = tuple(Var(f"y{n}", s.dtype) for n, s in enumerate(sources))
    combine = tuple(Binary(BinaryOp.ADD, a, b) for a, b in zip(lhs, rhs, strict=True))
    return Reducer("sums", lhs, rhs, combine, tuple(_zeros(sources)))


def _zeros(values: Sequence[Expr]) -> list[Const]:
    return [make_const(0, value.dtype) for value in values]
