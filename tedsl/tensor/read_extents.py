"""Reduce axes whose bounds are read from memory: `te.reduce_axis((first[i], first[i + 1]))`.

How long such a loop is, no definition can say.  But a read whose index moves with the axis finds
another element at each of its points, so there are no more of them than that dimension is long:

    sum(x[w], w = lo .. hi)  ==  sum(x[lo + v], v = 0 .. size of x, where v < hi - lo)

Imports `index`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Expr, IfThenElse, Range, Reduce, TensorRead
from tedsl.expr.visit import substitute, walk
from tedsl.index.linear import linear


def with_extents(
    sources: Sequence[Expr], axes: Sequence[Axis], where: Expr | None
) -> tuple[tuple[Expr, ...], tuple[Axis, ...]]:
    """The terms and the axes of a reduction, with an axis of known extent for each of those whose
    bounds are read.

    Raises:
        ExprError: no read says how many points there are at most.
    """
    mapping: dict[Expr, Expr] = {}
    made: list[Axis] = []
    for axis in axes:
        made.append(axis)
        if axis.domain is None and axis.begin is not None and axis.end is not None:
            most = None if where is not None else _longest(axis, sources)
            made[-1] = _counted(axis, axis.begin, axis.end, most)
            mapping[axis] = build.add(axis.begin, made[-1])
    return tuple(substitute(source, mapping) for source in sources), tuple(made)


def _counted(axis: Axis, begin: Expr, end: Expr, most: Expr | None) -> Axis:
    """An axis v from 0 to `most`, with begin + v for each point of `axis`."""
    bounds = [node for node in walk(begin, end) if isinstance(node, Axis)]
    if most is None or any(each.domain is None for each in bounds):
        raise ExprError(
            f"no largest value of {build.sub(end, begin)} is known, and no read of the terms says "
            "how many there are",
            subject=f"reduce_axis {axis.name}",
            hint="read an element at the axis itself, x[..., k], outside of te.if_then_else; or "
            f"give the most that there may be, te.reduce_axis((0, most), name={axis.name!r}), and "
            f"where={axis.name} < {end}",
        )
    extent = build.cast(most, DType.int64 if most.dtype is DType.int64 else axis.dtype)
    domain = Range(build.const(0, extent.dtype), extent)
    return Axis(axis.name, axis.kind, domain, extent.dtype, None, build.sub(end, begin))


def _longest(axis: Axis, sources: Sequence[Expr]) -> Expr | None:
    """The smallest known extent of the dimensions that are read at places which move with the axis;
    None where there is none."""
    found: list[Expr] = []
    for read in _certain(sources):
        for index, extent in zip(read.indices, read.tensor.shape, strict=True):
            form = linear(index)
            inner = [atom for atom in form.terms if any(n is axis for n in walk(atom))]
            if len(inner) == 1 and inner[0] is axis:
                found.append(extent)
    return min(found, key=_size, default=None)


def _size(extent: Expr) -> float:
    return getattr(extent, "value", float("inf"))


def _certain(sources: Sequence[Expr]) -> Iterator[TensorRead]:
    """The reads that happen at every point: those behind no condition."""
    stack = list(sources)
    while stack:
        node = stack.pop()
        if isinstance(node, TensorRead):
            yield node
        if isinstance(node, IfThenElse):
            stack.append(node.condition)
        elif not isinstance(node, Reduce):
            stack.extend(node.children())
