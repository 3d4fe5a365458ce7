"""Who reads whom, which stage is where and what is attached to it: maps derived from a plan once.

A plan that differs from another in the loops of one stage takes these maps over
(`Plan.with_stage`), so that a question after a call costs what its answer does and not a walk over
all stages.  Stages are numbered in the order of the plan.  Imports `expr`; the plan imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from tedsl.expr.index_arith import constant
from tedsl.expr.nodes import Axis, Expr, Reduce, Var
from tedsl.expr.visit import reads, walk
from tedsl.once import known, once, share, tell
from tedsl.scheduling.plan.following import Parted, Row, model_op, results
from tedsl.tensor.tensor import ComputeOp, ExternOp, Operation, ScanOp, Tensor

if TYPE_CHECKING:
    from tedsl.scheduling.plan import Plan, StagePlan

Found = TypeVar("Found")


class Form:
    """Stands for what operations have in common that differ in which tensors they read only, and
    keeps what was found of it."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept: dict[Callable[..., object], Any] = {}


@once
def form(op: Operation) -> Form:
    """The same of all operations that `renamed` made of one, each tensor in place of one other."""
    return Form()


def of_form(find: Callable[[Operation], Found]) -> Callable[[Operation], Found]:
    """A function of an operation to which it is all the same which tensors that reads: found once
    for all operations of one form."""

    @wraps(find)
    def found(op: Operation) -> Found:
        kept = form(op).kept
        if find not in kept:
            kept[find] = find(op)
        return kept[find]

    return found


@once
def tensors_read(op: Operation) -> tuple[Tensor, ...]:
    """The distinct tensors `op` reads, in order of first occurrence."""
    if isinstance(op, ExternOp):
        return tuple(dict.fromkeys(op.inputs))
    if not isinstance(op, ComputeOp):
        return ()
    return tuple(dict.fromkeys(read.tensor for read in reads(*op.bodies)))


@once
def tensors_of_init(op: Operation) -> tuple[Tensor, ...]:
    """The tensors read by the `init` of a reduction, which run before its reduce loops."""
    if not isinstance(op, ComputeOp):
        return ()
    inits = [e for body in op.bodies if isinstance(body, Reduce) for e in body.init or ()]
    return tuple(dict.fromkeys(read.tensor for read in reads(*inits)))


@once
def tensors_of_finish(op: Operation) -> tuple[Tensor, ...]:
    """The tensors read by the `finish` of a reduction, which runs after its reduce loops."""
    if not isinstance(op, ComputeOp):
        return ()
    ends = [b.finish for b in op.bodies if isinstance(b, Reduce) and b.finish is not None]
    return tuple(dict.fromkeys(read.tensor for read in reads(*ends)))


@once
def operations_read(op: Operation) -> tuple[Operation, ...]:
    """The distinct operations of which `op` reads tensors, in order of first occurrence."""
    return tuple(dict.fromkeys([tensor.op for tensor in tensors_read(op)]))


def renamed(op: ComputeOp, tensors: Mapping[Tensor, Tensor]) -> ComputeOp:
    """The operation reading other tensors in place of the keys (see `ComputeOp.renamed`)."""
    read, inits = tensors_read(op), tensors_of_init(op)
    given = tuple([tensors.get(tensor, tensor) for tensor in read])
    made = op.renamed(read, given)
    if len(set(given)) == len(given):
        tell(tensors_read, made, given)
        tell(tensors_of_init, made, tuple([tensors.get(tensor, tensor) for tensor in inits]))
        tell(form, made, form(op))
    return made


@of_form
def has_sizes(op: Operation) -> bool:
    """True when the shape of `op` is known only at the call."""
    return any(isinstance(node, Var) for extent in op.shape for node in walk(extent))


@of_form
def symbolic_extents(op: Operation) -> tuple[Expr, ...]:
    """The extents of all dimensions of `op` that are no constants."""
    return tuple(extent for extent in op.extents if constant(extent) is None)


