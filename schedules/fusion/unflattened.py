"""Products whose results are read under another shape (`view`), stored in that shape, so that what
reads them is their epilogue, or one chain with them.

    for m: C[m, j] = sum(k)(A[m, k] * B[k, j])
    for b, i: D[b, i, j] = f(C[b * 3072 + i, j])
    --> for b, i: C[b, i, j] = sum(k)(A[b * 3072 + i, k] * B[k, j])
        for b, i: D[b, i, j] = f(C[b, i, j])
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tedsl.expr.mixed_radix import added
from tedsl.expr.nodes import Axis, Const, Expr, TensorRead
from tedsl.expr.visit import axes_of, reads
from tedsl.schedules.analysis.nests import among, contraction, is_reduction, plain, same_axes
from tedsl.schedules.analysis.views import View, definitions, extent_of
from tedsl.schedules.fusion.regrouped import parts
from tedsl.schedules.gpu.gemm.k_steps import IDLE, idle
from tedsl.schedules.gpu.gemm.mainloop import longest
from tedsl.schedules.knobs import flip
from tedsl.schedules.loops import lay_in_order
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import ComputeOp

# Rows or columns of a tile.
TILE = 128


def unflatten(s: Schedule) -> None:
    """The knob `unflattened` of each contraction that is read so, and of what it is rounded to;
    consumers first.  What stands between two contractions loses its axes of one element."""
    outputs = {s[tensor].name for tensor in s.outputs}
    for name in _between(definitions(s)):
        axes = definitions(s)[name].axes
        kept = [n for n, axis in enumerate(axes) if extent_of(axis) != 1]
        if name not in outputs and 0 < len(kept) < len(axes):
            lay_in_order(s[name], kept)
    for name in reversed(list(definitions(s))):
        view = definitions(s)
        product = None if name in outputs else _product(view, name)
        if product is not None:
            _unflattened(s, name, product)


def unflatten_rows(s: Schedule, names: Sequence[str]) -> None:
    """The knob `unflattened` of reductions that are no products, and of tiles of what stands
    between those and their readers, among `names`, consumers first: both have the rows of their
    readers then."""
    for name in reversed(names):
        op = definitions(s)[name]
        if not (is_reduction(op) and contraction(op) is not None):
            _unflattened(s, name, None)


def _unflattened(s: Schedule, name: str, product: ComputeOp | None) -> None:
    view = definitions(s)
    for number in range(len(view[name].axes)):
        inner = _inner(view, name, number)
        if not inner or not (
            _in_rows(view, name, number)
            if product is None
            else _keeps_tiles(product, number, inner[-1])
        ):
            continue
        if flip(s, f"{name}.unflattened", True):
            steps = [prod(inner[place:]) for place in range(len(inner))]

            def apart(*i: Axis, d: int = number, n: Sequence[int] = steps) -> tuple[Expr, ...]:
                return (*i[:d], *parts(i[d], n), *i[d + 1 :])

            s[name].transform_layout(apart)
        return


def _between(view: View) -> list[str]:
    """The stages that depend on a contraction, or are one, and that another one depends on."""
    names = list(view)
    products = {n for n in names if is_reduction(view[n]) and contraction(view[n]) is not None}
    if len(products) < 2:
        return []
    after, before = set[str](), set[str]()
    for name in names:
        if any(source in products or source in after for source in view.sources(name)):
            after.add(name)
    for name in reversed(names):
        if name in products or name in before:
            before.update(view.sources(name))
    return [name for name in names if name in before and (name in after or name in products)]


def _product(view: View, name: str) -> ComputeOp | None:
    """The contraction that a stage is, or of which it is each element, rounded for instance."""
    op = view[name]
    if is_reduction(op):
        return op if contraction(op) is not None else None
    found = [read for read in reads(*op.bodies) if view.names.get(read.tensor.op) is not None]
    if len(found) != 1 or not same_axes(plain(found[0]), op.axes):
        return None
    source = view[view.names[found[0].tensor.op]]
    return source if is_reduction(source) and contraction(source) is not None else None


def _in_rows(view: View, name: str, number: int) -> bool:
    """True where the parts of an axis are rows of what reads a stage there, which folds none."""
    return all(
        axes_of(read.indices[number]).isdisjoint(view[user].reduce_axes)
        for user, read in view.readers[name]
    )


def _keeps_tiles(product: ComputeOp, number: int, inner: int) -> bool:
    """True where tiles of the inner part of an axis are as good as those of all of it; most axes
    have none."""
    shape = contraction(product)
    if shape is None:
        return False
    tiled = longest(shape.rows), longest(shape.columns)
    return not among(product.axes[number], tiled) or idle(inner, TILE) <= IDLE


def _inner(view: View, name: str, number: int) -> tuple[int, ...]:
    """How long the inner ones of several axes are that all readers add up to an index of a stage;
    none where they do not."""
    extent = extent_of(view[name].axes[number])
    found = {_added(read, number, extent) for _, read in view.readers[name]}
    return found.pop() if len(found) == 1 else ()


def _added(read: TensorRead, number: int, extent: int | None) -> tuple[int, ...]:
    others = [index for n, index in enumerate(read.indices) if n != number]
    if not all(isinstance(index, (Axis, Const)) for index in others):
        return ()
    terms = sorted(added(read.indices[number]), key=lambda term: -term[0])
    sizes = [extent_of(axis) or 0 for _, axis in terms if isinstance(axis, Axis)]
    known = len(sizes) == len(terms) > 1 and prod(sizes) == extent
    steps = [prod(sizes[place:]) for place in range(1, len(sizes) + 1)]
    return tuple(sizes[1:]) if known and [step for step, _ in terms] == steps else ()
