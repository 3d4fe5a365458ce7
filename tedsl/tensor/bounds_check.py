"""Refuse reads that are provably outside their tensor, when an operation is defined.

Guards count: the conditions of `te.if_then_else` around a read and the `where=` of its reduction.
Sizes are taken to be at least 1, as nothing is read where one is 0.  What depends on values in
memory, or on runtime scalars that are no sizes, is unknown and accepted.

A read of an input at earlier rows only (`S[t - 1, i]` in a compute over `t, i`) may be that of a
scan's state, whose first rows are not computed.  It waits: `te.scan` decides it for the steps there
are, and whatever else uses the operation refuses it through `check_complete`.  Imports `index`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Const, Expr, IfThenElse, Reduce, TensorRead, Var
from tedsl.expr.visit import axes_of, reads, substitute, variables, walk
from tedsl.index.evaluate import evaluate_int
from tedsl.index.facts import Facts
from tedsl.index.prove import counterexample, equal, prove
from tedsl.tensor.tensor import ComputeOp, Operation, PlaceholderOp, Tensor


class Access(NamedTuple):
    """One index of a read, and what is known where it is evaluated."""

    read: TensorRead
    dimension: int
    facts: Facts
    guards: tuple[Expr, ...]


def check_reads(op: ComputeOp) -> None:
    """Refuse `op` when one of its reads is proved to be outside its tensor, unless it waits.

    Raises:
        ExprError: with a point of the axes at which it happens.
    """
    within_steps = False
    for access, low, error in _problems(op):
        if not low or access.dimension or not _looks_back(op, access.read):
            raise error
        within_steps = within_steps or _may_be_in_steps(op)
        if not within_steps:
            raise error


def guarded(
    name: str, axes: tuple[Axis, ...], bodies: tuple[Expr, ...]
) -> tuple[tuple[Expr, ...], list[ExprError]]:
    """Elements in which reads that are outside for some sizes only known at the call, or before the
    first row, give 0 there.

    Args:
        name: of the operation that they are to be.
        axes: its data axes.
        bodies: the elements.

    Returns:
        The elements, and what would have been said of them.
    """
    around = tuple(axis for node in walk(*bodies) if isinstance(node, Reduce) for axis in node.axes)
    extents = tuple(axis.domain.extent for axis in axes if axis.domain)
    op: Any = SimpleNamespace(
        name=name, axes=axes, reduce_axes=around, shape=extents, bodies=bodies
    )
    conditions: dict[Expr, Expr] = {}
    errors: list[ExprError] = []
    for access, low, error in _problems(op):
        read = access.read
        back = low and not access.dimension and _looks_back(op, read)
        if back and _may_be_in_steps(op):
            continue  # the scan decides
        if back or variables_in(read.tensor.shape[access.dimension], *extents):
            condition = conditions_of(access)[0 if low else 1]
            before = conditions.get(read)
            conditions[read] = condition if before is None else build.logical_and(before, condition)
            errors.append(error)
    zeros = {
        read: build.if_then_else(condition, read, build.const(0, read.dtype))
        for read, condition in conditions.items()
    }
    return tuple(substitute(body, zeros) for body in bodies), errors


def check_complete(ops: Iterable[Operation]) -> None:
    """Refuse operations outside of scans that read rows before the first.

    Raises:
        ExprError: as `check_reads`.
    """
    for op in ops:
        error = unfinished(op)
        if error is not None:
            raise error


@lru_cache(maxsize=1024)
def unfinished(op: Operation) -> ExprError | None:
    """Why `op` is only fit for the body of a scan; None when it is fit for everything."""
    if not isinstance(op, ComputeOp):
        return None
    if not any(_looks_back(op, read) for read in reads(*op.bodies)):
        return None
    return next((error for _, _, error in _problems(op)), None)


def _looks_back(op: ComputeOp, read: TensorRead) -> bool:
    """True when the first index of `read` is an expression over an axis of `op`."""
    if not read.indices or isinstance(read.indices[0], (Axis, Const)):
        return False
    return not axes_of(read.indices[0]).isdisjoint(op.axes)


def _may_be_in_steps(op: ComputeOp) -> bool:
    """True when `op` may belong to the steps of a scan: it reads what does, or an input as if that
    were a state."""
    tensors = dict.fromkeys(read.tensor for read in reads(*op.bodies))
    return any(
        _is_earlier(op, tensor)
        if isinstance(tensor.op, PlaceholderOp)
        else unfinished(tensor.op) is not None
        for tensor in tensors
    )


def _is_earlier(op: ComputeOp, tensor: Tensor) -> bool:
    """True when `op` has the rows of `tensor` and reads only rows before its own."""
    mine = [read for read in reads(*op.bodies) if read.tensor is tensor]
    if not all(_looks_back(op, read) for read in mine):
        return False
    facts = facts_of_sizes(_sizes(op))
    return any(
        all(prove(build.lt(read.indices[0], axis), facts) for read in mine)
        for axis in axes_of(mine[0].indices[0])
        if axis.domain is not None and equal(axis.domain.extent, tensor.shape[0])
    )


def _problems(op: ComputeOp) -> Iterator[tuple[Access, bool, ExprError]]:
    """The reads of `op` that are proved to be outside, and if it is below 0."""
    if any(_is_zero(axis.domain.extent) for axis in (*op.axes, *op.reduce_axes) if axis.domain):
        return
    sizes = _sizes(op)
    for access in accesses(op.bodies, facts_of_sizes(sizes)):
        for low, condition in zip((True, False), conditions_of(access), strict=True):
            if prove(condition, access.facts) or not is_known((condition, *access.guards), sizes):
                continue
            point = counterexample(condition, access.facts)
            if point is not None:
                yield access, low, _outside(op, access, point)


def reads_inside(reduce: Reduce) -> bool:
    """True when every read below `reduce` is proved to be inside its tensor."""
    facts = facts_of_sizes(sizes_of(reduce))
    return all(
        prove(condition, access.facts)
        for access in accesses((reduce,), facts)
        for condition in conditions_of(access)
    )


def _is_zero(extent: Expr) -> bool:
    return isinstance(extent, Const) and extent.value == 0


def _sizes(op: ComputeOp) -> set[Var]:
    """Runtime scalars that are part of an extent."""
    extents = [axis.domain.extent for axis in op.reduce_axes if axis.domain]
    return sizes_of(*op.shape, *extents, *op.bodies) | variables_in(*op.shape, *extents)


def sizes_of(*roots: Expr) -> set[Var]:
    """Runtime scalars that are part of an extent of a tensor or reduction below `roots`."""
    extents: list[Expr] = []
    for node in walk(*roots):
        if isinstance(node, TensorRead):
            extents.extend(node.tensor.shape)
        elif isinstance(node, Reduce):
            extents.extend(axis.domain.extent for axis in node.axes if axis.domain)
    return variables_in(*extents)


def variables_in(*exprs: Expr) -> set[Var]:
    """Runtime scalars in `exprs`."""
    return {each for each in variables(*exprs) if isinstance(each, Var)}


def facts_of_sizes(sizes: set[Var]) -> Facts:
    """That every size is at least 1; axes bring their own ranges."""
    facts = Facts()
    for size in sorted(sizes, key=lambda v: v.name):
        facts = facts.assume(build.ge(size, 1))
    return facts


def accesses(roots: Sequence[Expr], facts: Facts) -> Iterator[Access]:
    """Every index of every read below `roots`, with the guards around it."""
    seen: set[tuple[Expr, int]] = set()
    stack: list[tuple[Expr, Facts, tuple[Expr, ...]]] = [(r, facts, ()) for r in reversed(roots)]
    kept: list[Facts] = []  # alive, so that their ids stay their own
    while stack:
        node, known, guards = stack.pop()
        if (node, id(known)) in seen:
            continue
        seen.add((node, id(known)))
        if isinstance(node, TensorRead):
            for dimension in range(len(node.indices)):
                yield Access(node, dimension, known, guards)
        if isinstance(node, IfThenElse):
            negated = build.logical_not(node.condition)
            yes, no = known.assume(node.condition), known.assume(negated)
            kept += (yes, no)
            stack.append((node.b, no, (*guards, negated)))
            stack.append((node.a, yes, (*guards, node.condition)))
            stack.append((node.condition, known, guards))
        elif isinstance(node, Reduce) and node.where is not None:
            inside = known.assume(node.where)
            kept.append(inside)
            guarded = (*guards, node.where)
            stack.extend((source, inside, guarded) for source in reversed(node.sources))
            stack.extend((each, known, guards) for each in (node.where, *(node.init or ())))
        else:
            stack.extend((child, known, guards) for child in reversed(node.children()))


def conditions_of(access: Access) -> tuple[Expr, Expr]:
    """That the index is not below 0, and that it is below the extent."""
    index = access.read.indices[access.dimension]
    if index.dtype not in (DType.int32, DType.int64):
        index = build.cast(index, DType.int64)
    return build.ge(index, 0), build.lt(index, access.read.tensor.shape[access.dimension])


def is_known(conditions: Sequence[Expr], sizes: set[Var]) -> bool:
    """True when all of `conditions` are over axes and sizes only."""
    return not any(
        isinstance(node, (TensorRead, Reduce)) or (isinstance(node, Var) and node not in sizes)
        for node in walk(*conditions)
    )


def _outside(op: ComputeOp, access: Access, point: dict[Axis | Var, int]) -> ExprError:
    read, dimension = access.read, access.dimension
    tensor, index = read.tensor, read.indices[dimension]
    extent = tensor.shape[dimension]
    values = dict(point)
    at = evaluate_int(index, values)
    words = [str(at) if d == dimension else str(each) for d, each in enumerate(read.indices)]
    size = str(extent)
    if not isinstance(extent, Const) and all(v in values for v in variables(extent)):
        size = f"{extent} = {evaluate_int(extent, values)}"
    place = ", ".join(f"{each.name} = {value}" for each, value in point.items())
    there = "" if tensor.ndim == 1 else f" in dimension {dimension}"
    return ExprError(
        f"{read} is outside {tensor.name}: {place or 'every point'} reads "
        f"{tensor.name}[{', '.join(words)}], {tensor.name} has {size}{there}",
        subject=f"compute {op.name}",
        hint="change the index or the shape, or guard the read with te.if_then_else or where=",
    )
