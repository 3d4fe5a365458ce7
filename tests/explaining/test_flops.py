"""Operations are counted exactly, also where a loop is as long as an outer one says."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

import tedsl as te
from tedsl.cost.instruction_costs import flops_of
from tedsl.cost.trip_counts import Counts
from tedsl.expr.nodes import Expr
from tedsl.index.evaluate import EvaluationError, evaluate_int
from tedsl.ir.nodes import Accumulate, Dot, For, Func, Guard, Module, Stmt, Store
from tedsl.ir.visit import sub_stmts, walk_stmts

HEADS, ROWS = 4, 13


def triangle(heads: int = HEADS, rows: int = ROWS) -> te.Tensor:
    """Each row sums as many elements as its number says."""
    a = te.placeholder((heads, rows, rows), name="a")
    k = te.reduce_axis((0, rows), name="k")
    return te.compute(
        (heads, rows), lambda h, i: te.sum(a[h, i, k] * a[h, k, i], axis=k, where=k <= i), name="t"
    )


def fused(tensor: te.Tensor) -> te.Schedule:
    """All rows of all heads in one parallel loop."""
    s = te.create_schedule(tensor)
    s[tensor].parallel(s[tensor].fuse(*s[tensor].op.axis))
    return s


def fused_tiles(tensor: te.Tensor) -> te.Schedule:
    """Tiles of rows, in one parallel loop with the heads."""
    s = te.create_schedule(tensor)
    head, row = s[tensor].op.axis
    outer, inner = s[tensor].split(row, 4)
    both = s[tensor].fuse(head, outer)
    k, _ = s[tensor].split(s[tensor].op.reduce_axis[0], 4)
    s[tensor].reorder(both, k, inner)
    s[tensor].vectorize(inner)
    s[tensor].parallel(both)
    return s


def attended() -> te.Schedule:
    """Causal attention in one pass over the keys, heads and rows in one parallel loop."""
    q, k, v = (te.placeholder((2, 2, 9, 4), name=name) for name in "qkv")
    out = te.nn.attention(q, k, v, causal=True)
    s = te.create_schedule(out)
    lead, head, row, column = s[out].op.axis
    s[out].parallel(s[out].fuse(lead, head, row))
    del column
    return s


def grid() -> te.Schedule:
    """Programs of which each goes as far as its number says."""
    tensor = triangle(2, 64)
    s = te.create_schedule(tensor)
    head, row = s[tensor].op.axis
    outer, inner = s[tensor].split(row, 16)
    k, lanes = s[tensor].split(s[tensor].op.reduce_axis[0], 16)
    both = s[tensor].fuse(head, outer)
    s[tensor].reorder(both, k, inner, lanes)
    s[tensor].bind(both, "blockIdx.x")
    for axis in (inner, lanes):
        s[tensor].vectorize(axis)
    return s


def stepped() -> te.Schedule:
    """A scan whose steps read ever more."""
    x = te.placeholder((7, 5), name="x")
    state = te.placeholder((7, 5), name="state")
    first = te.compute((1, 5), lambda _, i: x[0, i], name="first")
    step = te.compute((7, 5), lambda t, i: state[t - 1, i] * 2.0 + x[t, i], name="step")
    return te.create_schedule(te.scan(first, step, state))


CASES: dict[str, tuple[Callable[[], te.Schedule], str]] = {
    "fused": (lambda: fused(triangle()), "cpu"),
    "fused tiles": (lambda: fused_tiles(triangle()), "cpu"),
    "attention": (attended, "cpu"),
    "grid": (grid, "cuda:sm_90"),
    "scan": (stepped, "cpu"),
}


def brute(func: Func, values: Mapping[Expr, int]) -> float:
    """Every iteration one after the other."""

    def visit(stmt: Stmt, known: dict[Expr, int]) -> float:
        match stmt:
            case For(axis=axis, start=start, end=end, body=body):
                turns = range(evaluate_int(start, known), evaluate_int(end, known))
                return sum(visit(body, {**known, axis: turn}) for turn in turns)
            case Guard(condition=condition, body=body):
                return visit(body, known) if _holds(condition, known) else 0.0
            case Store() | Accumulate() | Dot():
                return flops_of(stmt)
            case _:
                return sum(visit(inner, known) for inner in sub_stmts(stmt))

    return visit(func.body, dict(values))


def _holds(condition: Expr, known: Mapping[Expr, int]) -> bool:
    try:
        return bool(evaluate_int(condition, dict(known)))
    except EvaluationError:
        return True  # what only memory tells


def expected(module: Module) -> float:
    total = 0.0
    for repeat, places in module.launches():
        steps = [None] if repeat is None else range(evaluate_int(repeat.extent, {}))
        for step in steps:
            known: dict[Expr, int] = {}
            if repeat is not None and step is not None:
                known[repeat.step] = step
            total += sum(brute(module.funcs[place], known) for place in places)
    return total


@pytest.mark.parametrize("name", CASES)
def test_operations_are_those_of_every_iteration(name: str) -> None:
    make, target = CASES[name]
    schedule = make()
    found = te.explain(schedule, target, device="NVIDIA H200" if target != "cpu" else "")
    assert found.flops == expected(te.lower(schedule, target))
    assert found.flops > 0


def test_a_bound_that_a_fused_axis_decides() -> None:
    """By hand: row i multiplies and adds i + 1 times."""
    found = te.explain(fused(triangle()), "cpu")
    assert found.flops == 2 * HEADS * sum(range(1, ROWS + 1))


def test_of_too_many_iterations_some_are_looked_at() -> None:
    module = te.lower(fused(triangle(5, 40)), "cpu")
    exact, some = (Counts(module.funcs[0].body, {}, most) for most in (1 << 20, 50))
    work = [s for s in walk_stmts(module.funcs[0].body) if isinstance(s, Accumulate)]
    assert work
    for stmt in work:
        assert exact[stmt].entered == 5 * 40 * 41 / 2
        assert some[stmt].entered == pytest.approx(exact[stmt].entered, rel=0.1)
