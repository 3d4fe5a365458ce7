"""The graph of operations under a plan: building it, who reads what, and rebuilding readers after a
rewrite.

Imports `expr` and the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tedsl.expr.nodes import Axis, AxisKind, Expr, Range, Reduce, TensorRead, Var
from tedsl.expr.visit import rewrite, variables
from tedsl.ir.nodes import Scope
from tedsl.late import late
from tedsl.scheduling.plan import At, Partitioned, Plan, StagePlan
from tedsl.scheduling.plan.differing import differing
from tedsl.scheduling.plan.following import (
    Model,
    Parted,
    Rewrite,
    Row,
    follower,
    has_outputs,
    model_of,
    results,
)
from tedsl.scheduling.plan.labels import labels, owner, unique_name
from tedsl.scheduling.plan.links import (
    form,
    grown,
    operations_read,
    output_names,
    places,
    readers_at,
    renamed,
    same_stages,
    special,
    start_places,
    tell_places,
    tensors_of_finish,
    tensors_read,
)
from tedsl.tensor.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, ScanOp, Tensor

if TYPE_CHECKING:
    from tedsl.tensor import bounds_check, scan_body
else:
    bounds_check = late("tedsl.tensor.bounds_check")
    scan_body = late("tedsl.tensor.scan_body")


def is_reduction(op: Operation) -> bool:
    """True when the bodies of `op` are reductions."""
    return isinstance(op, ComputeOp) and isinstance(op.bodies[0], Reduce)


def producers_first(outputs: tuple[Tensor, ...]) -> tuple[Operation, ...]:
    """All operations under `outputs`, each after those it reads; the order depends only on the
    graph.
    """
    order: dict[Operation, None] = {}
    for tensor in outputs:
        stack: list[tuple[Operation, bool]] = [(tensor.op, False)]
        while stack:
            op, finished = stack.pop()
            if op in order:
                continue
            if finished:
                order[op] = None
                continue
            stack.append((op, True))
            stack.extend((read.op, False) for read in reversed(tensors_read(op)))
    return tuple(order)


def initial_plan(outputs: tuple[Tensor, ...]) -> Plan:
    """Every operation at root, loops as in the definition; the steps of a scan inside its loop."""
    stages: list[StagePlan] = []
    taken: set[str] = set()
    ops = producers_first(outputs)
    steps = scan_body.within_scans(ops)
    bounds_check.check_complete(op for op in ops if op not in steps)
    for op in ops:
        if not isinstance(op, (ComputeOp, PlaceholderOp, ExternOp)):
            continue
        name = unique_name(op.name, taken)
        taken.add(name)
        stages.append(fresh_stage(name, op))
    scans = {stage.op: stage for stage in stages if isinstance(stage.op, ScanOp)}
    return Plan(tuple(_in_steps(stage, steps, scans) for stage in stages), outputs)


def _in_steps(
    stage: StagePlan, steps: Mapping[Operation, ScanOp], scans: Mapping[ScanOp, StagePlan]
) -> StagePlan:
    """The stage at the steps of its scan, if it belongs to one."""
    scan = steps.get(stage.op)
    if scan is None or not isinstance(stage.op, ComputeOp):
        return stage
    place = At(scans[scan].name, scan.scan_axis)
    return replace(stage, placement=place, scope=Scope.LOCAL)


def data_axis_like(axis: Axis) -> Axis:
    """A data axis for another definition, of the name and the domain of one."""
    domain = axis.domain
    return Axis(axis.name, AxisKind.DATA, domain and Range(domain.min, domain.extent), axis.dtype)


def fresh_stage(name: str, op: ComputeOp | PlaceholderOp | ExternOp) -> StagePlan:
    """A stage at root with the loops of its definition."""
    stage = StagePlan(name, op)
    return replace(stage, leaf_axes=stage.root_axes)


def defined_anew(stage: StagePlan, op: ComputeOp) -> StagePlan:
    """A stage with the loops of another definition of it, whose results are where they were."""
    return replace(fresh_stage(stage.name, op), scope=stage.scope, array=stage.array)


def producers_before(plan: Plan, name: str) -> Plan:
    """The plan in which the stage `name` comes as early as it can: all that it does not depend on
    follows it."""
    needed: set[Operation] = {plan.stage(name).op}
    for stage in reversed(plan.stages):
        if stage.op in needed:
            needed.update(tensor.op for tensor in tensors_read(stage.op))
    first = [stage for stage in plan.stages if stage.op in needed]
    rest = [stage for stage in plan.stages if stage.op not in needed]
    return replace(plan, stages=(*first, *rest))


def readers(plan: Plan, op: Operation) -> tuple[StagePlan, ...]:
    """The stages that read an output of `op`, in plan order."""
    return tuple(map(plan.stage_at, readers_at(plan, op)))


def loop_readers(plan: Plan, op: Operation, *, starts: bool = False) -> tuple[StagePlan, ...]:
    """The stages in whose loops `op` is read: readers, with an inlined reader replaced by its own.

    With `starts` only those count in which it is read to start a reduction.
    """
    found: set[int] = set()
    inlined: dict[Operation, None] = {op: None}
    waiting = [op]
    while waiting:
        source = waiting.pop()
        through = readers_at(plan, source)
        direct = start_places(plan).get(source, ()) if starts else through
        for number in through:
            stage = plan.stage_at(number)
            if stage.placement.inlined and stage.op not in inlined:
                inlined[stage.op] = None
                waiting.append(stage.op)
        for number in direct:
            if not plan.stage_at(number).placement.inlined:
                found.add(number)
    return tuple(map(plan.stage_at, sorted(found)))


def finish_readers(plan: Plan, op: Operation) -> tuple[StagePlan, ...]:
    """The stages that read `op` when all is folded, in the `finish` of a reduction: themselves, or
    what is inlined there."""
    return tuple(
        stage
        for stage in loop_readers(plan, op)
        if op in _through_inlined(plan, [tensor.op for tensor in tensors_of_finish(stage.op)])
    )


def _through_inlined(plan: Plan, ops: Sequence[Operation]) -> set[Operation]:
    """The operations `ops`, and those that are read where they are inlined."""
    found, waiting = set(ops), list(ops)
    while waiting:
        op = waiting.pop()
        if plan.stage_of(op).placement.inlined:
            fresh = set(operations_read(op)) - found
            found |= fresh
            waiting += fresh
    return found


def path_between(plan: Plan, start: StagePlan, end: StagePlan) -> tuple[str, ...]:
    """Names of stages from `start` to `end`, each read by the next; empty when there is no way."""
    readers: Mapping[Operation, list[StagePlan]] = {stage.op: [] for stage in plan.stages}
    for stage in plan.stages:
        for op in dict.fromkeys(tensor.op for tensor in tensors_read(stage.op)):
            readers[op].append(stage)
    waiting: list[tuple[StagePlan, tuple[str, ...]]] = [(start, (start.name,))]
    seen = {start.name}
    while waiting:
        stage, path = waiting.pop(0)
        for reader in readers[stage.op]:
            if reader.name == end.name:
                return (*path, reader.name)
            if reader.name not in seen:
                seen.add(reader.name)
                waiting.append((reader, (*path, reader.name)))
    return ()


def is_output(plan: Plan, op: Operation) -> bool:
    """True when the user asked for an output of `op`."""
    where = places(plan)
    number = where.by_op.get(op)
    return number is not None and where.names[number] in output_names(plan)


def extern_readers(plan: Plan, op: Operation) -> tuple[StagePlan, ...]:
    """The externs that read an output of `op`, whole and from memory."""
    return tuple(stage for stage in readers(plan, op) if isinstance(stage.op, ExternOp))


def whole_of(plan: Plan, name: str) -> StagePlan | None:
    """The stage of whose result the stage `name` stores a piece (divide)."""
    for stage in special(plan):
        parts = stage.placement
        if isinstance(parts, Partitioned) and name in (parts.head, parts.tail):
            return stage
    return None


def insert_before(plan: Plan, name: str, stage: StagePlan) -> Plan:
    """The plan with `stage` just before the one called `name`."""
    return _inserted(plan, places(plan).by_name[name], stage)


def insert_after(plan: Plan, name: str, stage: StagePlan) -> Plan:
    """The plan with `stage` just after the one called `name`."""
    return _inserted(plan, places(plan).by_name[name] + 1, stage)


def _inserted(plan: Plan, at: int, stage: StagePlan) -> Plan:
    found = None if plan.row is None else grown(plan, at, stage)
    if plan.row is None or found is None:
        after = plan.with_stages((*plan.stages[:at], stage, *plan.stages[at:]))
    else:
        after = plan.with_results(plan.row.inserted(at, stage, *found), results(plan))
    tell_places(plan, after, [stage])
    return after


def reroute(
    plan: Plan, tensors: Mapping[Tensor, Tensor], only: frozenset[str] | None = None
) -> Plan:
    """Rebuild every operation that reads a key of `tensors` to read its value, and let all stages
    behind it follow.

    Axis objects stay the same, so splits and marks of the readers stay as they are.

    Args:
        plan: the plan; stages that make the new tensors are already in it.
        tensors: what to read instead of what.
        only: names of the stages to change; None for all.
    """
    after = None if only is None else _followed(plan, tensors, only)
    if after is not None:
        return after
    rewrite = _Reroute(plan, tensors, only)
    numbers = places(plan).by_name
    first = min((numbers[name] for name in only if name in numbers), default=0) if only else 0
    stages = (*plan.stages[:first], *map(rewrite.stage, plan.stages[first:]))
    found = rewrite.results()
    if found is not None:
        after = plan.with_results(stages, found)
        tell_places(plan, after, rewrite.direct)
        return after
    outputs = tuple(rewrite.given(plan.outputs, only is None).values())
    return replace(plan, stages=stages, outputs=outputs)


def _followed(plan: Plan, tensors: Mapping[Tensor, Tensor], only: frozenset[str]) -> Plan | None:
    """What `reroute` makes, without a look at what follows; None where that may not wait."""
    where, found = places(plan), _Reroute(plan, tensors, only).results()
    if found is None or not (where.computed and where.by_op.distinct):
        return None
    direct: list[StagePlan] = []
    for number in sorted(where.by_name[name] for name in only if name in where.by_name):
        stage = plan.stage_at(number)
        new = rebuilt(stage, tensors)
        if new is not stage:
            direct.append(new)
        if form(new.op) is not form(stage.op):
            return None
    first = min((where.by_name[stage.name] for stage in direct), default=len(where.names))
    row = plan.row or Row(Parted(plan.stages), {}, where.by_name, where.by_op.by_form)
    after = plan.with_results(row.followed(direct, where.names[first + 1 :]), found)
    tell_places(plan, after, direct)
    return after


def rewrite_reads(
    plan: Plan, changes: Mapping[Tensor, Callable[[int, tuple[Expr, ...]], Expr]]
) -> Plan:
    """Replace every read of a key of `changes` by what its value makes of the output's number and
    the indices, and rebuild all that follows from it.

    Axis objects stay the same, so splits and marks of the readers stay as they are.
    """
    current: dict[Tensor, Tensor] = {}

    def replaced(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead):
            return None
        change = changes.get(node.tensor)
        if change is not None:
            return change(node.tensor.index, node.indices)
        new = current.get(node.tensor)
        return None if new is None else TensorRead(new, node.indices)

    stages: list[StagePlan] = []
    for stage in plan.stages:
        op = stage.op
        if isinstance(op, ComputeOp) and any(
            tensor in changes or tensor in current for tensor in tensors_read(op)
        ):
            memo: dict[Expr, Expr] = {}
            bodies = tuple(rewrite(body, replaced, memo) for body in op.bodies)
            stage = replace(stage, op=replace(op, bodies=bodies))
            current.update(zip(op.outputs, stage.op.outputs, strict=True))
        elif isinstance(op, ExternOp):
            moved = op.reading(current)
            if moved is not op:
                stage = replace(stage, op=moved)
                current.update(zip(op.outputs, moved.outputs, strict=True))
        stages.append(stage)
    outputs = tuple(current.get(tensor, tensor) for tensor in plan.outputs)
    return replace(plan, stages=tuple(stages), outputs=outputs)


def rebuilt(stage: StagePlan, tensors: Mapping[Tensor, Tensor]) -> StagePlan:
    """The stage reading other tensors; the same object when it reads none of them."""
    op = stage.op
    if not tensors or tensors.keys().isdisjoint(tensors_read(op)):
        return stage
    if isinstance(op, ComputeOp):
        return stage.with_op(renamed(op, tensors))
    return stage.with_op(op.reading(tensors)) if isinstance(op, ExternOp) else stage


class _Reroute:
    """What becomes of the stages of a plan, one after the other, as some read other tensors."""

    def __init__(
        self, plan: Plan, tensors: Mapping[Tensor, Tensor], only: frozenset[str] | None
    ) -> None:
        self._plan, self._tensors, self._only = plan, tensors, only
        self._rewrite = Rewrite(plan)
        self._stale: dict[Tensor, str] = {}  # outputs of what was changed, and the stages
        self.direct: list[StagePlan] = []
        self._makers: dict[Rewrite | Row, frozenset[str]] = {}

    def stage(self, stage: StagePlan) -> StagePlan:
        """The stage after the rewrite; the same object when nothing of it changes."""
        direct = self._only is None or stage.name in self._only
        where, model, changed = stage.rewrite, stage.follows, self._rewrite.changed
        if where is None or model is None:
            read = tensors_read(stage.op)
            own = direct and not self._tensors.keys().isdisjoint(read)
            if not own and self._stale.keys().isdisjoint(read):
                return stage
            self._stale.update(dict.fromkeys(stage.op.outputs, stage.name))
            model = None if own else self._model(stage)
        else:
            own = direct and not model.names.isdisjoint(self._makers_in(where))
            if not own and changed.keys().isdisjoint(model.names):
                return stage
        if own or model is None:
            new = self._rebuilt(stage, direct)
            self.direct.append(new)
        else:
            new = follower(model, self._rewrite)
        changed[stage.name] = new
        return new

    def given(self, read: Iterable[Tensor], direct: bool) -> dict[Tensor, Tensor]:
        """What is read in place of tensors."""
        found: dict[Tensor, Tensor] = {}
        for tensor in read:
            name = self._stale.get(tensor)
            other = self._tensors.get(tensor, tensor) if direct else tensor
            found[tensor] = other if name is None else self._output(name, tensor.index)
        return found

    def results(self) -> tuple[tuple[str, int], ...] | None:
        """The outputs by the names of their stages; None when one of them is none of the plan."""
        if not has_outputs(self._plan):
            return results(self._plan)
        moved = self._tensors if self._only is None else dict[Tensor, Tensor]()
        tensors = [moved.get(tensor, tensor) for tensor in self._plan.outputs]
        where = places(self._plan)
        numbers = [(where.by_op.get(tensor.op), tensor.index) for tensor in tensors]
        found = tuple([(where.names[n], index) for n, index in numbers if n is not None])
        return found if len(found) == len(numbers) else None

    def _rebuilt(self, stage: StagePlan, direct: bool) -> StagePlan:
        where, model = stage.rewrite, stage.follows
        read = tensors_read(stage.op)
        if where is not None and model is not None:
            names = [name for _, name in model.reads]
            changed = self._rewrite.changed
            self._stale.update((t, n) for t, n in zip(read, names, strict=True) if n in changed)
        return rebuilt(stage, self.given(read, direct))

    def _output(self, name: str, index: int) -> Tensor:
        return self._rewrite.changed[name].op.outputs[index]

    def _model(self, stage: StagePlan) -> Model | None:
        """What the stage is to what follows it; None where that has to be made at once."""
        op, where = stage.op, places(self._plan)
        if not isinstance(op, ComputeOp):
            return None
        numbers = [where.by_op.get(tensor.op) for tensor in tensors_read(op)]
        names = tuple([where.names[number] for number in numbers if number is not None])
        if len(names) < len(numbers):
            return None
        return model_of(stage, op, names)

    def _makers_in(self, where: Rewrite | Row) -> frozenset[str]:
        """The stages that make what is replaced, as those saw them that followed in a rewrite."""
        if where not in self._makers:
            ops = {tensor.op for tensor in self._tensors}
            if isinstance(where, Row):
                named = [(op, where.by_form.get(form(op))) for op in ops]
                found = {n for op, n in named if n and where.computes(where.by_name[n], op)}
                self._makers[where] = frozenset(found)
                return self._makers[where]
            made = ((n, s) for n, s in where.changed.items() if s.rewrite is None)
            found = {name for name, stage in made if stage.op in ops}
            known = places(where.plan)
            numbers = (known.by_op.get(op) for op in ops)
            found.update(known.names[n] for n in numbers if n is not None)
            self._makers[where] = frozenset(found)
        return self._makers[where]


def retiring(before: Plan, after: Plan, primitive: str) -> Plan:
    """`after` with a note of the axes that its stages no longer have."""
    if same_operations(before, after):
        return after
    gone: dict[Axis, tuple[str, str]] = {}
    for a, b in sorted(differing(before, after).pairs):
        old, new = before.stage_at(a), after.stage_at(b)
        if not _same_axes(old, new):
            left = labels(new)
            gone.update((axis, (old.name, primitive)) for axis in labels(old) if axis not in left)
    for axis in [axis for axis in gone if owner(after, axis) is not None]:
        del gone[axis]  # another stage took it over
    if not gone:
        return after
    return same_stages(after, replace(after, retired={**before.retired, **gone}))


def _same_axes(old: StagePlan, new: StagePlan) -> bool:
    """True when a stage has the axes that it had, as far as is plain."""
    return old.op is new.op or (
        old.relations is new.relations
        and isinstance(old.op, ComputeOp)
        and isinstance(new.op, ComputeOp)
        and old.op.axes is new.op.axes
        and old.op.reduce_axes is new.op.reduce_axes
    )


def same_operations(before: Plan, after: Plan) -> bool:
    """True when the stages compute the same operations, in one order."""
    if places(before) is places(after):
        return True
    if len(places(before).names) != len(places(after).names):
        return False
    found = differing(before, after)
    pairs = ((before.stage_at(a), after.stage_at(b)) for a, b in found.pairs)
    return found.in_order and not found.fresh and all(old.op is new.op for old, new in pairs)


def runtime_sizes(plan: Plan) -> dict[str, Var]:
    """Runtime scalars of the computation by name, in order of first occurrence."""
    found: dict[str, Var] = {}
    for stage in plan.stages:
        bodies = stage.op.bodies if isinstance(stage.op, ComputeOp) else ()
        domains = [a.domain.extent for a in stage.root_axes if a.domain is not None]
        for node in variables(*stage.op.extents, *domains, *bodies):
            if isinstance(node, Var):
                found.setdefault(node.name, node)
    return found
