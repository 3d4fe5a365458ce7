"""Rules for loops and SIMD tiles on the CPU: one function per shape of loop nest, each choice a
named knob."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis, TensorRead
from tedsl.expr.tensor import ComputeOp
from tedsl.expr.visit import reads
from tedsl.schedules.analysis import (
    Group,
    View,
    among,
    contraction,
    definitions,
    extent_of,
    is_reduction,
    plain,
    same_axes,
    volume,
)
from tedsl.scheduling.schedule import Schedule
from tedsl.scheduling.stage import Stage

# Elements of a row that stay in the first cache while several stages pass over it.
MAX_ROW = 16384
# Below this many elements a kernel runs on the calling thread.
SMALL = 32768


def schedule_group(s: Schedule, group: Group) -> None:
    """Choose the rule for one kernel by the shape of its nests."""
    view = definitions(s)
    root = view[group.root]
    if is_reduction(root):
        _schedule_reduction(s, group, root)
    elif group.contracts:
        contract(s, group)
    elif group.rows is None:
        pointwise(s, s[group.root], root)
    else:
        reduce_rows(s, group)


def _int(value: object) -> int:
    return int(value) if isinstance(value, (int, float)) else 0


def _last_axis(read: TensorRead) -> Axis | None:
    index = read.indices[-1] if read.indices else None
    return index if isinstance(index, Axis) else None


def _folds_columns(op: ComputeOp) -> bool:
    """True when neighbours in memory are neighbouring results, not elements of one fold."""
    lasts = [_last_axis(r) for r in reads(*op.bodies)]
    return bool(op.axes) and not any(among(a, op.reduce_axes) for a in lasts)


def pointwise(s: Schedule, stage: Stage, op: ComputeOp) -> None:
    """Pieces of the flat index space over the threads, SIMD lanes inside."""
    if not op.axes:
        return
    total = volume(op.axes)
    in_step = all(same_axes(plain(r), op.axes) for r in reads(*op.bodies))
    if in_step or len(op.axes) == 1:
        flat = stage.fuse(*op.axes) if len(op.axes) > 1 else op.axes[0]
        piece = _int(s.knob(f"{stage.name}.piece", (1024, 4096, 16384, 65536), 16384))
        outer, inner = stage.split(flat, factor=piece)
        stage.vectorize(inner)
        if total is None or total > SMALL:
            stage.parallel(outer)
        return
    last = op.axes[-1]
    width = _width(s, stage, last)
    lo, li = stage.split(last, factor=width)
    stage.reorder(*op.axes[:-1], lo, li)
    stage.vectorize(li)
    _parallel_rows(s, stage, op.axes[:-1], total)


def _width(s: Schedule, stage: Stage, last: Axis) -> int:
    extent = extent_of(last)
    default = 1024 if extent is None else min(4096, max(1, extent))
    choices = sorted({64, 256, 1024, 4096, default})
    return _int(s.knob(f"{stage.name}.width", choices, default))


def _parallel_rows(s: Schedule, stage: Stage, rows: Sequence[Axis], total: int | None) -> None:
    """Several rows to a thread at a time, so that handing out work costs nothing."""
    if not rows or (total is not None and total <= SMALL):
        return
    flat = stage.fuse(*rows) if len(rows) > 1 else rows[0]
    count = volume(rows)
    each = 1 if total is None or count is None else max(1, SMALL // max(1, total // max(1, count)))
    choices = sorted({1, 4, 16, 64, each})
    outer, _ = stage.split(flat, factor=_int(s.knob(f"{stage.name}.rows", choices, each)))
    stage.parallel(outer)


def reduce_rows(s: Schedule, group: Group) -> None:
    """Rows over the threads; inside a row each stage is one pass of SIMD lanes over a cached
    buffer."""
    view = definitions(s)
    stage, root = s[group.root], view[group.root]
    rows = list(group.rows or ())
    columns = [a for a in root.axes if not among(a, rows)]
    stage.reorder(*rows, *columns)
    row = stage.fuse(*rows) if len(rows) > 1 else rows[0]
    lengths = [volume(_row_axes(view, group, name)) for name in group.inner]
    longest = None if None in lengths else max((n or 1 for n in lengths), default=1)
    whole = longest is not None and longest <= MAX_ROW and volume(columns) is not None
    for axis in _lanes(s, stage, columns, whole):
        stage.vectorize(axis)
    for name in reversed(group.inner):
        _inner_row(s, view, s[name], stage, row, whole)
    total = volume(root.axes)
    work = None if longest is None or total is None else max(total, longest * (volume(rows) or 1))
    if work is None or work > SMALL:
        stage.parallel(row)


def _row_axes(view: View, group: Group, name: str) -> list[Axis]:
    op = view[name]
    own = [a for a in op.axes if not among(group.axes[name].get(a), group.rows or ())]
    return [*own, *op.reduce_axes]


def _lanes(s: Schedule, stage: Stage, axes: Sequence[Axis], whole: bool) -> tuple[Axis, ...]:
    """The axes to run as lanes: all of a short row, pieces of a long one."""
    if not axes or whole:
        return tuple(axes)
    flat = stage.fuse(*axes) if len(axes) > 1 else axes[0]
    piece = _int(s.knob(f"{stage.name}.piece", (64, 128, 256, 1024), 128))
    return (stage.split(flat, factor=piece)[1],)


def _inner_row(s: Schedule, view: View, inner: Stage, stage: Stage, row: Axis, whole: bool) -> None:
    op = view[inner.name]
    if not is_reduction(op):
        if not whole:
            inner.compute_inline()
            return
        inner.compute_at(stage, row)
        for axis in op.axes:
            inner.vectorize(axis)
        return
    for axis in _lanes(s, inner, op.reduce_axes, whole):
        inner.vectorize(axis)
    inner.compute_at(stage, row)


def _schedule_reduction(s: Schedule, group: Group, root: ComputeOp) -> None:
    """A root that is itself a fold: across rows, over whole arrays, or row by row."""
    stage = s[group.root]
    if contraction(root) is not None:
        _expose_epilogue(s, group)
        return
    if not root.axes:
        _fold_whole(s, stage, root)
    elif _folds_columns(root) and not group.inner:
        _fold_columns(s, stage, root)
    else:
        row = stage.fuse(*root.axes) if len(root.axes) > 1 else root.axes[0]
        view = definitions(s)
        length = volume(root.reduce_axes)
        whole = length is not None and length <= MAX_ROW
        for axis in _lanes(s, stage, root.reduce_axes, whole):
            stage.vectorize(axis)
        for name in reversed(group.inner):
            _inner_row(s, view, s[name], stage, row, whole)
        work = volume((*root.axes, *root.reduce_axes))
        if work is None or work > SMALL:
            stage.parallel(row)


def _expose_epilogue(s: Schedule, group: Group) -> None:
    """Make a root contraction the inner stage of a kernel that stores its tiles."""
    made = s.cache_write(s[group.root].op.outputs[0], "local")
    inner = s[made[0] if isinstance(made, (list, tuple)) else made].name
    view = definitions(s)
    new = Group(group.root, [inner], view[group.root].axes, contracts=True)
    new.axes = {
        group.root: {a: a for a in view[group.root].axes},
        inner: dict(zip(view[inner].axes, view[group.root].axes, strict=True)),
    }
    contract(s, new)


def _fold_whole(s: Schedule, stage: Stage, op: ComputeOp) -> None:
    axes = op.reduce_axes
    total = volume(axes)
    flat = stage.fuse(*axes) if len(axes) > 1 else axes[0]
    if total is not None and total <= SMALL:
        _, piece = stage.split(flat, factor=64)
        stage.vectorize(piece)
        return
    chunk = _int(s.knob(f"{stage.name}.piece", (4096, 16384, 65536, 262144), 65536))
    part, _ = stage.split(flat, factor=chunk)
    made = s.rfactor(op.outputs[0], part)
    partial = s[made[0] if isinstance(made, (list, tuple)) else made]
    inner = definitions(s)[partial.name]
    rest = inner.reduce_axes
    piece = partial.fuse(*rest) if len(rest) > 1 else rest[0]
    _, lanes = partial.split(piece, factor=128)
    partial.vectorize(lanes)
    partial.parallel(inner.axes[0])


def _fold_columns(s: Schedule, stage: Stage, op: ComputeOp) -> None:
    """A stretch of results per thread, accumulated row by row; few results split the rows
    instead."""
    last = op.axes[-1]
    extent = extent_of(last)
    width = 256 if extent is None else min(256, max(1, extent))
    lo, li = stage.split(
        last, factor=_int(s.knob(f"{stage.name}.width", sorted({64, 256, 1024, width}), width))
    )
    stage.reorder(*op.axes[:-1], lo, *op.reduce_axes, li)
    stage.vectorize(li)
    work = volume((*op.axes, *op.reduce_axes))
    if work is None or work > SMALL:
        outer = (*op.axes[:-1], lo)
        stage.parallel(stage.fuse(*outer) if len(outer) > 1 else lo)


def contract(s: Schedule, group: Group) -> None:
    """Register tiles of the result; the operand of the lanes is packed panel by panel."""
    view = definitions(s)
    stage, root = s[group.root], view[group.root]
    inner = [name for name in group.inner if is_reduction(view[name])]
    shape = contraction(view[inner[0]])
    if shape is None:
        return
    mapping = group.axes[inner[0]]
    row, column = mapping[shape.rows[-1]], mapping[shape.columns[-1]]
    tall = _int(s.knob(f"{stage.name}.rows", (4, 6, 8, 12, 14), 12))
    wide = _int(s.knob(f"{stage.name}.columns", (8, 16, 32, 48), 32))
    m, n = extent_of(row), extent_of(column)
    tall = tall if m is None else max(1, min(tall, m))
    wide = wide if n is None else max(1, min(wide, n))
    ro, ri = stage.split(row, factor=tall)
    co, ci = stage.split(column, factor=wide)
    others = [a for a in root.axes if a is not row and a is not column]
    blocks = _int(s.knob(f"{stage.name}.row_blocks", (1, 2, 4, 8), 2))
    rb, ro = stage.split(ro, nparts=blocks)
    stage.reorder(*others, rb, co, ro, ri, ci)
    stage.vectorize(ri)
    stage.vectorize(ci)
    panel = co
    for name in inner:
        _contract_inner(s, view, s[name], stage, ro, panel)
    work = volume((*root.axes, *shape.folded))
    if work is None or work > SMALL:
        outer = (*others, rb, co)
        panel_axis = stage.fuse(*outer) if len(outer) > 1 else co
        stage.parallel(panel_axis)


def _contract_inner(
    s: Schedule, view: View, inner: Stage, stage: Stage, place: Axis, panel: Axis
) -> None:
    op = view[inner.name]
    shape = contraction(op)
    if shape is None:
        return
    inner.compute_at(stage, place)
    folded = op.reduce_axes
    inner.reorder(*folded, *op.axes)
    for axis in (*op.axes,):
        if axis is shape.rows[-1] or axis is shape.columns[-1]:
            inner.vectorize(axis)
    unroll = _int(s.knob(f"{stage.name}.unroll", (1, 2, 4, 8), 4))
    length = extent_of(folded[-1])
    if unroll > 1 and length is not None and length % unroll == 0:
        _, ki = inner.split(folded[-1], factor=unroll)
        inner.reorder(ki, *op.axes)
        inner.unroll(ki)
    if volume(folded) is None or not s.knob(f"{stage.name}.pack", (True, False), True):
        return
    _pack(s, view, inner, stage, shape.columns[-1], panel)


def _pack(s: Schedule, view: View, inner: Stage, stage: Stage, column: Axis, panel: Axis) -> None:
    """Copy the panel of the operand that the lanes run over, so that its rows lie one after
    another."""
    op = inner.op
    if not isinstance(op, ComputeOp):
        return
    direct = {r.tensor for r in reads(*op.bodies)}
    for read in reads(*view[inner.name].bodies):
        indices = plain(read)
        if indices is not None and among(column, indices) and read.tensor in direct:
            packed = s[s.cache_read(read.tensor, "local", [op])]
            packed.compute_at(stage, panel)
            own = packed.op
            if isinstance(own, ComputeOp):
                where = next(i for i, a in enumerate(indices) if a is column)
                packed.vectorize(own.axes[where])
