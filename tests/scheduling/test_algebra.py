"""Proofs and counterexamples for reducers."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import tedsl as te
from tedsl.expr.nodes import Reduce
from tedsl.scheduling.algebra import associativity
from tedsl.scheduling.algebra.associativity import Result, Verdict, combines_in_any_order

X = te.placeholder((8,), name="X")
Y = te.placeholder((8,), name="Y")
k = te.reduce_axis((0, 8), name="k")
ONE, ZERO = te.const(1.0, "float32"), te.const(0.0, "float32")


def judged(combine: Any, *sources: Any) -> Result:
    """The verdict on a reducer over `sources`; identities do not matter to it."""

    def identity(*types: Any) -> Any:
        zeros = tuple(te.const(0, t) for t in types)
        return zeros[0] if len(zeros) == 1 else zeros

    reducer = te.comm_reducer(combine, identity, name="r")
    made: Any = reducer(sources[0] if len(sources) == 1 else sources, axis=k)
    reduce = made[0] if isinstance(made, (tuple, list)) else made
    assert isinstance(reduce, Reduce)
    return combines_in_any_order(reduce.reducer, reduce.sources)


def welford(x, y):
    delta, count = y[0] - x[0], x[2] + y[2]
    mean = x[0] + delta * y[2] / count
    return mean, x[1] + y[1] + delta * delta * x[2] * y[2] / count, count


def online_sum_of_exp(x, y):
    top = te.max(x[0], y[0])
    return top, x[1] * te.exp(x[0] - top) + y[1] * te.exp(y[0] - top)


def argmax(x, y):
    first = (x[1] > y[1]) | ((x[1] == y[1]) & (x[0] <= y[0]))
    return te.select(first, x[0], y[0]), te.select(first, x[1], y[1])


def argmax_nested(x, y):
    index = te.select(x[1] < y[1], y[0], te.min(x[0], y[0]))
    return te.select(x[1] > y[1], x[0], index), te.max(x[1], y[1])


@pytest.mark.parametrize(
    ("combine", "sources"),
    [
        pytest.param(lambda x, y: y + x, (X[k],), id="swapped sum"),
        pytest.param(lambda x, y: (x[0] + y[0], te.max(x[1], y[1])), (X[k], Y[k]), id="pair"),
        pytest.param(lambda x, y: x + y + x * y, (X[k],), id="x + y + x y"),
        pytest.param(lambda x, y: te.max(te.abs(x), te.abs(y)), (X[k],), id="largest magnitude"),
        pytest.param(lambda x, y: te.sqrt(x * x + y * y), (X[k],), id="norm"),
        pytest.param(lambda x, y: te.log(te.exp(x) + te.exp(y)), (X[k],), id="logaddexp"),
        pytest.param(welford, (X[k], ZERO, ONE), id="welford"),
        pytest.param(online_sum_of_exp, (X[k], ONE), id="online sum of exp"),
        pytest.param(argmax, (k, X[k]), id="argmax"),
        pytest.param(argmax_nested, (k, X[k]), id="argmax, nested"),
    ],
)
def test_proved(combine, sources):
    assert judged(combine, *sources) == Result(Verdict.PROVED)


@pytest.mark.parametrize(
    ("combine", "sources", "text"),
    [
        (lambda x, y: x - y, (X[k],), "x.y = "),
        (lambda x, y: (x + y) / 2.0, (X[k],), "(x.y).z = "),
        (lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1]), (X[k], Y[k]), "y.x = "),
        (
            lambda x, y: (te.select(x[1] >= y[1], x[0], y[0]), te.max(x[1], y[1])),
            (k, X[k]),
            "y.x = ",
        ),
        (lambda x, y: x, (X[k],), "y.x = "),
    ],
    ids=["difference", "average", "affine maps", "argmax without ties", "first"],
)
def test_refuted(combine, sources, text):
    result = judged(combine, *sources)
    assert result.verdict is Verdict.REFUTED
    assert text in result.text


def test_neither():
    def guarded(x, y):
        delta, count = y[0] - x[0], x[2] + y[2]
        share = te.select(count == 0.0, 0.0, y[2] / te.max(count, 1.0))
        return x[0] + delta * share, x[1] + y[1] + delta * delta * x[2] * share, count

    result = judged(guarded, X[k], ZERO, ONE)
    assert result.verdict is Verdict.UNKNOWN
    assert result.text


def test_quotients_that_may_be_by_nothing():
    """Of three elements, two may weigh nothing."""

    def mean(x, y):
        none = te.all(x[0] == 0.0, x[1] == 0.0, y[0] == 0.0, y[1] == 0.0)
        both = (x[0] * x[1] + y[0] * y[1]) / (x[1] + y[1])
        return te.select(none, 0.0, both), x[1] + y[1]

    result = judged(mean, X[k], Y[k])
    assert (result.verdict, result.text) == (Verdict.UNKNOWN, "no proof: a quotient by 0")


def test_known_operators_need_no_sympy():
    code = (
        "import sys, tedsl as te\n"
        "X = te.placeholder((8, 64), name='X'); k = te.reduce_axis((0, 64), name='k')\n"
        "B = te.compute((8,), lambda i: te.max(X[i, k], axis=k), name='B')\n"
        "s = te.create_schedule(B); s.rfactor(B, k)\n"
        "assert 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_equal_reducers_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever tensors they reduce; of another type, or combined otherwise, they are others."""

    def scaled(x: Any, y: Any) -> Any:
        return x + y + x * y * 0.75

    assert judged(scaled, X[k]).verdict is Verdict.PROVED
    monkeypatch.setattr(associativity, "_fails", lambda *_: "judged again")
    assert judged(scaled, Y[k]).verdict is Verdict.PROVED
    assert judged(lambda x, y: x + y + x * y * 1.75, X[k]).text == "judged again"
    assert judged(scaled, X[k].astype("float64")).text == "judged again"
