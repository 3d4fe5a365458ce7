"""Reads at places that are known when the kernel runs (`T[X[i]]`) stay inside their tensors.

First of the rewrites of a plan, before stages are inlined and regions inferred: what lies outside
is that of the definition, wherever a stage is computed.  Imports `index` and the plan.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.index_arith import ZERO, at_most, both, less, widened
from tedsl.expr.nodes import Expr, IfThenElse, Reduce, TensorRead, Var
from tedsl.expr.visit import map_children, reads, variables, walk
from tedsl.index.facts import Facts
from tedsl.index.prove import prove
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.inline import reading, reading_whole
from tedsl.scheduling.plan.links import of_form
from tedsl.scheduling.regions.infer import shape_facts
from tedsl.tensor.tensor import ComputeOp, ExternOp, Operation


def bound_reads(plan: Plan) -> Plan:
    """Give reads the value 0 where an index that depends on data is outside.

    Before:  C[i] = T[X[i]]
    After:   C[i] = if_then_else(0 <= X[i] & X[i] < n, T[X[i]], 0)
    What is proved to be inside, by the guards around it as well, is left as it is.
    Requires: nothing.   Ensures: the conditions of every index over values in memory or runtime
    scalars are proved where it is read.
    Order: before inline_stages, which puts a definition at an index that may be outside of it.
    """
    if not any(_asks(stage.op) for stage in plan.stages):
        return plan
    renamed: dict[Operation, Operation] = {}
    stages: list[StagePlan] = []
    for stage in plan.stages:
        op = stage.op
        if isinstance(op, ComputeOp):
            op = reading(_bounded(op, plan.assumptions) if _asks(op) else op, {}, renamed)
        elif isinstance(op, ExternOp):
            op = reading_whole(op, renamed)
        if op is not stage.op and isinstance(op, (ComputeOp, ExternOp)):
            renamed[stage.op] = op
            stage = stage.with_op(op)
        stages.append(stage)
    if not renamed:
        return plan
    outputs = tuple(renamed.get(t.op, t.op).outputs[t.index] for t in plan.outputs)
    return replace(plan, stages=tuple(stages), outputs=outputs)


@of_form
def _asks(op: Operation) -> bool:
    """True when an index of a read in `op` is no expression of axes and constants alone."""
    if not isinstance(op, ComputeOp):
        return False
    return any(map(_is_open, (index for read in reads(*op.bodies) for index in read.indices)))


def _is_open(index: Expr) -> bool:
    """True when an index depends on more than axes."""
    return any(isinstance(node, (TensorRead, Reduce, Var)) for node in walk(index))


@lru_cache(maxsize=512)
def _bounded(op: ComputeOp, assumptions: tuple[Expr, ...]) -> ComputeOp:
    """`op` with its reads bounded; the same object when all are proved to be inside."""
    shapes = [op.shape, *(read.tensor.shape for read in reads(*op.bodies))]
    facts = shape_facts(shapes)
    for condition in assumptions:
        facts = facts.assume(condition)
    sizes = {each for shape in shapes for extent in shape for each in variables(extent)}
    bounder = _Bounder(frozenset(each for each in sizes if isinstance(each, Var)))
    bodies = tuple(bounder.visit(body, facts) for body in op.bodies)
    if all(new is old for new, old in zip(bodies, op.bodies, strict=True)):
        return op
    return op.later(lambda: bodies)


class _Bounder:
    """Rebuilds the bodies of one definition, a shared node once for each set of guards; the values
    of `sizes` are known to the checks of a definition."""

    def __init__(self, sizes: frozenset[Var]) -> None:
        self.sizes = sizes
        self.memo: dict[tuple[Expr, Facts], Expr] = {}

    def visit(self, expr: Expr, facts: Facts) -> Expr:
        done = self.memo.get((expr, facts))
        if done is None:
            done = self.memo[expr, facts] = self._rebuilt(expr, facts)
        return done

    def _rebuilt(self, expr: Expr, facts: Facts) -> Expr:
        match expr:
            case TensorRead():
                return self._read(expr, facts)
            case IfThenElse(condition=condition, a=a, b=b):
                yes, no = facts.assume(condition), facts.assume(build.logical_not(condition))
                parts = self.visit(condition, facts), self.visit(a, yes), self.visit(b, no)
            case Reduce(where=where) if where is not None:
                inside = facts.assume(where)
                own = frozenset(expr.sources)
                parts = tuple(
                    self.visit(child, inside if child in own else facts)
                    for child in expr.children()
                )
            case _:
                return map_children(expr, lambda child: self.visit(child, facts))
        same = all(new is old for new, old in zip(parts, expr.children(), strict=True))
        return expr if same else expr.rebuild(parts)

    def _read(self, read: TensorRead, facts: Facts) -> Expr:
        indices = tuple(self.visit(index, facts) for index in read.indices)
        same = all(new is old for new, old in zip(indices, read.indices, strict=True))
        own = read if same else TensorRead(read.tensor, indices)
        tests = [
            test
            for index, size in zip(own.indices, own.tensor.shape, strict=True)
            if self._is_unknown(index)
            for test in _inside(index, size)
            if not prove(test, facts)
        ]
        return IfThenElse(both(*tests), own, build.const(0, own.dtype)) if tests else own

    def _is_unknown(self, index: Expr) -> bool:
        """True when an index depends on what no check of a definition knows."""
        return any(
            isinstance(node, (TensorRead, Reduce))
            or (isinstance(node, Var) and node not in self.sizes)
            for node in walk(index)
        )


def _inside(index: Expr, size: Expr) -> tuple[Expr, Expr]:
    wide = index if index.dtype in (DType.int32, DType.int64) else widened(index)
    return at_most(ZERO, wide), less(wide, size)
