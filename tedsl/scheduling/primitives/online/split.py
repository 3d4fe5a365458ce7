"""Chains of dependent reductions in parts that are merged by their repairs: split_online."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tedsl.dtypes import DType
from tedsl.errors import InternalError
from tedsl.expr.index_arith import ZERO, constant, minimum, mul, sub
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Cast, Expr, Range, Reduce, TensorRead
from tedsl.expr.visit import substitute
from tedsl.index.facts import Facts
from tedsl.index.simplify import simplify
from tedsl.scheduling.plan import Inlined, Plan, StagePlan, by_itself
from tedsl.scheduling.plan.copies import stage_name
from tedsl.scheduling.plan.graph import defined_anew, fresh_stage, is_output, loop_readers, rebuilt
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.relations import integer
from tedsl.scheduling.primitives.arguments import leaf, looped_stage
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.graph_rewrites.cache import beside, data_axis
from tedsl.scheduling.primitives.graph_rewrites.legality import (
    reduction,
    require_any_order,
    require_loops_of_definition,
    require_no_guests,
    require_no_marks,
    require_reduce_axis,
)
from tedsl.scheduling.primitives.graph_rewrites.rfactor import (
    Factored,
    factor,
    reduce_axis,
    where_inside,
)
from tedsl.scheduling.primitives.online.chain import (
    Chain,
    chain_of,
    finished_inside,
    reduce_of,
    skips,
)
from tedsl.scheduling.primitives.online.chain_rescaling import (
    Consent,
    Derived,
    derive_chain,
    held,
    merged,
    over_folded,
    started,
    sums,
    unless_empty,
)
from tedsl.scheduling.primitives.online.flatten import flattened
from tedsl.scheduling.primitives.online.legality import (
    require_along,
    require_chain,
    require_one_axis,
    require_one_skew,
    require_parts,
)
from tedsl.scheduling.primitives.placement.legality import require_places
from tedsl.scheduling.primitives.scans.legality import require_outside_steps
from tedsl.tensor.tensor import ComputeOp, Operation, Tensor


def split_online(
    plan: Plan, call: Call, axis: object, consent: Consent, along: Sequence[str] = ()
) -> tuple[Plan, tuple[str, ...]]:
    """m, l over k --> m.rf[b], l.rf[b] over the part b of k; m = max(b)(m.rf[b]); l = sum(b)(
    l.rf[b] * exp(m.rf[b] - m)).  The parts of the last reduction are named last."""
    stage = looped_stage(plan, call, call.stage)
    require_outside_steps(plan, call, stage)
    reduction(plan, call, stage)
    loop = leaf(plan, call, stage, axis)
    require_reduce_axis(plan, call, stage, loop)
    flat, loop = flattened(plan, stage.name, loop, along)
    require_one_axis(plan, call, flat.stage(stage.name))
    plan, stage = flat, flat.stage(stage.name)
    require_parts(plan, call, stage, loop)
    require_no_guests(plan, call, stage)
    require_no_marks(plan, call, stage)
    for name in along:
        require_along(plan, call, stage, plan.stage(name))
    plan = finished_inside(plan, stage, along)
    chain = chain_of(plan, stage := plan.stage(stage.name), along)
    require_chain(plan, call, chain)
    derived = derive_chain(plan, call, chain, consent, finished=True)
    for member in chain.members:
        require_no_guests(plan, call, member)
        require_no_marks(plan, call, member)
        require_loops_of_definition(plan, call, member)
        if member.name not in derived:
            require_any_order(plan, call, member, member.op.reduce_axis[0], False)
    (op, _), known = reduction(plan, call, stage), labels(stage)
    read = {name: (each.tags, bool(each.full.extrapolate)) for name, each in derived.items()}
    require_one_skew(plan, call, chain, read)
    factored = factor(stage, op, loop)
    parts = _Parts(plan, op, factored, known[loop], derived, skips(chain))
    after, names = _rewritten(plan, chain, parts)
    require_places(plan, call, after)
    return after, names


@dataclass(slots=True)
class _Parts:
    """What all stages of the chain share: the last of them, how its axis is cut, what is derived,
    and whether some elements may be skipped."""

    plan: Plan
    last: ComputeOp
    factored: Factored
    label: str
    derived: Mapping[str, Derived]
    guarded: bool

    @property
    def axis(self) -> Axis:
        """The axis that is cut."""
        return self.last.reduce_axes[0]

    def partial(
        self, name: str, op: ComputeOp, reduce: Reduce, partials: Mapping[Tensor, Tensor]
    ) -> ComputeOp:
        """The operation of the partial results, one for each part (its first dimension)."""
        extent = self.factored.axis.domain
        if extent is None:
            raise InternalError("a factored axis has no domain")
        part = data_axis(self.label, extent.extent)
        data = tuple(data_axis(a.name, n) for a, n in zip(op.axes, op.shape, strict=True))
        rest = tuple(_copied(axis) for axis in self.factored.rest)
        moved: dict[Expr, Expr] = {
            self.factored.axis: part,
            **dict(zip(self.factored.rest, rest, strict=True)),
            # Parts of a skewed loop are others for each point (`require_one_skew`).
            **dict(zip(self.last.axes, data, strict=False)),
        }
        element = substitute(self.factored.values.get(self.axis, self.axis), moved)
        values: dict[Expr, Expr] = {
            **dict(zip(op.axes, data, strict=True)),
            **{axis: element for axis in op.reduce_axes},
        }
        conditions = tuple(substitute(each, moved) for each in self.factored.conditions)
        reader = self.derived.get(name)
        sources = reduce.sources
        if reader is not None:
            tags = dict(zip(reader.tags.names, self._tags(reader, part, partials), strict=True))
            sources = tuple(substitute(each, {**tags}) for each in reader.full.basis)
        sources = tuple(substitute(each, values) for each in sources)
        where = where_inside(reduce, conditions, values)
        reducer = reduce.reducer if len(sources) == len(reduce.sources) else sums(sources)
        whole = Reduce(reducer, sources, rest, where)
        whole = replace(whole, finite=reduce.finite, tf32=reduce.tf32)
        whole = started(whole) if reader is None else whole
        bodies = tuple(replace(whole, index=n) for n in range(len(sources)))
        shape = (extent.extent, *op.shape)
        unique = stage_name(self.plan, name, "rf")
        return ComputeOp(unique, (part, *data), bodies, shape, rest, op.tag)

    def _tags(self, reader: Derived, part: Axis, partials: Mapping[Tensor, Tensor]) -> list[Expr]:
        """What stands for the tags in one part: partial results, and of sums that are extrapolated
        (see `Repair`) the partial sum scaled up to the whole."""
        values: list[Expr] = []
        for read, tag in zip(reader.tags.reads, reader.full.tags, strict=True):
            value: Expr = TensorRead(partials[read.tensor], (part, *read.indices))
            if tag in reader.full.extrapolate and not self.guarded:
                value = Binary(BinaryOp.MUL, value, self._ratio(part, value.dtype))
            values.append(value)
        return values

    def _ratio(self, part: Axis, dtype: DType) -> Expr:
        """All elements over those of one part, where parts are consecutive; over the elements of a
        whole part otherwise."""
        domain = self.axis.domain
        if domain is None:
            raise InternalError("a reduce axis has no domain")
        first: dict[Expr, Expr] = {axis: ZERO for axis in self.factored.rest}
        first[self.factored.axis] = part
        count: Expr = integer(1)
        for axis in self.factored.rest:
            count = mul(count, axis.domain.extent if axis.domain is not None else 1)
        start = substitute(self.factored.values.get(self.axis, self.axis), first)
        start = sub(start, domain.min)
        if constant(simplify(sub(start, mul(count, part)), Facts.EMPTY)) == 0:
            count = minimum(count, sub(domain.extent, start))
        return Binary(BinaryOp.DIV, Cast(domain.extent, dtype), Cast(count, dtype))

    def final(
        self,
        name: str,
        op: ComputeOp,
        reduce: Reduce,
        part: Operation,
        partials: Mapping[Tensor, Tensor],
    ) -> ComputeOp:
        """The operation that merges the parts, moved on to the finished tags."""
        axis = reduce_axis(f"{self.label}.v", part.shape[0])
        totals = [TensorRead(t, (axis, *op.axes)) for t in part.outputs]
        reader = self.derived.get(name)
        if reader is None:
            whole = Reduce(reduce.reducer, tuple(totals), (axis,), None, reduce.init)
            bodies = tuple(
                replace(whole, index=b.index) for b in op.bodies if isinstance(b, Reduce)
            )
            return ComputeOp(op.name, op.axes, bodies, op.shape, (axis,), op.tag)
        tags = reader.tags
        old = self._tags(reader, axis, partials)
        values = merged(reader.full, tags, reduce, totals, old)
        finish = tags.restored(over_folded(reader.full)) if reader.full.deferred else None
        if reader.split is not None:
            kept, first = reader.split
            finish = kept.restored(over_folded(first))
        finish = unless_empty(finish, reduce)
        whole = Reduce(reduce.reducer, values, (axis,), held(reduce), finish=finish)
        bodies = tuple(replace(whole, index=b.index) for b in op.bodies if isinstance(b, Reduce))
        return ComputeOp(op.name, op.axes, bodies, op.shape, (axis,), op.tag)


def _copied(axis: Axis) -> Axis:
    domain = axis.domain
    if domain is None:
        raise InternalError(f"reduce axis {axis.name} has no domain")
    return Axis(axis.name, axis.kind, Range(domain.min, domain.extent), axis.dtype)


def _rewritten(plan: Plan, chain: Chain, parts: _Parts) -> tuple[Plan, tuple[str, ...]]:
    """The plan with the partial stages before the stages of the chain."""
    names = {stage.name for stage in (*chain.members, chain.last)}
    partials: dict[Tensor, Tensor] = {}
    current: dict[Tensor, Tensor] = {}
    stages: list[StagePlan] = []
    made: dict[str, str] = {}
    for stage in plan.stages:
        own, changed = reduce_of(stage.op), stage
        if stage.name in names and own is not None and isinstance(stage.op, ComputeOp):
            # Written over the tensors of the plan before, then rebuilt like all others.
            part = parts.partial(stage.name, stage.op, own, partials)
            below = replace(
                fresh_stage(part.name, part), placement=beside(stage), scope=stage.scope
            )
            below = rebuilt(below, current)
            stages.append(below)
            made[stage.name] = below.name
            for tensor, body in zip(stage.op.outputs, stage.op.bodies, strict=True):
                place = body.index if isinstance(body, Reduce) else 0
                partials[tensor] = below.op.outputs[place]
            final = parts.final(stage.name, stage.op, own, below.op, partials)
            changed = replace(defined_anew(stage, final), placement=by_itself(stage.placement))
        changed = rebuilt(changed, current)
        for old, tensor in zip(stage.op.outputs, changed.op.outputs, strict=True):
            if old is not tensor:
                current[old] = tensor
        stages.append(changed)
    made[chain.last.name] = made.pop(chain.last.name)
    outputs = tuple(current.get(t, t) for t in plan.outputs)
    after = replace(plan, stages=tuple(stages), outputs=outputs)
    for stage in reversed(chain.between):
        op = after.stage(stage.name).op
        unread = not loop_readers(after, op) and not is_output(after, op)
        if unread and stage.placement.at_root:
            found = after.stage(stage.name)
            after = after.with_stage(replace(found, placement=Inlined()))
    return after, tuple(made.values())
