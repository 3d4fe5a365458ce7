"""Refuse a scan whose steps read rows that are not there: before the first, or not computed yet.

Every way from an update to a read is followed, with the axes on it replaced by what they are read
at, so a state may be read at any depth of the body.  Imports `index` through `bounds_check`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.index_arith import at
from tedsl.expr.nodes import Axis, AxisKind, Const, Expr, TensorRead, Var
from tedsl.expr.printer import print_expr
from tedsl.expr.visit import substitute, variables
from tedsl.index.evaluate import EvaluationError, evaluate_int
from tedsl.index.facts import Facts
from tedsl.index.prove import counterexample, prove
from tedsl.tensor.bounds_check import (
    Access,
    accesses,
    conditions_of,
    facts_of_sizes,
    is_known,
    sizes_of,
    unfinished,
)
from tedsl.tensor.scan_body import body_of
from tedsl.tensor.tensor import ComputeOp, Operation, ScanOp

MAX_WAYS = 2000
"""How many different ways from updates to reads are followed."""


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to an operation of the body: what its axes are there, over those of the update."""

    op: ComputeOp
    axes: Mapping[Expr, Expr]
    step: Axis
    facts: Facts


def check_steps(scan: ScanOp) -> None:
    """Refuse `scan` when a step reads a row that is not there, or may do so.

    Raises:
        ExprError: with the step at which it happens.
    """
    body = frozenset(body_of(scan))
    sizes = sizes_of(*scan.bodies, *(b for op in body for b in op.bodies))
    sizes |= {each for each in variables(*scan.shape, scan.first) if isinstance(each, Var)}
    states = frozenset(scan.states)
    seen: set[tuple[object, ...]] = set()
    waiting = list(_starts(scan, facts_of_sizes(sizes)))
    while waiting:
        way = waiting.pop()
        for access in _reached(way):
            if access.read.tensor in states:
                _check_state(scan, way, access, sizes)
            elif unfinished(way.op) is not None:
                _check_inside(scan, way, access, sizes)
            source = access.read.tensor.op
            if source not in body or not isinstance(source, ComputeOp) or access.dimension:
                continue
            onward = _onward(way, access, source)
            key = _key(onward)
            if key in seen:
                continue
            seen.add(key)
            waiting.append(onward)
            if len(seen) > MAX_WAYS:
                raise ExprError(
                    f"the state of scan {scan.name!r} is read in more than {MAX_WAYS} ways",
                    hint="read each compute of the body at fewer places",
                )


def _starts(scan: ScanOp, facts: Facts) -> Iterator[_Way]:
    """The updates, at the steps that are computed."""
    begin, end = scan.first, scan.shape[0]
    for update in scan.updates:
        op = update.op
        if isinstance(op, ComputeOp):
            step = op.axes[0]
            known = facts.with_axis(step, begin, build.sub(end, begin))
            yield _Way(op, {}, step, known.assume(build.lt(begin, end)))


def _reached(way: _Way) -> Iterator[Access]:
    """Every read of the operation, over the axes of the update, with what is known there.

    Reductions get axes of their own: one of them may be met twice on a way.
    """
    fresh: dict[Expr, Expr] = dict(way.axes)
    for axis in way.op.reduce_axes:
        fresh[axis] = Axis(axis.name, axis.kind, axis.domain, axis.dtype)
    yield from accesses([substitute(body, fresh) for body in way.op.bodies], way.facts)


def _onward(way: _Way, access: Access, source: ComputeOp) -> _Way:
    """Into a compute of the body, without the guards so far: a step computes it before its reader
    and for all that the reader may ask for."""
    return _Way(source, at(source.axes, access.read.indices), way.step, way.facts)


def _key(way: _Way) -> tuple[object, ...]:
    """Equal for ways between which no check can differ: reduction axes count by their domain."""
    order: dict[Axis, int] = {}

    def naming(thing: Axis | Var | Operation) -> str:
        if isinstance(thing, Axis) and thing.kind is AxisKind.REDUCE and thing.domain is not None:
            number = order.setdefault(thing, len(order))
            return f"{number}:{thing.domain.min}:{thing.domain.extent}"
        return f"{thing.name}#{id(thing)}"

    texts = [print_expr(e, naming) for e in way.axes.values()]
    return (way.op, way.step, *texts)


def _check_state(scan: ScanOp, way: _Way, access: Access, sizes: set[Var]) -> None:
    """The row of a state is one of those computed before this step."""
    if access.dimension:
        return
    row = access.read.indices[0]
    there, earlier = build.ge(row, 0), build.lt(row, way.step)
    for condition in (there, earlier):
        if prove(condition, access.facts):
            continue
        known = is_known((condition, *access.guards), sizes)
        point = counterexample(condition, access.facts) if known else None
        if point is not None:
            raise _refused(scan, way, access, point, before=condition is there)
        if condition is earlier or not known:
            raise ExprError(
                f"{_text(way, access.read)} cannot be proved to be a row before {way.step.name}",
                subject=f"scan {scan.name}",
                hint=f"read the state at {way.step.name} - 1 or another fixed distance, or guard "
                "the read with te.if_then_else",
            )


def _check_inside(scan: ScanOp, way: _Way, access: Access, sizes: set[Var]) -> None:
    """What was left open when the compute was defined: the read is inside at every step."""
    for condition in conditions_of(access):
        if prove(condition, access.facts) or not is_known((condition, *access.guards), sizes):
            continue
        point = counterexample(condition, access.facts)
        if point is not None:
            raise _refused(scan, way, access, point, before=True)


def _text(way: _Way, read: TensorRead) -> str:
    """The read over the update's axes, and the compute of the body that it stands in."""
    return f"{read} (in {way.op.name})" if way.axes else f"{read}"


def _refused(
    scan: ScanOp, way: _Way, access: Access, point: dict[Axis | Var, int], *, before: bool
) -> ExprError:
    read = access.read
    tensor = read.tensor
    place = ", ".join(f"{each.name} = {value}" for each, value in point.items())
    row = _row(read.indices[access.dimension], point)
    words = [row, *map(str, read.indices[1:])] if access.dimension == 0 else [row]
    where = f"{place or 'every step'} reads {tensor.name}[{', '.join(words)}]"
    if not before:
        return ExprError(
            f"{_text(way, read)} is not computed yet: {where}, and the steps before have only "
            f"computed the rows before {way.step.name}",
            subject=f"scan {scan.name}",
            hint=f"read an earlier row, such as {tensor.name}[{way.step.name} - 1]",
        )
    if not any(tensor is state for state in scan.states):
        return ExprError(
            f"{_text(way, read)} is outside {tensor.name}: {where}",
            subject=f"scan {scan.name}",
            hint="change the index, or guard the read with te.if_then_else",
        )
    first = scan.first
    rows = f"{print_expr(first)} row{'' if isinstance(first, Const) and first.value == 1 else 's'}"
    return ExprError(
        f"{_text(way, read)} is before the first row: {where}, and init gives {rows}",
        subject=f"scan {scan.name}",
        facts=[("steps", f"{way.step.name} from {print_expr(first)} on")],
        hint="give init as many rows as the updates look back, or guard the read with "
        "te.if_then_else",
    )


def _row(index: Expr, point: dict[Axis | Var, int]) -> str:
    try:
        return str(evaluate_int(index, dict(point)))
    except EvaluationError:
        return str(index)
