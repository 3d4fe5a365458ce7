"""Scans as prefixes of an associative combination: what is one, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scans
from lowering import agrees
from refusals import refused

import tedsl as te
from tedsl.expr.nodes import Unary, UnaryOp
from tedsl.expr.visit import walk
from tedsl.scheduling.algebra.step_combination import combination
from tedsl.scheduling.trace.replay import replay
from tedsl.tensor.tensor import ComputeOp, ScanOp, Tensor

ROWS, COLUMNS = 37, 3
Step = Callable[[te.Expr, te.Expr], te.Expr]


def running(step: Step, dtype: str = "float32", start: float | None = None) -> te.Schedule:
    """S[t] = step(S[t - 1], x[t]), from x[0] or a constant."""
    x = te.placeholder((ROWS, COLUMNS), dtype, name="x")
    state = te.placeholder((ROWS, COLUMNS), dtype, name="S")

    def begin(t: te.Expr, i: te.Expr) -> te.Expr:
        return x[t, i] if start is None else te.const(start, dtype)

    first = te.compute((1, COLUMNS), begin, name="first")
    update = te.compute((ROWS, COLUMNS), lambda t, i: step(state[t - 1, i], x[t, i]), name="U")
    made = te.scan(first, update, state, name="run")
    assert isinstance(made, Tensor)
    return te.create_schedule(te.compute((ROWS, COLUMNS), lambda t, i: made[t, i] + 1, name="y"))


STEPS: dict[str, tuple[Step, str]] = {
    "sum": (lambda s, x: s + x, "float32"),
    "difference": (lambda s, x: s - x, "float32"),
    "of a function": (lambda s, x: te.tanh(x) * 0.5 + s, "float32"),
    "product": (lambda s, x: s * x, "float64"),
    "maximum": (te.maximum, "float32"),
    "minimum of integers": (te.minimum, "int32"),
    "bits": (lambda s, x: s ^ x, "int32"),
    "sum of logarithms": (
        lambda s, x: te.maximum(s, x) + te.log1p(te.exp(te.minimum(s, x) - te.maximum(s, x))),
        "float32",
    ),
    "the better one": (lambda s, x: te.select(x > s, x, s), "int32"),
    "plus one product": (lambda s, x: s + x + s * x, "float64"),
}


@pytest.mark.parametrize("block", [None, 8, 64])
@pytest.mark.parametrize("name", STEPS)
def test_prefixes(name: str, block: int | None) -> None:
    step, dtype = STEPS[name]
    s = running(step, dtype)
    s.associative_scan(s["run"], block)
    assert "run" not in [stage.name for stage in s.stages]
    assert agrees(s, targets=("cpu",))


@pytest.mark.parametrize("name", STEPS)
def test_blocks_of_blocks(name: str) -> None:
    """The first block has none before it; two that hold nothing meet, of which a logarithm of a sum
    makes no number: the case of their own that they have is no other combination."""
    step, dtype = STEPS[name]
    s = running(step, dtype)
    s.associative_scan(s["run"], 8)
    s.associative_scan(s["run.before"], 3)
    s.associative_scan(s["run.before.before"])
    assert agrees(s, targets=("cpu",))


def test_logarithms_of_sums_are_sums_beside_their_largest_term() -> None:
    """No logarithm is taken but of what is stored, and infinite terms give no NaN."""
    s = running(STEPS["sum of logarithms"][0])
    s.associative_scan(s["run"], 8)
    (fold,) = (stage.op for stage in s.stages if stage.name == "run.prefix")
    assert isinstance(fold, ComputeOp) and len(fold.bodies) == 2
    found = [
        body
        for op in (stage.op for stage in s.stages)
        if isinstance(op, ComputeOp)
        for body in op.bodies
    ]
    assert UnaryOp.LOG1P not in [n.op for n in walk(*found) if isinstance(n, Unary)]
    x = np.full((ROWS, COLUMNS), -np.inf, np.float32)
    x[5:, 0], x[7, 1], x[9:12, 2] = 1.0, np.inf, 2.0
    with np.errstate(all="ignore"):
        expected = np.logaddexp.accumulate(x.astype(np.float64)) + 1
    np.testing.assert_allclose(te.build(s, "cpu")(x), expected, rtol=1e-5)


@pytest.mark.parametrize("block", [None, 4])
@pytest.mark.parametrize("start", [0.0, 2.0])
@pytest.mark.parametrize("size", [None, 1])
def test_a_single_row(size: int | None, start: float, block: int | None) -> None:
    """No step is left to be folded, and none comes before another."""
    n = te.size_var("n")
    rows = n if size is None else size
    x, state = te.placeholder((rows,), name="x"), te.placeholder((rows,), name="S")
    first = te.compute((1,), lambda t: te.const(start, "float32"), name="first")
    update = te.compute((rows,), lambda t: state[t - 1] + x[t], name="U")
    run = te.scan(first, update, state, name="run")
    assert isinstance(run, Tensor)
    s = te.create_schedule(run)
    s.associative_scan(run, block)
    assert agrees(s, {n: 1} if size is None else None)


@pytest.mark.parametrize("start", [0.0, 2.0])
def test_a_given_row(start: float) -> None:
    """What changes nothing is no term; any other is the first one."""
    s = running(lambda a, x: a + x, start=start)
    fold = s.associative_scan(s["run"], 4)
    assert isinstance(fold, Tensor)
    rows = fold.shape[0]
    assert int(rows) == (ROWS - 1 if start == 0 else ROWS)
    assert agrees(s, targets=("cpu",))


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (lambda s, x: s * 0.5 + x, "order"),
        (lambda s, x: te.exp(s) + x, ""),
        (lambda s, x: x - s, ""),
        (lambda s, x: s + x * te.exp(x) + te.sin(x) * s, "terms"),
        (lambda s, x: te.select(te.equal(x, 1.0), s, s + x), "not the one which changes nothing"),
    ],
    ids=["filter", "function", "alternating", "two terms", "left out"],
)
def test_steps_that_combine_nothing_are_refused(step: Step, why: str) -> None:
    s = running(step)
    with refused(s, "not known to combine terms in any order", why):
        s.associative_scan(s["run"])


def test_what_else_is_refused() -> None:
    s = te.create_schedule(scans.recurrent())
    with refused(s, "not known to combine", "h"):
        s.associative_scan(s["h"])
    s = running(lambda a, x: a + x)
    with refused(s, "y is no scan"):
        s.associative_scan(s["y"])
    with refused(s, "block is 0"):
        s.associative_scan(s["run"], 0)
    with refused(s, "step_axis is 2", "-2 .. 1"):
        s.associative_scan(s["run"], step_axis=2)
    s["U"].vectorize(s["U"].op.axis[1])
    with refused(s, "U"):
        s.associative_scan(s["run"])


def test_nothing_is_computed_in_loops_that_it_replaces() -> None:
    x, state = te.placeholder((16, 8), name="x"), te.placeholder((16, 8), name="S")
    terms = te.compute((16, 8), lambda t, i: x[t, i] * 2.0, name="terms")
    first = te.compute((1, 8), lambda t, i: te.const(0.0, "float32"), name="first")
    update = te.compute((16, 8), lambda t, i: state[t - 1, i] + terms[t, i], name="U")
    s = te.create_schedule(te.scan(first, update, state, name="run"))
    s["terms"].compute_at(s["run"], s["run"].op.axis[0])
    with refused(s, "terms is computed in a loop of run, which has other loops", "compute_at"):
        s.associative_scan(s["run"], 4)


def test_an_output_keeps_its_rows() -> None:
    """A scan that is a result is still stored, out of what is folded."""
    outs = scans.running_sum(9, 5)
    s = te.create_schedule(outs)
    s.associative_scan(s["total"], 4, step_axis=-1)
    assert "total" in [stage.name for stage in s.stages]
    assert agrees(s, targets=("cpu",))


def test_printed(golden: Callable[..., None]) -> None:
    s = running(lambda a, x: a + x)
    s.associative_scan(s["run"], 16)
    golden(str(s))


def test_replayed() -> None:
    s = running(te.maximum)
    s.associative_scan(s["run"], 16, step_axis=1)
    again = replay(running(te.maximum).outputs, s.trace)
    assert str(again) == str(s)


def test_positions_of_extremes() -> None:
    """Two states: the larger of two elements and its place, the later of equal ones."""
    x = te.placeholder((ROWS,), "int32", name="x")
    value = te.placeholder((ROWS,), "int32", name="v")
    place = te.placeholder((ROWS,), "int32", name="p")

    def following(t: te.Expr) -> tuple[te.Expr, te.Expr]:
        new, old, where = x[t], value[t - 1], place[t - 1]
        taken = te.any(new > old, te.all(new.equal(old), t > where))
        return te.select(taken, new, old), te.select(taken, t, where)

    first = te.compute((1,), lambda t: (x[t], te.const(0, "int32")), name="first")
    step = te.compute((ROWS,), following, name="step")
    made = te.scan(list(first), list(step), [value, place], name="best")
    assert isinstance(made, list)
    op = made[0].op
    assert isinstance(op, ScanOp)
    found = combination(op)
    assert not isinstance(found, str)
    s = te.create_schedule(made)
    s.associative_scan(s["best"], 8)
    assert agrees(s, targets=("cpu",))


def test_on_a_gpu_it_is_one_operation(golden: Callable[..., None]) -> None:
    """The loops over steps and over what is folded are one dimension of a tile."""
    s = running(lambda a, x: a + x)
    fold = s[s.associative_scan(s["run"])]
    t, i = s["y"].op.axis
    s["y"].bind(i, "blockIdx.x")
    s["y"].reorder(i, t)
    s["y"].vectorize(t)
    fold.compute_at(s["y"], i)
    for axis in (*fold.op.axis, *fold.op.reduce_axis):
        fold.vectorize(axis)
    golden(te.build(s, target="triton-interpret").source)
    assert agrees(s)
