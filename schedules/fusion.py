"""Which stages share a kernel: the fusion decisions of the default rules, each of them a knob."""

from __future__ import annotations

from tedsl.expr.nodes import TensorRead
from tedsl.expr.tensor import ComputeOp
from tedsl.expr.visit import reads
from tedsl.schedules.analysis import (
    Group,
    View,
    contraction,
    cost,
    crossed_row,
    definitions,
    find_groups,
    is_reduction,
    plain,
    readers_of,
    same_axes,
    volume,
)
from tedsl.schedules.choices import flip
from tedsl.schedules.scans import stored_for_scans
from tedsl.scheduling.graph import extern_readers
from tedsl.scheduling.plan import AttachKind
from tedsl.scheduling.schedule import Schedule

# Recomputing a stage at every read is cheap up to this much arithmetic per element.
CHEAP = 12
# Elements for each of the rows that keep a device busy, from which it is worth a second pass over
# memory to split them; and rows that run as one where they are neighbours in memory.
LONG = 8192
CROSSED = 32


def fuse(s: Schedule, busy: int) -> list[Group]:
    """Inline the pointwise stages and gather the rest into kernels.

    Args:
        s: a schedule without decisions so far.
        busy: how many rows that run by themselves keep the device busy.

    Returns:
        The kernels, producers first.

    A pointwise stage that several stages of one kernel read is kept there as a tile (computed once)
    where that is possible; a stage read at several shifted places may stay at root.
    """
    outputs = list(
        dict.fromkeys([*(s[t].name for t in s.outputs), *stored_for_scans(s), *_read_whole(s)])
    )
    kept = _candidates(definitions(s), outputs)
    for name, op in definitions(s).items():
        inlinable = len(op.bodies) == 1 and not is_reduction(op) and name not in outputs
        if inlinable and name not in kept:
            s[name].compute_inline()
    while True:
        view = definitions(s)
        groups = find_groups(view, outputs)
        alone = [g.root for g in groups if g.root in kept]
        wasted = [n for g in groups for n in g.inner if n in kept and not _shares(view, g, n)]
        settled = not alone and not wasted
        apart = _apart(s, view, groups, busy) if settled else []
        stored = _stored(s, view, groups, outputs) if settled else []
        if settled and not apart and not stored:
            return groups
        for name in stored:
            s[name].compute_root()
        outputs += [*apart, *stored]
        for name in (*alone, *wasted):
            kept.pop(name)
            if _place(s, name, view) == "inline":
                s[name].compute_inline()
            else:
                outputs.append(name)


def _read_whole(s: Schedule) -> list[str]:
    """The stages that externs read, whole and from memory."""
    plan = s.plan
    return [
        stage.name
        for stage in plan.stages
        if isinstance(stage.op, ComputeOp) and extern_readers(plan, stage.op)
    ]


def _stored(s: Schedule, view: View, groups: list[Group], outputs: list[str]) -> list[str]:
    """Inlined stages that a contraction in a kernel of its own should store in place of its sums.

    The reader that would have taken them in has rows, so the contraction cannot join it; stored
    after its epilogue, the result is no wider, and is read by whoever read the epilogue.
    """
    found: list[str] = []
    for group in groups:
        op = view[group.root]
        if group.root in outputs or not is_reduction(op) or contraction(op) is None:
            continue
        name = _epilogue(s, group.root)
        if name is not None and name not in found and flip(s, f"{group.root}.epilogue", True):
            found.append(name)
    return found


def _epilogue(s: Schedule, name: str) -> str | None:
    """The one inlined stage that reads `name`, element by element, into no wider elements."""
    source = s[name].op
    readers: dict[str, TensorRead] = {}
    for stage in s.plan.stages:
        if isinstance(stage.op, ComputeOp):
            for read in reads(*stage.op.bodies):
                if read.tensor.op is source:
                    readers[stage.name] = read
    if len(readers) != 1:
        return None
    ((reader, read),) = readers.items()
    stage = s.plan.stage(reader)
    inlined = stage.attach.kind is AttachKind.INLINE
    narrow = stage.op.output_dtypes[0].nbytes <= source.output_dtypes[0].nbytes
    return reader if inlined and narrow and same_axes(plain(read), stage.op.axis) else None


def _apart(s: Schedule, view: View, groups: list[Group], busy: int) -> list[str]:
    """Reductions of few long rows that are to be kernels of their own, which can split them."""
    found: list[str] = []
    for group in groups:
        folds = [name for name in group.inner if is_reduction(view[name])]
        rows = volume(group.rows or ())
        points = [volume((*view[name].axes, *view[name].reduce_axes)) for name in folds]
        if group.rows is None or group.contracts or rows is None or None in points:
            continue
        alone = len(folds) < 2 and same_axes(group.rows, view[group.root].axes)
        if is_reduction(view[group.root]) or alone or not folds:
            continue
        rows = rows if crossed_row(view, group) is None else -(-rows // CROSSED)
        long = max(n or 0 for n in points) >= busy * LONG
        together = rows >= busy or not long
        if rows < 4 * busy and long:
            together = bool(s.knob(f"{group.root}.together", (True, False), together))
        found += [] if together else folds
    return found


def _candidates(view: View, outputs: list[str]) -> dict[str, ComputeOp]:
    """Pointwise stages that more than one read uses."""
    readers = readers_of(view)
    return {
        name: op
        for name, op in view.items()
        if not is_reduction(op) and name not in outputs and len(op.bodies) == 1
        if len(readers[name]) > 1 or _feeds_contraction(view, readers[name])
    }


def _feeds_contraction(view: View, users: list[tuple[str, TensorRead]]) -> bool:
    return any(contraction(view[user]) is not None for user, _ in users)


def _shares(view: View, group: Group, name: str) -> bool:
    """True when keeping a tile of `name` saves computing it more than once in the kernel."""
    users = {user for user, _ in readers_of(view)[name]}
    return len(users) > 1 and group.rows is not None and cost(view[name]) > 0


def _place(s: Schedule, name: str, view: View) -> object:
    """Inline when cheap, or when nothing is computed twice; else a kernel of its own."""
    users = readers_of(view)[name]
    op = view[name]
    repeated = len(users) > 1 or any(plain(read) is None for _, read in users)
    again = repeated or _feeds_contraction(view, users)
    default = "root" if again and cost(op) * len(users) > CHEAP else "inline"
    if _feeds_contraction(view, users) and cost(op) > 1:
        default = "root"
    return s.knob(f"{name}.place", ("inline", "root"), default)