@of_form
def indexes_by_data(op: Operation) -> bool:
    """True when an index in `op` reads a tensor."""
    if not isinstance(op, ComputeOp):
        return False
    return any(reads(*read.indices) for read in reads(*op.bodies))


class Numbers:
    """The number of each operation of a plan, that of the first stage where several have it.

    `by_form` has the first stage of each form; it grows with the plans that are made of this one,
    and has forms of theirs.  The plan is `distinct` when no two stages have one.
    Operations that were made of one another are told apart by looking at the stage, and one that
    was not made yet (`following`) is none that anybody asks for.
    """

    __slots__ = ("_by_name", "_stages", "by_form", "distinct")

    def __init__(
        self,
        stages: tuple[StagePlan, ...] | Row,
        by_name: Mapping[str, int],
        by_form: dict[Form, str],
        distinct: bool,
    ) -> None:
        self._stages, self._by_name, self.by_form = stages, by_name, by_form
        self.distinct = distinct

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process has forms of its own."""
        return _numbers, (tuple(self._stages), self._by_name)

    def get(self, op: Operation) -> int | None:
        """The number of an operation; None when it is none of the plan."""
        number, stages = self._by_name.get(self.by_form.get(form(op), "")), self._stages
        if number is None:
            return None
        if isinstance(stages, Row):
            return number if stages.computes(number, op) else None
        stage = stages[number]
        if stage.rewrite is None and stage.op is op:
            return number
        return None if self.distinct else next(self._all(op), None)

    def _all(self, op: Operation) -> Iterator[int]:
        return (number for number, stage in enumerate(self._stages) if stage.op is op)

    def __getitem__(self, op: Operation) -> int:
        number = self.get(op)
        if number is None:
            raise KeyError(op)
        return number

    def __contains__(self, op: Operation) -> bool:
        return self.get(op) is not None


def _numbers(stages: tuple[StagePlan, ...], by_name: Mapping[str, int]) -> Numbers:
    forms = [(form(model_op(stage)), stage.name) for stage in reversed(stages)]
    by_form = dict(forms)  # the first of each
    return Numbers(stages, by_name, by_form, len(by_form) == len(stages))


@dataclass(frozen=True, slots=True)
class Places:
    """The number of each stage, by its name and by its operation, their names, and the scans;
    `computed` when there are neither scans nor externs.
    """

    by_name: Mapping[str, int]
    by_op: Numbers
    names: tuple[str, ...]
    scans: tuple[int, ...]
    computed: bool


@once
def places(plan: Plan) -> Places:
    """Where the stages of a plan are."""
    ops = [model_op(stage) for stage in plan.stages]
    numbers, names = range(len(ops)), tuple([stage.name for stage in plan.stages])
    kinds = set(map(type, ops))
    by_name = dict(zip(names, numbers, strict=True))
    return Places(
        by_name,
        _numbers(plan.stages, by_name),
        names,
        tuple(n for n in numbers if isinstance(ops[n], ScanOp)) if ScanOp in kinds else (),
        kinds.isdisjoint((ScanOp, ExternOp)),
    )


def tell_places(before: Plan, after: Plan, changed: Sequence[StagePlan]) -> None:
    """Let `after` have the places that follow from those of `before`: it has the stages `changed`
    besides or in place of those of their names, and otherwise what has followed of the same."""
    old = places(before)
    gone = [before.stage_at(old.by_name[s.name]) for s in changed if s.name in old.by_name]
    plain = all(type(model_op(stage)) is ComputeOp for stage in (*gone, *changed))
    if not (plain and old.computed and old.by_op.distinct):
        return
    if after.row is not None:
        by_name, by_form = after.row.by_name, after.row.by_form
        names = old.names if by_name is old.by_name else tuple(by_name)
        numbers = Numbers(after.row, by_name, by_form, True)
        tell(places, after, Places(by_name, numbers, names, (), True))
        _tell_since(before, after, changed)
        return
    new = {form(stage.op): stage.name for stage in changed}
    by_form = old.by_op.by_form
    by_name, names = old.by_name, old.names
    if len(gone) < len(changed):
        names = tuple(map(attrgetter("name"), after.stages))
        by_name = dict(zip(names, range(len(names)), strict=True))
    others = [by_form[own] for own, name in new.items() if by_form.get(own, name) != name]
    if len(new) < len(changed) or any(name in by_name for name in others):
        return
    if others:
        by_form = {**by_form, **new}
    else:
        by_form.update(new)
    numbers = Numbers(after.stages, by_name, by_form, True)
    tell(places, after, Places(by_name, numbers, names, (), True))
    _tell_since(before, after, changed)


def grown(
    plan: Plan, at: int, stage: StagePlan
) -> tuple[Mapping[str, int], dict[Form, str]] | None:
    """The places of the stages of a plan with one more, and the stages by their forms; None where
    forms do not tell them apart."""
    old, own = places(plan), form(stage.op)
    known = old.by_op.by_form
    plain = type(stage.op) is ComputeOp and old.computed and old.by_op.distinct
    if not plain or own in known:
        return None
    names = (*old.names[:at], stage.name, *old.names[at:])
    known[own] = stage.name
    return dict(zip(names, range(len(names)), strict=True)), known


@dataclass(frozen=True, slots=True)
class Since:
    """What a plan was made of: it has the stages `changed` besides or in place of those of their
    names, in one order, and otherwise the same or what only follows."""

    plan: Plan
    changed: frozenset[str]


@once
def since(plan: Plan) -> Since | None:
    """What a plan was made of within a call; None where that is not known."""
    return None


def _tell_since(before: Plan, after: Plan, changed: Sequence[StagePlan]) -> None:
    found = since(before) or Since(before, frozenset())
    names = found.changed.union([stage.name for stage in changed])
    tell(since, after, Since(found.plan, names))


@once
def output_names(plan: Plan) -> frozenset[str]:
    """The stages whose outputs the user asked for."""
    return frozenset([name for name, _ in results(plan)])


@once
def sized(plan: Plan) -> bool:
    """True when a shape in the plan is known only at the call."""
    return any(has_sizes(model_op(stage)) for stage in as_they_run(plan))


@once
def symbolic(plan: Plan) -> tuple[Expr, ...]:
    """The distinct extents in the plan that are no constants, in order of first occurrence."""
    ops = map(model_op, as_they_run(plan))
    return tuple(dict.fromkeys(extent for op in ops for extent in symbolic_extents(op)))


@once
def indexed_by_data(plan: Plan) -> bool:
    """True when an index in the plan reads a tensor."""
    return any(indexes_by_data(model_op(stage)) for stage in as_they_run(plan))


@once
def reader_names(plan: Plan) -> Mapping[str, tuple[str, ...]]:
    """The stages that read each stage of a plan that is read, inlined ones included, in plan
    order."""
    where, found = places(plan), dict[str, list[str]]()
    for stage in plan.stages:
        for op in operations_read(stage.op):
            if op in where.by_op:
                found.setdefault(where.names[where.by_op[op]], []).append(stage.name)
    return {name: tuple(names) for name, names in found.items()}


def readers_at(plan: Plan, op: Operation) -> list[int]:
    """The stages that read an operation, inlined ones included."""
    where = places(plan)
    number = where.by_op.get(op)
    if number is None:
        return [n for n, stage in enumerate(plan.stages) if op in operations_read(stage.op)]
    return [where.by_name[name] for name in reader_names(plan).get(where.names[number], ())]


@once
def start_places(plan: Plan) -> Mapping[Operation, tuple[int, ...]]:
    """The stages whose reductions start from each operation of a plan."""
    found: dict[Operation, list[int]] = {}
    for number, stage in enumerate(plan.stages):
        if not tensors_of_init(model_op(stage)):
            continue
        for op in dict.fromkeys([tensor.op for tensor in tensors_of_init(stage.op)]):
            found.setdefault(op, []).append(number)
    return {op: tuple(numbers) for op, numbers in found.items()}


@once
def axis_owners(plan: Plan) -> dict[Axis, str]:
    """The name of the first stage of whose definition each axis is; it grows with the plans that
    are made of this one, and has axes of theirs."""
    stages = reversed(as_they_run(plan))
    return {axis: stage.name for stage in stages for axis in stage.root_axes}


def as_they_run(plan: Plan) -> Sequence[StagePlan] | Parted:
    """The stages in plan order; what they read may be what it was before something was rebuilt."""
    return plan.stages if plan.row is None else plan.row.items


def in_plan_order(plan: Plan, names: Iterable[str]) -> list[StagePlan]:
    """The stages of these names."""
    return [plan.stage_at(n) for n in sorted(map(places(plan).by_name.__getitem__, names))]


def _grouped(plan: Plan, head: Callable[[StagePlan], str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for stage in as_they_run(plan):
        if head(stage):
            found.setdefault(head(stage), []).append(stage.name)
    return {name: tuple(names) for name, names in found.items()}


def host_of(stage: StagePlan) -> str:
    """The stage at a loop of which a stage is attached; empty without one."""
    return stage.placement.host


def led_by(stage: StagePlan) -> str:
    """The stage that a stage runs together with (compute_with); empty without one."""
    return stage.placement.leader


def is_online(stage: StagePlan) -> bool:
    """True for a stage that goes along with the reduction of another."""
    return stage.placement.mode is not None


@once
def guest_names(plan: Plan) -> Mapping[str, tuple[str, ...]]:
    """The stages attached at loops of each stage that has any, in plan order."""
    return _grouped(plan, host_of)


@once
def follower_names(plan: Plan) -> Mapping[str, tuple[str, ...]]:
    """The stages that run together with each stage that leads any (compute_with), in plan order."""
    return _grouped(plan, led_by)


@once
def online_names(plan: Plan) -> tuple[str, ...]:
    """The stages that go along with the reduction of another, in plan order."""
    return tuple([stage.name for stage in as_they_run(plan) if is_online(stage)])


@once
def inlined_names(plan: Plan) -> tuple[str, ...]:
    """The stages that are substituted into those that read them, in plan order."""
    return tuple([stage.name for stage in as_they_run(plan) if is_inlined(stage)])


class Substitution:
    """Stands for which stages are inlined, and keeps the operations with those substituted:
    `finished` by what they are in plans, and `origin` the other way round; the stages that finished
    ones read; and by way of which inlined ones an operation of a plan `needs` what others make."""

    def __init__(self) -> None:
        self.finished: dict[Operation, Operation] = {}
        self.origin: dict[Operation, Operation] = {}
        self.sources: dict[Operation, tuple[str, ...]] = {}
        self.needs: dict[Operation, tuple[str, ...]] = {}


@once
def substitution(plan: Plan) -> Substitution:
    """The same of plans made of one another, in which the same stages are inlined."""
    return Substitution()


def is_inlined(stage: StagePlan) -> bool:
    """True for a stage that is substituted into those that read it."""
    return stage.placement.inlined


@once
def special_names(plan: Plan) -> tuple[str, ...]:
    """The stages of which something was said that concerns others, in plan order: `is_special`."""
    return tuple([stage.name for stage in as_they_run(plan) if is_special(stage)])


@once
def is_special(stage: StagePlan) -> bool:
    """True for a stage that runs last or across programs, is stored elsewhere or by others, is
    combined atomically or where data say, or is tensorized."""
    return (
        bool(stage.placement.of or stage.placement.head)
        or stage.atomic
        or stage.scatters
        or stage.placement.program is not None
        or stage.placement.kept is not None
        or any(mark.tensorized is not None for mark in stage.marks.values())
    )


def special(plan: Plan) -> tuple[StagePlan, ...]:
    """The stages of which something was said that concerns others, in plan order."""
    return tuple(map(plan.stage, special_names(plan)))


class Sameness:
    """Stands for what plans have in common: is the same object where that is the same."""


def bearing(stage: StagePlan) -> object:
    """The same of all stages that `graph.reroute` made of one because what that read was rebuilt:
    of one name, form, place and loops, and reading stages of the same names in all plans."""
    return _own_bearing(stage) if stage.follows is None else stage.follows.bearing


@once
def _own_bearing(stage: StagePlan) -> Sameness:
    return Sameness()


@once
def substance(plan: Plan) -> Sameness:
    """The same of all plans with the same operations, of which the same are inlined."""
    return Sameness()


_OF_OPERATIONS = (
    places,
    output_names,
    reader_names,
    start_places,
    axis_owners,
    sized,
    symbolic,
    indexed_by_data,
)


_OF_STAGES = (
    *_OF_OPERATIONS,
    substance,
    substitution,
    inlined_names,
    guest_names,
    online_names,
    follower_names,
    special_names,
)


def same_stages(before: Plan, after: Plan) -> Plan:
    """`after`, which has the stages of `before`, with all that was found of those."""
    for find in _OF_STAGES:
        share(find, before, after)
    return after


def pass_on(before: Plan, after: Plan) -> None:
    """Let `after`, which a call made, take over what was found of the operations of `before`, if
    they are the same."""
    tell(since, after, None)
    share_operations(before, after)


def share_operations(before: Plan, after: Plan) -> bool:
    """Let `after` take over what was found of the operations of `before`, if they are the same;
    whether its lists of stages are known, too."""
    if places(before) is not places(after):
        return False
    for find in _OF_OPERATIONS:
        if not known(find, after):
            share(find, before, after)
    if not all(known(find, after) for find in (*_LISTS, *_GROUPS)):
        return False
    if inlined_names(before) == inlined_names(after) and not known(substitution, after):
        share(substitution, before, after)
    return True


def share_links(before: Plan, after: Plan, old: StagePlan, new: StagePlan) -> None:
    """Let `after`, which differs from `before` in that it has `new` for `old`, take over what is
    the same of both."""
    if new.op is old.op:
        for find in _OF_OPERATIONS:
            share(find, before, after)
        tell(start_places, after, start_places(before))
        if is_inlined(new) is is_inlined(old):
            share(substance, before, after)
    _tell_since(before, after, [new])
    if is_inlined(new) is is_inlined(old):
        share(substitution, before, after)
    carry_lists(before, after, [(old, new)], ())


def carry_lists(
    before: Plan,
    after: Plan,
    pairs: Iterable[tuple[StagePlan, StagePlan]],
    fresh: Iterable[StagePlan],
) -> None:
    """Let `after` have the lists of stages of `before`, from which it differs in stages of the same
    name, and in those that only it has."""
    where = places(after).by_name
    for find, belongs in _LISTS.items():
        if known(find, after):
            continue
        found = find(before)
        own = [(new.name, belongs(old), belongs(new)) for old, new in pairs]
        own += [(stage.name, False, belongs(stage)) for stage in fresh]
        for name, was, now in own:
            if was and not now:
                found = tuple([each for each in found if each != name])
            elif now and not was:
                found = tuple(sorted([*found, name], key=where.__getitem__))
        tell(find, after, found)
    for find, head in _GROUPS.items():
        if known(find, after):
            continue
        groups = find(before)
        own = [(new.name, head(old), head(new)) for old, new in pairs]
        own += [(stage.name, "", head(stage)) for stage in fresh]
        for name, was, now in own:
            if was == now:
                continue
            groups = dict(groups)
            left = tuple([each for each in groups.pop(was, ()) if each != name])
            groups |= {was: left} if left else {}
            if now:
                groups[now] = tuple(sorted([*groups.get(now, ()), name], key=where.__getitem__))
        tell(find, after, groups)


_LISTS = {inlined_names: is_inlined, online_names: is_online, special_names: is_special}
_GROUPS = {guest_names: host_of, follower_names: led_by}
