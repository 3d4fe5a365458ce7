"""Run a schedule in every way, and compare the numbers with float64 references."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
from online_cases import Rows

import tedsl as te
from tedsl.ir.interp import run
from tedsl.reference.evaluate import evaluate_scalar
from tedsl.scheduling.handles.schedule import Schedule

TARGETS = ("cpu", "triton-interpret") if importlib.util.find_spec("triton") else ("cpu",)


def results(s: Schedule, arrays: list[np.ndarray], **sizes: int) -> dict[str, list[Any]]:
    """The outputs on every target, of the loop IR and of the kernel."""
    found: dict[str, list[Any]] = {}
    for target in TARGETS:
        module = te.lower(s, target, check=True)
        values = {var: sizes[var.name] for var in module.sizes}
        ran = run(module, dict(zip(module.inputs, arrays, strict=True)), values)
        found[f"interpreted for {target}"] = [ran[b] for b in module.outputs]
        made: Any = te.build(s, target=target, cache=False)(*arrays)
        found[target] = list(made) if isinstance(made, tuple) else [made]
    return found


def close(s: Schedule, arrays: list[np.ndarray], want: list[np.ndarray], bound: float) -> None:
    """Everywhere within `bound` of the largest value."""
    for how, found in results(s, arrays).items():
        for got, expected in zip(found, want, strict=True):
            scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
            got = np.asarray(got, np.float64)
            np.testing.assert_allclose(got, expected, rtol=0, atol=bound * scale, err_msg=how)


def inputs_of(rows: Rows, seed: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = [[evaluate_scalar(e, {}) for e in t.shape] for t in rows.inputs]
    return [(rng.standard_normal(shape) * 3).astype(np.float32) for shape in shapes]


def expected(rows: Rows, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(r) for r in rows.reference(*(a.astype(np.float64) for a in arrays))]
