"""Who reads whom, which stage is where and what is attached to it: maps derived from a plan once.

A plan that differs from another in the loops of one stage takes these maps over
(`Plan.with_stage`), so that a question after a call costs what its answer does and not a walk over
all stages.  Stages are numbered in the order of the plan.  Imports `expr`; the plan imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from tedsl.expr.integers import constant
from tedsl.expr.nodes import Axis, Expr, Reduce, Var
from tedsl.expr.tensor import ComputeOp, ExternOp, Operation, ScanOp, Tensor
from tedsl.expr.visit import reads, walk
from tedsl.once import known, once, share, tell

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


@dataclass(frozen=True, slots=True)
class Places:
    """The number of each stage, by its name and by its operation, their names, the operations
    whose outputs the user asked for, and the scans; `computed` when there are neither scans nor
    externs.
    """

    by_name: Mapping[str, int]
    by_op: Mapping[Operation, int]
    names: tuple[str, ...]
    outputs: frozenset[Operation]
    scans: tuple[int, ...]
    computed: bool


@once
def places(plan: Plan) -> Places:
    """Where the stages of a plan are."""
    ops = [stage.op for stage in plan.stages]
    numbers, names = range(len(ops)), tuple([stage.name for stage in plan.stages])
    kinds = set(map(type, ops))
    return Places(
        dict(zip(names, numbers, strict=True)),
        dict(zip(reversed(ops), reversed(numbers), strict=True)),  # the first of each
        names,
        frozenset(tensor.op for tensor in plan.outputs),
        tuple(n for n in numbers if isinstance(ops[n], ScanOp)) if ScanOp in kinds else (),
        kinds.isdisjoint((ScanOp, ExternOp)),
    )


@once
def sized(plan: Plan) -> bool:
    """True when a shape in the plan is known only at the call."""
    return any(has_sizes(stage.op) for stage in plan.stages)


@once
def symbolic(plan: Plan) -> tuple[Expr, ...]:
    """The distinct extents in the plan that are no constants, in order of first occurrence."""
    return tuple(dict.fromkeys(e for stage in plan.stages for e in symbolic_extents(stage.op)))


@once
def indexed_by_data(plan: Plan) -> bool:
    """True when an index in the plan reads a tensor."""
    return any(indexes_by_data(stage.op) for stage in plan.stages)


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
        if stage.attach.stage:
            found.setdefault(stage.attach.stage, []).append(number)
    return {name: tuple(numbers) for name, numbers in found.items()}


@once
def follower_places(plan: Plan) -> Mapping[str, tuple[int, ...]]:
    """The stages that run together with each stage that leads any (compute_with)."""
    found: dict[str, list[int]] = {}
    for number, stage in enumerate(plan.stages):
        if stage.join is not None:
            found.setdefault(stage.join.stage, []).append(number)
    return {name: tuple(numbers) for name, numbers in found.items()}


@once
def online_places(plan: Plan) -> tuple[int, ...]:
    """The stages that go along with the reduction of another."""
    return tuple(number for number, stage in enumerate(plan.stages) if stage.attach.online)


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
    return stage.attach.kind == "inline"


@once
def special_places(plan: Plan) -> tuple[int, ...]:
    """The stages of which something was said that concerns others: see `is_special`."""
    return tuple(number for number, stage in enumerate(plan.stages) if is_special(stage))


@once
def is_special(stage: StagePlan) -> bool:
    """True for a stage that runs last or across programs, is stored elsewhere or by others, is
    combined atomically, or is tensorized."""
    return (
        bool(stage.last_of)
        or stage.atomic
        or stage.across is not None
        or stage.kept is not None
        or stage.pieces is not None
        or any(mark.tensorized is not None for mark in stage.marks.values())
    )


def special(plan: Plan) -> tuple[StagePlan, ...]:
    """The stages of which something was said that concerns others, in plan order."""
    return tuple(plan.stages[number] for number in special_places(plan))


class Sameness:
    """Stands for what plans have in common: is the same object where that is the same."""


@once
def bearing(stage: StagePlan) -> Sameness:
    """The same of all stages that `graph.reroute` made of one because what that read was rebuilt:
    of one name, form, place and loops, and reading stages of the same names in all plans."""
    return Sameness()


def share_bearing(old: StagePlan, new: StagePlan) -> None:
    """Let `new` be of the same bearing as `old`, and take over what follows of that."""
    tell(bearing, new, bearing(old))


@once
def substance(plan: Plan) -> Sameness:
    """The same of all plans with the same operations, of which the same are inlined."""
    return Sameness()


_OF_OPERATIONS = (
    places,
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
    """Let `after` take over what was found of the operations of `before`, if they are the same."""
    if places(before) is places(after):
        for find in _OF_OPERATIONS:
            share(find, before, after)


def share_links(before: Plan, after: Plan, old: StagePlan, new: StagePlan) -> None:
    """Let `after`, which differs from `before` in that it has `new` for `old`, take over what is
    the same of both."""
    if new.op is old.op:
        for find in _OF_OPERATIONS:
            share(find, before, after)
        if is_inlined(new) is is_inlined(old):
            share(substance, before, after)
    if is_inlined(new) is is_inlined(old):
        share(inlined_places, before, after)
        share(substitution, before, after)
    if new.attach.stage == old.attach.stage:
        share(guest_places, before, after)
    elif known(guest_places, before):
        number, groups = places(before).by_name[new.name], dict(guest_places(before))
        left = tuple([n for n in groups.pop(old.attach.stage, ()) if n != number])
        groups |= {old.attach.stage: left} if left else {}
        if new.attach.stage:
            joined = (*groups.get(new.attach.stage, ()), number)
            groups[new.attach.stage] = tuple(sorted(joined))
        tell(guest_places, after, groups)
    if new.attach.online is old.attach.online:
        share(online_places, before, after)
    if new.join is old.join:
        share(follower_places, before, after)
    elif old.join is None and new.join is not None and known(follower_places, before):
        number, leader = places(before).by_name[new.name], new.join.stage
        groups = dict(follower_places(before))
        groups[leader] = tuple(sorted((*groups.get(leader, ()), number)))
        tell(follower_places, after, groups)
    if is_special(new) is is_special(old):
        share(special_places, before, after)
