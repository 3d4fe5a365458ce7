"""Every access that the IR interpreter makes, counted while it runs: the meaning of what
`tedsl.cost.exact_bytes` says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np

from tedsl.expr.nodes import Expr, Var
from tedsl.ir import evaluate, interp
from tedsl.ir.evaluate import Env, Eval, Layout, Memory
from tedsl.ir.nodes import Accumulate, Buffer, Dot, Func, Module, Store
from tedsl.ir.numerics import Array, Value


@dataclass
class Tally:
    """Accesses of one buffer by one kernel: how many, and of which elements in which launch."""

    loads: int = 0
    stores: int = 0
    read: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    written: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])


class Accesses:
    """What a run of the interpreter accesses, by kernel and name of the buffer."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Tally]] = defaultdict(lambda: defaultdict(Tally))
        self.func = ""
        self.launches = 0
        self.updates = False
        self.others: Sequence[str] = ()

    def note(self, memory: Memory, flat: Array, writes: bool) -> None:
        """Count accesses to these elements."""
        tally = self.found[self.func][memory.name]
        elements = {(self.launches, int(n)) for n in flat.reshape(-1)}
        if writes:
            tally.stores += flat.size
            tally.written |= elements
        else:
            tally.loads += flat.size
            tally.read |= elements

    def loaded(self, memory: int, indices: list[Eval], mask: Eval | None, zero: Value) -> Eval:
        """In place of the interpreter's load of a tile or of one element."""

        def run(env: Env) -> Value:
            held: Memory = env[memory]
            lanes = True if mask is None else mask(env)
            if np.ndim(lanes) == 0 and not lanes:
                return zero
            values = [np.asarray(index(env)) for index in indices]
            *places, active = np.broadcast_arrays(*values, lanes)
            flat = np.zeros(int(np.count_nonzero(active)), np.int64)
            for place, extent in zip(places, held.data.shape, strict=True):
                flat = flat * extent + place[active]
            self.note(held, flat, False)
            safe = [np.where(active, place, 0) for place in places]
            if not held.data.size:
                return zero
            value = held.data[tuple(safe)]
            return value[()] if mask is None else np.where(active, value, zero)[()]

        return run

    def flat(self, places: tuple[Array, ...], memory: Memory, lanes: Array) -> Array:
        """In place of the interpreter's numbers of elements of a tile."""
        flat = _FLAT(places, memory, lanes)
        self.stored(memory, flat)
        return flat

    def place(self, leaf: Any, env: Env, memory: Memory) -> tuple[int, ...]:
        """In place of the interpreter's indices of one element."""
        place = _PLACE(leaf, env, memory)
        number = 0
        for index, extent in zip(place, memory.data.shape, strict=True):
            number = number * extent + index
        self.stored(memory, np.array([number]))
        return place

    def stored(self, memory: Memory, flat: Array) -> None:
        """Count a store, or an update, of this and the buffers that share its indices."""
        for name in (memory.name, *self.others):
            one = Memory(name, memory.data, None)
            self.note(one, flat, True)
            if self.updates:
                self.note(one, flat, False)

    def statement(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """A maker of statements whose runs say what kind they are."""

        def made(stmt: Store | Accumulate | Dot, layout: Layout) -> Callable[[Env], None]:
            run = make(stmt, layout)
            others = [b.name for b in stmt.buffers[1:]] if isinstance(stmt, Accumulate) else []

            def told(env: Env) -> None:
                self.updates, self.others = not isinstance(stmt, Store), others
                run(env)

            return told

        return made

    def version(self, func: Func, layout: Layout) -> Callable[[Env], None]:
        """In place of the interpreter's kernel: the accesses that follow are its."""
        run = _VERSION(func, layout)

        def told(env: Env) -> None:
            self.func, self.launches = func.name, self.launches + 1
            run(env)

        return told


_FLAT, _PLACE, _VERSION = (getattr(interp, name) for name in ("_flat", "_place", "_version"))


@contextmanager
def counting() -> Generator[Accesses]:
    """The interpreter counts what it accesses."""
    made = Accesses()
    with ExitStack() as stack:
        for name in ("_scalar_load", "_tile_load"):
            stack.enter_context(patch.object(evaluate, name, made.loaded))
        for name, own in (("_flat", made.flat), ("_place", made.place), ("_version", made.version)):
            stack.enter_context(patch.object(interp, name, own))
        for name in ("_store", "_accumulate", "_dot"):
            stack.enter_context(patch.object(interp, name, made.statement(getattr(interp, name))))
        yield made


def accesses(
    module: Module, inputs: Mapping[Buffer, Array], sizes: Mapping[Var, float]
) -> dict[str, dict[str, Tally]]:
    """What a run of a module accesses, by kernel and buffer, of buffers in device memory."""
    with counting() as made, np.errstate(all="ignore"):
        interp.run(module, inputs, sizes)
    return {func: dict(found) for func, found in made.found.items()}


__all__ = ["Accesses", "Expr", "Tally", "accesses", "counting"]
