"""One computation under one schedule, run in every way there is, and compared."""

from __future__ import annotations

import importlib.util
from typing import Any

import every_kernel
import numpy as np
from hypothesis import event, note, settings
from red_zones import red_zones
from strategies import Case

import tedsl as te
from tedsl.dtypes import DType
from tedsl.errors import LowerError
from tedsl.expr.numerics import Array
from tedsl.expr.printer import operations
from tedsl.expr.reference import evaluate
from tedsl.ir.interp import run
from tedsl.ir.nodes import Buffer, Module
from tedsl.ir.printer import print_module
from tedsl.lower.pipeline import lower
from tedsl.scheduling.replay import replay
from tedsl.scheduling.schedule import Schedule
from tedsl.scheduling.trace import Trace
from tedsl.target import Target

HUGE = 1e20
"""What stands for minus infinity in drawn masks is larger, and all other values are smaller."""
EPSILON = {
    DType.float8_e4m3fn: 0.0,
    DType.float8_e5m2: 0.0,
    DType.float16: 2.0**-10,
    DType.bfloat16: 2.0**-7,
    DType.float32: 2.0**-23,
    DType.float64: 2.0**-52,
}


def bound(case: Case, dtype: DType, most: float = HUGE) -> float:
    """The absolute error that two ways to round may differ by.

    Each of the `depth` stages has at most 8 roundings of its dtype, of values up to the largest in
    the graph that is below `most`; a sum of `length` terms has as many of its accumulator (float32
    at least).  Eight-bit floats hold what is drawn for them exactly.
    """
    ops = operations(case.outputs)
    tensors = [t for op in ops for t in op.outputs if t.dtype.is_float]
    values = evaluate(tensors, case.inputs, case.sizes) if tensors else []
    sized = [np.abs(v.astype(np.float64)) for v in values]
    finite = [v[v < most].max(initial=1.0) for v in sized]
    largest = max([1.0, *finite])
    coarsest = max([EPSILON[t.dtype] for t in tensors] + [EPSILON[dtype]])
    accumulated = max(EPSILON[DType.float32] if coarsest > 1e-10 else 0.0, EPSILON[DType.float64])
    return largest * (8 * case.depth * coarsest + 4 * case.length * accumulated)


def compare(
    case: Case,
    schedule: Schedule,
    got: list[Array],
    want: list[Array],
    how: str,
    finite: bool = False,
) -> None:
    """Exact for integers; within `bound`, with equal infinities and NaNs, for floats.

    With `finite`, what is larger than `HUGE` or NaN in `want` is not compared.  Where a result is
    larger than that, what stands for minus infinity was computed with (the maximum of nothing,
    times a number, summed up), and its rounding counts.
    """
    for tensor, x, y in zip(schedule.outputs, got, want, strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype, how
        if tensor.dtype.is_float:
            x, y = x.astype(np.float64), y.astype(np.float64)
            if finite:
                kept = np.abs(y) < HUGE
                x, y = x[kept], y[kept]
            beyond = any(((abs(z) >= HUGE) & np.isfinite(z)).any() for z in (x, y))
            error = bound(case, tensor.dtype, np.inf if beyond else HUGE)
            np.testing.assert_allclose(x, y, rtol=0, atol=error, err_msg=f"{how}: {tensor.name}")
        else:
            np.testing.assert_array_equal(x, y, err_msg=f"{how}: {tensor.name}")


def interpreted(module: Module, case: Case) -> list[Array]:
    """The module in the IR interpreter."""
    by_name = {tensor.name: array for tensor, array in case.inputs.items()}
    sizes = {var.name: value for var, value in case.sizes.items()}
    arrays = {buffer: by_name[buffer.name] for buffer in module.inputs}
    result: dict[Buffer, Array] = run(module, arrays, {v: sizes[v.name] for v in module.sizes})
    return [result[buffer] for buffer in module.outputs]


def compiled(schedule: Schedule, case: Case, target: str) -> list[Array]:
    """The kernel of a target on the same inputs."""
    kernel = te.build(schedule, target=target, cache=False)
    by_name = {tensor.name: array for tensor, array in case.inputs.items()}
    sizes = {var.name: value for var, value in case.sizes.items()}
    scalars = {name: sizes[name] for name in kernel.signature.keywords}
    with red_zones():
        result: Any = kernel(*(by_name[b.name] for b in kernel.module.inputs), **scalars)
    return list(result) if isinstance(result, tuple) else [result]


def check_pair(case: Case, schedule: Schedule, finite: bool = False) -> None:
    """All the ways to run one computation under one schedule, and the trace of the schedule."""
    want = evaluate(case.outputs, case.inputs, case.sizes)
    check_replay(case, schedule)
    for target, runs in (("cpu", ["cpu"]), ("triton-interpret", sampled(case))):
        module = lowered(schedule, target)
        if module is None:
            continue
        note(f"{target}\n{print_module(module)}")
        found = interpreted(module, case)
        compare(case, schedule, found, want, f"interpreted for {target}", finite)
        for each in runs:
            compare(case, schedule, compiled(schedule, case, each), want, each, finite)
    if case.number % (10 if settings().max_examples > 100 else 3):
        every_kernel.forget()  # ptxas takes one pair in three of `ci`, one in ten of a deep run
    every_kernel.compile_noted()


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
