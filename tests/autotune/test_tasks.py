"""Many problems under one budget: who gets the next batch, and the whole with real searches."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.autotune import tune_many
from tedsl.autotune.multi.task_scheduler import Allocator, Task
from tedsl.errors import TuneError
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import Tensor


def spend(curves: list[list[float]], weights: list[float], batches: int) -> list[int]:
    """How many batches each search gets, when its best time falls along its curve."""
    allocator = Allocator(weights)
    done = [0] * len(curves)
    for _ in range(batches):
        live = [n for n, curve in enumerate(curves) if done[n] < len(curve)]
        place = allocator.choose(live)
        allocator.learn(place, curves[place][done[place]], 1.0)
        done[place] += 1
    return done


def test_every_task_has_a_turn_first():
    flat = [[1.0] * 50 for _ in range(5)]
    assert spend(flat, [1.0] * 5, 5) == [1] * 5


def test_what_still_falls_gets_more_than_what_does_not():
    falling = [10.0 * 0.9**n for n in range(100)]
    done = spend([falling, [1.0] * 100], [1.0, 1.0], 40)
    assert done[0] > 25
    assert done[1] >= 2


def test_weights_count():
    same = [[1.0 / (1 + n) for n in range(200)] for _ in range(2)]
    light, heavy = spend(same, [1.0, 8.0], 60)
    assert heavy > 2 * light


def test_a_costly_batch_counts_less():
    allocator = Allocator([1.0, 1.0])
    for n in range(4):
        allocator.learn(0, 1.0 - 0.1 * n, 10.0)
        allocator.learn(1, 1.0 - 0.1 * n, 1.0)
    assert allocator.choose([0, 1]) == 1
    assert allocator.gain(1) > 5 * allocator.gain(0)


def test_nobody_waits_for_ever_and_what_never_runs_is_left():
    stuck = [[math.inf] * 200, [1.0] * 200, [1e-6] * 200]
    done = spend(stuck, [1.0, 1.0, 1.0], 150)
    assert min(done) >= 3
    assert done[0] < 15


def chain(name: str, size: int) -> Tensor:
    x = te.placeholder((size,), "float32", name=f"{name}_in")
    return te.compute((size,), lambda i: te.tanh(x[i] * 2.0 + 1.0) * te.exp(-x[i]), name=name)


def pieces(s: Schedule) -> None:
    stage = s[s.outputs[0]]
    piece = s.knob("piece", (8, 16, 32, 64, 128, 256), 8)
    _, inner = stage.split(stage.op.axis[0], factor=piece)
    stage.vectorize(inner)


def check(kernel: Any, size: int) -> None:
    x = np.linspace(-2, 2, size, dtype=np.float32)
    np.testing.assert_allclose(kernel(x), np.tanh(x * 2 + 1) * np.exp(-x), rtol=1e-5, atol=1e-6)


@pytest.mark.cpu
def test_many_problems_share_a_budget_and_are_known_afterwards(tmp_path: Path):
    x = te.placeholder((33, 257), "float32", name="x")
    n = te.size_var("n")
    v = te.placeholder((n,), "float32", name="v")
    tasks = [
        ("small", chain("a", 500)),
        Task("large", chain("b", 50_000), weight=4.0, schedule=pieces),
        ("softmax", te.nn.softmax(x), 2.0),
        Task("any length", te.compute((n,), lambda i: v[i] + 1.0, name="w"), sizes={"n": 99}),
    ]
    options: dict[str, Any] = {"trials": 10, "records": tmp_path / "r.sqlite"}
    found = tune_many(tasks, "cpu", **options)
    assert list(found) == ["small", "large", "softmax", "any length"]
    check(found["small"].kernel, 500)
    check(found["large"].kernel, 50_000)
    assert {spent.task for spent in found.history} == set(found)
    assert "large" in str(found)
    again = tune_many(tasks, "cpu", **options)
    assert all(result.replayed for result in again.values())
    assert not again.history


@pytest.mark.cpu
def test_one_that_never_runs_does_not_stop_the_others():
    def illegal(s: Schedule) -> None:
        s.knob("n", (1, 2))
        stage = s[s.outputs[0]]
        stage.split(stage.op.axis[0], factor=8)
        stage.split(stage.op.axis[0], factor=8)  # it is no loop any more

    tasks = [Task("bad", chain("a", 64), schedule=illegal), ("good", chain("b", 64))]
    found = tune_many(tasks, "cpu", trials=4, records=False)
    assert list(found) == ["good"]
    with pytest.raises(te.TedslError, match="default choices are not legal"):
        found["bad"]


@pytest.mark.parametrize(
    ("tasks", "options", "text"),
    [
        ([], {}, "there is no task"),
        ([("a", chain("a", 8)), ("a", chain("b", 8))], {}, "two tasks are called 'a'"),
        ([("a", chain("a", 8), -1.0)], {}, "the task 'a' has the weight -1.0"),
        ([("a", chain("a", 8))], {"trials": 0}, "trials=0 is no budget"),
        ([("a", chain("a", 8))], {"budget": "none"}, 'budget="none" measures nothing'),
    ],
)
def test_what_makes_no_sense_is_refused(tasks: Any, options: dict[str, Any], text: str):
    with pytest.raises(TuneError, match=text):
        tune_many(tasks, "cpu", records=False, **options)
