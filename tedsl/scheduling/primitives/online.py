"""Chains of dependent reductions in one loop: online."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tedsl.expr.nodes import (
    Reduce,
)
from tedsl.expr.tensor import ComputeOp, Operation, Tensor
from tedsl.ir.nodes import Scope
from tedsl.scheduling.call import Call
from tedsl.scheduling.chain import (
    Chain,
    chain_of,
    reduce_of,
    skips,
)
from tedsl.scheduling.chain_repair import (
    Consent,
    Derived,
    derive_chain,
    over_folded,
    started,
    sums,
    updates,
)
from tedsl.scheduling.checks.arguments import leaf, looped_stage
from tedsl.scheduling.checks.online import (
    require_between,
    require_chain,
    require_host,
    require_whole,
)
from tedsl.scheduling.checks.places import require_places
from tedsl.scheduling.checks.rewrites import reduction
from tedsl.scheduling.checks.scans import require_outside_steps
from tedsl.scheduling.checks.slices import require_slices
from tedsl.scheduling.graph import is_output, producers_before, readers, rebuilt
from tedsl.scheduling.plan import Attach, AttachKind, Plan, StagePlan
from tedsl.scheduling.repair import Kind


def online(plan: Plan, call: Call, axis: object, consent: Consent) -> Plan:
    """m = max(k)(x); l = sum(k)(exp(x - m)) --> one loop over k that repairs l as m moves on."""
    stage = looped_stage(plan, call, call.stage)
    require_outside_steps(plan, call, stage)
    reduction(plan, call, stage)
    loop = leaf(plan, call, stage, axis)
    require_host(plan, call, stage, loop)
    chain = chain_of(plan, stage)
    require_chain(plan, call, chain)
    require_between(plan, call, chain)
    derived = derive_chain(plan, call, chain, consent)
    place = Attach(AttachKind.AT, stage.name, loop, online=True)
    after = _attached(_rewritten(plan, chain, derived), chain, place, derived)
    after = producers_before(after, stage.name)
    require_places(plan, call, after)
    require_slices(plan, call, after)
    require_whole(plan, call, after, stage.name)
    return after


def derivations(plan: Plan, call: Call, consent: Consent) -> dict[str, Derived]:
    """The repairs that `online` of the stage would use, by stage."""
    stage = looped_stage(plan, call, call.stage)
    reduction(plan, call, stage)
    chain = chain_of(plan, stage)
    require_chain(plan, call, chain)
    return derive_chain(plan, call, chain, consent)


def _rewritten(plan: Plan, chain: Chain, derived: Mapping[str, Derived]) -> Plan:
    """The plan whose reductions know their repairs, and start from finite values."""
    current: dict[Tensor, Tensor] = {}
    stages: list[StagePlan] = []
    members = {stage.name for stage in chain.members}
    for stage in plan.stages:
        own, changed = reduce_of(stage.op), stage
        if own is not None and isinstance(stage.op, ComputeOp):
            new = started(own) if stage.name in members else own
            new = _repaired(new, derived[stage.name]) if stage.name in derived else new
            if new is not own:
                reduces = [b for b in stage.op.bodies if isinstance(b, Reduce)]
                bodies = tuple(replace(new, index=body.index) for body in reduces)
                changed = replace(stage, op=replace(stage.op, bodies=bodies))
        changed = rebuilt(changed, current)
        for old, tensor in zip(stage.op.outputs, changed.op.outputs, strict=True):
            if old is not tensor:
                current[old] = tensor
        stages.append(changed)
    outputs = tuple(current.get(t, t) for t in plan.outputs)
    return replace(plan, stages=tuple(stages), outputs=outputs)


def _repaired(reduce: Reduce, found: Derived) -> Reduce:
    """The reduction with its repair, and with what is applied at the end."""
    full, tags = found.full, found.tags
    sources = reduce.sources
    if len(full.basis) > 1 or full.deferred:
        sources = tuple(tags.restored(each) for each in full.basis)
    finish = tags.restored(over_folded(full)) if full.deferred else None
    if found.split is not None:
        kept, first = found.split
        finish = kept.restored(over_folded(first))
        if len(full.basis) == 1:
            sources = (kept.restored(first.basis[0]),)
    single = len(full.basis) == 1
    return replace(
        reduce,
        reducer=reduce.reducer if single else sums(sources),
        sources=sources,
        repair=None if full.kind is Kind.NONE else updates(full, tags, reduce),
        finish=finish,
    )


def _attached(plan: Plan, chain: Chain, place: Attach, derived: Mapping[str, Derived]) -> Plan:
    """Members go along with the loop; stages between that are at root are computed in it, or
    inlined when the repair has written them out."""
    estimated = _estimated(chain, derived)
    for stage in chain.members:
        attach = replace(place, estimate=stage.op in estimated)
        member = plan.stage(stage.name)
        plan = plan.with_stage(replace(member, attach=attach, scope=Scope.LOCAL))
    for stage in reversed(chain.between):
        found = plan.stage(stage.name)
        if not readers(plan, found.op) and not is_output(plan, found.op):
            plan = plan.with_stage(replace(found, attach=Attach(AttachKind.INLINE)))
        elif found.attach.kind is AttachKind.ROOT:
            attach = replace(place, online=False)
            plan = plan.with_stage(replace(found, attach=attach, scope=Scope.LOCAL))
    return plan


def _estimated(chain: Chain, derived: Mapping[str, Derived]) -> frozenset[Operation]:
    """The sums that are read as estimates of the whole, which keeps matrix repairs accurate.

    Not where elements may be skipped, because then the number folded so far is not known.
    """
    if skips(chain):
        return frozenset()
    return frozenset(
        read.tensor.op
        for each in derived.values()
        for read, tag in zip(each.tags.reads, each.full.tags, strict=True)
        if tag in each.full.extrapolate
    )
