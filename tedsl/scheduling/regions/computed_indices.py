"""Places that are computed (`P[X[i]]`): the region of `P` is where `X` says, so `X` comes first.

The order of stages follows what their bodies read; what a region, a start or a condition of a loop
reads besides is found here, of the bounds.  Imports the plan and the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from tedsl.expr.nodes import Expr, IfThenElse, Reduce, TensorRead
from tedsl.expr.visit import reads
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.plan.links import guest_names, indexed_by_data
from tedsl.tensor.tensor import ComputeOp, Operation, Tensor

if TYPE_CHECKING:
    from tedsl.scheduling.regions.infer import Bounds, StageBounds

Needs = Mapping[str, tuple[TensorRead, ...]]
"""What the bounds of a stage read, by its name."""

NO_NEEDS: Needs = {}


def may_need(plan: Plan) -> bool:
    """True when a region in the plan may depend on a result: something is attached, and an index
    reads a tensor."""
    return bool(guest_names(plan)) and indexed_by_data(plan)


def needs_of(bounds: Bounds) -> Needs:
    """What the bounds of each stage read: where they lie, and the conditions of its loops."""
    found = {name: read_by(own) for name, own in bounds.stages.items()}
    return {name: read for name, read in found.items() if read}


def read_by(bounds: StageBounds) -> tuple[TensorRead, ...]:
    """The reads in the bounds of one stage."""
    boxes = (*bounds.region, *bounds.stored, *bounds.slices.values())
    values = (*bounds.extents.values(), *bounds.index.values(), *bounds.local.values())
    ends = (end for box in boxes for end in (box.min, box.extent))
    return reads(*values, *ends, *bounds.guards)


def tensors_needed(needs: Needs, name: str) -> tuple[Tensor, ...]:
    """The tensors that the bounds of a stage read."""
    return tuple(dict.fromkeys(read.tensor for read in needs.get(name, ())))


@lru_cache(maxsize=1024)
def always_read(op: Operation) -> frozenset[Expr]:
    """The reads of a definition that no condition in it guards."""
    if not isinstance(op, ComputeOp):
        return frozenset()
    seen: set[Expr] = set()
    stack: list[Expr] = list(op.bodies)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        match node:
            case IfThenElse(condition=condition):
                stack.append(condition)
            case Reduce(where=where) if where is not None:
                stack.append(where)
            case _:
                stack.extend(node.children())
    return frozenset(node for node in seen if isinstance(node, TensorRead))
