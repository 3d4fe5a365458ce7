"""Chains of dependent reductions in one loop: online."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tedsl.expr.nodes import (
    Expr,
    Folded,
    Reduce,
)
from tedsl.expr.visit import rewrite
from tedsl.ir.nodes import Scope
from tedsl.scheduling.algebra.rescaling import Kind
from tedsl.scheduling.plan import At, Inlined, Online, OnlineMode, Plan, StagePlan
from tedsl.scheduling.plan.copies import stage_name
from tedsl.scheduling.plan.graph import fresh_stage, is_output, producers_before, readers, rebuilt
from tedsl.scheduling.primitives.arguments import leaf, looped_stage
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.graph_rewrites.legality import reduction
from tedsl.scheduling.primitives.loops.legality import require_no_options, require_own_nest
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
    last_repair,
    over_folded,
    started,
    sums,
    unless_empty,
    updates,
)
from tedsl.scheduling.primitives.online.flatten import flattened
from tedsl.scheduling.primitives.online.lazy_rescaling import (
    Lag,
    following,
    lag_of,
    reference_to,
    referred,
)
from tedsl.scheduling.primitives.online.legality import (
    refuse_lag,
    require_between,
    require_chain,
    require_host,
    require_one_axis,
    require_threshold,
    require_whole,
)
from tedsl.scheduling.primitives.placement.legality import require_places
from tedsl.scheduling.primitives.scans.legality import require_outside_steps
from tedsl.tensor.tensor import ComputeOp, Operation, Tensor


def online(plan: Plan, call: Call, axis: object, consent: Consent) -> Plan:
    """m = max(k)(x); l = sum(k)(exp(x - m)) --> one loop over k that repairs l as m moves on."""
    stage = looped_stage(plan, call, call.stage)
    require_outside_steps(plan, call, stage)
    reduction(plan, call, stage)
    loop = leaf(plan, call, stage, axis)
    require_host(plan, call, stage, loop)
    flat, loop = flattened(plan, stage.name, loop)
    require_one_axis(plan, call, flat.stage(stage.name))
    plan = finished_inside(flat, flat.stage(stage.name))
    chain = chain_of(plan, plan.stage(stage.name))
    require_chain(plan, call, chain)
    require_between(plan, call, chain)
    for each in (*chain.members, *chain.between):
        if each.placement.at_root:
            require_own_nest(plan, call, each)
    for each in chain.members:
        require_no_options(plan, call, each, f"the stage that {each.name} is computed in")
    derived = derive_chain(plan, call, chain, consent, finished=False)
    lag = _lag(plan, call, derived, consent)
    place = Online(stage.name, loop)
    after, references = _rewritten(plan, chain, derived, lag)
    after = _attached(after, chain, place, derived)
    for name in references:
        there = replace(place, mode=OnlineMode.LAZY)
        after = after.with_stage(replace(after.stage(name), placement=there, scope=Scope.LOCAL))
    after = producers_before(after, stage.name)
    require_places(plan, call, after)
    require_whole(plan, call, after, stage.name)
    return after


def proofs(plan: Plan, call: Call, consent: Consent) -> dict[str, str]:
    """What `online` of the stage would prove, by stage."""
    stage = looped_stage(plan, call, call.stage)
    reduction(plan, call, stage)
    plan, _ = flattened(plan, stage.name, stage.leaf_axes[-1], whole=True)
    plan = finished_inside(plan, plan.stage(stage.name))
    chain = chain_of(plan, plan.stage(stage.name))
    require_chain(plan, call, chain)
    derived = derive_chain(plan, call, chain, consent, finished=False)
    lag = _lag(plan, call, derived, consent)
    more = {} if lag is None else {name: f"\n{text}" for name, text in lag.proofs.items()}
    return {name: each.proof + more.get(name, "") for name, each in derived.items()}


def _lag(plan: Plan, call: Call, derived: Mapping[str, Derived], consent: Consent) -> Lag | None:
    """By how much repairs may lag behind; None when they may not."""
    if consent.lag is None:
        return None
    found = lag_of(derived, require_threshold(plan, call, consent.lag))
    if isinstance(found, Lag):
        return found
    raise refuse_lag(plan, call, found[0] or call.stage, found[1])


def _rewritten(
    plan: Plan, chain: Chain, derived: Mapping[str, Derived], lag: Lag | None
) -> tuple[Plan, list[str]]:
    """The plan whose reductions know their repairs, and start from finite values; and the new
    stages that are references to tags."""
    current: dict[Tensor, Tensor] = {}
    stages: list[StagePlan] = []
    references: dict[Tensor, Tensor] = {}
    added: list[str] = []
    members = {stage.name for stage in chain.members}
    between = {stage.name for stage in chain.between if not stage.placement.inlined}
    for stage in plan.stages:
        own, changed = reduce_of(stage.op), stage
        if own is not None and isinstance(stage.op, ComputeOp):
            new = started(own) if stage.name in members else own
            if stage.name in derived:
                new = _repaired(plan, chain, new, derived[stage.name], references)
            if new is not own:
                reduces = [b for b in stage.op.bodies if isinstance(b, Reduce)]
                bodies = tuple(replace(new, index=body.index) for body in reduces)
                changed = replace(stage, op=replace(stage.op, bodies=bodies))
        elif stage.name in between and references and isinstance(stage.op, ComputeOp):
            bodies = tuple(following(b, plan, chain, references) for b in stage.op.bodies)
            changed = replace(stage, op=replace(stage.op, bodies=bodies))
        changed = rebuilt(changed, current)
        for old, tensor in zip(stage.op.outputs, changed.op.outputs, strict=True):
            if old is not tensor:
                current[old] = tensor
        stages.append(changed)
        for tag in stage.op.outputs if lag is not None else ():
            if lag is not None and tag in lag.operators:
                name = stage_name(plan, stage.name, "ref")
                op = reference_to(name, current.get(tag, tag), lag.operators[tag], lag.threshold)
                references[tag] = op.outputs[0]
                stages.append(fresh_stage(name, op))
                added.append(name)
    outputs = tuple(current.get(t, t) for t in plan.outputs)
    return replace(plan, stages=tuple(stages), outputs=outputs), added


def _repaired(
    plan: Plan,
    chain: Chain,
    reduce: Reduce,
    found: Derived,
    references: Mapping[Tensor, Tensor],
) -> Reduce:
    """The reduction with its repair, and with what is applied at the end: from `references` to
    tags, where there are such, to the tags themselves."""
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
    finish = unless_empty(finish, reduce)
    followed = referred(tags, references)
    if references and full.kind is not Kind.NONE:
        sources = tuple(following(each, plan, chain, references) for each in sources)
        whole = last_repair(full, tags, reduce, followed)
        finish = whole if finish is None else rewrite(finish, lambda e: _over(e, whole))
    single = len(full.basis) == 1
    return replace(
        reduce,
        reducer=reduce.reducer if single else sums(sources),
        sources=sources,
        repair=None if full.kind is Kind.NONE else updates(full, tags, reduce, followed),
        finish=finish,
    )


def _over(node: Expr, whole: Expr) -> Expr | None:
    return whole if isinstance(node, Folded) else None


def _attached(plan: Plan, chain: Chain, place: Online, derived: Mapping[str, Derived]) -> Plan:
    """Members go along with the loop; stages between that are at root are computed in it, or
    inlined when the repair has written them out."""
    estimated = _estimated(chain, derived)
    for stage in chain.members:
        mode = OnlineMode.ESTIMATE if stage.op in estimated else OnlineMode.EXACT
        along = replace(place, mode=mode)
        member = plan.stage(stage.name)
        plan = plan.with_stage(replace(member, placement=along, scope=Scope.LOCAL))
    for stage in reversed(chain.between):
        found = plan.stage(stage.name)
        if not readers(plan, found.op) and not is_output(plan, found.op):
            plan = plan.with_stage(replace(found, placement=Inlined()))
        elif found.placement.at_root:
            inside = At(place.host, place.axis, kernel=found.placement.kernel)
            plan = plan.with_stage(replace(found, placement=inside, scope=Scope.LOCAL))
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
