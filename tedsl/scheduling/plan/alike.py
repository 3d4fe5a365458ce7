"""Parts of plans that are one but for names: what is decided of one holds of the other.

A graph of equal layers asks the same of each of them.  The form of a part says what its stages
compute, from what, for whom and how they run, without a name.  Imports the plan and the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tedsl.expr.nodes import Axis
from tedsl.ir.tokens import Tokens, field_names
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.links import (
    follower_names,
    guest_names,
    in_plan_order,
    operations_read,
    output_names,
    places,
    readers_at,
)
from tedsl.scheduling.plan.placement import Partitioned, Placement
from tedsl.tensor.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, ScanOp, Tensor


def form_of_part(
    plan: Plan, names: Iterable[str], told: Collection[str] = ()
) -> tuple[str, ...] | None:
    """What is equal for parts of plans that are one but for names.

    Args:
        plan: of the part.
        names: stages of it.  What they read, what reads them, and what these run together with
            belong to it.
        told: stages of which more is known than the plan says.

    Returns:
        The form; None for a part with a scan or an extern, which others belong to.
    """
    order = tuple(names)
    part = in_plan_order(plan, _surroundings(plan, order))  # each after what it reads
    if any(isinstance(stage.op, (ScanOp, ExternOp)) for stage in part):
        return None
    write = _Nameless(part)
    write(plan.assumptions)
    for stage in part:
        own = stage.name
        readers = [plan.stage_at(number).name for number in readers_at(plan, stage.op)]
        write(stage)
        write(tuple(sorted(map(write.number, readers))))
        write((own in output_names(plan), own in told))
    write(tuple(map(write.number, order)))
    return tuple(write.tokens)


def _surroundings(plan: Plan, names: Sequence[str]) -> set[str]:
    """The stages of these names, those that they read and that read them, inlined ones passed, and
    all that these run with."""
    found, where = set(names), places(plan)
    for around in (_sources, _readers):
        waiting = list(names)
        while waiting:
            near = around(plan, plan.stage(waiting.pop()).op)
            waiting += [n for n in near if n not in found and plan.stage(n).placement.inlined]
            found.update(near)
    waiting = list(found)
    while waiting:
        stage = plan.stage(waiting.pop())
        place = stage.placement
        pieces = (place.head, place.tail) if isinstance(place, Partitioned) else ()
        ahead = (place.host, place.leader, place.of, *pieces)
        near = {each for each in ahead if each in where.by_name}
        near.update(guest_names(plan).get(stage.name, ()), follower_names(plan).get(stage.name, ()))
        waiting += near - found
        found |= near
    return found


def _sources(plan: Plan, op: Operation) -> list[str]:
    return [plan.stage_of(source).name for source in operations_read(op)]


def _readers(plan: Plan, op: Operation) -> list[str]:
    return [plan.stage_at(number).name for number in readers_at(plan, op)]


class _Nameless(Tokens):
    """Writes stages of a part with their names numbered, and of what they read outside of it no
    more than its shape."""

    def __init__(self, part: Sequence[StagePlan]) -> None:
        super().__init__()
        self._names = {stage.name: place for place, stage in enumerate(part)}
        self._ops: dict[Operation, int] = {stage.op: n for n, stage in enumerate(part)}

    def number(self, name: str) -> int:
        """The place of a stage in the part; that of one outside is none."""
        return self._names.get(name, -1)

    def parts(self, node: object) -> Sequence[object]:
        """What is written of a dataclass."""
        match node:
            case Tensor(op=op, index=index):
                known = self._ops.get(op)
                if known is not None:
                    return (known, index)
                return (isinstance(op, PlaceholderOp), node.shape, node.dtype)
            case ComputeOp():
                return (node.axes, node.reduce_axes, node.bodies, node.shape, node.tag)
            case PlaceholderOp():
                return (node.shape, node.dtype)
            case StagePlan():
                return [getattr(node, name) for name in field_names(StagePlan)[1:]]
            case Axis():
                return [getattr(node, name) for name in field_names(Axis)[1:]]
            case _ if isinstance(node, Placement):
                values = [getattr(node, name) for name in field_names(type(node))]
                return [self.number(v) if isinstance(v, str) and v else v for v in values]
            case _:
                return super().parts(node)
