"""Scripts in the way of TVM's tensor expressions: names, spellings and argument lists of that
language, with only the import changed.  Here is what they share.

A script gives its schedule, TVM's list of arguments, the arrays of the inputs and those that are
wanted.  `SCRIPTS` has all of them by name; those of `te_scripts_gpu` are written for threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tedsl

te: Any = tedsl
"""Untyped, as scripts are: what they misspell is seen when they run."""
tvm: Any = tedsl

Array = Any


@dataclass(frozen=True)
class Script:
    """A schedule, the arguments of its kernel, arrays of the inputs, and those of the results."""

    schedule: Any
    args: Sequence[Any]
    inputs: Sequence[Array]
    outputs: Sequence[Array]


SCRIPTS: dict[str, Callable[[], Script]] = {}


def script(make: Callable[[], Script]) -> Callable[[], Script]:
    """Enter a script in the table."""
    SCRIPTS[make.__name__] = make
    return make


def rand(*shape: int, dtype: str = "float32", seed: int = 0) -> Array:
    """Numbers of the standard normal distribution; small integers for integer dtypes."""
    values = np.random.default_rng(seed + len(shape)).standard_normal(shape)
    return (values * 8 if "int" in dtype else values).astype(dtype)


def run(made: Script, target: str, tolerance: float = 1e-4) -> None:
    """Build a script, call its kernel with all arguments, and compare the results."""
    kernel = te.build(made.schedule, made.args, target, name="script")
    results = [np.full(want.shape, 7, want.dtype) for want in made.outputs]
    kernel(*made.inputs, *results)
    for got, want in zip(results, made.outputs, strict=True):
        np.testing.assert_allclose(got, want, tolerance, tolerance)


def threads(*tags: str) -> list[Any]:
    """Thread axes of these tags."""
    return [te.thread_axis(tag) for tag in tags]
