"""Stages that read the results of rows at parts of an axis (a norm of each head, stored in the
shape of all heads): they are given those parts as axes, so that they have the rows of what they
read.  So are reductions that read anything so, whose rows follow each other in memory then.

    for b, h: m[b, h] = sum(k)(x[b, h * 64 + k])
    for b, c: D[b, c] = f(x[b, c], m[b, c // 64])
    --> for b, h, l: D[b, h, l] = f(x[b, h * 64 + l], m[b, h])

An output that alone reads each result of a reduction once, at parts of an axis (the places of a
transposed convolution, of which every second has the same taps), is given all axes of what it
reads, and is its epilogue then.  So is a reduction, which reads what follows each other in memory.

    for a, q: P[a, q] = sum(k)(x[q - k] * w[a, k])
    for i: D[i] = f(P[i % 2, i // 2])
    --> for a, q: D[a, q] = f(P[a, q])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tedsl.expr.index_arith import constant
from tedsl.expr.mixed_radix import divides
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Const, Expr, TensorRead
from tedsl.expr.visit import axes_of, substitute, walk
from tedsl.index.digits import invert
from tedsl.index.facts import Facts
from tedsl.schedules.analysis.nests import among, contraction, is_reduction
from tedsl.schedules.analysis.views import View, definitions, extent_of, reads_of
from tedsl.schedules.knobs import flip
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import ComputeOp, Operation

# Parts of an axis that alternate in an output of one kernel.
HALVES = 2


def regroup_rows(s: Schedule, names: Sequence[str]) -> None:
    """The knob `regrouped` of such stages among `names`, producers first."""
    outputs = {s[tensor].name for tensor in s.outputs}
    for name in names:
        view = definitions(s)
        own = is_reduction(view[name]) and contraction(view[name], masked=True) is None
        whole = _whole(view, view[name]) if own or name in outputs else ()
        steps = [_steps(view, view[name], axis) for axis in view[name].axes]
        if whole:
            if not flip(s, f"{name}.regrouped", own or _in_lines(view[name], whole)):
                continue

            def beside(
                *i: Axis, at: Sequence[Expr] = whole, own: ComputeOp = view[name]
            ) -> tuple[Expr, ...]:
                here: dict[Expr, Expr] = dict(zip(own.axes, i, strict=True))
                return tuple(substitute(each, here) for each in at)

            s[name].transform_layout(beside)
        elif any(steps) and flip(s, f"{name}.regrouped", True):

            def apart(*i: Axis, found: Sequence[Sequence[int]] = steps) -> tuple[Expr, ...]:
                return tuple(
                    part for axis, each in zip(i, found, strict=True) for part in parts(axis, each)
                )

            s[name].transform_layout(apart)


def _whole(view: View, op: ComputeOp) -> tuple[Expr, ...]:
    """The data indices at which the one reduction that `op` reads, and nothing else does, has one
    result for each point of `op`, where two are parts of an axis; none where there is none."""
    folds = [read for read in reads_of(op) if _is_fold(view, read.tensor.op)]
    if len(folds) != 1 or len(view.readers[view.names[folds[0].tensor.op]]) > 1:
        return ()
    tensor, indices = folds[0].tensor, folds[0].indices
    places = [
        n for n, i in enumerate(indices) if not (isinstance(i, Axis) and among(i, op.reduce_axes))
    ]
    own = tuple(indices[n] for n in places)
    if not divides(*own) or not axes_of(*own) <= frozenset(op.axes):
        return ()
    way_back = invert(op.axes, own, [f"l{n}" for n in places], Facts.EMPTY)
    if way_back is None:
        return ()
    sizes = [constant(extent) for extent in way_back.extents]
    return own if None not in sizes and sizes == [constant(tensor.shape[n]) for n in places] else ()


def _in_lines(op: ComputeOp, indices: Sequence[Expr]) -> bool:
    """True where neighbours along the last of `indices` are neighbours in memory, or every second
    element, the others of which are no columns of the same tile.

    On an H200, outputs of 36 to 140 MB of which every second element is stored took 0.83 to 0.88 of
    the time of two kernels; every third 1.03, columns of one tile that alternate (`pixel_shuffle`)
    1.6.
    """
    last = op.axes[-1]
    split = [i for i in indices if last in axes_of(i) and not isinstance(i, Axis)]
    if not split or (indices[-1] is split[-1] and _is_remainder(split[-1])):
        return True
    found = [constant(i.b) for i in split if isinstance(i, Binary) and _is_remainder(i)]
    return len(found) == 1 and found[0] is not None and found[0] <= HALVES


def _is_remainder(index: Expr) -> bool:
    return isinstance(index, Binary) and index.op is BinaryOp.FLOORMOD


def _steps(view: View, op: ComputeOp, axis: Axis) -> list[int]:
    """How far apart in `axis` the parts lie at which rows are read, the largest first; none where
    they are no parts of one another, or where other rows are those of the whole axis."""
    extent, own = extent_of(axis), is_reduction(op)
    if extent is None or (own and contraction(op, masked=True, grouped=True) is not None):
        return []
    folds = [read for read in reads_of(op) if _is_fold(view, read.tensor.op)]
    if any(among(axis, [i for i in read.indices if isinstance(i, Axis)]) for read in folds):
        return []
    # What only the quotient is read at is the same for all of a part.
    rows = reads_of(op) if own and any(_is_split(read, axis) for read in reads_of(op)) else folds
    steps = {step for read in rows for index in read.indices for step in _taken(index, axis)}
    found = sorted(steps - {1, extent}, reverse=True)
    return found if all(a % b == 0 for a, b in pairwise([extent, *found])) else []


def _is_split(read: TensorRead, axis: Axis) -> bool:
    """True where the remainder of an axis is in the indices."""
    mods = [n for n in walk(*read.indices) if isinstance(n, Binary) and n.op is BinaryOp.FLOORMOD]
    return any(axis in axes_of(each) for each in mods)


def _is_fold(view: View, op: Operation) -> bool:
    name = view.names.get(op)
    return name is not None and is_reduction(view[name])


def _taken(index: Expr, axis: Axis) -> Iterator[int]:
    """The numbers by which an index divides an axis: 4 and 32 for `axis // 4 % 8`."""
    for node in walk(index):
        match node:
            case Binary(
                op=BinaryOp.FLOORMOD,
                a=Binary(op=BinaryOp.FLOORDIV, a=Axis() as own, b=Const(value=int(step))),
                b=Const(value=int(count)),
            ) if own is axis:
                yield step * count
            case Binary(
                op=BinaryOp.FLOORDIV | BinaryOp.FLOORMOD, a=Axis() as own, b=Const(value=int(step))
            ) if own is axis:
                yield step
            case _:
                pass


def parts(axis: Axis, steps: Sequence[int]) -> tuple[Expr, ...]:
    """`axis` as one index for each of its parts, the outermost first."""
    if not steps:
        return (axis,)
    inner = (axis // small % (large // small) for large, small in pairwise([*steps, 1]))
    return (axis // steps[0], *inner)
