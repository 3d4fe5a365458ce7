"""Outputs in another layout than the caller's, in whose arrays their elements are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tedsl.expr.index_arith import both
from tedsl.ir.nodes import Accumulate, Buffer, Func, Guard, Module, Stmt, Store
from tedsl.ir.visit import map_places, rewrite_stmts
from tedsl.scheduling.plan import CallersArray


def in_callers_arrays(module: Module, arrays: Mapping[Buffer, CallersArray]) -> Module:
    """The module in which the results of stages in another layout have the shapes of `arrays`: the
    outputs, and what is accumulated together with one.

    Before:  for b, h, l: D[b, h, l] = f(b, h, l)
    After:   for b, h, l: D[b, h * 64 + l] = f(b, h, l)

    Points that are no element of the caller's are computed, and not stored.
    """
    if not arrays:
        return module
    made = {buffer: replace(buffer, shape=array.shape) for buffer, array in arrays.items()}

    def given(buffers: Sequence[Buffer]) -> tuple[Buffer, ...]:
        return tuple(made.get(each, each) for each in buffers)

    def moved(func: Func) -> Func:
        body = rewrite_stmts(func.body, _stored(arrays))
        body = map_places(body, made, lambda buffer, indices: arrays[buffer].place(indices))
        return replace(func, params=given(func.params), body=body)

    own = given(module.outputs), given(module.workspaces)
    funcs = tuple(map(moved, module.funcs))
    return replace(module, outputs=own[0], workspaces=own[1], funcs=funcs)


def _stored(arrays: Mapping[Buffer, CallersArray]) -> Callable[[Stmt], Stmt | None]:
    """What stores nothing where the caller's array has no such element."""

    def guarded(node: Stmt) -> Stmt | None:
        match node:
            case Store(buffer=own) | Accumulate(buffers=(own, *_)) if own in arrays:
                conditions = arrays[own].has(node.indices)
                return Guard(both(*conditions), node) if conditions else None
            case _:
                return None

    return guarded
