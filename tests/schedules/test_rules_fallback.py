"""Where a rule cannot be carried out, the next simpler one is taken, for its kernel alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rule_cases import RuleCase, random_inputs, size_values
from rule_checks import agree
from rule_corpus import corpus

import tedsl as te
from tedsl.errors import BackendError, InternalError, LowerError, ScheduleError
from tedsl.ir.interp import run
from tedsl.lower.pipeline import lower
from tedsl.reference.reference import evaluate
from tedsl.runtime.executors import triton as triton_executors
from tedsl.schedules import attempts, default_schedule
from tedsl.schedules.fallback import TAKEN, Judge, Level
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.target import Target
from tedsl.tensor.tensor import Tensor

CORPUS = {case.name: case for case in corpus()}


def _neighbours() -> list[Tensor]:
    """A stage whose tile would be a region of no constant size."""
    n = te.size_var("n")
    a = te.placeholder((n, 8), "float32", name="A")
    b = te.compute((n, 8), lambda i, j: te.tanh(a[i, j]), name="B")
    return [te.compute((n, 8), lambda i, j: b[i, j] + b[te.minimum(i + 1, n - 1), j], name="C")]


def _pinned() -> list[Tensor]:
    """A condition that leaves one element of a row of a tile."""
    a = te.placeholder((2, 3, 2), "float32", name="A")
    k = te.reduce_axis((0, 3), name="k")
    b = te.compute((2, 2), lambda i, j: te.max(a[i, k, j], axis=k), name="B")
    return [
        te.compute(
            (2, 2), lambda i, j: te.if_then_else(j * 2 < 2, b[i, j], b[i, j] + 1.0), name="C"
        )
    ]


def _upsampled() -> list[Tensor]:
    """A gradient whose folds have lanes of a runtime size."""
    n = te.size_var("n")
    a = te.placeholder((4, n), "float64", name="A")
    head = te.placeholder((4, n * 3), "float64", name="head")
    t = te.compute(
        (4, n * 3), lambda i, j: a[i, j // 3] + a[i, te.minimum((j + 1) // 3, n - 1)], name="T"
    )
    return te.gradient(t, [a], head)


CASES = {
    "neighbours": RuleCase("neighbours", _neighbours, {"n": 9}),
    "pinned": RuleCase("pinned", _pinned),
    "upsampled": RuleCase("upsampled", _upsampled, {"n": 5}),
}


@pytest.mark.cpu
@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
@pytest.mark.parametrize("name", CASES)
def test_what_the_rules_were_refused_for_builds_and_is_right(name: str, target: str) -> None:
    case = CASES[name]
    outputs = case.outputs()
    kernel = te.build(outputs, target=target, cache=False)
    for n in (case.sizes.get("n", 1), 1):
        sizes = size_values(replace(case, sizes=dict.fromkeys(case.sizes, n)), outputs)
        inputs = random_inputs(outputs, sizes)
        arrays = {tensor.name: array for tensor, array in inputs.items()}
        scalars = {var.name: n for var in sizes if var.name in kernel.signature.keywords}
        result: Any = kernel(*(arrays[b.name] for b in kernel.module.inputs), **scalars)
        got = list(result) if isinstance(result, tuple) else [result]
        agree(outputs, got, evaluate(outputs, inputs, sizes))


def test_explain_says_what_was_refused_and_what_was_taken() -> None:
    kernel = te.build(_pinned(), target="triton-interpret", cache=False)
    (fallback,) = kernel.schedule.fallbacks
    assert fallback.stages == ("B", "C") and fallback.kernel == "C"
    text = str(kernel.explain())
    assert "B, C: a kernel for each stage, since in the kernel C: B is no tile that" in text
    assert "fallbacks" in kernel.explain().to_json()
    assert "fallback" in str(te.explain(_pinned(), "cuda:sm_90"))
    assert not te.build(CORPUS["softmax 7 33"].outputs(), target="cpu").schedule.fallbacks


def test_a_default_schedule_lowers() -> None:
    schedule = default_schedule(_pinned(), "cuda:sm_90")
    assert schedule.fallbacks
    lower(schedule.plan, Target.parse("cuda:sm_90"))
    assert te.lower(_pinned(), target="cuda:sm_90").funcs


@pytest.mark.parametrize("level", [Level.ALONE, Level.PLAIN, Level.BARE])
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_every_level_below_the_usual_one_lowers_and_is_right(target: str, level: Level) -> None:
    """What is taken last works for everything."""
    where = Target.parse(target)
    small = [case for name, case in CORPUS.items() if not re.search(r"long|of all|\d{3}", name)]
    for case in small[level.value :: 23]:
        outputs = case.outputs()
        found = _at(outputs, where, level)
        module = lower(found.plan, where, check=True)
        sizes = size_values(case, outputs)
        inputs = random_inputs(outputs, sizes)
        arrays = {tensor.name: array for tensor, array in inputs.items()}
        values = {var.name: value for var, value in sizes.items()}
        got = run(
            module,
            {buffer: arrays[buffer.name] for buffer in module.inputs},
            {var: values[var.name] for var in module.sizes},
        )
        agree(outputs, [got[b] for b in module.outputs], evaluate(outputs, inputs, sizes))


def _at(outputs: list[Tensor], target: Target, level: Level) -> Schedule:
    """The schedule that is taken after so many refusals of all of it."""
    left = iter(range(len(Level)))

    def use(schedule: Schedule, _: Judge) -> Schedule:
        taken = [each.taken for each in schedule.fallbacks]
        if TAKEN[level] not in taken and next(left, None) is not None:
            raise LowerError("refused by the test")
        return schedule

    return attempts(outputs, target).carried_out(use)


def _two_products() -> list[Tensor]:
    """Kernels that have nothing in common."""
    found: list[Tensor] = []
    for name in "CD":
        a = te.placeholder((64, 64), "float32", name=f"{name}a")
        b = te.placeholder((64, 64), "float32", name=f"{name}b")
        found.append(te.nn.relu(te.nn.matmul(a, b, name=name)))
    return found


def _refused(kind: Callable[[str], LowerError | ScheduleError | BackendError], kernel: str) -> Any:
    """What refuses the first schedules, naming a kernel, and notes all."""
    seen: list[Schedule] = []

    def use(schedule: Schedule, _: Judge) -> list[Schedule]:
        seen.append(schedule)
        if len(seen) < 3:
            error = kind("refused by the test")
            error.kernel = kernel
            raise error
        return seen

    return use


@pytest.mark.parametrize("kind", [LowerError, ScheduleError, BackendError])
def test_only_the_stages_of_the_kernel_are_scheduled_again(kind: Any) -> None:
    outputs = _two_products()
    target = Target.parse("cuda:sm_90")
    usual = default_schedule(outputs, target)
    root, other = (usual[output].name for output in outputs)
    seen = attempts(outputs, target).carried_out(_refused(kind, root))
    assert [len(s.fallbacks) for s in seen] == [0, 1, 2]
    assert [f.taken for f in seen[-1].fallbacks] == [TAKEN[Level.MODEST], TAKEN[Level.ALONE]]
    assert {"C", root} == set(seen[-1].fallbacks[0].stages)
    for stage in (other, "D"):
        assert _nest(seen[-1], stage) == _nest(usual, stage)
    assert _nest(seen[1], root) != _nest(usual, root)


def _nest(schedule: Schedule, stage: str) -> list[str]:
    """The calls for a stage, and what they gave."""
    return [str(step) for step in schedule.trace.steps if step.stage == stage]


def test_errors_that_no_schedule_changes_are_raised_at_once() -> None:
    count = 0

    def use(schedule: Schedule, _: Judge) -> None:
        nonlocal count
        count += 1
        raise BackendError("no device")

    with pytest.raises(BackendError, match="no device"):
        attempts(_two_products(), Target.parse("cpu")).carried_out(use)
    assert count == 1


def test_bugs_are_not_hidden() -> None:
    def use(schedule: Schedule, _: Judge) -> None:
        raise InternalError("a broken pass")

    with pytest.raises(InternalError, match="a broken pass"):
        attempts(_two_products(), Target.parse("cpu")).carried_out(use)


def test_what_is_refused_for_every_schedule_is_raised() -> None:
    seen: list[int] = []

    def use(schedule: Schedule, _: Judge) -> None:
        seen.append(len(schedule.fallbacks))
        raise LowerError("refused for good")

    with pytest.raises(LowerError, match="refused for good"):
        attempts(_two_products(), Target.parse("cuda:sm_90")).carried_out(use)
    assert seen == list(range(len(Level)))


@pytest.mark.ptxas
@pytest.mark.uncompiled("it is compiled here, for a device with less shared memory")
def test_a_kernel_without_room_on_the_device_is_made_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = (te.placeholder((512, 512), "float16", name=name) for name in "ab")
    product = te.nn.matmul(a, b)
    usual = te.build(product, target="cuda:sm_90")
    (needed,) = (info.shared for info in usual.resources.values())
    shared = triton_executors.OfflineExecutor.shared
    monkeypatch.setattr(
        triton_executors.OfflineExecutor, "shared", lambda made: (shared(made)[0], needed - 1)
    )
    smaller = te.build(product, target="cuda:sm_90")
    assert all(info.shared < needed for info in smaller.resources.values())
    (fallback, *_) = smaller.schedule.fallbacks
    assert f"needs {needed} bytes of shared memory, the device has {needed - 1}" in fallback.reason


def test_a_tile_that_triton_has_no_value_for_is_refused() -> None:
    a = te.placeholder((2, 1 << 20), "float32", name="A")
    b = te.compute(a.shape, lambda i, j: a[i, j] + 1.0, name="B")
    s = te.create_schedule(b)
    for axis in s[b].op.axis:
        s[b].vectorize(axis)
    with pytest.raises(LowerError, match="a tile of kernel B has 2097152 elements"):
        lower(s.plan, Target.parse("cuda:sm_90"))
    assert lower(s.plan, Target.parse("cpu")).funcs
