"""Versions of a kernel: which calls run which, and what each may rely on.

A version is the kernel of a stage once more, lowered under a condition on runtime sizes.  The
schedule names conditions (`Stage.specialize`); for programs of tiles one more is found here, under
which the masks of symbolic sizes vanish.  Conditions of one kernel exclude each other and cover
every call.  Imports `scheduling.bounds` and `index`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm

from tedsl.expr.integers import ZERO, as_index, both, constant, same_width
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Compare, CompareOp, Expr, Unary, UnaryOp
from tedsl.expr.tensor import ComputeOp
from tedsl.expr.visit import walk
from tedsl.index.prove import prove, prove_not
from tedsl.scheduling.bounds import Bounds, StageBounds, infer, kernel_of, plan_facts
from tedsl.scheduling.plan import AttachKind, Plan, Split, StagePlan
from tedsl.scheduling.together import group_of


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """What decides at the call, the bounds of all stages then, and the stages of the kernel."""

    when: Expr
    bounds: Bounds
    stages: frozenset[str]


def find_versions(
    plan: Plan, bounds: Bounds, launches: frozenset[str] = frozenset(), *, tiles: bool
) -> dict[str, tuple[Version, ...]]:
    """The versions of each kernel, by the name of its root stage; none where one serves all calls.

    Before:  io in 0..ceil(n / 16), ii in 0..16: C[io*16 + ii] = ... if io*16 + ii < n
    After:   when n % 16 == 0:       C[io*16 + ii] = ...
             when not(n % 16 == 0):  C[io*16 + ii] = ... if io*16 + ii < n
    A scan in `launches`, of which each step is launched by itself, has one version.
    With `tiles`, a condition is added that proves the guards of all splits by constants, where it
    removes any.
    """
    found: dict[str, tuple[Version, ...]] = {}
    for stage in plan.stages:
        if stage.attach.kind is not AttachKind.ROOT or not isinstance(stage.op, ComputeOp):
            continue
        if stage.name in launches or stage.join is not None or stage.last_of:
            continue
        names = kernel_stages(plan, group_of(plan, stage))
        conditions = list(stage.specializations)
        extra = _divisible(plan, bounds, names) if tiles else None
        if extra is not None and _removes_guards(plan, bounds, names, extra, conditions):
            conditions.append(extra)
        if conditions:
            found[stage.name] = _chain(plan, bounds, names, conditions)
    return found


def kernel_stages(plan: Plan, roots: Sequence[StagePlan]) -> frozenset[str]:
    """The names of the stages computed in the kernel of `roots`, which run together."""
    names = {root.name for root in roots}
    return frozenset(stage.name for stage in plan.stages if kernel_of(plan, stage).name in names)


def _chain(
    plan: Plan, bounds: Bounds, names: frozenset[str], conditions: Sequence[Expr]
) -> tuple[Version, ...]:
    """if c1: first; else if c2: second; ... else: the version without a condition, last."""
    versions: list[Version] = []
    for when in _exclusive(conditions):
        under = replace(plan, assumptions=(*plan.assumptions, when))
        own = infer(under, names).stages
        versions.append(Version(when, Bounds({**bounds.stages, **own}), names))
    return tuple(versions)


def _exclusive(conditions: Sequence[Expr]) -> list[Expr]:
    """Each condition without those before it, and what none of them takes."""
    rest: list[Expr] = []
    chain: list[Expr] = []
    for condition in conditions:
        chain.append(both(condition, *rest))
        rest.append(Unary(UnaryOp.NOT, condition))
    return [*chain, both(*rest)]


def _divisible(plan: Plan, bounds: Bounds, names: frozenset[str]) -> Expr | None:
    """That every symbolic extent which is split by a constant is a multiple of it."""
    facts = plan_facts(plan)
    factors: dict[Expr, int] = {}
    for stage in plan.stages:
        if stage.name not in names or not isinstance(stage.op, ComputeOp):
            continue
        own = bounds[stage.name]
        for relation in stage.relations:
            if isinstance(relation, Split) and own.guards:
                extent, factor = own.extents[relation.parent], constant(own.extents[relation.inner])
                if factor is None or factor < 2 or not _is_size(extent):
                    continue
                key = facts.interner.rep(extent)
                factors[key] = lcm(factors.get(key, 1), factor)
    parts = [c for c in map(_multiple, factors, factors.values()) if not prove(c, facts)]
    if not parts or prove_not(both(*parts), facts):
        return None
    return both(*parts)


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
    if before and (prove(extra, plan_facts(left)) or prove_not(extra, plan_facts(left))):
        return False
    under = infer(replace(left, assumptions=(*left.assumptions, extra)), names)
    return _guards(under.stages) < _guards({name: bounds[name] for name in names})


def _guards(stages: Mapping[str, StageBounds]) -> int:
    return sum(len(own.guards) for own in stages.values())
