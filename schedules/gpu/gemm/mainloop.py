"""The mainloop (K loop) of a tiled GEMM kernel: software-pipelined K steps whose operands TMA
loads into shared memory; and the descriptions of a kernel that `gpu/gemm/gemm.py` and
`gpu/gemm/stream_k_tail.py` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import axes_of, reads
from tedsl.ir.matrix_units import worth_padding
from tedsl.schedules.analysis.nests import (
    Contraction,
    among,
    computed,
    contraction,
    direct_reads,
    distinct,
    reduce_axes,
)
from tedsl.schedules.analysis.views import definitions, extent_of, in_memory
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.gemm.cost_model import Product
from tedsl.schedules.gpu.gemm.flattened_axes import Sides
from tedsl.schedules.gpu.gemm.k_steps import LEAST, stepped
from tedsl.schedules.gpu.gemm.operand_layouts import is_box, rows_aligned
from tedsl.schedules.gpu.gemm.split_floats import is_split
from tedsl.schedules.gpu.gemm.stationary_operand import of_rows
from tedsl.schedules.knobs import flip, knobs_of
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp, Tensor


@dataclass(frozen=True, slots=True)
class Work:
    """What is known of a kernel before its loops are made.

    The contraction, the axes of its root that are M and N of a tile, which of these are flattened
    (`joined`, implicit GEMM); the product of the cost model, BLOCK_M, BLOCK_N and BLOCK_K, the
    shared tile from which TMA stores; whether the epilogue reads a matrix (`tiled`), programs may
    be persistent (`may_stay`); and what the epilogue reads.
    """

    shape: Contraction
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    joined: Sides
    product: Product | None
    tile: tuple[int, int, int]
    staged: Tensor | None
    tiled: bool
    may_stay: bool
    vectors: set[Tensor]


@dataclass(frozen=True, slots=True)
class Loops:
    """What was chosen for the loops of a kernel: whether the MMA operands are swapped (`turned`),
    which products share a mainloop, by their numbers, whether TMA loads the operands of each such
    loop (`engine`), `num_stages` and `num_warps`."""

    turned: bool
    together: list[list[int]]
    engine: list[bool]
    stages: int
    warps: int


def thin(*extents: int | None) -> bool:
    """True when a side is shorter than tensor cores multiply."""
    return any(extent is not None and extent < LEAST for extent in extents)


def one_by_one(shape: Contraction, *extents: int | None) -> bool:
    """True when products are computed on CUDA cores: tensor cores do not take their types, or the
    rows, the columns and the depth that are `extents` are too few to be padded for them."""
    rows, columns, depth = (LEAST if extent is None else extent for extent in extents)
    return shape.unit is None or not worth_padding(rows, columns, depth)


def contract_inner(
    s: Schedule,
    folds: Sequence[Stage],
    stage: Stage,
    place: Axis,
    bk: int,
    stages: int,
    kept: Axis | None = None,
    engine: bool | None = None,
) -> bool:
    """Attach contractions at the loop `place` around a tile of `stage`: one pipelined mainloop in
    steps of `bk`, with TMA loads where the device has TMA; operands of the rows
    alone are loaded at the loop `kept`, if there is one (operand-stationary).  Returns whether TMA
    is to load them, the knob `descriptors` unless `engine` says it."""
    lead, *others = folds
    axes = reduce_axes(lead)
    ko = stepped(lead, bk)
    lead.pipeline(ko, num_stages=stages)
    lead.compute_at(stage, place)
    for each in others:
        own = stepped(each, bk)
        each.compute_at(stage, place)
        for fold, loop in ((lead, ko), (each, own)):
            fold.reorder(loop, *(a for a in fold.leaf_iter_vars if a is not loop))
        each.compute_with(lead, ko)
    operands: dict[Tensor, list[Stage]] = {}
    for fold in folds:
        for tensor in movable(s, fold):
            operands.setdefault(tensor, []).append(fold)
    extent = extent_of(axes[-1])
    if not operands or (len(axes) > 1 and (extent is None or extent % bk)):
        return False  # a piece of several reduced axes is no box
    # Operands of CUDA cores are read into registers: the parts of such a reduction gain nothing
    # from TMA.
    view = definitions(s)
    found = [r for fold in folds for r in reads(*view[fold.name].bodies)]
    shape = contraction(view[lead.name], grouped=True)
    whole = all(distinct([i for i in r.indices if axes_of(i)]) is not None for r in found)
    used = [extent_of(a) for a in computed(lead).axes]
    # The parts of float32 operands are computed in registers.
    multiplied = shape is not None and shape.unit is not None and not is_split(shape)
    usual = len(axes) == 1 and multiplied and not _padded(shape)
    usual = usual and (whole or not thin(*used[1:]))
    if engine is None:
        engine = flip(s, f"{knobs_of(s, stage)}.descriptors", usual)
    if not engine:
        return False
    fixed = set[Tensor]() if kept is None else of_rows(definitions(s)[lead.name])
    for tensor, readers in operands.items():
        staged = s.cache_read(tensor, "shared", [reader.op for reader in readers])
        if kept is not None and tensor in fixed:
            s[staged].compute_at(stage, kept)
        else:
            s[staged].compute_at(lead, ko)
    copies = sum(map(len, operands.values()))
    if gpu_of(s).has_tma and copies == sum(_read_by(s, fold) for fold in folds):
        # TMA fills with 0 what lies outside: the last step is like the others, none is peeled.
        lead.partition(ko, "never")
    return True


def _padded(shape: Contraction | None) -> bool:
    """True when a side is padded in registers to what tensor cores multiply."""
    sides = () if shape is None else (shape.rows, shape.columns)
    return any(thin(max((extent_of(a) or LEAST for a in s), default=LEAST)) for s in sides)


def longest(axes: tuple[Axis, ...]) -> Axis:
    """The axis to tile: the last one, or an earlier one where that has too few elements."""
    last = extent_of(axes[-1])
    if last is None or last >= LEAST:
        return axes[-1]
    return max(reversed(axes), key=lambda a: extent_of(a) or LEAST)


def movable(s: Schedule, inner: Stage) -> list[Tensor]:
    """The operands that TMA can load: in memory, and read by the stage itself."""
    found = [r for r in direct_reads(inner) if len(r.indices) >= 2 and in_memory(s, r.tensor)]
    apart = _not_tiled(computed(inner))
    return list(dict.fromkeys(r.tensor for r in found if is_box(r, apart) and rows_aligned(s, r)))


def _not_tiled(op: ComputeOp) -> list[Axis]:
    """The axes of which a tile of a contraction has one element each."""
    shape = contraction(op, grouped=True)
    if shape is None or not shape.rows or not shape.columns:
        return []
    tiled = longest(shape.rows), longest(shape.columns)
    return [axis for axis in op.axes if not among(axis, tiled)]


def _read_by(s: Schedule, fold: Stage) -> int:
    """How many different elements a stage reads, itself or through what is inlined in it."""
    return len(set(reads(*definitions(s)[fold.name].bodies)))
