"""Results that a kernel of rows reads or computes on its way: it stores them in its loops, where
their inputs are in registers (a residual and its norm; the statistics that a backward pass reads).

    for i, j: z[i, j] = x[i, j] + y[i, j]
    for i: m = sum(k)(z[i, k]); for j: o[i, j] = g(z[i, j], m)
    --> for i: for j: z.again[j] = x[i, j] + y[i, j]; m = sum(k)(z.again[k])
               for j: o[i, j] = g(z.again[j], m); for j: z[i, j] = x[i, j] + y[i, j]

What is stored stays at root, so the kernel reads another stage of the same definition (`recompute`)
and what is stored runs along with the kernel (`compute_with`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tedsl.expr.nodes import Axis, TensorRead
from tedsl.expr.visit import axes_of, reads
from tedsl.schedules.analysis.groups import Along, Group, crossed_row, find_groups, mapped
from tedsl.schedules.analysis.kernel_order import Kernels, kernels_of, stages_of
from tedsl.schedules.analysis.nests import along as lies_along
from tedsl.schedules.analysis.nests import (
    among,
    any_order,
    contraction,
    innermost,
    is_reduction,
    long_axes,
    needs_one_of,
    plain,
    pow2_at_least,
    same_axes,
)
from tedsl.schedules.analysis.views import View, definitions, reads_of, size_of, volume
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.fusion.horizontal import Beside
from tedsl.schedules.fusion.sibling_folds import siblings
from tedsl.schedules.gpu.candidates import seconds_of
from tedsl.schedules.gpu.rows.merged_again import merged_again
from tedsl.schedules.gpu.rows.rows import MAX_TILE
from tedsl.schedules.gpu.rows.rows_and_columns import goes_along, of_matrix
from tedsl.schedules.gpu.rows.split_rows import PART, few_rows, one_pass
from tedsl.schedules.gpu.select import schedule_group
from tedsl.schedules.knobs import flip
from tedsl.schedules.trial import remembered
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.plan.graph import loop_readers
from tedsl.scheduling.plan.graph import readers as plan_readers
from tedsl.scheduling.plan.inline import may_inline
from tedsl.target import Target

Axes = Mapping[Axis, Axis]


@dataclass(frozen=True, slots=True)
class _Found:
    """What a kernel can store: a stage at root, where, and the stage that `readers` compute again
    instead of reading it, which is none for a stage that only reads what the kernel computes.  A
    stage that is nowhere stored is inlined."""

    name: str
    along: Along | None
    again: str = ""
    readers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a kernel computes beside what it has: the stages, those that it stores, the kernel that
    this makes, and those that there are without."""

    stages: Sequence[str]
    stored: Mapping[str, Along]
    group: Group
    kernels: Sequence[Group]


def store_in_rows(
    s: Schedule,
    view: View,
    groups: Sequence[Group],
    outputs: list[str],
    along: dict[str, Along],
) -> list[str] | None:
    """Let kernels of rows store more, each by its knob `in_rows`.

    Args:
        s: the schedule.
        view: its stages.
        groups: its kernels.
        outputs: the stages that are stored; those that are inlined instead are taken out, what
            stores in their place and what it stores are added.
        along: the stages that kernels store already; what is found is added.

    Returns:
        The stages that are computed again inside; None where nothing more can be stored so.
    """
    found, made = _elements(s, view, outputs, along), list[str]()
    for each in found:
        if each.along is None:
            s[each.name].compute_inline()
            outputs.remove(each.name)
            continue
        along[each.name] = each.along
        if each.again:
            s[_again(s, view, each)].compute_inline()
    rows, touched, order = _Rows(s, view, groups), set[str](), kernels_of(groups)
    for each in () if found else rows.candidates():
        if each.along is None or each.name in along or not _in_plan(s, view, each):
            continue
        kernels = {each.along.root, *(rows.owners[n].root for n in (each.name, *each.readers))}
        stored = [each.name, *stages_of(rows.owners[each.along.root])]
        if not touched.isdisjoint(kernels) or not order.may_be_one(s, stored):
            continue
        if _chosen(s, each.name):
            order.join(stored)
            touched |= kernels
            along[each.name] = each.along
            made.append(_again(s, view, each))
    taken = not found and not made and _takes(s, rows, order, outputs, along)
    if not found and not made and not taken:
        folded = siblings(
            s,
            view,
            groups,
            order,
            lambda group: rows_of(s, view, group),
            lambda name: _chosen(s, name),
        )
        if not folded:
            return None
        along |= folded
    stays = [*along, *(each.root for each in along.values())]
    outputs += [name for name in dict.fromkeys(stays) if name not in outputs]
    return made


