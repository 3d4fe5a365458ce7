"""One computation under one schedule, run in every way there is, and compared."""

from __future__ import annotations

import importlib.util
from typing import Any

import every_kernel
from agreeing import Oracle, interpreted
from guarded_code import guarded_code
from hypothesis import event, note, settings
from red_zones import displaced, red_zones
from strategies import Case

import tedsl as te
from tedsl.errors import LowerError
from tedsl.expr.numerics import Array
from tedsl.ir.nodes import Module
from tedsl.ir.printer import print_module
from tedsl.lower.pipeline import lower
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.trace.replay import replay
from tedsl.scheduling.trace.trace import Trace
from tedsl.target import Target


def compiled(schedule: Schedule, case: Case, target: str) -> list[Array]:
    """The kernel of a target on the same inputs.

    On the CPU arrays begin at any element, and one case in four is built with checks of every
    access.
    """
    here = target == "cpu"
    if here and case.number % 4 == 1:
        with guarded_code():
            return _called(te.build(schedule, target=target, cache=False), case, 0)
    kernel = te.build(schedule, target=target, cache=False)
    return _called(kernel, case, case.number // 4 % 18 if here else 0)


def _called(kernel: te.Kernel, case: Case, elements: int) -> list[Array]:
    """The results of a kernel, called with arrays that begin so many elements late."""
    by_name = {tensor.name: array for tensor, array in case.inputs.items()}
    sizes = {var.name: value for var, value in case.sizes.items()}
    scalars = {name: sizes[name] for name in kernel.signature.keywords}
    given = [displaced(by_name[b.name], elements) for b in kernel.module.inputs]
    with red_zones(elements):
        result: Any = kernel(*given, **scalars)
    return list(result) if isinstance(result, tuple) else [result]


def check_pair(case: Case, schedule: Schedule) -> None:
    """All the ways to run one computation under one schedule, and the trace of the schedule."""
    oracle = Oracle(case)
    check_replay(case, schedule)
    for target, runs in (("cpu", ["cpu"]), ("triton-interpret", sampled(case))):
        module = lowered(schedule, target)
        if module is None:
            continue
        note(f"{target}\n{print_module(module)}")
        oracle.compare(interpreted(module, case), f"interpreted for {target}")
        for each in runs:
            oracle.compare(compiled(schedule, case, each), each)
    every_kernel.compile_one_in(10 if settings().max_examples > 100 else 3, case.number)


def sampled(case: Case) -> list[str]:
    """Triton's interpreter for one pair in ten, where there is Triton."""
    installed = importlib.util.find_spec("triton") is not None
    return ["triton-interpret"] if installed and case.number % 10 == 0 else []


def check_replay(case: Case, schedule: Schedule) -> None:
    """The trace makes the same schedule again, from JSON and from the Python it prints."""
    text = str(schedule)
    trace = Trace.from_json(schedule.trace.to_json())
    again = replay(case.outputs, trace)
    assert str(again) == text and again.trace == schedule.trace
    assert not schedule.diff(again)
    names = {f"out{n}": tensor for n, tensor in enumerate(case.outputs)}
    scope: dict[str, Any] = {"te": te, **names}
    exec(schedule.as_python(*names), scope)
    assert str(scope["s"]) == text and scope["s"].trace == schedule.trace


def lowered(schedule: Schedule, target: str) -> Module | None:
    """The verified module, or None when the target cannot carry the schedule out and says why."""
    try:
        module = lower(schedule.plan, Target.parse(target), check=True)
    except LowerError as error:
        assert str(error).strip() and error.hint, f"a refusal without advice: {error}"
        event(f"lower for {target}: refused")
        return None
    event(f"lower for {target}: done")
    return module
