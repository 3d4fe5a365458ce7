"""The grouping of stages into kernels: which reductions and pointwise stages share one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tedsl.expr.nodes import Axis, TensorRead
from tedsl.expr.visit import reads
from tedsl.schedules.analysis.nests import (
    along,
    among,
    contraction,
    distinct,
    first,
    innermost,
    is_reduction,
    plain,
    same_axes,
)
from tedsl.schedules.analysis.views import View, definitions, extent_of, volume
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.plan.inline import Size, body_size, name_of
from tedsl.tensor.tensor import ComputeOp, PlaceholderOp


@dataclass(slots=True)
class Group:
    """One kernel: the root stage, which stores, and the stages computed inside it, producers first.

    `rows` are the axes of the root that index the inner reductions; None when there are none.
    `contracts` is true when an inner reduction is a contraction.  `regions` are producers of which
    each tile computes the region that it reads (`compute_at`).  `beside` are stages at root,
    with one element or several for each row, that run in its loops.  `follows` is true of a kernel
    that runs in the grid of another, which has the launch options.  `in_parts` is true of partial
    results, and of what combines them: they are not split again.  `apart` is true of partial
    results whose number, the first axis of the root, has a grid axis of its own, as a last-block
    reduction needs.  `pairs` is the pairwise reduction (`gpu/pairwise/pairwise.py`) that is
    computed inside the loop that reduces it.
    """

    root: str
    inner: list[str] = field(default_factory=list[str])
    rows: tuple[Axis, ...] | None = None
    contracts: bool = False
    axes: dict[str, dict[Axis, Axis]] = field(default_factory=dict[str, dict[Axis, Axis]])
    regions: list[str] = field(default_factory=list[str])
    beside: list[str] = field(default_factory=list[str])
    follows: bool = False
    in_parts: bool = False
    apart: bool = False
    pairs: str = ""


@dataclass(frozen=True, slots=True)
class Along:
    """Where a result is stored by the kernel of another: the root of that, and the axes of the
    result in terms of the root's."""

    root: str
    axes: Mapping[Axis, Axis]


# Stages of one kernel, each computed or inlined in its loops.
MEMBERS = 128


def find_groups(
    view: View,
    outputs: Sequence[str],
    masked: bool = False,
    cut: list[str] | None = None,
    along: Mapping[str, Along] | None = None,
) -> list[Group]:
    """Fuse each reduction into the one kernel that reads it, where their axes line up.

    A reduction joins when every reader is in that kernel, reads it at distinct axes of the kernel's
    root, and the kernel's other reductions are indexed by the same axes; a contraction joins only a
    kernel without row reductions (its epilogue), because its accumulator fills the tile.  `masked`
    as for `contraction`.  What would join but for the size of the kernel, or of the expressions
    between its reductions once inlined, is a kernel of its own, and is put into `cut`.  Results in
    `along` run beside the kernel that is named there, whose root is one of `outputs`.
    """
    readers = view.readers
    sizes: dict[str, _Between] = {}
    groups: dict[str, Group] = {}
    owner: dict[str, str] = {}
    for name in reversed(list(view)):
        op = view[name]
        joined = None
        place = None if along is None else along.get(name)
        if place is not None and place.root in view:
            host = groups.setdefault(place.root, _alone(view, place.root))
            host.beside.insert(0, name)
            host.axes[name] = dict(place.axes)
            owner[name] = host.root
            continue
        if name not in outputs:
            joined = _joinable(op, readers[name], owner, groups, view, masked)
        if joined is not None:
            sizes[name] = _between(view, name, readers[name], sizes)
            if len(joined[0].inner) >= MEMBERS or not sizes[name].whole.fits:
                joined = None
                if cut is not None:
                    cut.append(name)
        if joined is None:
            groups.setdefault(name, _alone(view, name))
            owner[name] = name
            continue
        group, axes = joined
        owner[name] = group.root
        group.inner.insert(0, name)
        group.axes[name] = axes
        if is_reduction(op):
            group.contracts = group.contracts or contraction(op, masked, grouped=True) is not None
            group.rows = _rows(view[group.root], axes)
    return [groups[name] for name in view if name in groups]


def _alone(view: View, root: str) -> Group:
    """A kernel of one stage."""
    return Group(root, axes={root: {a: a for a in view[root].axes}})


@dataclass(frozen=True, slots=True)
class _Between:
    """A stage with its consumers in the kernel up to a reduction or the root: the size of the
    expression when it is inlined, and how often it is then written."""

    whole: Size
    times: int


def _between(
    view: View, name: str, users: Sequence[tuple[str, TensorRead]], sizes: dict[str, _Between]
) -> _Between:
    own = body_size(view[name])
    after = [sizes[user] for user, _ in users if user in sizes and not is_reduction(view[user])]
    times = sum((each.times for each in after), len(users) - len(after))
    depth = own.depth + max((each.whole.depth for each in after), default=0)
    return _Between(Size(depth, own.terms * times), times)


