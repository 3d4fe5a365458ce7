"""Tile statements to LLVM IR: `Store` and `Accumulate` over vectors, unrolled blocks and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tedsl.backends.cpu.emit import atomics
from tedsl.backends.cpu.emit.affine import Dependence
from tedsl.backends.cpu.emit.allocation import allocate
from tedsl.backends.cpu.emit.frame import Frame, constant_shape
from tedsl.backends.cpu.emit.intrinsics import emit_call
from tedsl.backends.cpu.emit.llvm_text import I64, Value, const_vector
from tedsl.backends.cpu.emit.llvm_values import Num, splat
from tedsl.backends.cpu.emit.memory import STREAM_BYTES, Access, Accessor
from tedsl.backends.cpu.emit.tiling import Cut, Walker, cut, masked
from tedsl.backends.cpu.emit.values import Pos
from tedsl.expr.nodes import Axis, Const, Expr, Reducer
from tedsl.expr.visit import structural_equal, substitute, walk
from tedsl.ir.nodes import Accumulate, Buffer, Load, Scope, Store, TileAxis

SUM_FLAGS = "reassoc contract"
HEAVY = 400  # instructions above which a statement on register tiles becomes a loop over copies


def emit_store(frame: Frame, stmt: Store) -> None:
    """`buffer[indices] = value` over the tile."""
    if stmt.call is not None:
        emit_call(frame, stmt.call, stmt.buffer, stmt.indices, stmt.tile)
        return
    if _overlaps((stmt.buffer,), stmt.indices, (stmt.value,), stmt.tile):
        value = _computed_first(frame, stmt.value, stmt.mask, stmt.tile)
        stmt = replace(stmt, value=value)
    plan = cut(frame, stmt.tile, [(stmt.buffer, stmt.indices)], _sources((stmt.value,), stmt.mask))
    if plan.in_registers and plan.cost * plan.points > HEAVY:
        emit_store(frame, _outside_registers(frame, stmt))
        return
    if stmt.buffer not in frame.streamed or stmt.mask is not None or plan.in_registers:
        _store_everywhere(frame, stmt, plan, streaming=False)
        return
    fn = frame.fn
    ptr = frame.memory[stmt.buffer].ptr
    address = fn.op(f"ptrtoint {ptr} to i64", I64)
    aligned = (Num(fn, address) & (STREAM_BYTES - 1)).eq(0).value
    fast, slow, done = fn.label("stream"), fn.label("plain"), fn.label("stored")
    fn.branch(aligned, fast, slow)
    for label, streaming in ((fast, True), (slow, False)):
        fn.start(label)
        _store_everywhere(frame, stmt, plan, streaming)
        fn.jump(done)
    fn.start(done)


def _store_everywhere(frame: Frame, stmt: Store, plan: Cut, streaming: bool) -> None:
    """The store over the whole tile."""
    accessor = _accessor(frame, stmt.tile)
    accessor.streaming = streaming

    def point(_: int) -> None:
        def run(mask: Value | None) -> None:
            value = accessor.eval(stmt.value)
            access = accessor.access(stmt.buffer, stmt.indices)
            accessor.write(access, value, mask, _covers(accessor, access, stmt.indices, plan))

        masked(accessor, stmt.mask, run)

    Walker(accessor, plan).everywhere(point)


def _outside_registers(frame: Frame, stmt: Store) -> Store:
    """The store over copies in memory of the register tiles it reads and writes.

    Unrolling a long expression over a register tile would make a lot of code; a copy can be
    addressed by loops.
    """
    copies: dict[Expr, Expr] = {}
    made: dict[Buffer, Buffer] = {}
    for node in walk(*_sources((stmt.value,), stmt.mask)):
        if not isinstance(node, Load) or node.buffer not in frame.register_tiles:
            continue
        tile = node.buffer
        if tile not in made:
            made[tile] = Buffer(tile.name, tile.dtype, tile.shape, Scope.LOCAL)
            allocate(frame, made[tile])
            axes = tuple(Axis(f"d{d}") for d in range(len(tile.shape)))
            extents = constant_shape(tile.shape) or ()
            whole = tuple(TileAxis(a, e) for a, e in zip(axes, extents, strict=True))
            emit_store(frame, Store(made[tile], axes, Load(tile, axes), None, whole))
        copies[node] = Load(made[tile], node.indices, node.mask)
    value = substitute(stmt.value, copies)
    mask = substitute(stmt.mask, copies) if stmt.mask is not None else None
    if stmt.buffer in frame.register_tiles:
        value = _computed_first(frame, value, mask, stmt.tile)
    return replace(stmt, value=value, mask=mask)


def emit_accumulate(frame: Frame, stmt: Accumulate) -> None:
    """`buffers[indices] = reducer(buffers[indices], values)` over the tile."""
    if stmt.atomic:
        _accumulate_atomically(frame, stmt)
        return
    if stmt.call is not None:
        emit_call(frame, stmt.call, stmt.buffers[0], stmt.indices, stmt.tile)
        return
    if _overlaps(stmt.buffers, stmt.indices, stmt.values, stmt.tile):
        values = tuple(_computed_first(frame, v, stmt.mask, stmt.tile) for v in stmt.values)
        stmt = replace(stmt, values=values)
    targets = [(b, stmt.indices) for b in stmt.buffers]
    depends = Dependence([t.axis for t in stmt.tile])
    kept = frozenset[Axis]().union(*(depends(i) for i in stmt.indices))
    plan = cut(frame, stmt.tile, targets, _sources(stmt.values, stmt.mask))
    reduced = tuple(t for t in plan.others if t.axis not in kept)
    others = tuple(t for t in plan.others if t.axis in kept)
    accessor = _accessor(frame, stmt.tile)
    if plan.lanes is not None and plan.lanes.axis not in kept:
        _reduce_lanes(accessor, stmt, replace(plan, others=others), reduced)
        return
    walker = Walker(accessor, replace(plan, others=others, partner=None))
    walker.over(reduced, 1, lambda: walker.everywhere(lambda _: _update(accessor, stmt, plan)))


def _accumulate_atomically(frame: Frame, stmt: Accumulate) -> None:
    """Each point of the tile as an update of its own."""
    targets = [(stmt.buffers[0], stmt.indices)]
    plan = cut(frame, stmt.tile, targets, _sources(stmt.values, stmt.mask))
    accessor = _accessor(frame, stmt.tile)

    def point(_: int) -> None:
        masked(accessor, stmt.mask, lambda mask: atomics.update(accessor, stmt, mask))

    Walker(accessor, replace(plan, partner=None)).everywhere(point)


def _sources(values: Sequence[Expr], mask: Expr | None) -> tuple[Expr, ...]:
    return tuple(values) if mask is None else (*values, mask)


def _accessor(frame: Frame, tile: Sequence[TileAxis]) -> Accessor:
    """An evaluator for a statement; axes of extent 1 stand at 0."""
    accessor = Accessor(frame, [t.axis for t in tile])
    for t in tile:
        if t.extent == 1:
            accessor.at[t.axis] = Pos(None, 0)
    return accessor


def _covers(accessor: Accessor, access: Access, indices: tuple[Expr, ...], plan: Cut) -> bool:
    """Whether lanes past the end of the tile fall into the padding of a local row."""
    lanes, tile = accessor.lanes, plan.lanes
    if lanes is None or tile is None or not access.memory.local or not indices:
        return False
    inner = access.memory.inner
    extent = access.buffer.shape[inner]
    whole = isinstance(extent, Const) and extent.value == tile.extent
    end = accessor.at[lanes.axis].offset + lanes.width
    room = access.memory.row if len(indices) > 1 else access.memory.room or 0
    return whole and indices[inner] is lanes.axis and access.stride == 1 and end <= room


def _overlaps(
    buffers: Sequence[Buffer],
    indices: tuple[Expr, ...],
    values: Sequence[Expr],
    tile: Sequence[TileAxis],
) -> bool:
    """Whether a value reads elements that another point of the tile writes."""
    if all(t.extent == 1 for t in tile):
        return False
    for node in walk(*values):
        if isinstance(node, Load) and node.buffer in buffers:
            pairs = zip(node.indices, indices, strict=True)
            if not all(structural_equal(a, b) for a, b in pairs):
                return True
    return False


def _computed_first(
    frame: Frame, value: Expr, mask: Expr | None, tile: tuple[TileAxis, ...]
) -> Expr:
    """Compute `value` over the whole tile into a temporary; the expression that reads it back."""
    shape = tuple(Const(t.extent, t.axis.dtype) for t in tile)
    buffer = Buffer("copy", value.dtype, shape, Scope.LOCAL)
    allocate(frame, buffer)
    indices = tuple(t.axis for t in tile)
    emit_store(frame, Store(buffer, indices, value, mask, tile))
    return Load(buffer, indices)


def _combine(
    accessor: Accessor, reducer: Reducer, old: Sequence[Value], new: Sequence[Value]
) -> list[Value]:
    """The reducer on values; sums may be reassociated."""
    lanes = max(v.type.lanes for v in (*old, *new))
    left = [splat(accessor.fn, v, lanes) for v in old]
    right = [splat(accessor.fn, v, lanes) for v in new]
    bound: dict[Expr, Value] = dict(zip((*reducer.lhs, *reducer.rhs), (*left, *right), strict=True))
    return [accessor.with_bound(bound, c, SUM_FLAGS) for c in reducer.combine]


def _update(accessor: Accessor, stmt: Accumulate, plan: Cut) -> None:
    """One point of an `Accumulate` whose lanes go to different elements."""

    def run(mask: Value | None) -> None:
        accesses = [accessor.access(b, stmt.indices) for b in stmt.buffers]
        values = [accessor.eval(v) for v in stmt.values]
        old = [accessor.read(a, mask, blank=False) for a in accesses]
        for access, value in zip(
            accesses, _combine(accessor, stmt.reducer, old, values), strict=True
        ):
            accessor.write(access, value, mask, _covers(accessor, access, stmt.indices, plan))

    masked(accessor, stmt.mask, run)


def _reduce_lanes(
    accessor: Accessor, stmt: Accumulate, plan: Cut, reduced: tuple[TileAxis, ...]
) -> None:
    """Reduce along the SIMD axis: several partial vectors, then a tree over their lanes."""
    fn = accessor.fn
    walker = Walker(accessor, plan)
    full = plan.lanes.extent // plan.width if plan.lanes is not None else 1
    copies = max(1, min(full, 4 if plan.cost < 16 else 2))

    def element() -> None:
        identity = [
            splat(fn, accessor.eval(e), plan.width if plan.width > 1 else 0)
            for e in stmt.reducer.identity
        ]
        slots = [[fn.slot(v.type) for v in identity] for _ in range(copies)]
        for group in slots:
            for slot, value in zip(group, identity, strict=True):
                fn.do(f"store {value}, ptr {slot.text}")
        types = [v.type for v in identity]

        def read(copy: int) -> list[Value]:
            pairs = zip(slots[copy], types, strict=True)
            return [fn.op(f"load {t}, ptr {s.text}", t) for s, t in pairs]

        def body(copy: int) -> None:
            _absorb(accessor, stmt, slots[copy], lambda: read(copy))

        walker.over(reduced, 1, lambda: walker.chunks(copies, body, whole_tail=True))
        total = read(0)
        for copy in range(1, copies):
            total = _combine(accessor, stmt.reducer, total, read(copy))
        _deposit(accessor, stmt, _fold_lanes(accessor, stmt.reducer, total))

    unroll = 4 if full <= 4 and not reduced else 1
    walker.over(plan.others, unroll, element)


def _absorb(
    accessor: Accessor, stmt: Accumulate, slots: Sequence[Value], read: Callable[[], list[Value]]
) -> None:
    """Fold one chunk into partial results, where the mask holds and lanes count."""
    fn = accessor.fn

    def run(mask: Value | None) -> None:
        tail = accessor.lanes.tail_mask() if accessor.lanes is not None else None
        if mask is not None and tail is not None:
            mask = fn.op(f"and {mask}, {tail.text}", mask.type)
        mask = tail if mask is None else mask
        values = [accessor.eval(v) for v in stmt.values]
        old = read()
        new = _combine(accessor, stmt.reducer, old, values)
        for slot, before, after in zip(slots, old, new, strict=True):
            if mask is not None:
                after = Num(fn, mask).where(Num(fn, after), Num(fn, before)).value
            fn.do(f"store {after}, ptr {slot.text}")

    masked(accessor, stmt.mask, run)


def _fold_lanes(accessor: Accessor, reducer: Reducer, values: list[Value]) -> list[Value]:
    """Combine halves until one lane is left.

    Vectors of integers keep their length: where sums of products or of differences of bytes end in
    shorter ones, LLVM (22, `combineVPDPBUSDPattern` and `combineBasicSADPattern`) leaves out lanes,
    as it counts those of the last vector.
    """
    fn = accessor.fn
    width = left = values[0].type.lanes
    keep = not all(v.type.is_float for v in values)

    def part(value: Value, first: int) -> Value:
        lanes = width if keep else left
        order = const_vector([first + n % left for n in range(lanes)], "i32")
        to = type(value.type)(value.type.elem, lanes)
        return fn.op(f"shufflevector {value}, {value.type} poison, {order}", to)

    while left > 1:
        left //= 2
        low = values if keep else [part(v, 0) for v in values]
        values = _combine(accessor, reducer, low, [part(v, left) for v in values])
    return [
        fn.op(f"extractelement {v}, i64 0", v.type.scalar) if v.type.lanes else v for v in values
    ]


def _deposit(accessor: Accessor, stmt: Accumulate, values: list[Value]) -> None:
    """Combine reduced scalars with what the buffers hold."""
    accesses = [accessor.access(b, stmt.indices) for b in stmt.buffers]
    old = [accessor.read(a, None) for a in accesses]
    for access, value in zip(accesses, _combine(accessor, stmt.reducer, old, values), strict=True):
        accessor.write(access, value, None)
