"""Who reads whom, which stage is where and what is attached to it: maps derived from a plan once.

A plan that differs from another in the loops of one stage takes these maps over
(`Plan.with_stage`), so that a question after a call costs what its answer does and not a walk over
all stages.  Stages are numbered in the order of the plan.  Imports `expr`; the plan imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from tedsl.expr.index_arith import constant
from tedsl.expr.nodes import Axis, Expr, Reduce, Var
from tedsl.expr.visit import reads, walk
from tedsl.once import known, once, share, tell
from tedsl.scheduling.plan.following import model_op, results
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

    Operations that were made of one another are told apart by looking at the stage, and one that
    was not made yet (`following`) is none that anybody asks for.
    """

    __slots__ = ("_by_name", "_stages", "by_form")

    def __init__(
        self,
        stages: tuple[StagePlan, ...],
        by_name: Mapping[str, int],
        by_form: Mapping[Form, str],
    ) -> None:
        self._stages, self._by_name, self.by_form = stages, by_name, by_form

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process has forms of its own."""
        return _numbers, (self._stages, self._by_name)

    @property
    def distinct(self) -> bool:
        """True when no operations were made of one another."""
        return len(self.by_form) == len(self._stages)

    def get(self, op: Operation) -> int | None:
        """The number of an operation; None when it is none of the plan."""
        name = self.by_form.get(form(op))
        if name is None:
            return None
        number = self._by_name[name]
        stage = self._stages[number]
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
    return Numbers(stages, by_name, dict(forms))  # the first of each


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
    gone = [before.stages[old.by_name[s.name]] for s in changed if s.name in old.by_name]
    plain = all(type(model_op(stage)) is ComputeOp for stage in (*gone, *changed))
    if not (plain and old.computed and old.by_op.distinct):
        return
    by_form = dict(old.by_op.by_form)
    for stage in gone:
        del by_form[form(model_op(stage))]
    by_form.update((form(stage.op), stage.name) for stage in changed)
    by_name, names = old.by_name, old.names
    if len(gone) < len(changed):
        names = tuple(map(attrgetter("name"), after.stages))
        by_name = dict(zip(names, range(len(names)), strict=True))
    if len(by_form) == len(names):
        numbers = Numbers(after.stages, by_name, by_form)
        tell(places, after, Places(by_name, numbers, names, (), True))
        _tell_since(before, after, changed)


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
    return any(has_sizes(model_op(stage)) for stage in plan.stages)


@once
def symbolic(plan: Plan) -> tuple[Expr, ...]:
    """The distinct extents in the plan that are no constants, in order of first occurrence."""
    ops = map(model_op, plan.stages)
    return tuple(dict.fromkeys(extent for op in ops for extent in symbolic_extents(op)))


@once
def indexed_by_data(plan: Plan) -> bool:
    """True when an index in the plan reads a tensor."""
    return any(indexes_by_data(model_op(stage)) for stage in plan.stages)


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
def axis_owners(plan: Plan) -> Mapping[Axis, str]:
    """The name of the first stage of whose definition each axis is."""
    return {axis: stage.name for stage in reversed(plan.stages) for axis in stage.root_axes}


@once
def guest_places(plan: Plan) -> Mapping[str, tuple[int, ...]]:
    """The stages attached at loops of each stage that has any."""
    found: dict[str, list[int]] = {}
    for number, stage in enumerate(plan.stages):
        if stage.placement.host:
            found.setdefault(stage.placement.host, []).append(number)
    return {name: tuple(numbers) for name, numbers in found.items()}


@once
def follower_places(plan: Plan) -> Mapping[str, tuple[int, ...]]:
    """The stages that run together with each stage that leads any (compute_with)."""
    found: dict[str, list[int]] = {}
    for number, stage in enumerate(plan.stages):
        if stage.placement.leader:
            found.setdefault(stage.placement.leader, []).append(number)
    return {name: tuple(numbers) for name, numbers in found.items()}


@once
def online_places(plan: Plan) -> tuple[int, ...]:
    """The stages that go along with the reduction of another."""
    return tuple(
        number for number, stage in enumerate(plan.stages) if stage.placement.mode is not None
    )


@once
def inlined_places(plan: Plan) -> tuple[int, ...]:
    """The stages that are substituted into those that read them."""
    return tuple([number for number, stage in enumerate(plan.stages) if is_inlined(stage)])


class Substitution:
    """Stands for which stages are inlined, and keeps the operations with those substituted:
    `finished` by what they are in plans, and `origin` the other way round; and the stages that
    finished ones read."""

    def __init__(self) -> None:
        self.finished: dict[Operation, Operation] = {}
        self.origin: dict[Operation, Operation] = {}
        self.sources: dict[Operation, tuple[str, ...]] = {}


@once
def substitution(plan: Plan) -> Substitution:
    """The same of plans made of one another, in which the same stages are inlined."""
    return Substitution()


def is_inlined(stage: StagePlan) -> bool:
    """True for a stage that is substituted into those that read it."""
    return stage.placement.inlined


@once
def special_places(plan: Plan) -> tuple[int, ...]:
    """The stages of which something was said that concerns others: see `is_special`."""
    return tuple(number for number, stage in enumerate(plan.stages) if is_special(stage))


@once
def is_special(stage: StagePlan) -> bool:
    """True for a stage that runs last or across programs, is stored elsewhere or by others, is
    combined atomically, or is tensorized."""
    return (
        bool(stage.placement.of or stage.placement.head)
        or stage.atomic
        or stage.placement.program is not None
        or stage.placement.kept is not None
        or any(mark.tensorized is not None for mark in stage.marks.values())
    )


def special(plan: Plan) -> tuple[StagePlan, ...]:
    """The stages of which something was said that concerns others, in plan order."""
    return tuple(plan.stages[number] for number in special_places(plan))


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
    inlined_places,
    guest_places,
    online_places,
    follower_places,
    special_places,
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
    if places(before) is places(after):
        for find in _OF_OPERATIONS:
            share(find, before, after)


def share_links(before: Plan, after: Plan, old: StagePlan, new: StagePlan) -> None:
    """Let `after`, which differs from `before` in that it has `new` for `old`, take over what is
    the same of both."""
    if new.op is old.op:
        for find in _OF_OPERATIONS:
            share(find, before, after)
        tell(start_places, after, start_places(before))
        if is_inlined(new) is is_inlined(old):
            share(substance, before, after)
    number = places(before).by_name[new.name]
    _tell_since(before, after, [new])
    if is_inlined(new) is is_inlined(old):
        share(substitution, before, after)
    _share_list(inlined_places, is_inlined, before, after, number)
    _share_list(special_places, is_special, before, after, number)
    if new.placement.host == old.placement.host:
        tell(guest_places, after, guest_places(before))
    else:
        groups = dict(guest_places(before))
        left = tuple([n for n in groups.pop(old.placement.host, ()) if n != number])
        groups |= {old.placement.host: left} if left else {}
        if new.placement.host:
            joined = (*groups.get(new.placement.host, ()), number)
            groups[new.placement.host] = tuple(sorted(joined))
        tell(guest_places, after, groups)
    if (new.placement.mode is None) is (old.placement.mode is None):
        tell(online_places, after, online_places(before))
    if new.placement.leader == old.placement.leader:
        tell(follower_places, after, follower_places(before))
    elif not old.placement.leader:
        leader = new.placement.leader
        groups = dict(follower_places(before))
        groups[leader] = tuple(sorted((*groups.get(leader, ()), number)))
        tell(follower_places, after, groups)


def _share_list(
    find: Callable[[Plan], tuple[int, ...]],
    belongs: Callable[[StagePlan], bool],
    before: Plan,
    after: Plan,
    number: int,
) -> None:
    """Let `after` have what `find` gives of `before`, with or without the stage that differs."""
    found = find(before)
    if belongs(after.stages[number]) is not belongs(before.stages[number]):
        rest = [n for n in found if n != number]
        found = tuple(sorted([*rest, number]) if len(rest) == len(found) else rest)
    tell(find, after, found)
