"""Full reductions of the same elements by one kernel, which loads them once.

for parts p: a'[p] = sum(k)(f(x[p, k]));  last of them: a = sum(p)(a'[p]);  the same of g and b
--> for parts p, pieces k: a'[p] += f(x[p, k]), b'[p] += g(x[p, k])
    last of them: a = sum(p)(a'[p]), b = sum(p)(b'[p])
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tedsl.schedules.analysis.views import View, definitions, reads_of, volume
from tedsl.schedules.fusion.horizontal import Beside, Leader, Sums, all_computed
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
    for each in beside.sums if all_computed(s) else ():
        same = each.size == size and not read.isdisjoint(_read(view, each.kernel.name))
        names = [name] if root in each.kernel.inside else [root, name]
        if not same or not beside.free(s, [each.kernel], names):
            continue
        if accepts(s, partial(_join, name=name, sums=each)):
            if not flip(s, f"{name}.along", True):
                return None
            _join(s, name, each)
            each.kernel.inside |= {root, name}
            each.kernel.results += 1
            beside.kernels.join(each.kernel.inside)
            return s[each.kernel.name]
    return None


def ends_in(s: Schedule, stage: Stage, kernel: Stage) -> bool:
    """Let the last programs of a kernel of partial results combine them, where they may."""
    ended = accepts(s, lambda trial: trial[stage.name].compute_last(trial[kernel.name]))
    if ended:
        stage.compute_last(kernel)
    return ended


def _read(view: View, name: str) -> set[Tensor]:
    """What a reduction reads along the axes that it folds."""
    return {read.tensor for read in reads_of(view[name]) if read.indices}


def _join(s: Schedule, name: str, sums: Sums) -> None:
    """Make the same parts, in the loop over pieces of the others."""
    own, leader = sums.like(s[name]), s[sums.kernel.name]
    own.compute_with(leader, leader.leaf_iter_vars[1])
