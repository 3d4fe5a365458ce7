"""Legality of conditions on runtime sizes: `assume` and `specialize`."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.errors import ScheduleError
from tedsl.expr.nodes import Binary, Cast, Compare, Const, Expr, Unary, UnaryOp, Var
from tedsl.expr.printer import print_expr
from tedsl.expr.visit import walk
from tedsl.index.facts import Facts
from tedsl.index.prove import prove, prove_not
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.graph import runtime_sizes
from tedsl.scheduling.primitives.call import Call, kind_of
from tedsl.scheduling.regions.infer import plan_facts

MAX_VERSIONS = 8  # of one kernel, the one without a condition not counted


def size_condition(plan: Plan, call: Call, value: object) -> Expr | bool:
    """A condition on integer sizes of the computation; a bool where the sizes are known already."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Const) and value.dtype.is_bool:
        return bool(value.value)
    if not isinstance(value, Expr) or not value.dtype.is_bool:
        raise call.refuse(
            plan,
            f"expected a condition on sizes, got {kind_of(value)}"
            if not isinstance(value, Expr)
            else f"{print_expr(value)} is {value.dtype}, not a condition",
            hint="give a comparison of sizes, e.g. n % 16 == 0 or n >= 64",
        )
    known = runtime_sizes(plan)
    for node in walk(value):
        problem = _foreign(node, known.get(node.name) if isinstance(node, Var) else None)
        if problem is not None:
            raise call.refuse(
                plan,
                f"{print_expr(value)} uses {problem}",
                facts=[("sizes", ", ".join(known) or "none")],
                hint="use integer sizes that occur in shapes (te.var, te.size_var, s.size(name)), "
                "integers, arithmetic and comparisons only",
            )
    return value


def _foreign(node: Expr, known: Var | None) -> str | None:
    """What a node of a condition is, when it is no integer size."""
    match node:
        case Var(name=name):
            if known is not node:
                return f"{name}, which is no size of the computation"
            return None if node.dtype.is_integer else f"{name}, which is no integer"
        case Unary(op=op):
            return None if op in (UnaryOp.NOT, UnaryOp.NEG) else f"{op.value}, which is no size"
        case Const() | Binary() | Cast() | Compare():
            return "a number that is no integer" if node.dtype.is_float else None
        case _:
            return f"{print_expr(node)}, whose value is not known at the call"


def conditions_text(conditions: Sequence[Expr]) -> str:
    """`n % 16 == 0, n >= 64`."""
    return ", ".join(print_expr(c) for c in conditions) or "none"


def require_consistent(plan: Plan, call: Call, condition: Expr) -> None:
    """A new assumption can hold together with the earlier ones."""
    if prove_not(condition, plan_facts(plan)):
        raise call.refuse(
            plan,
            f"{print_expr(condition)} never holds",
            facts=[("assumed", conditions_text(plan.assumptions))],
            hint="give a condition that some sizes satisfy together with what is assumed already",
        )


def require_deciding(plan: Plan, call: Call, stage: StagePlan, condition: Expr) -> None:
    """A version of a kernel is for some calls that no earlier version takes, but not for all."""
    facts = rest_facts(plan, stage)
    earlier = [
        ("assumed", conditions_text(plan.assumptions)),
        ("versions", conditions_text(stage.placement.kernel.versions)),
    ]
    if len(stage.placement.kernel.versions) >= MAX_VERSIONS:
        raise call.refuse(
            plan,
            f"{stage.name} has {MAX_VERSIONS} versions already",
            facts=earlier,
            hint="keep the conditions that matter: each is one more kernel to compile",
        )
    if prove_not(condition, facts):
        raise call.refuse(
            plan,
            f"no call would take this version: {print_expr(condition)} does not hold, or an "
            "earlier version is taken where it does",
            facts=earlier,
            hint="give the narrower condition first, or leave this one away",
        )
    if prove(condition, facts):
        raise _no_choice(plan, call, condition, earlier)


def _no_choice(
    plan: Plan, call: Call, condition: Expr, facts: Sequence[tuple[str, str]]
) -> ScheduleError:
    return call.refuse(
        plan,
        f"{print_expr(condition)} holds at every call that no earlier version takes, so there "
        "would be no call left for the version without it",
        facts=facts,
        hint="leave it away",
    )


def rest_facts(plan: Plan, stage: StagePlan) -> Facts:
    """What holds at a call that takes none of the stage's versions."""
    facts = plan_facts(plan)
    for condition in stage.placement.kernel.versions:
        facts = facts.assume(Unary(UnaryOp.NOT, condition))
    return facts
