"""GEMMs of one kernel that share an operand (gate and up projections, QKV): one mainloop for them,
and the transposition of a result tile.

    for k: C[i, j] += A[i, k] * B[k, j]          for k: D[i, j] += A[i, k] * E[k, j]
    --> for k: (C[i, j] += A[i, k] * B[k, j]; D[i, j] += A[i, k] * E[k, j])

The shared operand is loaded once, so that there is less traffic for each product; and the pipeline
is filled once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import reads, structural_equal
from tedsl.schedules.analysis.nests import computed, plain
from tedsl.schedules.analysis.views import View
from tedsl.schedules.knobs import flip
from tedsl.schedules.loops import swap_axes
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp, Tensor

Places = Mapping[str, Mapping[Axis, Axis]]


def loops_of(
    s: Schedule, view: View, root: str, inner: Sequence[str], known: Places, pays: bool
) -> list[list[str]]:
    """The contractions `inner` of a kernel, grouped where they share a mainloop (the knob
    `one_loop`); `known` says for each of them which axis of the root each of its own stands for.
    One loop is the default where it `pays`: operands of several products are not held in registers,
    beside the accumulators."""
    together: list[list[str]] = []
    for name in inner:
        group = next((g for g in together if any(_shares(view, known, name, n) for n in g)), None)
        if group is None:
            together.append([name])
        else:
            group.append(name)
    if len(together) == len(inner) or flip(s, f"{root}.one_loop", pays):
        return together
    return [[name] for name in inner]


def _shares(view: View, known: Places, a: str, b: str) -> bool:
    """True when both have reduced axes of the same extents and read the same elements of a tensor
    at every K step."""
    first, second = view[a], view[b]
    return _fold_alike(first, second) and not _operands(first, known[a]).isdisjoint(
        _operands(second, known[b])
    )


def _fold_alike(a: ComputeOp, b: ComputeOp) -> bool:
    """True when both reduce as many axes, each as long as the other's."""
    if len(a.reduce_axes) != len(b.reduce_axes):
        return False
    pairs = zip(a.reduce_axes, b.reduce_axes, strict=True)
    domains = [(x.domain, y.domain) for x, y in pairs]
    return all(
        x is not None and y is not None and structural_equal(x.extent, y.extent) for x, y in domains
    )


def _operands(op: ComputeOp, known: Mapping[Axis, Axis]) -> set[tuple[Tensor, tuple[int, ...]]]:
    """What is read at plain axes: the tensor, and for each index the axis of the root or the place
    of the reduced axis (axes are compared as objects)."""
    places = {axis: id(known.get(axis, axis)) for axis in op.axes}
    places |= {axis: number for number, axis in enumerate(op.reduce_axes)}
    found: set[tuple[Tensor, tuple[int, ...]]] = set()
    for read in reads(*op.bodies):
        axes = plain(read)
        if axes is not None and len(axes) >= 2:
            found.add((read.tensor, tuple(places[axis] for axis in axes)))
    return found


def turn(fold: Stage, known: Mapping[Axis, Axis], row: Axis, column: Axis) -> None:
    """Transpose the accumulator of a contraction (swapped MMA operands); `row` and `column` are
    axes of the root, `known` those of the root that its own stand for."""
    own = [known[axis] for axis in computed(fold).axes]
    swap_axes(fold, *(n for axis in (row, column) for n, each in enumerate(own) if each is axis))
