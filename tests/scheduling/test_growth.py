"""The work of scheduling and lowering grows with the number of stages: calls are counted, and not
seconds, but for one slow test of a thousand stages."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import tedsl as te
from tedsl.schedules import default_schedule, trial
from tedsl.schedules.fusion.horizontal import TOGETHER
from tedsl.scheduling.kernels import complete
from tedsl.scheduling.memo import Memory
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.links import tensors_read
from tedsl.scheduling.plan.unshare_axes import own_nests
from tedsl.scheduling.regions.infer import infer, infer_again
from tedsl.scheduling.trace import as_python
from tedsl.tensor.tensor import ComputeOp

TARGETS = ("cpu", "cuda:sm_90")


def chain(n: int) -> Any:
    """Elements one after the other."""
    y = te.placeholder((64, 64), "float32", name="x")
    for k in range(n):
        y = te.compute((64, 64), lambda i, j: te.tanh(y[i, j]) * float(k + 1), name=f"y{k}")  # noqa: B023
    return y


def softmaxes(n: int) -> Any:
    """Rows that are folded twice, one after the other."""
    y = te.placeholder((64, 64), "float32", name="x")
    for k in range(n):
        y = te.nn.softmax(y, axis=-1, name=f"s{k}")
    return y


def layers(n: int) -> Any:
    """Products, each with a bias and a choice behind it."""
    y = te.placeholder((32, 32), "float32", name="x")
    for k in range(n):
        w = te.placeholder((32, 32), "float32", name=f"w{k}")
        b = te.placeholder((32,), "float32", name=f"b{k}")
        y = te.nn.relu(te.nn.linear(y, w, b, name=f"l{k}"))
    return y


def wide(n: int) -> Any:
    """Results of one input that do not depend on each other."""
    x = te.placeholder((64, 64), "float32", name="x")

    def scaled(k: int) -> te.Tensor:
        return te.compute((64, 64), lambda i, j: te.tanh(x[i, j]) * float(k), name=f"y{k}")

    return [scaled(k) for k in range(n)]


def sums(n: int) -> Any:
    """Elements less a part of the sum of their row, again and again."""
    y = te.placeholder((64, 64), "float32", name="x")
    for k in range(n):
        r = te.reduce_axis((0, 64))
        t = te.compute((64,), lambda i: te.sum(y[i, r], axis=r), name=f"t{k}")  # noqa: B023
        y = te.compute((64, 64), lambda i, j: y[i, j] - t[i] * 0.01, name=f"y{k}")  # noqa: B023
    return y


KINDS = {each.__name__: each for each in (chain, softmaxes, layers, wide, sums)}


def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The places that are judged from here on."""
    places: Any = pytest.importorskip("tedsl.scheduling.primitives.placement.legality")
    judge, found = places.place_problem, list[str]()

    def counted(plan: Any, stage: Any) -> Any:
        found.append(stage.name)
        return judge(plan, stage)

    monkeypatch.setattr(places, "place_problem", counted)
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_judgements_of_places_grow_with_the_stages(
    kind: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = judged(monkeypatch)
    counts: list[int] = []
    for n in (24, 48):
        found.clear()
        default_schedule(KINDS[kind](n), target)
        counts.append(len(found))
    assert counts[1] <= 2.3 * counts[0] + 8


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_calls_grow_with_the_stages(
    kind: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What rules, checks and lowering call between them: that a call walks over a list is allowed,
    that it calls something for each of its elements is not."""

    def calls(n: int) -> int:
        # What a test before this one asked of as many stages is not remembered.
        monkeypatch.setattr(trial, "_ANSWERS", Memory(256))
        outputs = KINDS[kind](n)
        count = 0

        def counted(frame: Any, event: str, arg: Any) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(counted)
        try:
            te.lower(default_schedule(outputs, target), target)
        finally:
            sys.setprofile(None)
        return count

    calls(4)  # what is found once for a process
    # Where kernels that run together are as many, or a kernel is as large, as may be.
    n = {"wide": 96, "sums": 48}.get(kind, 24)
    small, large = calls(n), calls(2 * n)
    assert large <= 2.3 * small


@pytest.mark.parametrize("kind", ["softmaxes", "sums", "wide"])
def test_a_line_of_python_looks_at_few_stages(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s, looked = default_schedule(KINDS[kind](24), "cuda:sm_90"), list[str]()

    def counted(stage: Any) -> Any:
        looked.append(stage.name)
        return labels(stage)

    monkeypatch.setattr(as_python, "labels", counted)
    lines = s.as_python().splitlines()
    assert len(looked) <= 4 * len(lines)


def test_bounds_are_found_again_behind_a_copy() -> None:
    """Copying an input makes another operation of each stage; what they compute is the same."""
    x, w = te.placeholder((64, 128), name="x"), te.placeholder((128, 64), name="w")
    y = te.nn.relu(te.nn.matmul(x, w, name="y"), name="z")
    s = te.create_schedule(y)
    io, jo, _, _ = s["z"].tile(*s["z"].op.axis, 16, 16)
    s["y"].compute_at(s["z"], jo)
    first, before = s["y"].op, infer_again(own_nests(s.plan))
    copy = s.cache_read(w, "local", [s["y"]])
    s[copy].compute_at(s["z"], io)
    after = infer_again(own_nests(s.plan))
    assert s["y"].op is not first
    assert all(before[name] is after[name] for name in ("y", "z"))


def test_kernels_are_completed_without_the_bounds_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What room a tile has is asked where loops would become a part of it, of one kernel."""
    asked, y = list[Any](), te.placeholder((512, 1024), "bfloat16", name="x")

    def counted(plan: Any, only: Any = None) -> Any:
        asked.append(only)
        return infer(plan, only)

    for k in range(3):
        w = te.placeholder((1024, 1024), "bfloat16", name=f"w{k}")
        y = te.nn.gelu(te.nn.linear(y, w, name=f"l{k}"), name=f"y{k}")
    monkeypatch.setattr(complete, "infer", counted)
    te.lower(default_schedule(y, "cuda:sm_90"), "cuda:sm_90")
    assert all(only is not None for only in asked)


def called_deep(frames: int, function: Callable[[], Any]) -> Any:
    """What `function` gives, called behind so many frames."""
    return function() if frames == 0 else called_deep(frames - 1, function)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["chain", "sums", "softmaxes"])
def test_long_graphs_are_lowered_from_deep_in_the_stack(kind: str, target: str) -> None:
    outputs = KINDS[kind](150)
    limit = sys.getrecursionlimit()
    s = called_deep(limit // 2, lambda: default_schedule(outputs, target))
    module = called_deep(limit // 2, lambda: te.lower(s, target))
    assert called_deep(limit // 2, lambda: str(s) + str(module) + s.as_python())
    assert sys.getrecursionlimit() == limit


def test_a_kernel_of_hundreds_of_stages_by_hand_is_lowered() -> None:
    y = sums(150)
    s = te.create_schedule(y)
    row = s[y].op.axis[0]
    for stage in reversed(s.stages):
        if isinstance(stage.op, ComputeOp) and stage.op is not y.op:
            stage.compute_at(s[y], row)
    assert len(te.lower(s, "cpu").funcs) == 1


def test_long_chains_are_a_few_kernels() -> None:
    s = default_schedule(chain(200), "cpu")
    assert 2 <= len(te.lower(s, "cpu").funcs) <= 10


def test_short_chains_are_one_kernel() -> None:
    s = default_schedule(chain(30), "cpu")
    assert len(te.lower(s, "cpu").funcs) == 1


@pytest.mark.parametrize("target", TARGETS)
def test_results_run_together_in_groups_however_many_there_are(target: str) -> None:
    for n in (40, 130):
        s = default_schedule(wide(n), target)
        assert len(te.lower(s, target).funcs) == -(-n // TOGETHER)


def test_what_an_operation_reads_is_found_once_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s = te.create_schedule(wide(1100))
    ops = [stage.op for stage in s.stages]
    first = [tensors_read(op) for op in ops]
    assert all(a is b for a, b in zip(first, map(tensors_read, ops), strict=True))


@pytest.mark.parametrize("target", TARGETS)
def test_operations_behind_copies_are_made_when_they_are_looked_at(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, count = ComputeOp.renamed, 0

    def counted(op: ComputeOp, *tensors: Any) -> ComputeOp:
        nonlocal count
        count += 1
        return rename(op, *tensors)

    monkeypatch.setattr(ComputeOp, "renamed", counted)
    counts: list[int] = []
    for n in (20, 40):
        count = 0
        default_schedule(layers(n), target)
        counts.append(count)
    assert counts[1] <= 2.2 * counts[0]


def test_what_follows_a_copy_is_what_it_was_rebuilt_to() -> None:
    outputs = layers(3)
    s = te.create_schedule(outputs)
    before = {stage.name: stage.op for stage in s.stages}
    for name in ("w0", "w1"):
        s.cache_read(s[name].op.output(), "local", [s[f"l{name[1]}.red"]])
    last = s[outputs].op
    assert last is s.outputs[0].op is s.plan.stages[-1].op
    assert last is not before[last.name] and s[before[last.name]].name == last.name
    known = {stage.op for stage in s.stages}
    assert all(t.op in known for stage in s.stages for t in tensors_read(stage.op))
    s.undo(2)
    assert {stage.name: stage.op for stage in s.stages} == before


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("kind", "n", "most"),
    [
        ("chain", 1000, 10),
        ("wide", 1000, 10),
        ("sums", 500, 10),
        ("softmaxes", 333, 10),
        ("layers", 333, 10),
    ],
)
def test_a_thousand_stages_take_seconds(kind: str, n: int, most: int, target: str) -> None:
    outputs = KINDS[kind](n)
    start = time.process_time()
    te.lower(default_schedule(outputs, target), target)
    assert time.process_time() - start < most
