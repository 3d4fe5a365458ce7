"""Chains of dependent reductions: which reductions a value depends on, and that value written out.

`T = sum(k)(exp(X[k] - m) / l)` depends on `m = max(k)(X[k])` and on `l`, which itself depends on
`m`; pointwise stages may stand between.  Imports `expr` and the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tedsl.expr.index_arith import at
from tedsl.expr.nodes import Axis, Expr, Folded, Reduce, TensorRead, Var
from tedsl.expr.visit import axes_of, rewrite, structural_equal, substitute, walk
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.graph import is_reduction, reroute, tensors_read
from tedsl.scheduling.plan.links import operations_read
from tedsl.tensor.tensor import ComputeOp, Operation


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """The stages that one loop over a reduction can compute together.

    `members` are the reductions that `last` depends on, over the same domain, producers first;
    `between` are the pointwise stages through which they are read.
    """

    last: StagePlan
    members: tuple[StagePlan, ...]
    between: tuple[StagePlan, ...]


def reduce_of(op: Operation) -> Reduce | None:
    """The reduction an operation is, if it is one."""
    body = op.bodies[0] if isinstance(op, ComputeOp) else None
    return body if isinstance(body, Reduce) else None


def chain_of(plan: Plan, last: StagePlan, along: Collection[str] = ()) -> Chain:
    """The chain that ends in the reduction `last`.

    A reduction belongs to it when `last` or another member reads it at one value for a whole fold,
    its axes have the domains of `last`'s, and it is at root.  The stages named in `along` are
    members too, and what they depend on in this way.
    """
    end = reduce_of(last.op)
    if end is None:
        return Chain(last, (), ())
    members: set[Operation] = {plan.stage(name).op for name in along if plan.has(name)}
    waiting: list[Operation] = [last.op, *members]
    while waiting:
        current = waiting.pop()
        eligible = {
            op
            for op in _reductions_below(current)
            if op is not last.op and _may_belong(plan, op, end)
        }
        for read in tag_reads(current, eligible) if eligible else ():
            if read.tensor.op not in members:
                members.add(read.tensor.op)
                waiting.append(read.tensor.op)
    if not members:
        return Chain(last, (), ())
    readers = _pointwise_below(plan, (last.op, *members))
    between = tuple(s for s in _pointwise_above(plan, members) if s.op in readers)
    return Chain(last, tuple(s for s in plan.stages if s.op in members), between)


def kept(plan: Plan, chain: Chain) -> frozenset[Operation]:
    """The members, and the pointwise stages below the chain that depend on none of them and have
    loops of their own: what is read of those stays a read, since they may be stored, or read what
    the chain may not."""
    members = frozenset(stage.op for stage in chain.members)
    moving = {stage.op for stage in chain.between}
    below = _pointwise_below(plan, (chain.last.op, *members))
    own = (op for op in below if op not in moving and not plan.stage_of(op).placement.inlined)
    return members.union(own)


def _may_belong(plan: Plan, op: Operation, end: Reduce) -> bool:
    """True for a reduction at root over the domain of `end`."""
    own = reduce_of(op)
    at_root = plan.stage_of(op).placement.at_root
    return at_root and own is not None and same_domain(own, end)


def _reductions_below(op: Operation) -> set[Operation]:
    """The reductions that an operation reads, directly or through pointwise ones."""
    found: set[Operation] = set()
    waiting, seen = [op], {op}
    while waiting:
        for below in operations_read(waiting.pop()):
            if below not in seen:
                seen.add(below)
                if reduce_of(below) is not None:
                    found.add(below)
                elif isinstance(below, ComputeOp):
                    waiting.append(below)
    return found


def finished_inside(plan: Plan, last: StagePlan, along: Collection[str] = ()) -> Plan:
    """The plan in which the chain of `last` applies to each element what an earlier repair let it
    apply at the end.

    Before:  T = sum(b)(T.rf[b]) * G(r)
    After:   T = sum(b)(T.rf[b] * G(r))

    What leaves a loop distributes over the fold (see `algebra`), so this goes back to the value
    that the repair was derived of; what leaves the loop of the new chain is found again.
    """
    end = reduce_of(last.op)
    if end is None:
        return plan
    names = [
        stage.name
        for stage in plan.stages
        if (own := reduce_of(stage.op)) is not None
        and (own.finish is not None and own.repair is None)
        and same_domain(own, end)
    ]
    if not names:
        return plan
    whole = _finished_inside(plan, names)
    chain = chain_of(whole, whole.stage(last.name), along)
    within = {stage.name for stage in (*chain.members, chain.last)}
    return _finished_inside(plan, [name for name in names if name in within])


def _finished_inside(plan: Plan, names: Sequence[str]) -> Plan:
    for name in names:
        stage = plan.stage(name)
        own = reduce_of(stage.op)
        if own is None or own.finish is None or not isinstance(stage.op, ComputeOp):
            continue
        sources = tuple(_finished(own.finish, source) for source in own.sources)
        init = None if own.init is None else tuple(_finished(own.finish, v) for v in own.init)
        op = replace(stage.op, bodies=(replace(own, sources=sources, init=init, finish=None),))
        plan = plan.with_stage(replace(stage, op=op))
        plan = reroute(plan, dict(zip(stage.op.outputs, op.outputs, strict=True)))
    return plan


def _finished(finish: Expr, value: Expr) -> Expr:
    return substitute(finish, {node: value for node in walk(finish) if isinstance(node, Folded)})


def skips(chain: Chain) -> bool:
    """True when a reduction of the chain may skip elements (`where=`)."""
    stages = (*chain.members, chain.last)
    return any((own := reduce_of(s.op)) is not None and own.where is not None for s in stages)


def tag_reads(op: Operation, members: Collection[Operation]) -> tuple[TensorRead, ...]:
    """The reads of `members` in what the reduction `op` folds, at one value for the whole fold."""
    own = reduce_of(op)
    if own is None:
        return ()
    values = (*own.sources, *(() if own.where is None else (own.where,)))
    found = (with_tags(expanded(value, members), members, own.axes) for value in values)
    return tuple(read for each in found for read in each.reads)


def _pointwise_below(plan: Plan, ops: Collection[Operation]) -> frozenset[Operation]:
    """The pointwise stages that one of `ops` reads, directly or through others."""
    found: set[Operation] = set()
    for stage in reversed(plan.stages):
        if stage.op in ops or stage.op in found:
            below = (tensor.op for tensor in tensors_read(stage.op))
            found.update(op for op in below if isinstance(op, ComputeOp) and not is_reduction(op))
    return frozenset(found)


def _pointwise_above(plan: Plan, ops: Collection[Operation]) -> tuple[StagePlan, ...]:
    """The pointwise stages that read one of `ops`, directly or through others."""
    found: dict[Operation, StagePlan] = {}
    for stage in plan.stages:
        below = [tensor.op for tensor in tensors_read(stage.op)]
        if not is_reduction(stage.op) and any(op in ops or op in found for op in below):
            found[stage.op] = stage
    return tuple(found.values())


def same_domain(a: Reduce, b: Reduce) -> bool:
    """True when both fold as many axes, in order over the same ranges."""
    pairs = [(x.domain, y.domain) for x, y in zip(a.axes, b.axes, strict=False)]
    return len(a.axes) == len(b.axes) and all(
        x is not None
        and y is not None
        and structural_equal(x.min, y.min)
        and structural_equal(x.extent, y.extent)
        for x, y in pairs
    )


def expanded(value: Expr, stop: Collection[Operation], only: Plan | None = None) -> Expr:
    """`value` with pointwise producers substituted, except those in `stop`.

    With `only`, just the stages that this plan inlines.
    """

    def replaced(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead) or node.tensor.op in stop:
            return None
        op = node.tensor.op
        if not isinstance(op, ComputeOp) or is_reduction(op):
            return None
        if only is not None and not only.stage_of(op).placement.inlined:
            return None
        body = op.bodies[node.tensor.index]
        return expanded(substitute(body, at(op.axes, node.indices)), stop, only)

    return rewrite(value, replaced)


@dataclass(frozen=True, slots=True, eq=False)
class TagReads:
    """A value in which reads of chain members are variables."""

    value: Expr
    reads: tuple[TensorRead, ...]
    names: tuple[Var, ...]

    def restored(self, expr: Expr) -> Expr:
        """`expr` with the reads for the variables."""
        return substitute(expr, dict(zip(self.names, self.reads, strict=True)))


def with_tags(value: Expr, members: Collection[Operation], over: Sequence[Axis]) -> TagReads:
    """Give each distinct read of a member, at one value for the whole fold, a variable."""
    return all_with_tags((value,), members, over)[0]


def all_with_tags(
    values: Sequence[Expr], members: Collection[Operation], over: Sequence[Axis]
) -> tuple[TagReads, ...]:
    """The same for several values, which share the variables."""
    found: list[tuple[TensorRead, Var]] = []
    folded = frozenset(over)

    def replaced(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead) or node.tensor.op not in members:
            return None
        if not folded.isdisjoint(axes_of(*node.indices)):
            return None
        for read, var in found:
            if structural_equal(read, node):
                return var
        var = Var(node.tensor.name, node.dtype)
        found.append((node, var))
        return var

    changed = [rewrite(value, replaced) for value in values]
    reads, names = tuple(read for read, _ in found), tuple(var for _, var in found)
    return tuple(TagReads(each, reads, names) for each in changed)
