"""Refuse reads that are provably outside their tensor, when an operation is defined.

Guards count: the conditions of `te.if_then_else` around a read and the `where=` of its reduction.
Sizes are taken to be at least 1, as nothing is read where one is 0.  What depends on values in
memory, or on runtime scalars that are no sizes, is unknown and accepted.  Imports `index`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Const, Expr, IfThenElse, Reduce, TensorRead, Var
from tedsl.expr.tensor import ComputeOp
from tedsl.expr.visit import variables, walk
from tedsl.index.evaluate import evaluate_int
from tedsl.index.facts import Facts
from tedsl.index.prove import counterexample, prove


class _Access(NamedTuple):
    """One index of a read, and what is known where it is evaluated."""

    read: TensorRead
    dimension: int
    facts: Facts
    guards: tuple[Expr, ...]


def check_reads(op: ComputeOp) -> None:
    """Refuse `op` when one of its reads is proved to be outside its tensor.

    Raises:
        ExprError: with a point of the axes at which it happens.
    """
    if any(_is_zero(axis.domain.extent) for axis in (*op.axes, *op.reduce_axes) if axis.domain):
        return
    sizes = _sizes(op)
    facts = _facts(sizes)
    for access in _accesses(op.bodies, facts):
        for condition in _conditions(access):
            if prove(condition, access.facts) or not _is_known((condition, *access.guards), sizes):
                continue
            point = counterexample(condition, access.facts)
            if point is not None:
                raise _outside(op, access, point)


def reads_inside(reduce: Reduce) -> bool:
    """True when every read below `reduce` is proved to be inside its tensor."""
    facts = _facts(_sizes_of(reduce))
    return all(
        prove(condition, access.facts)
        for access in _accesses((reduce,), facts)
        for condition in _conditions(access)
    )


def _is_zero(extent: Expr) -> bool:
    return isinstance(extent, Const) and extent.value == 0


def _sizes(op: ComputeOp) -> set[Var]:
    """Runtime scalars that are part of an extent."""
    extents = [axis.domain.extent for axis in op.reduce_axes if axis.domain]
    return _sizes_of(*op.shape, *extents, *op.bodies) | _variables_in(*op.shape, *extents)


def _sizes_of(*roots: Expr) -> set[Var]:
    """Runtime scalars that are part of an extent of a tensor or reduction below `roots`."""
    extents: list[Expr] = []
    for node in walk(*roots):
        if isinstance(node, TensorRead):
            extents.extend(node.tensor.shape)
        elif isinstance(node, Reduce):
            extents.extend(axis.domain.extent for axis in node.axes if axis.domain)
    return _variables_in(*extents)


def _variables_in(*exprs: Expr) -> set[Var]:
    return {each for each in variables(*exprs) if isinstance(each, Var)}


def _facts(sizes: set[Var]) -> Facts:
    """That every size is at least 1; axes bring their own ranges."""
    facts = Facts()
    for size in sorted(sizes, key=lambda v: v.name):
        facts = facts.assume(build.ge(size, 1))
    return facts


def _accesses(roots: Sequence[Expr], facts: Facts) -> Iterator[_Access]:
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
                yield _Access(node, dimension, known, guards)
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


def _conditions(access: _Access) -> tuple[Expr, Expr]:
    """That the index is not below 0, and that it is below the extent."""
    index = access.read.indices[access.dimension]
    if index.dtype not in (DType.int32, DType.int64):
        index = build.cast(index, DType.int64)
    return build.ge(index, 0), build.lt(index, access.read.tensor.shape[access.dimension])


def _is_known(conditions: Sequence[Expr], sizes: set[Var]) -> bool:
    """True when all of `conditions` are over axes and sizes only."""
    return not any(
        isinstance(node, (TensorRead, Reduce)) or (isinstance(node, Var) and node not in sizes)
        for node in walk(*conditions)
    )


def _outside(op: ComputeOp, access: _Access, point: dict[Axis | Var, int]) -> ExprError:
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
