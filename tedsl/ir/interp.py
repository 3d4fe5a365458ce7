"""The interpreter: what a module of loop IR means, at both levels.

Part of the third room.  Statements become Python closures: loops run in order, a statement with
tile axes runs over numpy arrays at once, reading everything before it writes.  Memory starts as
NaN (a fixed pattern for integers) with a map of what was written; every access is checked.
What nobody wrote may be read from `LOCAL` memory (padded lanes, a branch that a `Select` discards):
it is poison, and shows in the result if it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, assert_never

import numpy as np

from tedsl.errors import InternalError
from tedsl.expr.nodes import Expr, IfThenElse, Reducer, Select, Var
from tedsl.expr.numerics import distinct
from tedsl.expr.visit import rewrite, variables
from tedsl.ir import numerics
from tedsl.ir.evaluate import (
    ACTIVE,
    Compiler,
    Env,
    Eval,
    Layout,
    Memory,
    OutOfBounds,
    Unwritten,
    check_place,
    check_places,
    shape,
)
from tedsl.ir.meet import Compile, meets, run_meeting
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
    Dot,
    Finish,
    For,
    Func,
    Guard,
    HostCall,
    Meet,
    Module,
    Seq,
    Stmt,
    Store,
    TileAxis,
)
from tedsl.ir.numerics import Array, Value
from tedsl.ir.visit import closed, own_exprs, tile_axes
from tedsl.tensor.foreign import run_on_host

__all__ = ["OutOfBounds", "Unwritten", "run"]

Run = Callable[[Env], None]
Combine = Callable[[Env, list[Value], list[Value]], list[Value]]


def run(
    module: Module, inputs: Mapping[Buffer, Array], sizes: Mapping[Var, float] | None = None
) -> dict[Buffer, Array]:
    """Run every kernel of `module` in order.

    Args:
        module: the program, at either level.
        inputs: an array of the right dtype and shape for each of `module.inputs`; never written.
        sizes: a value for each of `module.sizes`.

    Returns:
        The arrays of `module.outputs`.

    Raises:
        OutOfBounds: an index outside its buffer.
        Unwritten: a read of a GLOBAL element nobody has stored.
        InternalError: an input that does not fit, a size that is missing or against an assumption,
            two points that store one place, a counter that is not 0 after a kernel.
    """
    layout = Layout()
    bodies = [_version(func, layout) for func in module.funcs]
    counts = {repeat: _scalar(repeat.extent, layout) for repeat in module.repeats}
    steps = {repeat: layout.cell(repeat.step) for repeat in module.repeats}
    conditions = [Compiler(layout).visit(c) for c in module.assumptions]
    buffers = (*module.inputs, *module.outputs, *module.workspaces, *module.counters)
    shapes = {b: _extents(b.shape, layout) for b in buffers}
    held = {b: _extents(b.held, layout) for b in buffers if b.held is not None}
    for buffer in shapes:
        layout.memory(buffer)
    counters = [layout.memories[buffer] for buffer in module.counters]
    env = layout.environment()
    _set_sizes(env, module, layout, sizes or {})
    if not all(condition(env) for condition in conditions):
        raise InternalError("sizes against an assumption", subject=f"run {module.name}")
    with np.errstate(all="ignore"):
        for buffer in shapes:
            extents = _constant_shape(shapes[buffer], env)
            if buffer in module.inputs:
                env[layout.memories[buffer]] = _input(buffer, extents, inputs)
            elif buffer in module.counters:
                zeros = np.zeros(extents, numerics.numpy_dtype(buffer.dtype))
                env[layout.memories[buffer]] = Memory(buffer.name, zeros, None)
            else:
                part = _constant_shape(held[buffer], env) if buffer in held else None
                env[layout.memories[buffer]] = Memory.fresh(buffer, extents, part)
        for repeat, places in module.launches():
            for step in (None,) if repeat is None else range(int(counts[repeat](env))):
                if repeat is not None:
                    env[steps[repeat]] = numerics.scalar(step or 0, repeat.step.dtype)
                for place in places:
                    bodies[place](env)
                    _require_zero(module.funcs[place], [env[m] for m in counters])
    return {buffer: env[layout.memories[buffer]].data for buffer in module.outputs}


def _require_zero(func: Func, counters: Sequence[Memory]) -> None:
    for memory in counters:
        if memory.data.any():
            raise InternalError(
                f"counter {memory.name!r} is not 0 after {func.name}: other programs than `count` "
                "came to a finish",
                facts=[("counter", str(memory.data))],
            )


def _set_sizes(env: Env, module: Module, layout: Layout, sizes: Mapping[Var, float]) -> None:
    for size in module.sizes:
        if size not in sizes:
            raise InternalError(f"no value for size {size.name!r}", subject=f"run {module.name}")
    for size, value in sizes.items():
        if size in layout.cells:
            env[layout.cells[size]] = numerics.scalar(value, size.dtype)


def _extents(shape: Sequence[Expr], layout: Layout) -> list[Eval]:
    compiler = Compiler(layout)
    return [compiler.visit(extent) for extent in shape]


def _constant_shape(extents: list[Eval], env: Env) -> tuple[int, ...]:
    return tuple(max(0, int(extent(env))) for extent in extents)


def _input(buffer: Buffer, extents: tuple[int, ...], inputs: Mapping[Buffer, Array]) -> Memory:
    if buffer not in inputs:
        raise InternalError(f"no array for input {buffer.name!r}", subject="run")
    data = np.asarray(inputs[buffer])
    dtype = numerics.numpy_dtype(buffer.dtype)
    if data.shape != extents or data.dtype != dtype:
        raise InternalError(
            f"input {buffer.name!r} is {data.dtype}{list(data.shape)}, not {dtype}{list(extents)}",
            subject="run",
        )
    return Memory(buffer.name, data, None, writable=False)


def _compile(stmt: Stmt, layout: Layout) -> Run:
    match closed(stmt):
        case Seq(stmts=stmts):
            return _seq([_compile(child, layout) for child in stmts])
        case For() as loop:
            return _loop(loop, layout)
        case Guard(condition=condition, body=body):
            return _guard(_scalar(condition, layout), _compile(body, layout))
        case Finish() as finish:
            return _finish(finish, layout)
        case Meet():
            raise InternalError("programs meet in a statement that is run by one")
        case Allocate(buffer=buffer, body=body):
            return _seq([_allocation(buffer, layout), _compile(body, layout)])
        case Store() as store:
            return _store(replace(store, call=None), layout)  # an intrinsic does what it declares
        case Accumulate() as accumulate:
            return _accumulate(replace(accumulate, call=None), layout)
        case Dot() as dot:
            return _dot(dot, layout)
        case HostCall() as call:
            return _host_call(call, layout)
        case _ as never:
            assert_never(never)


def _host_call(call: HostCall, layout: Layout) -> Run:
    ins = [layout.memory(buffer) for buffer in call.inputs]
    outs = [layout.memory(buffer) for buffer in call.outputs]

    def run(env: Env) -> None:
        given: list[Memory] = [env[place] for place in ins]
        made: list[Memory] = [env[place] for place in outs]
        for memory in given:
            if memory.written is not None and not memory.written.all():
                missing = np.argwhere(~memory.written)[0]
                raise Unwritten(f"the call of {call.name} reads", memory, tuple(map(int, missing)))
        arrays = [memory.data for memory in made]
        run_on_host(call.meaning, call.name, [memory.data for memory in given], arrays)
        for memory in made:
            if memory.written is not None:
                memory.written[...] = True

    return run


def _seq(parts: list[Run]) -> Run:
    def run(env: Env) -> None:
        for part in parts:
            part(env)

    return run


def _scalar(expr: Expr, layout: Layout) -> Eval:
    """A scalar expression of a loop or guard, with cells of its own for what it uses twice."""
    compiler = Compiler(layout)
    evaluate = compiler.compile([expr])[0]
    cells = compiler.fresh_cells
    if not cells:
        return evaluate

    def run(env: Env) -> Value:
        for cell in cells:
            env[cell] = None
        return evaluate(env)

    return run


def _loop(loop: For, layout: Layout) -> Run:
    cell = layout.cell(loop.axis)
    start, end = _scalar(loop.start, layout), _scalar(loop.end, layout)
    body, dtype = _compile(loop.body, layout), numerics.numpy_dtype(loop.axis.dtype)
    step = -1 if loop.descending else 1

    def run(env: Env) -> None:
        for value in np.arange(int(start(env)), int(end(env)), dtype=dtype)[::step]:
            env[cell] = value
            body(env)

    return run


def _version(func: Func, layout: Layout) -> Run:
    waits = meets(func.body)
    body = run_meeting(func, _compiler(layout)) if waits else _compile(func.body, layout)
    return body if func.when is None else _guard(_scalar(func.when, layout), body)


def _compiler(layout: Layout) -> Compile:
    return Compile(
        layout,
        lambda stmt: _compile(stmt, layout),
        lambda expr: _scalar(expr, layout),
        lambda node: _allocation(node.buffer, layout),
    )


def _guard(condition: Eval, body: Run) -> Run:
    def run(env: Env) -> None:
        if condition(env):
            body(env)

    return run


def _finish(stmt: Finish, layout: Layout) -> Run:
    cell, count = layout.memory(stmt.counter), _scalar(stmt.count, layout)
    indices = [_scalar(index, layout) for index in stmt.indices]
    body = _compile(stmt.body, layout)

    def run(env: Env) -> None:
        memory: Memory = env[cell]
        place = tuple([int(index(env)) for index in indices])
        check_place(memory, place, "count outside")
        memory.data[place] += 1
        if memory.data[place] == count(env):
            body(env)
            memory.data[place] = 0

    return run


def _allocation(buffer: Buffer, layout: Layout) -> Run:
    cell, extents = layout.memory(buffer), _extents(buffer.shape, layout)

    def run(env: Env) -> None:
        env[cell] = Memory.fresh(buffer, _constant_shape(extents, env))

    return run


class _Leaf:
    """What the three leaf statements share: tile axes as arrays, indices, values, mask."""

    def __init__(self, stmt: Store | Accumulate | Dot, layout: Layout) -> None:
        self.tile: tuple[TileAxis, ...] = tile_axes(stmt)
        self.extents = tuple(t.extent for t in self.tile)
        self.rank = len(stmt.indices)
        self.has_mask = not isinstance(stmt, Dot) and stmt.mask is not None
        compiler = Compiler(layout, frozenset(t.axis for t in self.tile))
        evaluators = compiler.compile(own_exprs(stmt))
        self.mask = evaluators.pop() if self.has_mask else None
        self.indices, self.values = evaluators[: self.rank], evaluators[self.rank :]
        self.cells = compiler.fresh_cells
        self.axes = [
            (layout.cell(t.axis), _along(t, position, len(self.tile)))
            for position, t in enumerate(self.tile)
        ]

    def begin(self, env: Env) -> Value:
        """Bind the tile axes and return the mask: True, or a bool (array) of active lanes."""
        for cell, value in self.axes:
            env[cell] = value
        for cell in self.cells:
            env[cell] = None
        env[ACTIVE] = True
        if self.mask is not None:
            env[ACTIVE] = self.mask(env)
        return env[ACTIVE]

    def spread(self, value: Value) -> Array:
        """`value` at every point of the tile."""
        return np.broadcast_to(value, self.extents)


def _along(tile: TileAxis, position: int, rank: int) -> Array:
    lanes = [1] * rank
    lanes[position] = tile.extent
    return np.arange(tile.extent, dtype=numerics.numpy_dtype(tile.axis.dtype)).reshape(lanes)


def _target(memory: Memory) -> Memory:
    if not memory.writable:
        raise InternalError(f"input {memory.name!r} is written")
    return memory


def _store(stmt: Store, layout: Layout) -> Run:
    leaf, cell = _Leaf(stmt, layout), layout.memory(stmt.buffer)
    evaluate = leaf.values[0]

    def scalar(env: Env) -> None:
        if leaf.begin(env):
            memory = _target(env[cell])
            value, place = evaluate(env), _place(leaf, env, memory)
            memory.data[place] = value
            if memory.written is not None:
                memory.written[place] = True

    def tiled(env: Env) -> None:
        mask = leaf.begin(env)
        memory = _target(env[cell])
        value, lanes = leaf.spread(evaluate(env)), leaf.spread(mask)
        flat = _flat(_places(leaf, env, memory, lanes), memory, lanes)
        if distinct(flat).size != flat.size:
            raise InternalError(f"two points of a tile store one element of {memory.name!r}")
        memory.data.reshape(-1)[flat] = value[lanes]
        if memory.written is not None:
            memory.written.reshape(-1)[flat] = True

    return tiled if leaf.tile else scalar


def _place(leaf: _Leaf, env: Env, memory: Memory) -> tuple[int, ...]:
    place = tuple([int(index(env)) for index in leaf.indices])
    check_place(memory, place, "store outside")
    return place


def _places(leaf: _Leaf, env: Env, memory: Memory, lanes: Array) -> tuple[Array, ...]:
    places = [leaf.spread(index(env)) for index in leaf.indices]
    return check_places(memory, places, lanes, "store outside")


def _flat(places: tuple[Array, ...], memory: Memory, lanes: Array) -> Array:
    """Row-major element numbers of the places of active lanes."""
    flat = np.zeros(int(np.count_nonzero(lanes)), np.int64)
    for index, extent in zip(places, shape(memory), strict=True):
        flat = flat * extent + index[lanes]
    return flat


def _combiner(reducer: Reducer, layout: Layout) -> Combine:
    """The reducer on tuples of values.

    A choice in a reducer reads no memory, so it need not be lazy.
    """
    bodies = [rewrite(body, _eager) for body in reducer.combine]
    compiler = Compiler(layout)
    evaluators = compiler.compile(bodies)
    lhs, rhs = ([layout.cell(v) for v in side] for side in (reducer.lhs, reducer.rhs))
    cells = compiler.fresh_cells
    if len(evaluators) == 1 and not cells:
        return _simple_combiner(lhs[0], rhs[0], evaluators[0])

    def combine(env: Env, a: list[Value], b: list[Value]) -> list[Value]:
        for cell, value in (*zip(lhs, a, strict=True), *zip(rhs, b, strict=True)):
            env[cell] = value
        for cell in cells:
            env[cell] = None
        return [evaluate(env) for evaluate in evaluators]

    return combine


def _simple_combiner(lhs: int, rhs: int, evaluate: Eval) -> Combine:
    """Of one value, with nothing in it that is used twice."""

    def combine(env: Env, a: list[Value], b: list[Value]) -> list[Value]:
        (env[lhs],), (env[rhs],) = a, b
        return [evaluate(env)]

    return combine


def _eager(node: Expr) -> Expr | None:
    return Select(node.condition, node.a, node.b) if isinstance(node, IfThenElse) else None


def _accumulate(stmt: Accumulate, layout: Layout) -> Run:
    leaf, combine = _Leaf(stmt, layout), _combiner(stmt.reducer, layout)
    cells = [layout.memory(buffer) for buffer in stmt.buffers]
    free = set(variables(*stmt.indices))
    reduced = tuple(p for p, t in enumerate(leaf.tile) if t.axis not in free)
    along = next((p for p, t in enumerate(leaf.tile) if t.axis is stmt.along), None)

    def scalar(env: Env) -> None:
        if leaf.begin(env):
            memories = [_target(env[cell]) for cell in cells]
            values, place = [value(env) for value in leaf.values], _place(leaf, env, memories[0])
            old: list[Value] = []
            for memory in memories:
                if memory.written is not None and not memory.written[place]:
                    raise Unwritten("accumulation into an element never written", memory, place)
                old.append(memory.data[place])
            for memory, value in zip(memories, combine(env, old, values), strict=True):
                memory.data[place] = value

    def tiled(env: Env) -> None:
        lanes = leaf.spread(leaf.begin(env))
        memories = [_target(env[cell]) for cell in cells]
        values = [leaf.spread(value(env)) for value in leaf.values]
        places = _places(leaf, env, memories[0], lanes)
        if along is not None:
            values, lanes = _running(env, combine, values, lanes, along)
        places = tuple(_gathered(place, reduced)[..., 0] for place in places)
        values, lanes = _folded(env, combine, values, lanes, reduced)
        flat = _flat(places, memories[0], lanes)
        _fold_into(env, combine, memories, flat, [value[lanes] for value in values])

    return tiled if leaf.tile else scalar


def _gathered(value: Array, reduced: tuple[int, ...]) -> Array:
    """`value` with the reduced dimensions moved to the end and made one."""
    kept = [p for p in range(value.ndim) if p not in reduced]
    moved = value.transpose(*kept, *reduced)
    return moved.reshape(*moved.shape[: len(kept)], -1)


def _folded(
    env: Env, combine: Combine, values: list[Array], lanes: Array, reduced: tuple[int, ...]
) -> tuple[list[Array], Array]:
    """Values combined over the reduced dimensions, pairwise; inactive lanes take no part."""
    values, lanes = [_gathered(v, reduced) for v in values], _gathered(lanes, reduced)
    whole = bool(lanes.all())
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        near, far, rest = slice(0, half), slice(half, 2 * half), slice(2 * half, None)
        a, b = [v[..., near] for v in values], [v[..., far] for v in values]
        both = combine(env, a, b)
        if not whole:
            left, right = lanes[..., near], lanes[..., far]
            both = [
                np.where(left & right, c, np.where(left, x, y))
                for c, x, y in zip(both, a, b, strict=True)
            ]
        values = [
            np.concatenate([c, v[..., rest]], axis=-1) for c, v in zip(both, values, strict=True)
        ]
        merged = lanes[..., near] | lanes[..., far]
        lanes = np.concatenate([merged, lanes[..., rest]], axis=-1)
    return [v[..., 0] for v in values], lanes[..., 0]


def _running(
    env: Env, combine: Combine, values: list[Array], lanes: Array, along: int
) -> tuple[list[Array], Array]:
    """At each point the values up to it along a dimension, and whether there is any."""
    turned: list[Any] = [np.moveaxis(value, along, 0).copy() for value in values]
    active = np.moveaxis(lanes, along, 0).copy()
    for step in range(1, len(active)):
        last = [v[step - 1] for v in turned]
        here = [v[step] for v in turned]
        for value, both, old in zip(turned, combine(env, last, here), last, strict=True):
            some, more = active[step], active[step] & active[step - 1]
            value[step] = numerics.xp.where(more, both, numerics.xp.where(some, value[step], old))
        active[step] |= active[step - 1]
    return [np.moveaxis(v, 0, along) for v in turned], np.moveaxis(active, 0, along)


def _fold_into(
    env: Env, combine: Combine, memories: list[Memory], flat: Array, values: list[Array]
) -> None:
    """Combine `values` into elements `flat`; points of one element follow each other."""
    for memory in memories:
        if memory.written is not None:
            missing = flat[~memory.written.reshape(-1)[flat]]
            if missing.size:
                place = tuple(int(n) for n in numerics.xp.unravel_index(missing[0], shape(memory)))
                raise Unwritten("accumulation into an element never written", memory, place)
    while flat.size:
        _, first = np.unique(flat, return_index=True)
        old = [memory.data.reshape(-1)[flat[first]] for memory in memories]
        new = combine(env, old, [value[first] for value in values])
        for memory, value in zip(memories, new, strict=True):
            memory.data.reshape(-1)[flat[first]] = value
        flat, values = np.delete(flat, first), [np.delete(value, first) for value in values]


def _dot(stmt: Dot, layout: Layout) -> Run:
    leaf, cell = _Leaf(stmt, layout), layout.memory(stmt.buffer)
    lhs, rhs = leaf.values
    batch = len(stmt.batch)
    dtype = numerics.numpy_dtype(stmt.buffer.dtype)
    wide = np.dtype(np.float32) if stmt.buffer.dtype.is_short_float else dtype

    def run(env: Env) -> None:
        leaf.begin(env)
        memory = _target(env[cell])
        a, b = (np.asarray(side(env)) for side in (lhs, rhs))
        a = _operand(leaf, a, batch + 1).astype(wide)
        b = _operand(leaf, b, batch).astype(wide).swapaxes(-1, -2)
        product = np.matmul(a, b).astype(dtype)
        places = [leaf.spread(index(env))[..., 0] for index in leaf.indices]
        lanes = np.ones(product.shape, np.bool_)
        flat = _flat(check_places(memory, places, lanes, "store outside"), memory, lanes)
        data = memory.data.reshape(-1)
        data[flat] = data[flat] + product.reshape(-1)

    return run


def _operand(leaf: _Leaf, value: Array, missing: int) -> Array:
    """A dot's operand over (batch, kept, contract): dimension `missing` is dropped."""
    extents = list(leaf.extents)
    extents[missing] = 1
    return np.broadcast_to(value, extents).squeeze(missing)
