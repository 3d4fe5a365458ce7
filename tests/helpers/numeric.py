"""Numeric derivatives: central differences of the reference, against `te.gradient`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import tedsl as te
from tedsl.reference.reference import evaluate

STEP = 1e-5


def differences(
    output: te.Tensor,
    wrt: te.Tensor,
    inputs: Mapping[te.Tensor, Any],
    head: Any,
    sizes: Mapping[te.Var, int] | None = None,
) -> Any:
    """The derivative of sum(head * output) by each element of `wrt`, in float64."""
    values = dict(inputs)
    base = values[wrt]
    result = np.zeros(base.shape)
    for place in np.ndindex(*base.shape):
        ends: list[float] = []
        for step in (STEP, -STEP):
            moved = base.copy()
            moved[place] += step
            values[wrt] = moved
            (found,) = evaluate(output, values, sizes)
            ends.append(float((head * found).sum()))
        result[place] = (ends[0] - ends[1]) / (2 * STEP)
    return result


def check(
    output: te.Tensor,
    inputs: Mapping[te.Tensor, Any],
    wrt: Sequence[te.Tensor],
    sizes: Mapping[te.Var, int] | None = None,
    tolerance: float = 1e-6,
) -> list[te.Tensor]:
    """Compare the gradients of a float64 `output` with central differences; returns them."""
    (value,) = evaluate(output, inputs, sizes)
    weights = np.random.default_rng(5).standard_normal(value.shape)
    head = te.placeholder(output.shape, "float64", name="head")
    gradients = te.gradient(output, wrt, head)
    found = evaluate(gradients, {**inputs, head: weights}, sizes)
    for tensor, gradient, got in zip(wrt, gradients, found, strict=True):
        assert gradient.dtype is tensor.dtype
        assert gradient.name == f"d_{output.name}_d_{tensor.name}"
        want = differences(output, tensor, inputs, weights, sizes)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=tensor.name)
    return gradients


def slopes(
    output: te.Tensor,
    wrt: te.Tensor,
    inputs: Mapping[te.Tensor, Any],
    head: Any,
    direction: Any,
    sizes: Mapping[te.Var, int] | None = None,
) -> list[float]:
    """The derivative of sum(head * output) along `direction`, by two steps; where they disagree
    there is a kink nearby."""
    found: list[float] = []
    for step in (1e-7, 3e-8):
        ends: list[float] = []
        for way in (step, -step):
            moved = {**inputs, wrt: inputs[wrt] + way * direction}
            (value,) = evaluate(output, moved, sizes)
            ends.append(float((head * value).sum()))
        found.append((ends[0] - ends[1]) / (2 * step))
    return found
