"""Who reads whom, which stage is where and what is attached to it: maps derived from a plan once.

A plan that differs from another in the loops of one stage takes these maps over
(`Plan.with_stage`), so that a question after a call costs what its answer does and not a walk over
all stages.  Stages are numbered in the order of the plan.  Imports `expr`; the plan imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tedsl.expr.nodes import Axis, Reduce, Var
from tedsl.expr.tensor import ComputeOp, ExternOp, Operation, ScanOp, Tensor
from tedsl.expr.visit import reads, walk
from tedsl.once import known, once, share, tell

if TYPE_CHECKING:
    from tedsl.scheduling.plan import Plan, StagePlan


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


def renamed(op: ComputeOp, tensors: Mapping[Tensor, Tensor]) -> ComputeOp:
    """The operation reading other tensors in place of the keys (see `ComputeOp.renamed`)."""
    own = {tensor: tensors[tensor] for tensor in tensors_read(op) if tensor in tensors}
    made = op.renamed(own, tensors_read(op))
    given = dict.fromkeys(own.get(tensor, tensor) for tensor in tensors_read(op))
    if len(given) == len(tensors_read(op)):
        tell(tensors_read, made, tuple(given))
        tell(tensors_of_init, made, tuple(own.get(t, t) for t in tensors_of_init(op)))
    share(has_sizes, op, made)
    return made


@once
def has_sizes(op: Operation) -> bool:
    """True when the shape of `op` is known only at the call."""
    return any(isinstance(node, Var) for extent in op.shape for node in walk(extent))


@dataclass(frozen=True, slots=True)
class Places:
    """The number of each stage, by its name and by its operation, the operations whose outputs the
    user asked for, and the scans; `sizes` when the shape of some stage is known only at the call,
    `computed` when there are neither scans nor externs.
    """

    by_name: Mapping[str, int]
    by_op: Mapping[Operation, int]
    outputs: frozenset[Operation]
    scans: tuple[int, ...]
    sizes: bool
    computed: bool


@once
def places(plan: Plan) -> Places:
    """Where the stages of a plan are."""
    by_op: dict[Operation, int] = {}
    for number, stage in enumerate(plan.stages):
        by_op.setdefault(stage.op, number)
    return Places(
        {stage.name: number for number, stage in enumerate(plan.stages)},
        by_op,
        frozenset(tensor.op for tensor in plan.outputs),
        tuple(n for n, stage in enumerate(plan.stages) if isinstance(stage.op, ScanOp)),
        any(has_sizes(stage.op) for stage in plan.stages),
        not any(isinstance(stage.op, (ScanOp, ExternOp)) for stage in plan.stages),
    )


@once
def reader_places(plan: Plan) -> Mapping[Operation, tuple[int, ...]]:
    """The stages that read each operation of a plan, inlined ones included."""
    return _read(plan, starts=False)


@once
def start_places(plan: Plan) -> Mapping[Operation, tuple[int, ...]]:
    """The stages whose reductions start from each operation of a plan."""
    return _read(plan, starts=True)


def _read(plan: Plan, *, starts: bool) -> dict[Operation, tuple[int, ...]]:
    found: dict[Operation, list[int]] = {}
    for number, stage in enumerate(plan.stages):
        tensors = tensors_of_init(stage.op) if starts else tensors_read(stage.op)
        for op in {tensor.op: None for tensor in tensors}:
            found.setdefault(op, []).append(number)
    return {op: tuple(numbers) for op, numbers in found.items()}


@once
def root_places(plan: Plan) -> Mapping[Axis, int]:
    """The first stage of whose definition each axis is."""
    found: dict[Axis, int] = {}
    for number, stage in enumerate(plan.stages):
        for axis in stage.root_axes:
            found.setdefault(axis, number)
    return found


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
def substance(plan: Plan) -> Sameness:
    """The same of all plans with the same operations, of which the same are inlined."""
    return Sameness()


_OF_OPERATIONS = (places, reader_places, start_places, root_places)


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
        if new.attach.kind is old.attach.kind or bool(new.attach.stage) or bool(old.attach.stage):
            share(substance, before, after)
    if new.attach.stage == old.attach.stage:
        share(guest_places, before, after)
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