def _elements(
    s: Schedule, view: View, outputs: Sequence[str], along: Mapping[str, Along]
) -> list[_Found]:
    """What kernels of rows store of one element for each row, all of it at once."""
    declined = set[str]()
    while True:
        found = _Elements(s, view, outputs, along, declined).placed()
        fresh = {each.name for each in found if not _chosen(s, each.name)}
        if not fresh:
            return found
        declined |= fresh


def _chosen(s: Schedule, name: str, usual: bool = True) -> bool:
    """The knob `in_rows` of a stage, which is asked for once."""
    knob = f"{name}.in_rows"
    known = next((each for each in s.knobs if each.name == knob), None)
    return bool(known.chosen) if known is not None else flip(s, knob, usual)


def _again(s: Schedule, view: View, found: _Found) -> str:
    """Let the readers compute a stage again; returns what they read."""
    readers, tensor = _in_plan(s, view, found), s[found.again].op.outputs[0]
    if is_reduction(view[found.again]):
        s.cache_write(tensor, "local")
        tensor = s[found.again].op.outputs[0]
    return s[s.recompute(tensor, list(readers))].name


def _in_plan(s: Schedule, view: View, found: _Found) -> tuple[str, ...]:
    """The stages, inlined ones among them, by which the readers alone read a stage; none where
    others read it by the same."""
    if not found.again:
        return ()
    op = s[found.again].op
    if not is_reduction(view[found.again]) and not may_inline(s.plan, found.again):
        return ()
    names: list[str] = []
    for stage in plan_readers(s.plan, op):
        users, waiting = set[str](), [stage]
        while waiting:
            each = waiting.pop()
            if each.placement.inlined:
                waiting += plan_readers(s.plan, each.op)
            else:
                users.add(each.name)
        if users <= set(found.readers):
            names.append(stage.name)
        elif not users.isdisjoint(found.readers):
            return ()
    return tuple(names)


def _takes(
    s: Schedule, rows: _Rows, order: Kernels, outputs: list[str], along: dict[str, Along]
) -> bool:
    """Let kernels compute what they need of their rows, and store what others read of that."""
    touched = set[str]()
    for host in reversed(rows.groups):
        taken = rows.needed(host)
        if taken is None or not touched.isdisjoint(each.root for each in taken.kernels):
            continue
        inside = [*stages_of(host), *taken.stages]
        if not order.may_be_one(s, inside):
            continue
        worth = _worth(s, taken)
        if not all([_chosen(s, name, worth) for name in taken.stored]):
            continue
        order.join(inside)
        for name in taken.stages:
            if name in taken.stored and is_reduction(rows.view[name]):
                inside.append(s[s.cache_write(s[name].op.outputs[0], "local")].name)
            elif name not in taken.stored and name in outputs:
                outputs.remove(name)
                s[name].compute_inline()
        merged_again(s, inside, taken.stored)
        along |= taken.stored
        touched |= {each.root for each in taken.kernels}
    return bool(touched)


def _worth(s: Schedule, taken: _Taken) -> bool:
    """True where the model predicts that one kernel takes no longer than several."""
    target, names = Target.parse(s.target or "cuda"), [taken.group.root, *taken.group.inner]

    def rule(trial: Schedule, group: Group) -> None:
        schedule_group(trial, group, target, Beside(launches=False))

    def times(trial: Schedule) -> list[float]:
        return [seconds_of(trial, each, rule, target) for each in (taken.group, *taken.kernels)]

    parts = [[names.index(n) for n in (each.root, *each.inner)] for each in taken.kernels]
    together, *apart = remembered(s, (_worth, str(target), str(parts)), times, names)
    return together <= sum(apart)


