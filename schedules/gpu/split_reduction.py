"""Split-K for GEMMs with few output tiles, and split long rows with few results: partial results
in a kernel of their own, which fills the device, combined by a second kernel or by the last
program."""

from __future__ import annotations

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import reads
from tedsl.schedules.analysis.groups import Group, crossed_row
from tedsl.schedules.analysis.nests import (
    any_order,
    contraction,
    first,
    pow2_at_least,
    reduce_axes,
    same_axes,
)
from tedsl.schedules.analysis.views import View, definitions, extent_of, volume
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.gemm.cost_model import LINE, STEP, SURE, in_parts
from tedsl.schedules.gpu.gemm.gemm import product_of, widest
from tedsl.schedules.gpu.gemm.mainloop import longest, one_by_one
from tedsl.schedules.gpu.gemm.operand_layouts import rows_aligned
from tedsl.schedules.gpu.rows.aligned_pieces import ACCESS
from tedsl.schedules.knobs import pick
from tedsl.schedules.loops import fused, fused_folds
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage

PARTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
# Elements of a row, and K of a contraction, that are worth a program.
LONG_ROW = 8192
VERY_LONG = 1 << 17
LONG_PRODUCT = 512
# A tile of a contraction that keeps tensor cores busy.
TILE = 64
# Programs of an SM that load one element at a time.
ALONE = 8
# Tiles for each SM from which a product is not split.
MANY = 2


def few_parts(s: Schedule, view: View, group: Group) -> int:
    """The knob `parts`: in how many parts to split the reduced axis; 1 where the results alone fill
    the device.

    The kernel has one reduction, along memory or a contraction, and a pointwise epilogue.
    """
    root = view[group.root]
    if group.in_parts or len(group.inner) != 1 or not same_axes(group.rows, root.axes):
        return 1
    op = view[group.inner[0]]
    folded, results = volume(op.reduce_axes), volume(op.axes)
    shape = contraction(op, grouped=True)
    crossed = shape is None and crossed_row(view, group) is not None
    if not folded or not results or crossed or not any_order(op):
        return 1
    programs, shortest, single = results, LONG_ROW, False
    if shape is not None:
        programs, shortest = volume(shape.batch) or 1, LONG_PRODUCT
        for side in (shape.rows, shape.columns):
            tiled = longest(side)
            programs *= -(-(extent_of(tiled) or 1) // TILE)
            programs *= volume([a for a in side if a is not tiled]) or 1
        sides = extent_of(longest(shape.rows)), extent_of(longest(shape.columns))
        single = one_by_one(shape, *sides, folded)
    sms = gpu_of(s).sms
    product = None if shape is None else product_of(s, s[group.root], group.inner[0], op, shape)
    # Of rows this long an SM that has two takes far longer than one that has one.
    uneven = shape is None and programs >= sms and folded >= VERY_LONG
    full = MANY * sms if uneven or product is not None else sms
    name = f"{group.root}.parts"
    if programs >= full or folded < 2 * shortest:
        return 1
    fitting = [n for n in PARTS if n * shortest <= folded]
    # Elements that are loaded one by one: more programs have as many bytes in flight.
    if shape is None:
        single = not all(rows_aligned(s, read) for read in reads(*op.bodies))
    busy = ALONE * sms if single or uneven else 2 * sms
    default = max((n for n in fitting if n * programs <= busy), default=1)
    if product is not None:
        default = min(fitting, key=lambda n: in_parts(product, n))
        if programs >= sms and in_parts(product, default) > SURE * in_parts(product, 1):
            return 1
    return pick(s, name, fitting, default, max(fitting, default=1))


def _in_pieces(s: Schedule, stage: Stage, parts: int) -> Axis:
    """Split a fold into parts, or into more, of a power of two elements, where rows start at vector
    boundaries and parts would not."""
    axes, found = reduce_axes(stage), list(reads(*definitions(s)[stage.name].bodies))
    folded, nbytes = volume(axes), min((read.dtype.nbytes for read in found), default=4)
    axis = fused_folds(s, stage)
    each = 0 if folded is None else -(-folded // parts)
    if folded is None or folded * nbytes % ACCESS or each * nbytes % ACCESS == 0:
        return stage.split(axis, nparts=parts)[0]
    return stage.split(axis, factor=pow2_at_least(each // 2 + 1))[0]


def split_few(s: Schedule, group: Group, parts: int) -> Group:
    """Make the partial results a stage of their own (`rfactor`); `group` then combines those."""
    stage = s[group.inner[0]]
    axes = reduce_axes(stage)
    folded, shape = volume(axes), contraction(definitions(s)[stage.name], grouped=True)
    if folded is None or shape is None:
        part = _in_pieces(s, stage, parts)
    else:
        # Whole K steps, so that TMA finds rows at multiples of 16 bytes.
        step = max(STEP, LINE // widest(shape))
        each = -(-folded // (parts * step)) * step
        part, _ = stage.split(fused(stage, axes), factor=each)
    partial = s[first(s.rfactor(stage.op.outputs[0], part))]
    group.contracts, group.in_parts = False, True
    own = definitions(s)[partial.name]
    axes = {partial.name: {a: a for a in own.axes}}
    return Group(partial.name, axes=axes, in_parts=True)
