"""Nested contractions (attention backward): a GEMM whose operand is computed of other GEMMs over
the axis that it reduces is one kernel, and the operand is recomputed in registers, never stored.

    for pieces of j: S = sum(d)(q, k); t = f(S); O += t * v         (programs hold rows i)

Results that reduce one such operand along the same axis share a kernel (dK and dV).  Where others
reduce it along the other axis (dQ), they get a kernel of their own, in which the operand is
recomputed.  The kernel that reduces it along its rows (dK and dV) computes it transposed, so that
rows stay rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import axes_of, reads
from tedsl.schedules.analysis.chains import in_terms_of, root_of
from tedsl.schedules.analysis.nests import (
    Contraction,
    among,
    any_order,
    computed,
    contraction,
    cost,
    direct_reads,
    for_units,
    is_reduction,
    plain,
    pow2_at_least,
    reduce_axes,
)
from tedsl.schedules.analysis.views import View, definitions, extent_of, in_memory, volume
from tedsl.schedules.gpu.cascade.cascaded_contraction import FEWEST, WIDEST, Sizes, longer_last
from tedsl.schedules.gpu.gemm.k_steps import LEAST
from tedsl.schedules.gpu.gemm.mainloop import longest, movable
from tedsl.schedules.gpu.gemm.split_floats import is_split
from tedsl.schedules.gpu.gemm.tile_order import ordered, together, walked
from tedsl.schedules.gpu.launch import bind_all, pick_warps
from tedsl.schedules.knobs import flip, pick
from tedsl.schedules.loops import swap_axes
from tedsl.schedules.trial import takes
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.plan.graph import loop_readers
from tedsl.scheduling.plan.links import places
from tedsl.tensor.tensor import ComputeOp, Tensor

# Elements of an operand from which recomputing it beats storing it: beyond the cache of an H200.
STORED = 1 << 24
# Columns up to which four warps hold the tiles of several results.
NARROW = 64
# What a dimension of an operand is for the result: its row, the axis that is reduced, another.
ROW, FOLD = "row", "fold"


@dataclass(frozen=True, slots=True)
class Product:
    """A contraction with contractions in an operand.

    `root` is the stage that stores the result, `inner` the contractions, `between` the pointwise
    stages from them to it; `pattern` says what each dimension of these is for the result.
    """

    last: str
    root: str
    shape: Contraction
    inner: tuple[str, ...]
    between: tuple[str, ...]
    pattern: tuple[str, ...]


def schedule_products(s: Schedule, taken: Sequence[str]) -> list[str]:
    """Schedule the contractions of contractions among the stages that are not `taken`, by the knob
    `within`; returns the stages that are scheduled then."""
    found: list[str] = []
    for group in _groups(s, taken):
        if _possible(s, group) and flip(s, f"{group[0].root}.within", _large(s, group)):
            found += _one_kernel(s, group)
    return found


def _groups(s: Schedule, taken: Sequence[str]) -> list[list[Product]]:
    """The nested contractions of a schedule, grouped where they can share a kernel."""
    view = definitions(s)
    groups: list[list[Product]] = []
    for name in view:
        product = None if name in taken else _product(s, view, name)
        if product is None:
            continue
        for group in groups:
            if _alike(view, group[0], product):
                group.append(product)
                break
        else:
            groups.append([product])
    return groups


def _alike(view: View, a: Product, b: Product) -> bool:
    """True when both reduce the same operands along the same axis in tiles of one shape."""
    one, other = set(a.inner), set(b.inner)
    if a.pattern != b.pattern or one.isdisjoint(other) or not (one <= other or other <= one):
        return False
    shapes = [
        [extent_of(axis) for axis in (*view[p.last].axes, *view[p.last].reduce_axes)]
        for p in (a, b)
    ]
    return shapes[0] == shapes[1]


def _product(s: Schedule, view: View, name: str) -> Product | None:
    """The contraction `name` with those in its operands, if a program can hold their tiles."""
    op = view[name]
    shape = contraction(op) if s[name].plan.placement.at_root else None
    if shape is None or shape.unit is None or len(shape.folded) != 1 or not any_order(op):
        return None
    row, column, folded = longest(shape.rows), longest(shape.columns), shape.folded[0]
    patterns = _patterns(s, view, name, row, folded)
    if not patterns or len(set(patterns.values())) != 1:
        return None
    inner = tuple(n for n in patterns if is_reduction(view[n]))
    between = tuple(n for n in patterns if not is_reduction(view[n]))
    pattern = next(iter(patterns.values()))
    if not inner or ROW not in pattern or FOLD not in pattern:
        return None
    held = [extent_of(axis) for axis in (column, *(view[n].reduce_axes[0] for n in inner))]
    if any(n is None or not LEAST <= n <= WIDEST for n in held):
        return None
    if (extent_of(folded) or 0) < FEWEST:
        return None
    return Product(name, root_of(s, view, name), shape, inner, between, pattern)


def _patterns(
    s: Schedule, view: View, name: str, row: Axis, folded: Axis
) -> dict[str, tuple[str, ...]]:
    """The contractions in the operands of `name` and the pointwise stages from them, each with what
    its dimensions are; nothing when one is read at anything but plain axes."""
    names = view.names
    outputs = {s[t].name for t in s.outputs}
    found: dict[str, tuple[str, ...]] = {}
    roles: dict[Axis, str] = {row: ROW, folded: FOLD}
    waiting: list[tuple[str, dict[Axis, str]]] = [(name, roles)]
    while waiting:
        reader, known = waiting.pop()
        for read in reads(*view[reader].bodies):
            made = names.get(read.tensor.op) if isinstance(read.tensor.op, ComputeOp) else None
            if made is None or made in outputs:
                continue
            op, indices = view[made], plain(read)
            folds = is_reduction(op)
            if folds and not (for_units(op) and len(op.reduce_axes) == 1):
                continue
            if indices is None or len(op.bodies) > 1:
                return {}
            pattern = tuple(known.get(axis, axis.name) for axis in indices)
            if FOLD not in pattern or ROW not in pattern:
                continue  # it is no tile of the rows and the reduced axis
            found.setdefault(made, pattern)
            if found[made] != pattern:
                return {}
            if not folds:
                own = dict(zip(op.axes, pattern, strict=True))
                waiting.append((made, own))
    return found


def _large(s: Schedule, group: Sequence[Product]) -> bool:
    """True when what would be stored for a group is large enough to be recomputed in each kernel:
    never products of float32, whose parts leave no registers for other tiles.  On an H200 attention
    over 6144 positions took longer to differentiate so than PyTorch, which stores them."""
    if any(is_split(each.shape) for each in group):
        return False
    view = definitions(s)
    return any((volume(view[n].axes) or 0) >= STORED for each in group for n in each.inner)


def _possible(s: Schedule, group: Sequence[Product]) -> bool:
    """True when the primitives accept the group."""
    names = [n for each in group for n in (each.last, each.root, *each.inner, *each.between)]
    return takes(s, (_possible,), lambda trial: _one_kernel(trial, group), names)


def _one_kernel(s: Schedule, group: Sequence[Product]) -> list[str]:
    """One kernel for the results of a group; returns the stages in it."""
    known = places(s.plan).by_name
    inner, between = _separated(s, group)
    pattern = group[0].pattern
    row, fold = pattern.index(ROW), pattern.index(FOLD)
    if fold < row:  # transposed tiles have their rows in front of the axis that is reduced
        for name in (*between, *inner):
            swap_axes(s[name], row, fold)
        row, fold = fold, row
    lead, sizes = group[0], _sizes(s, group)
    heads = _together(s, group, (*inner, *between), (row, fold))
    (place, loop), *_ = [_tiles(s, each, lead.root, sizes, heads) for each in group]
    for each in group[1:]:
        s[each.root].compute_with(s[lead.root], place)
        s[each.last].compute_with(s[lead.last], loop)
    for name in (*_kept(s, between), *inner):
        s[name].compute_at(s[lead.last], loop)
        for axis in reduce_axes(s[name]):
            s[name].vectorize(axis)
    folds = [s[each.last] for each in group]
    ahead = 2 if sizes.depth * sizes.columns >= 64 * 128 else 3
    s[lead.last].pipeline(loop, pick(s, f"{lead.root}.stages", (1, 2, 3, 4), ahead, 4))
    _operands(s, lead, folds, [s[name] for name in inner], fold, (place, loop))
    for name in between:
        for tensor in _beside(s, s[name], fold):
            copy = s.cache_read(tensor, "local", [s[name].op])
            s[copy].compute_at(s[lead.root], place)
    held = sizes.rows * max(sizes.columns, sizes.depth)
    most = 8 if sizes.rows >= 128 else 4
    s[lead.root].launch(num_warps=pick_warps(s, s[lead.root], (4, 8), most, max(32, held // 8)))
    made = [name for name in places(s.plan).names if name not in known]
    return [*(n for p in group for n in (p.root, p.last)), *inner, *between, *made]


def _separated(s: Schedule, group: Sequence[Product]) -> tuple[list[str], list[str]]:
    """The contractions and pointwise stages of a group, in copies of its own (`recompute`) where
    others read them too."""
    wanted = {name for each in group for name in (*each.inner, *each.between)}
    mine = {each.last for each in group}
    inner: list[str] = []
    between: list[str] = []
    for name in reversed(list(definitions(s))):
        if name not in wanted:
            continue
        view = definitions(s)
        op = view[name]
        users = {each.name for each in loop_readers(s.plan, s[name].op) if each.name in view}
        if not users <= mine:
            copy = s.recompute(s[name].op.outputs[0], sorted(users & mine))
            name = s[copy].name
        mine.add(name)
        (inner if is_reduction(op) else between).append(name)
    return inner, between


def _sizes(s: Schedule, group: Sequence[Product]) -> Sizes:
    """Rows of a program, and the piece of the reduced axis in an iteration: what the registers of
    one or two warp groups hold beside the tiles of all results."""
    product = group[0]
    row, column = longest(product.shape.rows), longest(product.shape.columns)
    limits = [extent_of(axis) for axis in (row, column, product.shape.folded[0])]
    most = [WIDEST if n is None else pow2_at_least(n) for n in limits]
    choices = (32, 64, 128)
    wide = most[1] > NARROW
    piece = 64 if not wide else 128 // len(group)
    rows = pick(s, f"{product.root}.bm", choices, 128 if wide else 64, most[0])
    depth = pick(s, f"{product.root}.bk", choices, max(32, piece), most[2])
    return Sizes(rows, most[1], depth)


def _together(
    s: Schedule, group: Sequence[Product], within: Sequence[str], places: tuple[int, int]
) -> int:
    """How many batches (heads) run the same rows side by side, by what all loops of a group read:
    `places` are those of the rows and of the reduced axis in the stages `within`."""
    lead, (row, fold), view = group[0], places, definitions(s)
    inside = {*within, *(name for each in group for name in (each.root, each.last))}
    readers = [(view[n], view[n].axes[fold], view[n].axes[row]) for n in within]
    for each in group:
        own = longest(each.shape.rows)
        readers.append((view[each.last], each.shape.folded[0], own))
    op, sides = view[lead.last], (longest(lead.shape.rows), longest(lead.shape.columns))
    axes = in_terms_of(computed(s[lead.root]), op)
    heads = [own for axis, own in axes.items() if not among(axis, sides)]
    uneven = longer_last(op, lead.shape) is not None
    return together(s, lead.root, heads, walked(view, inside, readers), uneven)


def _tiles(s: Schedule, product: Product, lead: str, sizes: Sizes, heads: int) -> tuple[Axis, Axis]:
    """The grid over the result's tiles, the same ones of so many `heads` side by side, and the loop
    over pieces of the reduced axis; the kernel is called after the stage `lead`."""
    stage, fold = s[product.root], s[product.last]
    axes = in_terms_of(computed(stage), computed(fold))
    row, column = axes[longest(product.shape.rows)], axes[longest(product.shape.columns)]
    others = [axis for axis in computed(stage).axes if axis is not row and axis is not column]
    outer, inner = stage.split(row, factor=sizes.rows)
    order = ordered(stage, others, [outer], heads)
    stage.reorder(*order, inner, column)
    stage.vectorize(inner)
    stage.vectorize(column)
    longer = longer_last(computed(fold), product.shape)
    last_first = longer is not None and flip(s, f"{lead}.descending", longer)
    place = bind_all(stage, order, last_first)
    if fold.name != stage.name:
        fold.compute_at(stage, place)
    loop, piece = fold.split(reduce_axes(fold)[0], factor=sizes.depth)
    fold.vectorize(piece)
    if fold.name != stage.name:
        fold.reorder(loop, *(axis for axis in fold.leaf_iter_vars if axis is not loop))
    return place, loop


def _kept(s: Schedule, between: Sequence[str]) -> list[str]:
    """Inline the pointwise stages, but for those that several stages read: they are computed once,
    as tiles.  Returns these."""
    kept: list[str] = []
    for name in between:
        view = definitions(s)
        op = view[name]
        users = [each for each in loop_readers(s.plan, s[name].op) if each.name in view]
        if len(users) > 1 and cost(op) > 1:
            kept.append(name)
        else:
            s[name].compute_inline()
    return kept


def _operands(
    s: Schedule,
    lead: Product,
    folds: Sequence[Stage],
    inner: Sequence[Stage],
    fold: int,
    places: tuple[Axis, Axis],
) -> None:
    """Loop-invariant operands are loaded before the loop, the rest in its pipeline; each tile once
    for all that read it, by TMA where it can."""
    place, loop = places
    fixed: dict[Tensor, list[Stage]] = {}
    moving: dict[Tensor, list[Stage]] = {}
    for reader in (*inner, *folds):
        for tensor in movable(s, reader):
            still = reader in inner and not _moves(reader, tensor, fold)
            (fixed if still else moving).setdefault(tensor, []).append(reader)
    engine = flip(s, f"{lead.root}.descriptors", True)
    for group, stage, axis in ((moving, s[lead.last], loop), (fixed, s[lead.root], place)):
        for tensor, readers in group.items():
            if engine or group is fixed:
                scope = "shared" if engine else "local"
                copy = s.cache_read(tensor, scope, [reader.op for reader in readers])
                s[copy].compute_at(stage, axis)


def _moves(reader: Stage, tensor: Tensor, fold: int) -> bool:
    """True when what an inner contraction reads of a tensor changes with the loop."""
    moving = computed(reader).axes[fold]
    own = [r for r in direct_reads(reader) if r.tensor is tensor]
    return any(moving in axes_of(*r.indices) for r in own)


def _beside(s: Schedule, stage: Stage, fold: int) -> list[Tensor]:
    """What a pointwise stage reads of memory that is loop-invariant."""
    moving = computed(stage).axes[fold]
    found = [r for r in direct_reads(stage) if r.indices and plain(r) is not None]
    found = [r for r in found if moving not in axes_of(*r.indices)]
    return list(dict.fromkeys(r.tensor for r in found if in_memory(s, r.tensor)))