class _Rows:
    """The kernels of rows of a schedule, and what they could store."""

    def __init__(self, s: Schedule, view: View, groups: Sequence[Group]) -> None:
        self.s, self.view, self.groups = s, view, groups
        self.owners = {n: g for g in groups for n in (*g.inner, g.root, *g.beside)}
        self.results = {s[tensor].name for tensor in s.outputs}

    def candidates(self) -> Iterator[_Found]:
        """What could be stored, results before what other kernels read."""
        for group in self.groups:
            name, hosts = group.root, self._hosts(group.root)
            if hosts and name in self.results and one_by_one(self.view, name):
                if len(hosts) == 1:
                    yield from self._read_in(group, hosts[0])
                yield from self._followed(group)

    def _hosts(self, name: str) -> list[Group]:
        """The kernels that read a stage."""
        owners = [self.owners[user] for user, _ in self.view.readers[name]]
        return list({owner.root: owner for owner in owners}.values())

    def _read_in(self, group: Group, host: Group) -> Iterator[_Found]:
        """A pointwise result that only the kernel `host` reads."""
        if not _is_pointwise(group):
            return
        users, op = self.view.readers[group.root], self.view[group.root]
        axes = mapped(op, users, host, self.view)
        if axes is None:
            return
        rows = rows_of(self.s, self.view, host)
        if rows and self._fits(group.root, host, axes, rows):
            readers = tuple(dict.fromkeys(user for user, _ in users))
            yield _Found(group.root, Along(host.root, axes), group.root, readers)

    def _followed(self, group: Group) -> Iterator[_Found]:
        """Results that are computed from one of a kernel of rows, element by element."""
        op = self.view[group.root]
        if not group.inner or not rows_of(self.s, self.view, group):
            return
        for user in dict.fromkeys(user for user, _ in self.view.readers[group.root]):
            if user not in self.results or not self._follows(self.owners[user], group.root):
                continue
            if self._meet([user], group.beside):
                continue
            axes = dict(zip(self.view[user].axes, op.axes, strict=True))
            if self._fits(user, group, axes, rows_of(self.s, self.view, group)):
                yield _Found(user, Along(group.root, axes), group.root, (user,))

    def _meet(self, users: Sequence[str], stored: Sequence[str]) -> bool:
        """True where one of the stages beside a kernel reads what another stores: it is not there
        before all of it is."""
        return any(name in stored for user in users for name in self.view.sources(user))

    def needed(self, host: Group) -> _Taken | None:
        """The folds of rows, and what is computed of each, that a kernel of the same rows needs and
        others read too."""
        if host.contracts or host.in_parts or host.regions:
            return None
        kernels = [host, *self._needed(host)]
        own = {name for each in kernels for name in (each.root, *each.inner)}
        part = View({name: self.view[name] for name in self.view if name in own})
        group = next(g for g in find_groups(part, [host.root]) if g.root == host.root)
        kernels = [each for each in kernels if each.root in (host.root, *group.inner)]
        whole = {name for each in kernels for name in (each.root, *each.inner)}
        if whole != {host.root, *group.inner} or not rows_of(self.s, part, group):
            return None
        taken = [name for name in group.inner if name not in host.inner]
        users = {*whole, *host.beside}
        stored = [n for n in taken if n in self.results or not self._users(n) <= users]
        single = all(len(part[name].bodies) == 1 for name in stored)
        if not stored or not single or self._along_columns(host, stored):
            return None
        if self._meet(host.beside, stored):
            return None
        axes = {name: Along(host.root, group.axes[name]) for name in stored}
        return _Taken(taken, axes, group, kernels)

    def _needed(self, host: Group) -> list[Group]:
        """The kernels of one element for each row that a kernel needs, by way of one another."""
        found, waiting = dict[str, Group](), [host]
        while waiting:
            group = waiting.pop()
            sources = (n for name in (group.root, *group.inner) for n in self.view.sources(name))
            for each in (self.owners[source] for source in sources):
                fresh = each is not host and each.root not in found
                if fresh and (self._is_of_rows(each) or self._is_of_elements(each)):
                    found[each.root] = each
                    waiting.append(each)
        return list(found.values())

    def _is_of_elements(self, group: Group) -> bool:
        """True for a pointwise kernel of an element for each row of a fold that it reads."""
        op = self.view[group.root]
        if not _is_pointwise(group) or is_reduction(op) or not may_inline(self.s.plan, group.root):
            return False
        sources = [self.owners[name] for name in self.view.sources(group.root)]
        rows = [self.view[each.root].axes for each in sources if self._is_of_rows(each)]
        return any(len(long_axes(axes)) >= len(long_axes(op.axes)) for axes in rows)

    def _users(self, name: str) -> set[str]:
        """The stages in whose loops a stage is read."""
        return {each.name for each in loop_readers(self.s.plan, self.s[name].op)}

    def _along_columns(self, host: Group, stored: Sequence[str]) -> bool:
        """True where a kernel that reads those folds columns in the loops of the host."""
        users = {user for name in stored for user in self._users(name)}
        kernels = [self.owners[name] for name in users if name in self.owners]
        return of_matrix(self.view, host) and any(
            goes_along(self.view, host, each) for each in kernels if each is not host
        )

    def _fits(self, name: str, host: Group, axes: Axes, rows: Sequence[Axis]) -> bool:
        """True when a stage has the rows of a kernel, and where it has more, a program holds a row
        of both."""
        op = self.view[name]
        if not all(among(row, list(axes.values())) for row in long_axes(rows)):
            return False
        columns = [a for a in long_axes(op.axes) if not among(axes.get(a), rows)]
        if not columns:
            return True
        members = [self.view[each] for each in (host.root, *host.inner)]
        folds = (volume(each.reduce_axes) for each in members if is_reduction(each))
        held = all(
            n is not None and pow2_at_least(n) <= MAX_TILE for n in (volume(columns), *folds)
        )
        return held and among(innermost(op.axes), columns)

    def _is_of_rows(self, group: Group) -> bool:
        """True for a kernel of one element for each row."""
        axes = self.view[group.root].axes
        own = bool(rows_of(self.s, self.view, group)) and same_axes(group.rows or axes, axes)
        return own and not group.regions and not group.beside

    def _follows(self, group: Group, source: str) -> bool:
        """True for a pointwise kernel that reads a result element by element, and nothing else that
        depends on it."""
        op = self.view[group.root]
        if not _is_pointwise(group) or not one_by_one(self.view, group.root):
            return False
        own = [read for read in reads(*op.bodies) if read.tensor.op is self.view[source]]
        others: Collection[str] = [n for n in self.view.sources(group.root) if n != source]
        free = not any(needs_one_of(self.view, other, [source]) for other in others)
        return free and all(same_axes(plain(read), op.axes) for read in own)


