"""Results that share what they are computed from, stacked along a short axis: what they share is
computed once for a tile, kept there, and all of them are stored (a recurrence of a few steps, of
which each state is a result).

    h1[i] = f(x[1, i], x[0, i]);  h2[i] = f(x[2, i], h1[i]);  y[n, i] = (x[0, i], h1[i], h2[i])[n]
    --> for tiles of i: h1[i], h2[i]; for n (unrolled): y[n, i] = ...

Stored, each of them is a kernel that reads the one before; computed again for each result, a chain
of them grows by a stage with every step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tedsl.expr.nodes import Axis
from tedsl.schedules.analysis.nests import is_reduction, plain, same_axes
from tedsl.schedules.analysis.views import View, definitions, extent_of
from tedsl.schedules.knobs import flip
from tedsl.schedules.scans import stored_for_scans
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import ComputeOp

Dear = Callable[[View, Sequence[str]], bool]
Carry = Callable[[str, ComputeOp, Axis, Sequence[str]], None]


def schedule_stacks(
    s: Schedule, taken: Collection[str], most: int, dear: Dear, carry_out: Carry
) -> list[str]:
    """Schedule the stages that are stacked so, with what they share (the knob `stacked`); returns
    the stages that are scheduled.

    Args:
        s: the schedule.
        taken: stages that others have scheduled.
        most: how many results a stack has at most, and how many stages they share.
        dear: whether some of the stages that they share, which several read, would be stored
            otherwise, or take too long to compute again.
        carry_out: schedules a stack along an axis, and the stages that it shares, consumers first.
    """
    kept = {*taken, *(s[tensor].name for tensor in s.outputs), *stored_for_scans(s)}
    view, found = definitions(s), list[str]()
    for name, op in view.items():
        if name in taken or is_reduction(op) or len(op.bodies) > 1:
            continue
        for axis in op.axes[:-1]:
            if not 1 < (extent_of(axis) or 0) <= most:
                continue
            members = _shared(view, name, axis, kept)
            twice = [each for each in members if len(view.readers[each]) > 1]
            fits = len(members) <= most and bool(twice) and dear(view, twice)
            if fits and flip(s, f"{name}.stacked", True):
                carry_out(name, op, axis, members)
                found += [name, *members]
                break
    return found


def _shared(view: View, root: str, axis: Axis, kept: Collection[str]) -> list[str]:
    """The pointwise stages that only `root` and each other read, at the places of the result but
    for `axis`, consumers first; none where more than these would have to be stored for it."""
    inside, found = {root}, list[str]()
    for name in reversed(list(view)):
        op, users = view[name], view.readers[name]
        if not users or not {user for user, _ in users} & inside:
            continue
        alone = name not in kept and not is_reduction(op) and len(op.bodies) == 1
        for user, read in users if alone else ():
            axes = [a for a in view[user].axes if a is not axis]
            alone = alone and user in inside and same_axes(plain(read), axes)
        if alone:
            inside.add(name)
            found.append(name)
        elif name not in kept and not is_reduction(op):
            return []
    return found
