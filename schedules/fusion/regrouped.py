"""Stages that read the results of rows at parts of an axis (a norm of each head, stored in the
shape of all heads): they are given those parts as axes, so that they have the rows of what they
read.  So are reductions that read anything so, whose rows follow each other in memory then.

    for b, h: m[b, h] = sum(k)(x[b, h * 64 + k])
    for b, c: D[b, c] = f(x[b, c], m[b, c // 64])
    --> for b, h, l: D[b, h, l] = f(x[b, h * 64 + l], m[b, h])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tedsl.expr.nodes import Axis, Binary, BinaryOp, Const, Expr, TensorRead
from tedsl.expr.visit import axes_of, walk
from tedsl.schedules.analysis.nests import among, contraction, is_reduction
from tedsl.schedules.analysis.views import View, definitions, extent_of, reads_of
from tedsl.schedules.knobs import flip
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import ComputeOp, Operation


def regroup_rows(s: Schedule, names: Sequence[str]) -> None:
    """The knob `regrouped` of such stages among `names`, producers first."""
    for name in names:
        view = definitions(s)
        steps = [_steps(view, view[name], axis) for axis in view[name].axes]
        if any(steps) and flip(s, f"{name}.regrouped", True):

            def apart(*i: Axis, found: Sequence[Sequence[int]] = steps) -> tuple[Expr, ...]:
                return tuple(
                    part for axis, each in zip(i, found, strict=True) for part in parts(axis, each)
                )

            s[name].transform_layout(apart)


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
