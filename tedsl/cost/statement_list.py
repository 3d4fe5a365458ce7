"""A kernel as a list of what its programs do: each statement with its loops and how often it runs.

Imports `expr`, `ir` and numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tedsl.cost.sampled_indices import Points, Values
from tedsl.cost.trip_counts import Counts
from tedsl.expr.nodes import Axis, Expr, Var
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
    Dot,
    Finish,
    For,
    Func,
    Guard,
    LoopKind,
    Stmt,
    Store,
)
from tedsl.ir.visit import sub_stmts, tile_axes

MOST_LOOKED_AT = 1 << 16
"""Iterations that are gone through where bounds depend on outer loops."""
SAMPLES = 24
"""Programs that are looked at, spread over the grid: loops may run differently in each."""

Work = Store | Accumulate | Dot
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A loop within a program and its iterations in the mean program."""

    loop: For
    trips: float


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """One statement: its loops (outermost first), how often a mean program runs it, how often each
    sampled one does, and the points of its tile.  Only the last of `group` programs runs it."""

    stmt: Work
    loops: tuple[Loop, ...]
    times: float
    sampled: Floats
    place: int
    group: float = 1.0

    @property
    def points(self) -> int:
        """Points of the tile."""
        return math.prod(t.extent for t in tile_axes(self.stmt))

    @property
    def turns(self) -> tuple[Loop, ...]:
        """The loops that run, without the unrolled ones in the innermost of them."""
        count = len(self.loops)
        while count and self.loops[count - 1].loop.kind is LoopKind.UNROLLED:
            count -= 1
        return self.loops[:count]

    @property
    def copies(self) -> float:
        """How often the innermost loop that runs has the statement: turns of unrolled loops."""
        return math.prod(max(loop.trips, 1.0) for loop in self.loops[len(self.turns) :])


@dataclass(slots=True)
class Nest:
    """All statements of a kernel.

    `grid` are the extents of the program loops by number; `axes` the axes of those loops, with the
    number of each; `scopes` where each local buffer begins and ends to exist, as places of leaves,
    and the loops around it.
    """

    func: Func
    grid: tuple[int, ...]
    axes: Mapping[Axis, int]
    values: Mapping[Expr, Values]
    leaves: list[Leaf] = field(default_factory=list[Leaf])
    scopes: dict[Buffer, tuple[int, int]] = field(default_factory=dict[Buffer, tuple[int, int]])
    loops: list[tuple[Loop, int, int]] = field(default_factory=list[tuple[Loop, int, int]])

    @property
    def programs(self) -> int:
        """How many programs a launch has."""
        return math.prod(self.grid)

    def coordinates(self, numbers: NDArray[np.int64]) -> dict[Expr, Values]:
        """The values of the program axes in programs of these numbers, in order of launch."""
        found: dict[Expr, Values] = {}
        for axis, place in self.axes.items():
            inner = math.prod(self.grid[:place])
            found[axis] = numbers // inner % max(self.grid[place], 1)
        return found


def nest_of(func: Func, sizes: Mapping[Expr, Values], parallel: bool = False) -> Nest:
    """The statements of a kernel when the runtime sizes have these values.

    Args:
        func: at TILE level.
        sizes: values of the size variables.
        parallel: take parallel loops for loops of one program, not for the grid.
    """
    axes: dict[Axis, int] = {}
    extents: dict[int, int] = {}
    outer = Points(sizes)
    if not parallel:
        for loop in _programs(func.body):
            extent = int(np.max(np.asarray(outer.value(loop.extent))))
            axes[loop.axis] = loop.program
            extents[loop.program] = max(extents.get(loop.program, 1), extent)
    grid = tuple(extents.get(n, 1) for n in range(max(extents, default=0) + 1))
    nest = Nest(func, grid, axes, sizes)
    total = max(nest.programs, 1)
    count = min(SAMPLES, total)
    numbers = np.linspace(0, total - 1, count).astype(np.int64)
    env = {**sizes, **nest.coordinates(numbers)}
    counts = Counts(func.body, sizes, MOST_LOOKED_AT) if parallel else None
    _Flattening(nest, env, counts).visit(func.body, (), np.ones(count))
    return nest


def _programs(stmt: Stmt) -> Iterator[For]:
    if isinstance(stmt, For) and stmt.kind is LoopKind.PROGRAM:
        yield stmt
    if not isinstance(stmt, For) or stmt.kind is LoopKind.PROGRAM:
        for inner in sub_stmts(stmt):
            yield from _programs(inner)


class _Flattening:
    """Walks a body once, with the values of outer axes in the sampled programs; a serial loop is
    looked at in the middle of its iterations.  How often anything runs is as counted, where it is
    counted; else as at these points."""

    def __init__(self, nest: Nest, env: dict[Expr, Values], counts: Counts | None) -> None:
        self.nest = nest
        self.points = Points(env)
        self.counts = counts
        self.group = 1.0

    def visit(self, stmt: Stmt, loops: tuple[Loop, ...], times: Floats) -> None:
        """Add the leaves of `stmt`, which runs `times` in the sampled programs."""
        match stmt:
            case For() if stmt.kind is LoopKind.PROGRAM and self.counts is None:
                self.visit(stmt.body, loops, times)
            case For():
                self._loop(stmt, loops, times)
            case Guard(condition=condition, body=body):
                share = np.ones(1)
                if self.counts is not None:
                    share = np.array([self.counts[stmt].share])
                elif _known(condition, self.points.memo):
                    share = np.asarray(self.points.value(condition), dtype=np.float64)
                self.visit(body, loops, times * share)
            case Finish(count=count, body=body):
                programs = float(np.max(np.asarray(self.points.value(count))))
                self.group, before = max(programs, 1.0), self.group
                self.visit(body, loops, times / self.group)
                self.group = before
            case Allocate(buffer=buffer, body=body):
                begin = len(self.nest.leaves)
                self.visit(body, loops, times)
                self.nest.scopes[buffer] = (begin, len(self.nest.leaves))
            case Store() | Accumulate() | Dot():
                place = len(self.nest.leaves)
                mean = float(times.mean())
                self.nest.leaves.append(Leaf(stmt, loops, mean, times, place, self.group))
            case _:
                for inner in sub_stmts(stmt):
                    self.visit(inner, loops, times)

    def _loop(self, stmt: For, loops: tuple[Loop, ...], times: Floats) -> None:
        start = np.asarray(self.points.value(stmt.start))
        trips = np.maximum(np.asarray(self.points.value(stmt.end)) - start, 0)
        self.points.memo[stmt.axis] = start + trips // 2
        if self.counts is not None:
            trips = np.array([self.counts[stmt].share])
        total = float(times.sum())
        mean = float((trips * times).sum() / total) if total else 0.0
        loop = Loop(stmt, mean)
        begin = len(self.nest.leaves)
        self.visit(stmt.body, (*loops, loop), times * trips)
        self.nest.loops.append((loop, begin, len(self.nest.leaves)))


def _known(condition: Expr, values: Mapping[Expr, Values]) -> bool:
    """True when everything that the condition depends on has a value."""
    stack, seen = [condition], set[Expr]()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, (Axis, Var)) and node not in values:
            return False
        stack.extend(node.children())
    return True
