"""Properties of the index package on random expressions: what it concludes holds at every point."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st
from index_strategies import COLUMN, INNER, OUTER, ROW, A, World, conditions, integers, worlds

from tedsl.expr.nodes import Axis, Expr
from tedsl.expr.visit import structural_equal
from tedsl.index.affine import known_multiple, stride_of
from tedsl.index.bounds import lower_bound, upper_bound
from tedsl.index.evaluate import EvaluationError, evaluate_int
from tedsl.index.facts import Facts
from tedsl.index.interval import interval
from tedsl.index.linear import from_linear, linear
from tedsl.index.prove import counterexample, equal, prove
from tedsl.index.simplify import simplify

LOCAL = (A, ROW, COLUMN, INNER)


def value_at(expr: Expr, point: dict[Expr, int]) -> int:
    try:
        return evaluate_int(expr, point)
    except EvaluationError:
        assume(False)
        raise


@given(worlds(), st.one_of(integers, conditions), st.data())
def test_simplify_keeps_the_value(world: World, expr: Expr, data: st.DataObject) -> None:
    small = simplify(expr, world.facts)
    assert small.dtype is expr.dtype
    for _ in range(4):
        point = data.draw(st.composite(world.draw_point)())
        assert value_at(expr, point) == value_at(small, point)


@given(worlds(), st.one_of(integers, conditions))
def test_simplify_is_idempotent_and_keeps_objects(world: World, expr: Expr) -> None:
    small = simplify(expr, world.facts)
    assert simplify(small, world.facts) is small
    assert simplify(small, Facts(world.facts)) is small
    if structural_equal(small, expr):
        assert small is expr


@given(worlds(), st.one_of(integers, conditions), st.data())
def test_interval_contains_every_value(world: World, expr: Expr, data: st.DataObject) -> None:
    found = interval(expr, world.facts)
    for _ in range(3):
        point = data.draw(st.composite(world.draw_point)())
        assert found.contains(value_at(expr, point))


@given(worlds(), integers, st.data())
def test_linear_keeps_the_value(world: World, expr: Expr, data: st.DataObject) -> None:
    again = from_linear(linear(expr))
    point = data.draw(st.composite(world.draw_point)())
    assert value_at(expr, point) == value_at(again, point)


@given(worlds(), integers, st.integers(1, 15), st.data())
def test_bounds_contain_every_value(
    world: World, expr: Expr, chosen: int, data: st.DataObject
) -> None:
    axes = [axis for bit, axis in enumerate(LOCAL) if chosen >> bit & 1]
    inside = set[Expr](axes)
    low = lower_bound(expr, axes, world.facts)
    high = upper_bound(expr, axes, world.facts)
    for _ in range(3):
        point = data.draw(st.composite(world.draw_point)())
        outside = {axis: value for axis, value in point.items() if axis not in inside}
        value = value_at(expr, point)
        assert low is None or value_at(low, dict(outside)) <= value
        assert high is None or value <= value_at(high, dict(outside))


@given(worlds(), conditions, st.data())
def test_what_is_proved_holds(world: World, cond: Expr, data: st.DataObject) -> None:
    proved = prove(cond, world.facts)
    against = counterexample(cond, world.facts)
    assert not (proved and against)
    if against is not None:
        assert not evaluate_int(cond, against)
    point = data.draw(st.composite(world.draw_point)())
    assert value_at(cond, point) or not proved


@given(worlds(), conditions, conditions, st.data())
def test_conditions_are_used_soundly(
    world: World, known: Expr, cond: Expr, data: st.DataObject
) -> None:
    facts = world.facts.assume(known)
    proved = prove(cond, facts)
    small = simplify(cond, facts)
    for _ in range(4):
        point = data.draw(st.composite(world.draw_point)())
        if value_at(known, point):
            assert value_at(cond, point) == value_at(small, point)
            assert value_at(cond, point) or not proved


@given(worlds(), integers, integers, st.data())
def test_equal_means_equal(world: World, a: Expr, b: Expr, data: st.DataObject) -> None:
    assert equal(a, simplify(a, world.facts), world.facts)
    if equal(a, b, world.facts):
        point = data.draw(st.composite(world.draw_point)())
        assert value_at(a, point) == value_at(b, point)


@given(worlds(), integers, st.sampled_from((A, ROW, INNER, OUTER)), st.data())
def test_strides_and_divisors(world: World, expr: Expr, axis: Axis, data: st.DataObject) -> None:
    point = data.draw(st.composite(world.draw_point)())
    value = value_at(expr, dict(point))
    assert value % known_multiple(expr, world.facts) == 0
    stride = stride_of(expr, axis, world.facts)
    following = {**point, axis: point[axis] + 1}
    known = world.facts.range_of(axis)
    assert known is not None
    if following[axis] < evaluate_int(known.min, point) + evaluate_int(known.extent, point):
        step = stride if stride is None or isinstance(stride, int) else evaluate_int(stride, point)
        assert step is None or value_at(expr, following) == value + step
