"""Kernel specialisation: versions of a kernel for sizes that divide tiles or align rows, chosen at
the call.

A version is the kernel of a stage once more, lowered under a condition on runtime sizes.  The
schedule names conditions (`Stage.specialize`); for programs of tiles two more are found here: one
under which the masks of symbolic sizes vanish, and one under which rows in memory begin at vector
boundaries.  Conditions of one kernel exclude each other and cover every call.  Imports
`scheduling.regions.infer` and `index`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm

from tedsl.expr.index_arith import ZERO, as_index, both, constant, same_width
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Expr,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.expr.visit import reads, walk
from tedsl.index.prove import prove, prove_not
from tedsl.once import once, share
from tedsl.scheduling.kernels.complete import launched_scans
from tedsl.scheduling.kernels.tree import Kernel, kernel_tree
from tedsl.scheduling.plan import Plan, Split
from tedsl.scheduling.plan.links import in_plan_order
from tedsl.scheduling.regions.infer import Bounds, StageBounds, infer, plan_facts
from tedsl.tensor.tensor import ComputeOp, Tensor

WIDEST = 16
"""Bytes of the widest access to memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """What decides at the call, the bounds of all stages then, and the stages of the kernel."""

    when: Expr
    bounds: Bounds
    stages: frozenset[str]


def find_versions(plan: Plan) -> Plan:
    """The plan with conditions for versions of kernels of tiles, after those that the schedule
    names: one that proves the guards of all splits by constants, where it removes any, and one by
    which rows of 2, 4 or 8 byte elements begin at multiples of 16 bytes.

    Before:  i, jo in 0..ceil(n / 64), ji in 0..64: C[i, jo*64 + ji] = ... if jo*64 + ji < n
    After:   when n % 64 == 0:              C[i, jo*64 + ji] = ...
             when n % 4 == 0 and not that:  C[i, jo*64 + ji] = ... if jo*64 + ji < n, in 16 bytes
             when neither:                  C[i, jo*64 + ji] = ... if jo*64 + ji < n
    A scan of which each step is launched by itself has one version.
    """
    bounds, launches, after = all_bounds(plan), launched_scans(plan), plan
    for kernel in kernel_tree(plan).kernels:
        stage, names = kernel.leader, kernel.stages
        place = stage.placement
        if not isinstance(stage.op, ComputeOp) or stage.name in launches:
            continue
        conditions = list(place.kernel.versions)
        extra = _divisible(plan, bounds, names)
        if extra is not None and _removes_guards(plan, bounds, names, extra, conditions):
            conditions.append(extra)
        rows = _aligned_rows(plan, bounds, names)
        if rows is not None and _is_open(plan, rows, conditions):
            conditions.append(rows)
        if len(conditions) > len(place.kernel.versions):
            own = replace(place, kernel=replace(place.kernel, versions=tuple(conditions)))
            after = after.with_stage(replace(stage, placement=own))
    share(all_bounds, plan, after)
    return after


def versions_of(plan: Plan, bounds: Bounds, kernel: Kernel) -> tuple[Version, ...]:
    """The versions of a kernel; none where one serves all calls.

    if c1: first; else if c2: second; ... else: the version without a condition, last.
    """
    names, versions = kernel.stages, list[Version]()
    for when in _exclusive(kernel.leader.placement.kernel.versions):
        under = replace(plan, assumptions=(*plan.assumptions, when))
        own = infer(under, names).stages
        versions.append(Version(when, Bounds({**bounds.stages, **own}), names))
    return tuple(versions)


@once
def all_bounds(plan: Plan) -> Bounds:
    """`infer` of all stages."""
    return infer(plan)


def _exclusive(conditions: Sequence[Expr]) -> list[Expr]:
    """Each condition without those before it, and what none of them takes; none of none."""
    rest: list[Expr] = []
    chain: list[Expr] = []
    for condition in conditions:
        chain.append(both(condition, *rest))
        rest.append(Unary(UnaryOp.NOT, condition))
    return [*chain, both(*rest)] if chain else []


