"""Spaces of real computations: name-free knobs, traces by number, user functions."""

import json

import pytest

import tedsl as te
from tedsl.autotune.search_space.anonymous_names import Naming, number_trace
from tedsl.autotune.search_space.problem import Problem, function_digest
from tedsl.autotune.search_space.space import Candidate
from tedsl.errors import TuneError
from tedsl.scheduling.handles.schedule import Schedule, create_schedule
from tedsl.tensor.tensor import Tensor


def chain(a: str = "a", b: str = "b", i: str = "i") -> Tensor:
    x = te.placeholder((64,), "float32", name="x" + a)
    y = te.compute((64,), lambda i: te.exp(x[i]), name=a)
    return te.compute((64,), lambda i: y[i] + 1.0, name=b)


def schedule(s: Schedule) -> None:
    out, producer = s.stages[2], s.stages[1]
    width = int(str(s.knob(f"{out.name}.width", (4, 8), 8)))
    outer, inner = out.split(out.op.axis[0], factor=width)
    if s.knob(f"{producer.name}.fused", (True, False)):
        producer.compute_at(out, outer)
    out.vectorize(inner)


def test_knob_names_hold_numbers_instead_of_stages():
    naming = Naming(("x", "C", "C.red", "C_1"))
    names = {"C.width": "#1.width", "C.red.parts": "#2.parts", "C_1.w": "#3.w", "mine": "mine"}
    for name, free in names.items():
        assert naming.anonymous(name) == free
        assert naming.named(free) == name
    assert naming.named("#9.width") == "#9.width"


def test_programs_that_differ_in_names_have_equal_candidates():
    one = Problem([chain()], "cpu", schedule).space()
    two = Problem([chain("first", "second")], "cpu", schedule).space()
    for decisions in ({}, {"#2.width": 4}, {"#1.fused": False}):
        a, b = one.candidate(decisions, "default"), two.candidate(decisions, "default")
        assert isinstance(a, Candidate)
        assert isinstance(b, Candidate)
        assert (a.key, a.trace) == (b.key, b.trace)
    assert a.decisions == {"#2.width": 8, "#1.fused": False}


def test_traces_that_differ_in_more_than_names_stay_different():
    space = Problem([chain()], "cpu", schedule).space()
    found = [space.candidate({"#2.width": n}, "random") for n in (4, 8)]
    assert len({c.identity for c in found if isinstance(c, Candidate)}) == 2


def test_a_numbered_trace_has_no_names():
    s = create_schedule(chain("secret", "hidden"))
    schedule(s)
    text = number_trace(s.trace.to_json())
    assert json.loads(text)
    assert "secret" not in text
    assert "hidden" not in text


def test_default_rules_are_a_space():
    space = Problem([chain()], "cpu").space()
    assert space.name == "rules"
    assert space.default().key
    assert "space 'rules'" in space.describe()


def test_a_function_is_known_by_what_it_does():
    def make(choices: tuple[int, ...], name: str):
        def f(s: Schedule) -> None:
            s.knob(name, choices)

        return f

    assert function_digest(make((1, 2), "a")) == function_digest(make((1, 2), "a"))
    assert function_digest(make((1, 2), "a")) != function_digest(make((1, 3), "a"))
    assert function_digest(make((1, 2), "a")) != function_digest(schedule)
    with pytest.raises(TuneError, match="is no Python function"):
        function_digest(print)


def test_the_default_is_scheduled_once_though_others_come_between():
    calls: list[int] = []

    def counted(s: Schedule) -> None:
        calls.append(1)
        schedule(s)

    problem = Problem([chain()], "cpu", counted)
    space = problem.space()
    default = space.default()
    space.candidate({"#2.width": 4}, "random")
    again = problem.schedule(default.decisions)
    assert len(calls) == 2
    assert number_trace(again.trace.to_json()) == default.trace
    assert again is not problem.schedule(default.decisions)
