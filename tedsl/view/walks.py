"""The order in which the loops of a stage run, and which elements each iteration touches: what the
page plays.

Of each stage the first iterations are followed, all lanes of its vectorized loops at once, with the
loops around an attached stage at their first iteration.  Imports the plan and `data`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tedsl.expr.index_arith import constant
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Cast, Const, Expr
from tedsl.expr.visit import reads
from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.plan import Fuse, Plan, Split, StagePlan
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.unshare_axes import own_nests
from tedsl.scheduling.regions.infer import infer
from tedsl.tensor.tensor import ComputeOp
from tedsl.view.data import Field, Walk

_ITERATIONS = 96
_LANES = 4096
_SIDE = 48
_TENSORS = 4
Places = np.ndarray[Any, np.dtype[np.int64]]
_ARITHMETIC: dict[BinaryOp, Any] = {
    BinaryOp.ADD: np.add,
    BinaryOp.SUB: np.subtract,
    BinaryOp.MUL: np.multiply,
    BinaryOp.FLOORDIV: np.floor_divide,
    BinaryOp.FLOORMOD: np.remainder,
    BinaryOp.MIN: np.minimum,
    BinaryOp.MAX: np.maximum,
}


def walks_of(plan: Plan, numbers: Mapping[str, int]) -> tuple[Walk, ...]:
    """The walks of the stages that have loops of known extents; `numbers` are those of stages."""
    shown = own_nests(plan)
    bounds = infer(shown)
    found: list[Walk] = []
    for stage in shown.stages:
        if isinstance(stage.op, ComputeOp) and stage.leaf_axes and stage.name in numbers:
            known = bounds[stage.name]
            sizes = {axis: constant(extent) for axis, extent in known.extents.items()}
            starts = {a: box.min for a, box in zip(stage.op.axes, known.region, strict=True)}
            walk = _walk(stage, stage.op, sizes, starts, numbers[stage.name])
            found += [] if walk is None else [walk]
    return tuple(found)


def _walk(
    stage: StagePlan,
    op: ComputeOp,
    sizes: Mapping[Axis, int | None],
    starts: Mapping[Axis, Expr],
    number: int,
) -> Walk | None:
    loops = stage.loop_order
    extents = [sizes.get(axis) for axis in loops]
    kinds = [stage.mark(axis).kind for axis in loops]
    if not loops or any(extent is None or extent < 1 for extent in extents):
        return None
    lanes = [n for n, kind in enumerate(kinds) if kind is LoopKind.VECTORIZED]
    steps = [n for n in range(len(loops)) if n not in lanes]
    turns, counters = _counted([extents[n] or 1 for n in steps], _ITERATIONS)
    width, across = _counted([extents[n] or 1 for n in lanes], _LANES)
    values: dict[Axis, Places] = {}
    values.update({loops[n]: each[:, None] for n, each in zip(steps, counters, strict=True)})
    values.update({loops[n]: each[None, :] for n, each in zip(lanes, across, strict=True)})
    if not _roots(stage, values, sizes):
        return None
    inside = np.ones((turns, width), bool)
    for axis in (*op.axes, *op.reduce_axes):
        size = sizes.get(axis)
        if axis not in values or size is None:
            return None
        inside &= values[axis] < size
        values[axis] = values[axis] + _value(starts.get(axis, Const(0, axis.dtype)), {})
    fields = _fields(stage.name, op, values, inside)
    name = labels(stage)
    told = zip(loops, extents, kinds, strict=True)
    return Walk(
        stage=number,
        loops=tuple((name[axis], extent or 1, kind.value) for axis, extent, kind in told),
        counters=tuple(tuple(int(each[turn]) for each in counters) for turn in range(turns)),
        fields=tuple(fields),
    )


def _counted(extents: Sequence[int], most: int) -> tuple[int, list[Places]]:
    """How many of the iterations of nested loops are followed, and the counter of each loop."""
    total = int(np.prod(extents, dtype=object))
    count = min(total, most)
    left, found = np.arange(count), list[Places]()
    for extent in reversed(extents):
        left, counter = np.divmod(left, extent)
        found.append(counter)
    return count, found[::-1]


def _roots(stage: StagePlan, values: dict[Axis, Places], sizes: Mapping[Axis, int | None]) -> bool:
    """Add the axes that loops were made of; False where a relation is neither split nor fuse."""
    for relation in reversed(stage.relations):
        match relation:
            case Split(parent=parent, outer=outer, inner=inner) if outer in values:
                values[parent] = values[outer] * (sizes[inner] or 1) + values[inner]
            case Fuse(outer=outer, inner=inner, fused=fused) if fused in values:
                values[outer], values[inner] = np.divmod(values[fused], sizes[inner] or 1)
            case _:
                return False
    return True


def _fields(
    name: str, op: ComputeOp, values: Mapping[Axis, Places], inside: np.ndarray[Any, Any]
) -> list[Field]:
    """What is written, then what is read, each tensor once and while there are few."""
    touched: dict[str, tuple[Sequence[Expr], Sequence[Expr]]] = {name: (op.axes, op.shape)}
    for read in reads(*op.bodies):
        touched.setdefault(read.tensor.name, (read.indices, read.tensor.shape))
    found: list[Field] = []
    for tensor, (indices, shape) in list(touched.items())[:_TENSORS]:
        extents = [constant(extent) for extent in shape]
        at = [_value(index, values) for index in indices]
        if None in extents or any(each is None for each in at):
            continue
        row, column = np.zeros((1, 1), int), at[-1] if at else np.zeros((1, 1), int)
        for place, extent in zip(at[:-1], extents[:-1], strict=True):
            row = row * (extent or 1) + place
        found.append(_field(tensor, row, column, inside, len(found) == 0))
    return found


def _field(name: str, row: Any, column: Any, inside: np.ndarray[Any, Any], written: bool) -> Field:
    """The part of a tensor that is touched, as few squares: which of them, at each iteration."""
    row, column = (np.broadcast_to(each, inside.shape) for each in (row, column))
    (top, rows, high), (left, columns, wide) = (_window(each[inside]) for each in (row, column))
    cells = (row - top) // high * columns + (column - left) // wide
    runs = tuple(_runs(np.unique(at[here])) for at, here in zip(cells, inside, strict=True))
    return Field(name, written, (top, left), (rows, columns), (high, wide), runs)


def _window(places: Places) -> tuple[int, int, int]:
    """Where the places begin, how many squares they take, and how many places one square is."""
    low, high = (int(places.min()), int(places.max())) if places.size else (0, 0)
    each = -(-(high - low + 1) // _SIDE)
    return low, -(-(high - low + 1) // each), each


def _runs(cells: Places) -> tuple[int, ...]:
    """Sorted numbers as `start, length, start, length, ...`."""
    if not cells.size:
        return ()
    ends = np.flatnonzero(np.diff(cells) > 1)
    starts = cells[np.concatenate(([0], ends + 1))]
    lengths = np.diff(np.concatenate(([0], ends + 1, [cells.size])))
    return tuple(int(each) for pair in zip(starts, lengths, strict=True) for each in pair)


def _value(expr: Expr, values: Mapping[Axis, Places]) -> Any:
    """An index at all iterations, loops of others at 0; None for one that data decide."""
    match expr:
        case Const(value=value):
            return np.full((1, 1), int(value))
        case Axis():
            return values.get(expr, np.zeros((1, 1), int))
        case Cast(a=a):
            return _value(a, values)
        case Binary(op=op, a=a, b=b) if op in _ARITHMETIC:
            left, right = _value(a, values), _value(b, values)
            return None if left is None or right is None else _ARITHMETIC[op](left, right)
        case _:
            return None