def _divisible(plan: Plan, bounds: Bounds, names: frozenset[str]) -> Expr | None:
    """That every symbolic extent which is split by a constant is a multiple of it."""
    facts = plan_facts(plan)
    factors: dict[Expr, int] = {}
    for own, extent, factor in _splits(plan, bounds, names):
        if own.guards and _is_size(extent):
            key = facts.interner.rep(extent)
            factors[key] = lcm(factors.get(key, 1), factor)
    parts = [c for c in map(_multiple, factors, factors.values()) if not prove(c, facts)]
    if not parts or prove_not(both(*parts), facts):
        return None
    return both(*parts)


def _aligned_rows(plan: Plan, bounds: Bounds, names: frozenset[str]) -> Expr | None:
    """That rows of symbolic length in memory begin at multiples of the widest access, where tiles
    lie along them; None where there are none, or elements of one byte, of which the compiler of the
    device asks each call itself."""
    facts = plan_facts(plan)
    factors: dict[Expr, int] = {}
    lengths = {facts.interner.rep(extent) for _, extent, _ in _splits(plan, bounds, names)}
    for tensor in _in_memory(plan, names):
        factor = WIDEST // tensor.dtype.nbytes
        for length in tensor.shape[1:][-1:]:
            if isinstance(length, Var) and 1 < factor < WIDEST:
                key = facts.interner.rep(length)
                if key in lengths:
                    factors[key] = lcm(factors.get(key, 1), factor)
    parts = [c for c in map(_multiple, factors, factors.values()) if not prove(c, facts)]
    return both(*parts) if parts else None


def _splits(
    plan: Plan, bounds: Bounds, names: frozenset[str]
) -> Iterator[tuple[StageBounds, Expr, int]]:
    """The splits of a kernel's axes by constants: the bounds of the stage, what is split, and the
    elements of a piece."""
    for stage in in_plan_order(plan, names):
        if not isinstance(stage.op, ComputeOp):
            continue
        own = bounds[stage.name]
        for relation in stage.relations:
            if isinstance(relation, Split):
                factor = constant(own.extents[relation.inner])
                if factor is not None and factor >= 2:
                    yield own, own.extents[relation.parent], factor


def _in_memory(plan: Plan, names: frozenset[str]) -> dict[Tensor, None]:
    """The tensors in memory that a kernel reads or writes."""
    stages = in_plan_order(plan, names)
    ops = [stage.op for stage in stages if isinstance(stage.op, ComputeOp)]
    roots = {s.op for s in stages if s.placement.at_root}
    found = {tensor: None for op in ops if op in roots for tensor in op.outputs}
    for op in ops:
        for read in reads(*op.bodies):
            if read.tensor.op not in ops:
                found[read.tensor] = None
    return found


def _is_open(plan: Plan, condition: Expr, before: Sequence[Expr]) -> bool:
    """True when some calls that reach a condition satisfy it, and some do not."""
    rest = [Unary(UnaryOp.NOT, each) for each in before]
    facts = plan_facts(replace(plan, assumptions=(*plan.assumptions, *rest)))
    return not prove(condition, facts) and not prove_not(condition, facts)


def _is_size(extent: Expr) -> bool:
    """True for an expression over runtime sizes, with at least one of them."""
    return constant(extent) is None and not any(isinstance(n, Axis) for n in walk(extent))


def _multiple(extent: Expr, factor: int) -> Expr:
    rest = Binary(BinaryOp.FLOORMOD, *same_width(extent, as_index(factor)))
    return Compare(CompareOp.EQ, *same_width(rest, ZERO))


def _removes_guards(
    plan: Plan, bounds: Bounds, names: frozenset[str], extra: Expr, before: Sequence[Expr]
) -> bool:
    """True when the guards of a kernel become fewer under `extra`, at calls that reach it."""
    rest = [Unary(UnaryOp.NOT, condition) for condition in before]
    left = replace(plan, assumptions=(*plan.assumptions, *rest))
    if before and not _is_open(plan, extra, before):
        return False
    under = infer(replace(left, assumptions=(*left.assumptions, extra)), names)
    return _guards(under.stages) < _guards({name: bounds[name] for name in names})


def _guards(stages: Mapping[str, StageBounds]) -> int:
    return sum(len(own.guards) for own in stages.values())
