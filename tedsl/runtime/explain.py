"""What a kernel costs, counted from its loop IR: memory moved and operations per launch.

Every global buffer counts once per kernel that reads it and once per kernel that writes it, whole:
it is what must move when each kernel finds its inputs outside the cache and reads nothing twice.  A
gather counts the whole of its source.  Imports `ir` and `runtime.sizes`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tedsl.expr.nodes import Axis, Binary, Compare, CompareOp, Const, Expr, Select, Unary, Var
from tedsl.expr.visit import walk
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
    Dot,
    For,
    Func,
    Guard,
    Load,
    Module,
    Repeat,
    Scope,
    Seq,
    Stmt,
    Store,
)
from tedsl.ir.visit import (
    buffers_read,
    buffers_written,
    own_exprs,
    sub_stmts,
    tile_axes,
    walk_stmts,
)
from tedsl.runtime.sizes import Number, evaluate, evaluate_shape, launched
from tedsl.target import Target


@dataclass(frozen=True, slots=True)
class KernelCost:
    """One kernel: bytes by buffer, floating-point operations, and the buffers it computes on the
    way; `local_bytes` is what those that are local hold, per thread or program.  Bytes and
    operations are those of all `times` that it is launched.  `calls` is the function that an extern
    runs, of whose operations nothing is known."""

    name: str
    reads: Mapping[str, int]
    writes: Mapping[str, int]
    flops: int
    stages: tuple[str, ...]
    local_bytes: int
    times: int = 1
    calls: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return sum(self.reads.values()) + sum(self.writes.values())

    def __str__(self) -> str:
        density = self.flops / self.nbytes if self.nbytes else 0.0
        lines = [
            self._head(),
            f"  computes {', '.join(self.stages)}",
            f"  reads    {_buffers_text(self.reads)}",
            f"  writes   {_buffers_text(self.writes)}",
            f"  does     {_scaled(self.flops)}flop, {density:.3g} per byte",
        ]
        return "\n".join(lines[:-1] if self.calls else lines)

    def _head(self) -> str:
        if self.calls:
            return f"extern {self.name}, a call of {self.calls}"
        return f"kernel {self.name}" + (f", {self.times} times" if self.times != 1 else "")


@dataclass(frozen=True, slots=True)
class Explanation:
    """All launches of a kernel.  `least_bytes` is every input and output once: the floor for any
    fusion."""

    target: str
    kernels: tuple[KernelCost, ...]
    least_bytes: int
    workspace_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes moved by all launches."""
        return sum(kernel.nbytes for kernel in self.kernels)

    @property
    def flops(self) -> int:
        """Floating-point operations of all launches."""
        return sum(kernel.flops for kernel in self.kernels)

    def __str__(self) -> str:
        calls = sum(bool(kernel.calls) for kernel in self.kernels)
        count = len(self.kernels) - calls
        also = f" and {calls} extern{'s' if calls != 1 else ''}" if calls else ""
        total = (
            f"{count} kernel{'s' if count != 1 else ''}{also} for {self.target}: "
            f"{_scaled(self.nbytes)}B moved, {_scaled(self.flops)}flop"
        )
        floor = f"inputs and outputs once each: {_scaled(self.least_bytes)}B"
        if self.workspace_bytes:
            floor += f"; workspaces hold {_scaled(self.workspace_bytes)}B"
        return "\n".join([total, floor, *map(str, self.kernels)])


def explain(module: Module, target: Target, values: Mapping[Var, Number]) -> Explanation:
    """Count what the kernels of `module` move and do when the runtime scalars have `values`."""

    def total(buffers: tuple[Buffer, ...]) -> int:
        return sum(_nbytes(buffer, values) for buffer in buffers)

    return Explanation(
        target=str(target),
        kernels=tuple(
            _cost(module.funcs[place], values, repeat)
            for repeat, places in module.launches()
            for place in places
            if launched(module.funcs[place], values)
        ),
        least_bytes=total(module.inputs) + total(module.outputs),
        workspace_bytes=total(module.workspaces),
    )


