"""Outputs in another layout than the caller's, in whose arrays their elements are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tedsl.ir.nodes import Func, Module
from tedsl.ir.visit import map_places
from tedsl.scheduling.plan import CallersArray


def in_callers_arrays(module: Module, arrays: Sequence[CallersArray | None]) -> Module:
    """The module whose outputs have the shapes of `arrays`, one for each output; None for one that
    has its own.

    Before:  for b, h, l: D[b, h, l] = f(b, h, l)
    After:   for b, h, l: D[b, h * 64 + l] = f(b, h, l)
    """
    known = {b: each for b, each in zip(module.outputs, arrays, strict=True) if each is not None}
    if not known:
        return module
    made = {buffer: replace(buffer, shape=array.shape) for buffer, array in known.items()}

    def moved(func: Func) -> Func:
        body = map_places(func.body, made, lambda buffer, indices: known[buffer].place(indices))
        return replace(func, params=tuple(made.get(b, b) for b in func.params), body=body)

    outputs = tuple(made.get(b, b) for b in module.outputs)
    return replace(module, outputs=outputs, funcs=tuple(map(moved, module.funcs)))
