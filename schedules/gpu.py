"""Rules for programs of tiles: one function per shape of loop nest, each choice a named knob."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis, TensorRead
from tedsl.expr.tensor import ComputeOp, Tensor
from tedsl.expr.visit import reads
from tedsl.schedules.analysis import (
    Contraction,
    Group,
    View,
    among,
    contraction,
    definitions,
    extent_of,
    is_reduction,
    plain,
    same_axes,
    shared_inputs,
    size_of,
    volume,
)
from tedsl.scheduling.schedule import Schedule
from tedsl.scheduling.stage import Stage

# Elements of one row that a program may hold at once (16 warps, 64 elements a thread).
MAX_ROW = 32768
# Multiprocessors of the device that the defaults are made for (H100, H200).
PROCESSORS = 132
# Programs that keep a large device busy; a reduction with fewer results is split.
MANY_PROGRAMS = 2 * PROCESSORS


def schedule_group(s: Schedule, group: Group) -> None:
    """Choose the rule for one kernel by the shape of its nests."""
    view = definitions(s)
    root = view[group.root]
    if is_reduction(root):
        _expose_epilogue(s, group)
        return
    if group.contracts:
        contract(s, group)
    elif group.rows is None:
        pointwise(s, s[group.root], root)
    elif _folds_columns(view, group):
        reduce_columns(s, group)
    else:
        reduce_rows(s, group)


def _expose_epilogue(s: Schedule, group: Group) -> None:
    """Make a root reduction the inner stage of a kernel that stores its result."""
    stage = s[group.root]
    op = stage.op
    if not op.shape:
        _split_whole(s, stage)
        return
    many = list(op.outputs) if len(op.outputs) > 1 else op.outputs[0]
    made = s.cache_write(many, "local")
    first = made[0] if isinstance(made, (list, tuple)) else made
    inner = s[first].name
    view = definitions(s)
    axes = dict(zip(view[inner].axes, view[group.root].axes, strict=True))
    new = Group(group.root, [*group.inner, inner], view[group.root].axes)
    new.contracts = contraction(view[inner]) is not None
    new.axes = {group.root: {a: a for a in view[group.root].axes}, inner: axes}
    for name in group.inner:
        new.axes[name] = {k: axes.get(v, v) for k, v in group.axes[name].items()}
    schedule_group(s, new)


def pow2_at_least(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(0, size - 1).bit_length()


def _bind_all(stage: Stage, axes: Sequence[Axis]) -> Axis | None:
    """Fuse `axes` and make them the grid; None when there are none."""
    if not axes:
        return None
    grid = stage.fuse(*axes) if len(axes) > 1 else axes[0]
    stage.bind(grid, "blockIdx.x")
    return grid


def pointwise(s: Schedule, stage: Stage, op: ComputeOp) -> None:
    """Every element by itself: one flat tile when all reads are in step, else a tile of two
    axes."""
    if not op.axes:
        return
    name = stage.name
    everything = reads(*op.bodies)
    in_step = all(same_axes(plain(r), op.axes) for r in everything)
    if in_step or len(op.axes) == 1:
        flat = stage.fuse(*op.axes) if len(op.axes) > 1 else op.axes[0]
        block = s.knob(f"{name}.block", (256, 512, 1024, 2048, 4096), 1024)
        outer, inner = stage.split(flat, factor=_int(block))
        stage.bind(outer, "blockIdx.x")
        stage.vectorize(inner)
    else:
        _pointwise_2d(s, stage, op, everything)
    warps = s.knob(f"{name}.warps", (2, 4, 8), 4)
    stage.launch(num_warps=_int(warps))


def _pointwise_2d(
    s: Schedule, stage: Stage, op: ComputeOp, everything: Sequence[TensorRead]
) -> None:
    last = op.axes[-1]
    crossing = [_last_axis(r) for r in everything]
    across = [a for a in crossing if a is not None and a is not last and among(a, op.axes)]
    partner = across[0] if across else op.axes[-2]
    wide = 64 if across else 1024
    tall = 64 if across else 1
    limit = extent_of(last)
    wide = wide if limit is None else min(wide, max(16, pow2_at_least(limit)))
    tall = max(tall, 1024 // wide) if not across else tall
    columns = _int(s.knob(f"{stage.name}.columns", (16, 32, 64, 128, 256, 512, 1024), wide))
    rows = _int(s.knob(f"{stage.name}.rows", (1, 2, 4, 8, 16, 32, 64), min(64, tall)))
    po, pi = stage.split(partner, factor=rows)
    lo, li = stage.split(last, factor=columns)
    others = [a for a in op.axes if a is not last and a is not partner]
    stage.reorder(*others, po, lo, pi, li)
    _bind_all(stage, (*others, po, lo))
    stage.vectorize(pi)
    stage.vectorize(li)


def _last_axis(read: TensorRead) -> Axis | None:
    index = read.indices[-1] if read.indices else None
    return index if isinstance(index, Axis) else None


def _int(value: object) -> int:
    return int(value) if isinstance(value, (int, float)) else 0


def _row_length(view: View, group: Group, columns: Sequence[Axis]) -> int | None:
    """The longest tile of one row, padded; None when a length is symbolic."""
    longest = 1
    for name in group.inner:
        op = view[name]
        axes = [a for a in op.axes if not among(group.axes[name].get(a), group.rows or ())]
        size = volume([*axes, *op.reduce_axes])
        if size is None:
            return None
        longest = max(longest, pow2_at_least(size))
    width = volume(columns)
    return None if width is None else max(longest, pow2_at_least(width))


def reduce_rows(s: Schedule, group: Group) -> None:
    """Rows of reductions and what reads them: a whole row in one tile, or a loop over pieces of
    it."""
    view = definitions(s)
    stage, root = s[group.root], view[group.root]
    rows = list(group.rows or ())
    columns = [a for a in root.axes if not among(a, rows)]
    length = _row_length(view, group, columns)
    whole = length is not None and length <= MAX_ROW
    if length is not None and whole:
        whole = bool(s.knob(f"{stage.name}.whole_row", (True, False), True))
    stage.reorder(*rows, *columns)
    row = stage.fuse(*rows) if len(rows) > 1 else rows[0]
    per_program = _rows_per_program(s, stage, length if whole else None)
    outer, inner = stage.split(row, factor=per_program)
    stage.bind(outer, "blockIdx.x")
    stage.vectorize(inner)
    if whole and length is not None:
        _whole_rows(s, group, stage, outer, columns)
        warps = _warps(length * per_program)
    else:
        _looped_rows(s, group, stage, outer, columns)
        warps = 8
    chosen = s.knob(f"{stage.name}.warps", (1, 2, 4, 8, 16, 32), warps)
    stage.launch(num_warps=_int(chosen))


def _rows_per_program(s: Schedule, stage: Stage, length: int | None) -> int:
    default = 1 if length is None else max(1, min(16, 1024 // length))
    return _int(s.knob(f"{stage.name}.rows", (1, 2, 4, 8, 16), pow2_at_least(default)))


def _warps(elements: int) -> int:
    """Warps that hold a tile at 16 to 64 elements a thread."""
    for limit, warps in ((1024, 1), (2048, 2), (4096, 4), (16384, 8)):
        if elements <= limit // (2 if limit < 4096 else 1):
            return warps
    return 16


def _whole_rows(
    s: Schedule, group: Group, stage: Stage, outer: Axis, columns: Sequence[Axis]
) -> None:
    """All lanes of a row at once; what several stages read is loaded into registers first."""
    for axis in columns:
        stage.vectorize(axis)
    for name in reversed(group.inner):
        inner = s[name]
        for axis in _reduce_axes(inner):
            inner.vectorize(axis)
        inner.compute_at(stage, outer)
    for source, users in shared_inputs(definitions(s), group, s):
        tensor = s[source].op.outputs[0]
        staged = s.cache_read(tensor, "local", [s[user].op for user in users])
        s[staged].compute_at(stage, outer)


def _reduce_axes(stage: Stage) -> tuple[Axis, ...]:
    return stage.op.reduce_axes if isinstance(stage.op, ComputeOp) else ()


def _looped_rows(
    s: Schedule, group: Group, stage: Stage, outer: Axis, columns: Sequence[Axis]
) -> None:
    """Each reduction loops over pieces of the row, and so does the result."""
    block = _int(s.knob(f"{stage.name}.block", (512, 1024, 2048, 4096, 8192), 2048))
    if columns:
        flat = stage.fuse(*columns) if len(columns) > 1 else columns[0]
        _, piece = stage.split(flat, factor=block)
        stage.vectorize(piece)
    for name in reversed(group.inner):
        inner = s[name]
        axes = _reduce_axes(inner)
        if not axes:
            inner.compute_inline()
            continue
        flat = inner.fuse(*axes) if len(axes) > 1 else axes[0]
        _, piece = inner.split(flat, factor=block)
        inner.vectorize(piece)
        inner.compute_at(stage, outer)


def _folds_columns(view: View, group: Group) -> bool:
    """True when neighbours in memory are neighbouring results, not elements of one fold."""
    root = view[group.root]
    for name in group.inner:
        op = view[name]
        for read in reads(*op.bodies):
            last = _last_axis(read)
            if among(last, op.reduce_axes):
                return False
    return bool(root.axes) and same_axes(group.rows, root.axes)


def reduce_columns(s: Schedule, group: Group) -> None:
    """Folds across rows: a tile of neighbouring results and some rows, split when results are
    few."""
    view = definitions(s)
    stage, root = s[group.root], view[group.root]
    last = root.axes[-1]
    width = _int(s.knob(f"{stage.name}.columns", (32, 64, 128, 256, 512), 128))
    depth = _int(s.knob(f"{stage.name}.rows", (4, 8, 16, 32, 64), 16))
    programs = (volume(root.axes) or 0) // width
    parts = 1
    if len(group.inner) == 1 and 0 < programs < MANY_PROGRAMS:
        folded = volume(view[group.inner[0]].reduce_axes) or 1
        fitting = max(1, min(256, 4 * MANY_PROGRAMS // max(1, programs), folded // depth))
        default = pow2_at_least(fitting)
        parts = _int(s.knob(f"{stage.name}.parts", (1, 2, 4, 8, 16, 32, 64, 128, 256), default))
    if parts > 1:
        _split_columns(s, group.inner[0], parts, width, depth)
        depth = parts
    lo, li = stage.split(last, factor=width)
    stage.reorder(*root.axes[:-1], lo, li)
    grid = _bind_all(stage, (*root.axes[:-1], lo))
    stage.vectorize(li)
    for name in reversed(group.inner):
        inner = s[name]
        axes = _reduce_axes(inner)
        flat = inner.fuse(*axes) if len(axes) > 1 else axes[0]
        _, piece = inner.split(flat, factor=depth)
        inner.vectorize(piece)
        if grid is not None:
            inner.compute_at(stage, grid)
    stage.launch(num_warps=_int(s.knob(f"{stage.name}.warps", (2, 4, 8), 4)))


def _split_columns(s: Schedule, name: str, parts: int, width: int, depth: int) -> None:
    """Partial results of `parts` stretches of the fold, in a kernel of their own."""
    stage = s[name]
    axes = _reduce_axes(stage)
    flat = stage.fuse(*axes) if len(axes) > 1 else axes[0]
    part, _ = stage.split(flat, nparts=parts)
    partial = s.rfactor(stage.op.outputs[0], part)
    first = partial[0] if isinstance(partial, (list, tuple)) else partial
    many = list(s[first].op.outputs) if len(s[first].op.outputs) > 1 else first
    made = s.cache_write(many, "local")
    inner = s[made[0] if isinstance(made, (list, tuple)) else made]
    outer = s[first]
    op = definitions(s)[outer.name]
    lo, li = outer.split(op.axes[-1], factor=width)
    outer.reorder(*op.axes[:-1], lo, li)
    grid = _bind_all(outer, (*op.axes[:-1], lo))
    outer.vectorize(li)
    folded = _reduce_axes(inner)
    flat = inner.fuse(*folded) if len(folded) > 1 else folded[0]
    _, piece = inner.split(flat, factor=depth)
    inner.vectorize(piece)
    if grid is not None:
        inner.compute_at(outer, grid)
    outer.launch(num_warps=4)


def _split_whole(s: Schedule, stage: Stage) -> None:
    """A fold into one element: parts over the grid, then one program over the parts."""
    op = stage.op
    if not isinstance(op, ComputeOp):
        return
    axes = op.reduce_axes
    total = volume(axes)
    flat = stage.fuse(*axes) if len(axes) > 1 else axes[0]
    block = _int(s.knob(f"{stage.name}.block", (512, 1024, 2048, 4096), 2048))
    if total is not None and total <= 4 * block:
        _, piece = stage.split(flat, factor=min(block, pow2_at_least(total)))
        stage.vectorize(piece)
        return
    parts = _int(s.knob(f"{stage.name}.parts", (128, 256, 512, 1024, 2048), 1024))
    part, _ = stage.split(flat, nparts=parts)
    made = s.rfactor(op.outputs[0], part)
    partial = s[made[0] if isinstance(made, (list, tuple)) else made]
    inner = definitions(s)[partial.name]
    folded = inner.reduce_axes
    piece = partial.fuse(*folded) if len(folded) > 1 else folded[0]
    _, lanes = partial.split(piece, factor=block)
    partial.vectorize(lanes)
    partial.bind(inner.axes[0], "blockIdx.x")
    partial.launch(num_warps=_int(s.knob(f"{stage.name}.warps", (4, 8, 16), 8)))
    for axis in definitions(s)[stage.name].reduce_axes:
        stage.vectorize(axis)


def contract(s: Schedule, group: Group) -> None:
    """Tiles of the result over a grouped grid, operands staged through a pipelined loop."""
    stays = _programs_stay(s, group)
    staged = _staged_result(s, group, stays)
    view = definitions(s)
    stage, root = s[group.root], view[group.root]
    inner = [name for name in group.inner if is_reduction(view[name])]
    shape = contraction(view[inner[0]])
    if shape is None:
        return
    mapping = group.axes[inner[0]]
    row, column = mapping[shape.rows[-1]], mapping[shape.columns[-1]]
    bm, bn, bk = _tile_sizes(s, stage, row, column, shape)
    ro, ri = stage.split(row, factor=bm)
    co, ci = stage.split(column, factor=bn)
    others = [a for a in root.axes if a is not row and a is not column]
    group_size = _int(s.knob(f"{stage.name}.group", (1, 4, 8, 16), _group_default(row, bm)))
    if group_size > 1:
        rg, rr = stage.split(ro, factor=group_size)
        order = [*others, rg, co, rr]
    else:
        order = [*others, ro, co]
    stage.reorder(*order, ri, ci)
    grid = stage.fuse(*order) if len(order) > 1 else order[0]
    place = _grid(s, stage, grid, stays)
    stage.vectorize(ri)
    stage.vectorize(ci)
    stages = _int(s.knob(f"{stage.name}.stages", (2, 3, 4, 5), 3))
    if staged is not None:
        s[staged].compute_at(stage, place)
    for name in inner:
        _contract_inner(s, s[name], stage, place, bk, stages)
    warps = 8 if bm * bn >= 128 * 256 else 4
    chosen = s.knob(f"{stage.name}.warps", (4, 8), warps)
    stage.launch(num_warps=_int(chosen), num_stages=stages)


def _programs_stay(s: Schedule, group: Group) -> bool:
    """Persistent programs pay when each has several tiles: one's stores overlap the next's loads."""
    points = volume(definitions(s)[group.root].axes)
    many = points is not None and points >= 2 * PROCESSORS * 128 * 256
    return bool(s.knob(f"{group.root}.persistent", (False, True), many))


def _staged_result(s: Schedule, group: Group, stays: bool) -> Tensor | None:
    """With the knob `descriptor_store`, the tile is staged so that the copy engine stores it."""
    out = s[group.root].op.outputs[0]
    size = size_of(out.shape[-1])
    aligned = size is not None and size * out.dtype.nbytes % 16 == 0 and len(out.shape) >= 2
    if not aligned or not s.knob(f"{group.root}.descriptor_store", (False, True), stays):
        return None
    made = s.cache_write(out, "shared")
    staged = made[0] if isinstance(made, (list, tuple)) else made
    old, new = s[staged].op, s[group.root].op
    if isinstance(old, ComputeOp) and isinstance(new, ComputeOp):
        axes = dict(zip(group.axes[group.root], new.axes, strict=True))
        for name, own in group.axes.items():
            group.axes[name] = {k: axes.get(v, v) for k, v in own.items()}
        group.axes[s[staged].name] = dict(zip(old.axes, new.axes, strict=True))
        group.axes[group.root] = {a: a for a in new.axes}
    return staged


def _group_default(row: Axis, bm: int) -> int:
    size = extent_of(row)
    blocks = 0 if size is None else size // bm
    return 8 if blocks >= 8 and blocks % 8 == 0 else 1


def _grid(s: Schedule, stage: Stage, grid: Axis, stays: bool) -> Axis:
    """One tile per program, or programs that stay and take every n-th tile."""
    if not stays:
        stage.bind(grid, "blockIdx.x")
        return grid
    turn, program = stage.split(grid, factor=PROCESSORS)
    leaves = [a for a in stage.leaf_iter_vars if a is not turn and a is not program]
    stage.reorder(program, turn, *leaves)
    stage.bind(program, "blockIdx.x")
    if s.knob(f"{stage.name}.flatten", (False, True), True):
        stage.pipeline(turn, num_stages=1, flatten=True)
    return turn


def _tile_sizes(
    s: Schedule, stage: Stage, row: Axis, column: Axis, shape: Contraction
) -> tuple[int, int, int]:
    m, n, k = extent_of(row), extent_of(column), volume(shape.folded)
    big = m is None or n is None or (m >= 2048 and n >= 2048)
    bm, bn = (128, 256) if big else (64, 64)
    bm = bm if m is None else max(16, min(bm, pow2_at_least(m)))
    bn = bn if n is None else max(16, min(bn, pow2_at_least(n)))
    bk = 64 if k is None else max(16, min(64, pow2_at_least(k)))
    width = max(a.dtype.nbytes for a in shape.operands)
    if width > 2 and not _narrow(shape):
        bm, bn, bk = min(bm, 64), min(bn, 64), min(bk, 32)
    choices = (16, 32, 64, 128, 256)
    bm = _int(s.knob(f"{stage.name}.bm", choices, bm))
    bn = _int(s.knob(f"{stage.name}.bn", choices, bn))
    bk = _int(s.knob(f"{stage.name}.bk", (16, 32, 64, 128), bk))
    return bm, bn, bk


def _narrow(shape: Contraction) -> bool:
    """True when both operands are read in 16 bits or less."""
    return all(all(r.dtype.nbytes <= 2 for r in reads(operand)) for operand in shape.operands)


def _contract_inner(
    s: Schedule, inner: Stage, stage: Stage, place: Axis, bk: int, stages: int
) -> None:
    axes = _reduce_axes(inner)
    flat = inner.fuse(*axes) if len(axes) > 1 else axes[0]
    ko, ki = inner.split(flat, factor=bk)
    inner.vectorize(ki)
    inner.pipeline(ko, num_stages=stages)
    inner.compute_at(stage, place)
    if len(axes) > 1 or not s.knob(f"{stage.name}.descriptors", (True, False), True):
        return
    op = inner.op
    if not isinstance(op, ComputeOp):
        return
    for read in reads(*definitions(s)[inner.name].bodies):
        aligned = plain(read) is not None and _sixteen_bytes(read)
        source = [t for t in s.plan.stages if t.op is read.tensor.op]
        if aligned and source and read.tensor in {r.tensor for r in reads(*op.bodies)}:
            staged = s.cache_read(read.tensor, "shared", [inner.op])
            s[staged].compute_at(inner, ko)


def _sixteen_bytes(read: TensorRead) -> bool:
    """True when rows of the tensor start at multiples of 16 bytes, as the copy engine needs."""
    size = size_of(read.tensor.shape[-1])
    return len(read.indices) >= 2 and size is not None and size * read.dtype.nbytes % 16 == 0