def _cost(func: Func, values: Mapping[Var, Number], repeat: Repeat | None) -> KernelCost:
    times = 1 if repeat is None else max(evaluate(repeat.extent, values), 0)
    known = values if repeat is None else {**values, repeat.step: 0}
    in_parts = frozenset[Buffer]() if repeat is None else _in_parts(func, repeat.step)

    def sizes(buffers: tuple[Buffer, ...]) -> dict[str, int]:
        held = [b for b in buffers if b.scope is Scope.GLOBAL and b in func.params]
        return {b.name: _nbytes(b, values) * (1 if b in in_parts else times) for b in held}

    buffers = [s.buffer for s in walk_stmts(func.body) if isinstance(s, Allocate)]
    local = [b for b in buffers if b.scope is not Scope.GLOBAL]
    written = sizes(buffers_written(func.body))
    return KernelCost(
        name=func.name,
        reads=sizes(buffers_read(func.body)),
        writes=written,
        flops=_flops(func.body, times, {**known}),
        stages=tuple(dict.fromkeys((*(b.name for b in buffers), *written))),
        local_bytes=sum(_nbytes(b, values) for b in local),
        times=times,
        calls="" if func.host_call is None else func.host_call.function.label,
    )


def _in_parts(func: Func, step: Var) -> frozenset[Buffer]:
    """The buffers of which each launch touches another part."""
    found: set[Buffer] = set()
    for stmt in walk_stmts(func.body):
        for node in walk(*own_exprs(stmt)):
            if isinstance(node, Load) and step in frozenset(walk(*node.indices)):
                found.add(node.buffer)
        if isinstance(stmt, Store) and step in frozenset(walk(*stmt.indices)):
            found.add(stmt.buffer)
    return frozenset(found)


def _nbytes(buffer: Buffer, values: Mapping[Var, Number]) -> int:
    return math.prod(evaluate_shape(buffer.shape, values)) * buffer.dtype.nbytes


def _flops(stmt: Stmt, times: int, values: Mapping[Axis | Var, Number]) -> int:
    """Operations on floats in `stmt`, run `times` times.

    Guards and masks count as taken, but for the two versions of a parallel loop's body, of which
    each iteration runs one.  The bounds of a loop that change with a loop around it count as they
    are in the middle of that.
    """
    match stmt:
        case For(axis=axis, start=start, extent=extent, body=body):
            trips = max(evaluate(extent, values), 0)
            middle = evaluate(start, values) + trips // 2
            inner = {**values, axis: middle}
            parts = body.stmts if isinstance(body, Seq) else (body,)
            return sum(_flops(p, times * _taken(p, axis, trips, inner), inner) for p in parts)
        case Dot():
            points = math.prod(axis.extent for axis in tile_axes(stmt))
            return times * (2 * points + _expr_flops(stmt))
        case Store():
            return times * _expr_flops(stmt)
        case Accumulate(reducer=reducer):
            points = math.prod(axis.extent for axis in tile_axes(stmt))
            combine = sum(_is_flop(node) for node in walk(*reducer.combine))
            return times * (combine * points + _expr_flops(stmt))
        case _:
            return sum(_flops(inner, times, values) for inner in sub_stmts(stmt))


def _taken(stmt: Stmt, axis: Axis, trips: int, values: Mapping[Axis | Var, Number]) -> int:
    """How many of the iterations of `axis` run `stmt`: all, unless it is one of two versions."""
    match stmt:
        case Guard(condition=Compare(op=op, a=a, b=b)) if a is axis:
            split = min(max(evaluate(b, values), 0), trips)
            shares = {CompareOp.LT: split, CompareOp.GE: trips - split}
            return shares.get(op, trips)
        case _:
            return trips


def _expr_flops(stmt: Stmt) -> int:
    """Operations in the expressions of a statement: each over the tile axes that it depends on."""
    extents: dict[Expr, int] = {tile.axis: tile.extent for tile in tile_axes(stmt)}
    total = 0
    used: dict[Expr, frozenset[Expr]] = {}

    def axes(node: Expr) -> frozenset[Expr]:
        done = used.get(node)
        if done is None:
            own = frozenset((node,)) if node in extents else frozenset[Expr]()
            done = used[node] = own.union(*(axes(child) for child in node.children()))
        return done

    for node in walk(*own_exprs(stmt)):
        if _is_flop(node):
            total += math.prod(extents[axis] for axis in axes(node))
    return total


def _is_flop(node: Expr) -> bool:
    match node:
        case Unary() | Binary() | Select():
            return node.dtype.is_float
        case Compare(a=a):
            return a.dtype.is_float and not isinstance(a, Const)
        case _:
            return False


def _buffers_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {_scaled(size)}B" for name, size in sizes.items()) or "nothing"


def _scaled(count: float) -> str:
    """`count` with a decimal prefix."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {prefix}"
    return f"{count:g} "
