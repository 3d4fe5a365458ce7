"""What belongs to the steps of a scan: the operations between its states and its updates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import reads
from tedsl.tensor.printer import operations
from tedsl.tensor.tensor import ComputeOp, Operation, ScanOp, Tensor


def dependents(updates: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[ComputeOp, ...]:
    """The operations under `updates` that depend on one of `states`, producers first."""
    return _moving(updates, {state.op for state in states}, set())


def _moving(
    updates: Sequence[Tensor], moving: set[Operation], also: set[Operation]
) -> tuple[ComputeOp, ...]:
    found: list[ComputeOp] = []
    for op in operations(tuple(updates)):
        if not isinstance(op, ComputeOp):
            continue
        if op in also or any(read.tensor.op in moving for read in reads(*op.bodies)):
            moving.add(op)
            found.append(op)
    return tuple(found)


@lru_cache(maxsize=256)
def body_of(op: ScanOp) -> tuple[ComputeOp, ...]:
    """The operations that each step of `op` computes, producers first: the updates, and what they
    need that depends on a state."""
    return _moving(op.updates, {state.op for state in op.states}, {u.op for u in op.updates})


def within_scans(ops: Iterable[Operation]) -> dict[Operation, ScanOp]:
    """The states and bodies of all scans among `ops`, each with its scan."""
    found: dict[Operation, ScanOp] = {}
    for op in ops:
        if isinstance(op, ScanOp):
            found.update((state.op, op) for state in op.states)
            found.update((inner, op) for inner in body_of(op))
    return found


@lru_cache(maxsize=256)
def step_axes(scan: ScanOp) -> Mapping[Operation, frozenset[Axis]]:
    """For each operation of the steps, its axes that have one value in a step: those of the
    updates, and what they index so."""
    steps: dict[Operation, frozenset[Axis]] = {}
    body = body_of(scan)
    updates = {update.op for update in scan.updates}
    for op in reversed(body):
        users = [(user, read) for user in body for read in reads(*user.bodies)]
        mine = [(user, read) for user, read in users if read.tensor.op is op]
        found = {
            axis
            for place, axis in enumerate(op.axes)
            if mine and all(read.indices[place] in steps[user] for user, read in mine)
        }
        if op in updates:
            first = {op.axes[0]}
            found = first if not mine else found & first
        steps[op] = frozenset(found)
    return steps
