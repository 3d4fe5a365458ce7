"""Reductions of the same columns, or of everything, by one kernel, which loads them once.

    for tiles j: a[j] = sum(k)(f(x[k, j]));  for tiles j: b[j] = max(k)(g(x[k, j], y[k, j]))
    --> for tiles j, for tiles k: a[j] += f(x[k, j]), b[j] = max(b[j], g(x[k, j], y[k, j]))

Where partial results are stored, the last programs of that kernel combine those of each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tedsl.expr.nodes import Axis, AxisKind
from tedsl.ir.nodes import LoopKind
from tedsl.schedules.analysis.nests import among, is_reduction
from tedsl.schedules.analysis.views import View, definitions, reads_of, volume
from tedsl.schedules.fusion.horizontal import LATEST, Beside, Folds, Leader, Sums, all_computed
from tedsl.schedules.knobs import flip
from tedsl.schedules.trial import accepts
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import Tensor


def lead_sums(
    beside: Beside, names: tuple[str, str], parts: Stage, size: int, like: Callable[[Stage], Stage]
) -> None:
    """Later full reductions of `size` elements may be computed in the kernel of `parts`, which has
    a loop over pieces in each program.

    Args:
        beside: the kernels so far.
        names: the reduction, and the stage that stores what comes of it.
        parts: the partial results.
        size: how many elements are reduced.
        like: makes partial results of another reduction in the same way.
    """
    kernel = Leader(parts.name, size, False, {parts.name, *names}, rows=())
    beside.sums.append(Sums(kernel, size, like))


def summed_beside(s: Schedule, name: str, root: str, beside: Beside) -> Stage | None:
    """Make the partial results of a full reduction, of which `root` is computed, in the kernel of
    an earlier one that reads the same (the knob `along`), and return the stage that leads it; None
    where that was not chosen."""
    view = definitions(s)
    size, read = volume(view[name].reduce_axes), _read(view, name)
    for each in beside.sums[-LATEST:] if all_computed(s) else ():
        same = each.size == size and not read.isdisjoint(_read_in(view, each.kernel))
        names = [name] if root in each.kernel.inside else [root, name]
        if not same or not beside.free(s, [each.kernel], names):
            continue
        if accepts(s, partial(_join, name=name, sums=each)):
            if not flip(s, f"{name}.along", True):
                return None
            each.kernel.inside |= {root, name, _join(s, name, each)}
            each.kernel.results += 1
            beside.kernels.join(each.kernel.inside)
            return s[each.kernel.name]
    return None


def folded_beside(
    s: Schedule,
    names: tuple[str, str],
    stage: Stage,
    fold: Stage,
    tiles: tuple[object, ...],
    beside: Beside,
) -> Stage | None:
    """Let a kernel of tiles of columns run in the loops of an earlier one that is alike and reads
    the same (the knob `along`), and return the stage that leads it; None where that was not chosen,
    and others may be folded with this one.

    Args:
        s: the schedule.
        names: the reduction, and the stage that stores what comes of it.
        stage: what stores in the loops of the kernel.
        fold: what is folded in them, one tile of rows after the other.
        tiles: equal for kernels that are alike.
        beside: the kernels so far.
    """
    view, inside = definitions(s), {stage.name, fold.name, *names}
    if len(view[fold.name].bodies) > 1 or not all_computed(s):
        return None
    read = _read(view, fold.name)
    for each in beside.folds[-LATEST:]:
        if each.tiles != tiles or read.isdisjoint(_read_in(view, each.kernel)):
            continue
        own = [name for name in inside if name not in each.kernel.inside]
        join = partial(_join_folds, stage=stage.name, fold=fold.name, folds=each)
        if beside.free(s, [each.kernel], own) and accepts(s, join):
            if not flip(s, f"{names[0]}.along", True):
                break
            join(s)
            each.kernel.inside |= inside
            each.kernel.results += 1
            beside.kernels.join(each.kernel.inside)
            return s[each.kernel.name]
    kernel = Leader(stage.name, 0, False, inside, rows=())
    beside.folds.append(Folds(kernel, fold.name, tiles))
    return None


def _join_folds(s: Schedule, stage: str, fold: str, folds: Folds) -> None:
    """Share the grid, and in it the loops over tiles of rows, outside of those over columns."""
    leader = s[folds.kernel.name]
    grid = [a for a in leader.leaf_iter_vars if _kind(leader, a) is LoopKind.PROGRAM]
    s[stage].compute_with(leader, grid[-1])
    turns = list[Axis]()
    for name in (fold, folds.fold):
        own = s[name]
        folded = [axis for axis in own.leaf_iter_vars if axis.kind is AxisKind.REDUCE]
        turns = [axis for axis in folded if _kind(own, axis) is not LoopKind.VECTORIZED]
        own.reorder(*turns, *(axis for axis in own.leaf_iter_vars if not among(axis, turns)))
    if turns:
        s[fold].compute_with(s[folds.fold], turns[-1])


def _kind(stage: Stage, axis: Axis) -> LoopKind:
    return stage.plan.mark(axis).kind


def _read(view: View, name: str) -> set[Tensor]:
    """What a reduction reads along the axes that it folds."""
    return {read.tensor for read in reads_of(view[name]) if read.indices}


def _read_in(view: View, kernel: Leader) -> set[Tensor]:
    """What the reductions of a kernel read."""
    folds = [n for n in kernel.inside if n in view and is_reduction(view[n])]
    return {tensor for name in folds for tensor in _read(view, name)}


def _join(s: Schedule, name: str, sums: Sums) -> str:
    """Make the same parts, in the loop over pieces of the others; returns their stage."""
    own, leader = sums.like(s[name]), s[sums.kernel.name]
    own.compute_with(leader, leader.leaf_iter_vars[1])
    return own.name