def _joinable(
    op: ComputeOp,
    users: Sequence[tuple[str, TensorRead]],
    owner: dict[str, str],
    groups: dict[str, Group],
    view: View,
    masked: bool,
) -> tuple[Group, dict[Axis, Axis]] | None:
    """The kernel that `op` may fuse into, and its data axes in terms of the root's."""
    owners = {owner[user] for user, _ in users}
    if len(owners) != 1:
        return None
    group = groups[owners.pop()]
    axes = mapped(op, users, group, view)
    if axes is None:
        return None
    root = view[group.root]
    if not is_reduction(op):
        if len(op.outputs) > 1:
            return None  # a loop over a row inlines what stands between, which is of one result
        whole = group.rows is not None and _rows_among(group.rows, axes.values())
        return (group, axes) if whole and not group.contracts else None
    if not axes or not _rows_among(op.axes, axes):
        return None
    rows = _rows(root, axes)
    shape = contraction(op, masked, grouped=True)
    if shape is not None:
        if len(axes) != len(op.axes):
            return None  # loops of a tile are those of the contraction
        # Tiles lie along memory: one of another axis would be stored element by element.
        sides = [axes.get(a) for a in (*shape.rows, *shape.columns)]
        along = not root.axes or any(innermost(root.axes) is a for a in sides)
        fits = not is_reduction(root) and len(rows) == len(root.axes)
        fits = fits and (along or masked) and all(user == group.root for user, _ in users)
        fits = fits and (group.rows is None or group.contracts)
        return (group, axes) if fits else None
    if group.contracts or contraction(root, masked, grouped=True) is not None:
        return None
    agree = group.rows is None or same_axes(group.rows, rows)
    return (group, axes) if agree else None


def _rows(root: ComputeOp, axes: Mapping[Axis, Axis]) -> tuple[Axis, ...]:
    """The axes of the root that index a reduction, `axes` its own in terms of them; those of one
    element index everything."""
    known = list(axes.values())
    return tuple(a for a in root.axes if among(a, known) or extent_of(a) == 1)


def _rows_among(rows: Iterable[Axis], axes: Iterable[Axis]) -> bool:
    """True when all rows of more than one element are among `axes`."""
    known = list(axes)
    return all(among(a, known) or extent_of(a) == 1 for a in rows)


def mapped(
    op: ComputeOp, users: Sequence[tuple[str, TensorRead]], group: Group, view: View
) -> dict[Axis, Axis] | None:
    """Data axes of `op` that all readers index by one axis of the root; None when an index of a
    read, where there is more than one element, is no plain axis.  Axes of one element that are read
    at 0, however that is written, stand for any such axis of the root."""
    found: dict[Axis, Axis] = {}
    loose: set[Axis] = set()
    for user, read in users:
        pairs = zip(op.axes, read.indices, strict=True)
        kept = [(a, i) for a, i in pairs if extent_of(a) != 1 or isinstance(i, Axis)]
        indices = distinct([index for _, index in kept])
        if indices is None:
            return None
        for (mine, _), theirs in zip(kept, indices, strict=True):
            root = group.axes[user].get(theirs)
            if root is None:
                loose.add(mine)
            elif found.setdefault(mine, root) is not root:
                return None
    known = {mine: root for mine, root in found.items() if mine not in loose}
    taken = list(known.values())
    spare = [a for a in view[group.root].axes if extent_of(a) == 1 and not among(a, taken)]
    ones = [a for a in op.axes if extent_of(a) == 1 and a not in known]
    return {**known, **dict(zip(ones, spare, strict=False))}


def expose_epilogue(s: Schedule, group: Group, masked: bool = False) -> Group:
    """Split a root reduction into an accumulator stage and a stage that stores it (`cache_write`),
    so that the kernel has an epilogue; `masked` as for `contraction`."""
    outputs = list(s[group.root].op.outputs)
    inner = s[first(s.cache_write(outputs if len(outputs) > 1 else outputs[0], "local"))].name
    view = definitions(s)
    root = view[group.root].axes
    contracts = contraction(view[inner], masked, grouped=True) is not None
    rows = root if contracts or group.rows is None else group.rows
    # What is folded at once, beside the rows, has a tile: with a size of its own.
    if volume([axis for axis in root if not among(axis, rows)]) is None:
        rows = root
    new = replace(group, inner=[*group.inner, inner], rows=rows, contracts=contracts, regions=[])
    axes = dict(zip(view[inner].axes, root, strict=True))
    new.axes = {group.root: {a: a for a in root}, inner: axes}
    for name in (*group.inner, *group.beside):
        new.axes[name] = {k: axes.get(v, v) for k, v in group.axes.get(name, {}).items()}
    return new


def crossed_row(view: View, group: Group) -> Axis | None:
    """For column reductions, the row axis along which all reads are contiguous (so that lanes run
    across results); None when a reduction reads along its reduced axis."""
    found: list[Axis | None] = []
    for name in group.inner:
        if is_reduction(view[name]):
            axis = along(view[name])
            found.append(None if axis is None else group.axes[name].get(axis))
    first = found[0] if found else None
    return first if first is not None and all(axis is first for axis in found) else None


def shared_inputs(view: View, group: Group, s: Schedule) -> list[tuple[str, int, list[str]]]:
    """Inputs that several stages of the kernel read, each at plain axes over its rows, so that they
    can be loaded once: each by the stage that made it and the number of its output there."""
    inside = [*group.inner, group.root, *(name for name in group.beside if name in group.axes)]
    users: dict[tuple[str, int], list[str]] = {}
    fine: dict[tuple[str, int], bool] = {}
    for name in inside:
        for read in reads(*view[name].bodies):
            op = read.tensor.op
            source = name_of(s.plan, op) if isinstance(op, (PlaceholderOp, ComputeOp)) else None
            if source is None or source in inside:
                continue
            indices = plain(read)
            known = group.axes[name]
            rows = [] if indices is None else [known[a] for a in indices if a in known]
            good = indices is not None and _rows_among(group.rows or (), rows)
            own = s[name].op
            direct = reads(*own.bodies) if isinstance(own, ComputeOp) else ()
            good = good and any(r.tensor is read.tensor for r in direct)
            result = source, read.tensor.index
            fine[result] = fine.get(result, True) and good
            if name not in users.setdefault(result, []):
                users[result].append(name)
    return [(*result, u) for result, u in users.items() if len(u) > 1 and fine[result]]