class _Elements:
    """Results of one element for each row that folds of the rows are read for: what kernels there
    would be without them, and which of those could store them.

    Args:
        s: the schedule.
        view: its stages.
        outputs: the stages that are stored.
        along: those that kernels of rows store already.
        declined: those that stay where they are.
    """

    def __init__(
        self,
        s: Schedule,
        view: View,
        outputs: Sequence[str],
        along: Mapping[str, Along],
        declined: Collection[str],
    ) -> None:
        self.s, self.view, self.outputs, self.along = s, view, outputs, along
        self.declined = declined
        self.results = {s[tensor].name for tensor in s.outputs}

    def placed(self) -> list[_Found]:
        """Where they could be stored."""
        names = self._names()
        while any(name in self.results for name in names):
            found = self._where(names)
            wanted = [name for name in names if name in found or name not in self.results]
            if len(wanted) == len(names):
                return [self._found(name, found.get(name)) for name in names]
            names = wanted
        return []

    def _names(self) -> list[str]:
        """What is stored and has as many long axes as a fold that it reads, or one another."""
        found: list[str] = []
        hosts = {each.root for each in self.along.values()}
        stored = {*self.results, *self.outputs} - {*self.along, *self.declined, *hosts}
        for name, op in self.view.items():
            if name not in stored or is_reduction(op) or len(op.bodies) > 1 or not op.axes:
                continue
            again = self.view.readers[name] or name not in self.results
            if again and not may_inline(self.s.plan, name):
                continue
            sources = self.view.sources(name)
            rows = [self.view[n] for n in sources if n in found or is_reduction(self.view[n])]
            if any(len(long_axes(each.axes)) >= len(long_axes(op.axes)) for each in rows):
                found.append(name)
        return found

    def _where(self, names: Sequence[str]) -> dict[str, Along]:
        """Where those are stored of which that is known while nothing reads any."""
        trial = self.s.copy(decided=False)
        for name in names:
            if name not in self.results:
                trial[name].compute_inline()
                continue
            readers = _in_plan(trial, self.view, self._found(name, None))
            if readers:
                again = trial.recompute(trial[name].op.outputs[0], list(readers))
                trial[again].compute_inline()
        everything = definitions(trial)
        view = View({n: everything[n] for n in self.view if n not in names})
        stored = [name for name in self.outputs if name not in names]
        found: dict[str, Along] = {}
        for group in find_groups(view, stored, along=self.along):
            if not (rows_of(self.s, view, group) or splits(trial, view, group)):
                continue
            inside = {n: axes for n, axes in group.axes.items() if n != group.root}
            for name in names:
                if name not in self.results:
                    continue
                axes = _axes_of(everything, name, inside)
                if axes is not None:
                    inside[name] = axes
                    found[name] = Along(group.root, axes)
        return found

    def _found(self, name: str, along: Along | None) -> _Found:
        if name not in self.results:
            return _Found(name, None)
        readers = tuple(dict.fromkeys(user for user, _ in self.view.readers[name]))
        return _Found(name, along, name if readers else "", readers)


