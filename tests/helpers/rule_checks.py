"""Run a `RuleCase` under the rules, and compare with the numpy oracle."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rule_cases import RuleCase, random_inputs, size_values

import tedsl as te
from tedsl.errors import ScheduleError
from tedsl.expr.numerics import Array
from tedsl.ir.interp import run
from tedsl.lower.pipeline import lower
from tedsl.reference.reference import evaluate
from tedsl.schedules import schedule_for
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.target import Target
from tedsl.tensor.tensor import Tensor

EPSILON = {
    "float8_e4m3fn": 2.0**-9,
    "float8_e5m2": 2.0**-8,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float32": 2.0**-22,
    "float64": 2.0**-50,
}
"""A rounding of 1; of 8-bit floats the 64th part, so that a value may be the next one."""
Decisions = Mapping[str, object]


def interpreted(case: RuleCase, target: str, decisions: Decisions | None = None) -> Schedule:
    """Lower the rules' schedule, verify each level, interpret it and compare."""
    outputs = case.outputs()
    sizes = size_values(case, outputs)
    inputs = random_inputs(outputs, sizes)
    schedule = schedule_for(outputs, target, decisions)
    module = lower(schedule.plan, Target.parse(target), check=True)
    arrays = {tensor.name: array for tensor, array in inputs.items()}
    values = {var.name: value for var, value in sizes.items()}
    found = run(
        module,
        {buffer: arrays[buffer.name] for buffer in module.inputs},
        {var: values[var.name] for var in module.sizes},
    )
    agree(outputs, [found[b] for b in module.outputs], evaluate(outputs, inputs, sizes))
    return schedule


def compiled(case: RuleCase, target: str, decisions: Decisions | None = None) -> None:
    """Build the rules' schedule, call the kernel and compare."""
    outputs = case.outputs()
    sizes = size_values(case, outputs)
    inputs = random_inputs(outputs, sizes)
    kernel = te.build(schedule_for(outputs, target, decisions), target, cache=False)
    arrays = {tensor.name: array for tensor, array in inputs.items()}
    values = {var.name: value for var, value in sizes.items()}
    scalars = {name: values[name] for name in kernel.signature.keywords}
    result: Any = kernel(*(arrays[b.name] for b in kernel.module.inputs), **scalars)
    got = list(result) if isinstance(result, tuple) else [result]
    agree(outputs, got, evaluate(outputs, inputs, sizes))


def agree(outputs: Sequence[Tensor], got: Sequence[Array], want: Sequence[Array]) -> None:
    """Exact for integers; floats within 64 roundings of the largest value of the output."""
    for tensor, x, y in zip(outputs, got, want, strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype, tensor.name
        if not tensor.dtype.is_float:
            np.testing.assert_array_equal(x, y, err_msg=tensor.name)
            continue
        x, y = x.astype(np.float64), y.astype(np.float64)
        bound = 64 * EPSILON[tensor.dtype.value] * max(1.0, np.abs(y).max(initial=0))
        np.testing.assert_allclose(x, y, rtol=0, atol=bound, err_msg=tensor.name)


def drawn(
    case: RuleCase, target: str, rng: random.Random, fixed: Decisions | None = None
) -> dict[str, object]:
    """Decisions for all knobs that are not `fixed`, drawn as they appear: all that are met at once,
    or one after another where one leaves another no such choice; the default where it leaves an
    earlier one none."""
    outputs = case.outputs()
    decisions: dict[str, object] = dict(fixed or {})
    at_once = True
    met = schedule_for(outputs, target, decisions).knobs
    while new := [knob for knob in met if knob.name not in decisions]:
        values = {knob.name: rng.choice(knob.choices) for knob in new[: len(new) if at_once else 1]}
        try:
            met = schedule_for(outputs, target, decisions | values).knobs
        except ScheduleError as error:
            if len(values) == 1:
                if not str(error).startswith("knob("):
                    raise
                decisions[new[0].name] = new[0].chosen
            at_once = False
        else:
            decisions |= values
    names = {*(knob.name for knob in met), *(fixed or {})}
    return {name: value for name, value in decisions.items() if name in names}
