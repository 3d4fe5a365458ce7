"""A small computation and its schedule with one knob, for tests of the search."""

from __future__ import annotations

from collections.abc import Callable

import tedsl as te
from tedsl.autotune.measure.bench import Bench, Finding
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import Tensor

N = 3000


def chain(name: str = "y", size: int = N) -> Tensor:
    """`tanh(2 x + 1) exp(-x)`."""
    x = te.placeholder((size,), "float32", name=f"{name}_in")
    return te.compute((size,), lambda i: te.tanh(x[i] * 2.0 + 1.0) * te.exp(-x[i]), name=name)


def pieces(*choices: int) -> Callable[[Schedule], None]:
    """A schedule function with one knob."""

    def schedule(s: Schedule) -> None:
        stage = s[s.outputs[0]]
        piece = s.knob("piece", choices, choices[0])
        _, inner = stage.split(stage.op.axis[0], factor=piece)
        stage.vectorize(inner)

    return schedule


def checked_closely(bench: Bench, kernel: te.Kernel) -> Finding | None:
    """What one that may win goes through besides, as a session has it done."""
    return bench.check_rows(kernel) or bench.check_elsewhere(kernel)