def rows_of(s: Schedule, view: View, group: Group) -> tuple[Axis, ...]:
    """The rows of a kernel that folds along them; none of other kernels, and where there are
    too few for a device that are long."""
    root = view[group.root]
    folds = [view[name] for name in group.inner if is_reduction(view[name])]
    if is_reduction(root):
        folds.append(root)
        if contraction(root, grouped=True) is not None:
            return ()
        if not group.inner and not among(lies_along(root), root.reduce_axes):
            return ()
        if group.rows and not same_axes(long_axes(group.rows), long_axes(root.axes)):
            return ()
    rows = group.rows or (root.axes if is_reduction(root) else ())
    single = not (group.contracts or group.in_parts or group.pairs or group.apart)
    if not single or not folds or not all(any_order(each) for each in folds):
        return ()
    if group.inner and crossed_row(view, group) is not None:
        return ()
    count, lengths = volume(rows), [volume(each.reduce_axes) for each in folds]
    few = count is not None and count < gpu_of(s).sms
    return () if few and any(n is None or n >= 2 * PART for n in lengths) else tuple(rows)


def _axes_of(view: View, name: str, inside: Mapping[str, Axes]) -> dict[Axis, Axis] | None:
    """The axes of a result that reads stages of one kernel alone, in terms of its root's."""
    op, axes = view[name], dict[Axis, Axis]()
    for read in reads_of(op):
        source = view.names.get(read.tensor.op)
        if source is None:
            continue
        if source not in inside:
            return None
        for own, index in zip(view[source].axes, read.indices, strict=True):
            if isinstance(index, Axis) and own in inside[source]:
                axes[index] = inside[source][own]
    return axes if all(axis in axes for axis in long_axes(op.axes)) else None


def splits(s: Schedule, view: View, group: Group) -> bool:
    """True for a kernel of few long rows that are split: all its folds are one cascade."""
    rows = group.rows or ()
    folds = [n for n in (*group.inner, group.root) if is_reduction(view[n])]
    single = not (group.contracts or group.in_parts or group.pairs or group.apart)
    if not single or len(folds) < 2 or crossed_row(view, group) is not None:
        return False
    lengths = [volume(view[name].reduce_axes) for name in folds]
    long = all(n is not None and n >= 2 * PART for n in lengths)
    return long and few_rows(volume(rows), gpu_of(s).sms) and one_pass(s, group)


def one_by_one(view: View, name: str) -> bool:
    """True for a stage of one pointwise result whose reads lie as it does."""
    op = view[name]
    if is_reduction(op) or len(op.bodies) > 1 or not op.axes:
        return False
    return all(_lies_alike(read, op.axes) for read in reads(*op.bodies))


def _lies_alike(read: TensorRead, axes: Sequence[Axis]) -> bool:
    """True when a tensor is read along memory where it is read along the innermost axis."""
    last, sizes = innermost(axes), map(size_of, read.tensor.shape)
    long = [index for index, size in zip(read.indices, sizes, strict=True) if size != 1]
    along = [index for index in long if last in axes_of(index)]
    return not along or (len(along) == 1 and along[0] is last is long[-1])


def _is_pointwise(group: Group) -> bool:
    return group.rows is None and not group.inner and not group.regions and not group.beside
