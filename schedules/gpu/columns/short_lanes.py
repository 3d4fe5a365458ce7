"""Column reductions of short lanes: those that are neighbours in memory of the lanes next to them
are one loop with these, so that a tile has no idle lanes and whole lines.

    for i, j: for k: m[i, j] = fold(x[k, i, j]);  y[i, j] = f(m[i, j], j)
    --> for l: for k: m[l] = fold(x[k, l // J, l % J]);  y[l // J, l % J] = f(m[l], l % J)
"""

from __future__ import annotations

from math import prod

from tedsl.expr.nodes import Axis, Expr
from tedsl.schedules.analysis.groups import Group
from tedsl.schedules.analysis.nests import is_reduction, neighbours, pow2_at_least
from tedsl.schedules.analysis.views import View, definitions, extent_of, reads_of, volume
from tedsl.schedules.knobs import flip
from tedsl.schedules.loops import fused
from tedsl.scheduling.handles.schedule import Schedule

# Lanes that fill a tile, and bytes of a cache line.
ENOUGH, LINE = 128, 128


def short_lanes(s: Schedule, group: Group, lane: Axis, nbytes: int) -> tuple[Axis, ...]:
    """The axes of the root that are one loop of lanes, by the knob `flattened`: `lane` alone, along
    which all that is reduced, elements of `nbytes`, is contiguous, where that is long enough or no
    other ones are neighbours in all of it."""
    view, extent = definitions(s), extent_of(lane)
    run = _neighbours(view, group, lane)
    if extent is None or extent >= ENOUGH or volume(run) == extent:
        return (lane,)
    idle = extent < pow2_at_least(extent) or extent * nbytes < LINE
    return run if flip(s, f"{group.root}.flattened", idle) else (lane,)


def _neighbours(view: View, group: Group, lane: Axis) -> tuple[Axis, ...]:
    """The axes of the root, `lane` the last of them, that are neighbours in memory wherever
    something is reduced."""
    run: list[Axis] = [lane]
    order = list(view[group.root].axes)
    place = next(n for n, axis in enumerate(order) if axis is lane)
    for name in group.inner:
        if not is_reduction(view[name]):
            continue
        op, known = view[name], group.axes[name]
        near = neighbours(op.axes, list(reads_of(op)))[-1]
        mine = [known.get(axis) for axis in near if extent_of(axis)]
        found = [lane]
        while (before := place - len(found)) >= 0 and len(found) < len(mine):
            if mine[-1] is not lane or mine[-1 - len(found)] is not order[before]:
                break
            found.insert(0, order[before])
        run = found if len(run) == 1 or len(found) < len(run) else run
        if len(found) == 1:
            return (lane,)
    return tuple(run)


def flatten_lanes(s: Schedule, group: Group, run: tuple[Axis, ...]) -> Axis:
    """Make those axes of the root one loop, and of what is reduced in it one axis; returns the
    loop."""
    stage, view = s[group.root], definitions(s)
    flat = fused(stage, run)
    for name in group.inner:
        own = view[name].axes
        if not is_reduction(view[name]):
            continue
        known = group.axes[name]
        inside = [n for axis in run for n, mine in enumerate(own) if known.get(mine) is axis]
        rest = [n for n in range(len(own)) if n not in inside]
        sizes = [extent_of(own[n]) or 1 for n in inside]

        def laid(
            *i: Axis, inside: list[int] = inside, rest: list[int] = rest, sizes: list[int] = sizes
        ) -> tuple[Expr, ...]:
            terms = [i[n] * prod(sizes[at + 1 :]) for at, n in enumerate(inside)]
            return (*(i[n] for n in rest), sum(terms[1:], terms[0]))

        made = s[name].transform_layout(laid)
        group.axes[name] = {
            **{new: known[own[n]] for new, n in zip(made, rest, strict=False) if own[n] in known},
            made[-1]: flat,
        }
    return flat
