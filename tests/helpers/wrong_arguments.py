"""Calls of everything that is public with arguments that are wrong, one at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import tedsl as te

# They print, search, or call a function of the user's, whose failures are his own.
LEFT_OUT = {"show", "watch", "autotune", "space", "view", "print_progress", "explain", "roofline"}


class Setting:
    """A schedule, its stages, axes and tensors; what parameters are given by their names."""

    def __init__(self) -> None:
        n = te.size_var("n")
        self.a = te.placeholder((8, 6), "float32", name="A")
        self.v = te.placeholder((n,), "float32", name="V")
        k = te.reduce_axis((0, 6), name="k")
        self.b = te.compute((8, 6), lambda i, j: self.a[i, j] + self.v[0], name="B")
        self.c = te.compute((8,), lambda i: te.sum(self.b[i, k], axis=k), name="C")
        self.d = te.compute((8,), lambda i: self.c[i] * 2.0, name="D")
        self.s = te.create_schedule(self.d)
        self.loop, self.row = self.c.op.axis[0], self.b.op.axis[0]
        self.fold = k
        self.kernel: Any = None

    def wrong(self) -> list[Any]:
        """A value of every kind."""
        return [
            *(None, 0, 3, -1, 2**70, "zzz", "", 1.5, float("nan"), True, b"x", object()),
            *([], [1, 2], (), (None,), {}, {"a": 1}, [[1]], np.zeros(2), np.zeros((2, 2)), {1}),
            *(np.float32(1), self.s, self.s[self.c], self.c, self.c.op, self.loop),
            *(te.var("m"), self.a[0, 0], self.v[0] > 1.0, range(3), int, iter([1]), lambda: 1),
        ]

    def right(self, name: str) -> Any:
        """What a parameter of this name could be."""
        loop, fold, row = self.loop, self.fold, self.row
        known: dict[str, Any] = {
            **{key: self.a[0, 0] for key in ("a", "b", "x", "y", "expr", "value", "condition")},
            **{key: self.c for key in ("tensor", "tensors", "T", "output", "outputs", "T1")},
            **{key: [self.d] for key in ("ops", "readers", "inputs", "loss")},
            **{key: loop for key in ("parent", "outer", "loop", "at", "along")},
            "axis": loop, "factor": 2, "nparts": None, "shape": (4,), "dtype": "float32",
            "name": "E", "fcompute": lambda *i: 1.0, "scope": "local", "n": 1, "dom": (0, 4),
            "target": "cpu", "factor_axis": 0, "inner": row, "thread_ivar": "threadIdx.x",
            "choices": [1, 2], "fold": fold, "num_stages": 2, "tag": "t", "stage": self.s[self.c],
            "offset": 0, "axes": [loop], "other": self.s, "trace": self.s.trace, "label": "i",
        }  # fmt: skip
        return known.get(name, 1)


def subjects() -> dict[str, Callable[[Setting], Any]]:
    """From a name to what is called, in a setting."""
    found: dict[str, Callable[[Setting], Any]] = {}
    for name in te.__all__:
        made = getattr(te, name)
        if callable(made) and name not in LEFT_OUT and not inspect.isclass(made):
            found[f"te.{name}"] = lambda _, name=name: getattr(te, name)
    for name in te.schedule.__all__:
        if not inspect.isclass(getattr(te.schedule, name)):
            found[f"te.schedule.{name}"] = lambda _, name=name: getattr(te.schedule, name)
    holders: dict[str, tuple[type, Callable[[Setting], Any]]] = {
        "Schedule": (te.Schedule, lambda t: t.s),
        "Stage": (te.Stage, lambda t: t.s[t.c]),
        "Tensor": (te.Tensor, lambda t: t.c),
        "Axis": (te.Axis, lambda t: t.c.op.axis[0]),
        "Kernel": (te.Kernel, lambda t: t.kernel),
        "Trace": (te.Trace, lambda t: t.s.trace),
        "Target": (te.Target, lambda t: te.Target.parse("cpu")),
    }
    for title, (kind, get) in holders.items():
        for name in sorted({*dir(kind)}):
            plain = not name.startswith("_") or name in ("__getitem__", "__call__")
            if plain and name not in LEFT_OUT and callable(getattr(kind, name, None)):
                found[f"{title}.{name}"] = lambda t, name=name, get=get: getattr(get(t), name)
    return found


def calls(called: Any, t: Setting) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments with one that is wrong, by its place and by its name, the others as they may be."""
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except ValueError:
        return
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = [p for p in parameters if p.kind in plain]
    needed = [t.right(p.name) for p in given if p.default is p.empty]
    several = [p for p in parameters if p.kind is p.VAR_POSITIONAL]
    for wrong in t.wrong():
        for place in range(len(given)):
            others = [t.right(p.name) for p in given]
            others[place] = wrong
            yield tuple(others[: max(place + 1, len(needed))]), {}
        for p in parameters:
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                keywords = {q.name: t.right(q.name) for q in given if q.default is q.empty}
                if not any(q.kind is q.POSITIONAL_ONLY for q in given):
                    yield (), {**keywords, p.name: wrong}
        for _ in several:
            yield (*needed, wrong), {}
            yield (*needed, wrong, wrong), {}
