"""What a new `ComputeOp` must satisfy; the one place where it is constructed from user input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tedsl.errors import ExprError
from tedsl.expr.index_arith import LARGEST, elements
from tedsl.expr.nodes import Axis, AxisKind, Expr, Reduce
from tedsl.late import late
from tedsl.tensor.tags import current_tag
from tedsl.tensor.tensor import ComputeOp

if TYPE_CHECKING:
    from tedsl.tensor import bounds_check
else:
    bounds_check = late("tedsl.tensor.bounds_check")

MAX_DEPTH = 200
"""How deep one body may be nested."""


def make_compute(
    name: str,
    axes: tuple[Axis, ...],
    bodies: tuple[Expr, ...],
    reduce_axes: tuple[Axis, ...],
    tag: str = "",
) -> ComputeOp:
    """The operation, after checking its axes and reads.

    Raises:
        ExprError: an axis that does not belong here, or a read proved to be out of bounds.
    """
    for body in bodies:
        _check_free_axes(name, axes, body)
    extents = tuple(axis.domain.extent for axis in axes if axis.domain is not None)
    domains = [axis.domain.extent for axis in reduce_axes if axis.domain is not None]
    if elements((*extents, *domains)) > LARGEST:
        raise ExprError(
            f"compute {name!r} has {elements((*extents, *domains))} points: the product of its "
            "extents and those of its reduction",
            facts=[("allowed", "at most 2**62")],
            hint="reduce over fewer elements",
        )
    op = ComputeOp(name, axes, bodies, extents, reduce_axes, tag or current_tag())
    bounds_check.check_reads(op)
    return op


def free_axes(expr: Expr, memo: dict[Expr, frozenset[Axis]] | None = None) -> frozenset[Axis]:
    """Axes that `expr` uses and no reduction in it binds."""
    memo = {} if memo is None else memo

    def visit(node: Expr) -> frozenset[Axis]:
        known = memo.get(node)
        if known is None:
            if isinstance(node, Axis):
                known = frozenset((node,))
            else:
                known = union(map(visit, node.children()))
                if isinstance(node, Reduce):
                    known -= set(node.axes)
            memo[node] = known
        return known

    return visit(expr)


def union(sets: Iterable[frozenset[Axis]]) -> frozenset[Axis]:
    """All members."""
    return frozenset[Axis]().union(*sets)


def depth_of(body: Expr) -> int:
    """How deep an expression is nested; a leaf is 1 deep."""
    depth: dict[Expr, int] = {}
    stack: list[tuple[Expr, bool]] = [(body, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            depth[node] = 1 + max((depth[child] for child in node.children()), default=0)
        elif node not in depth:
            stack.append((node, True))
            stack.extend((child, False) for child in node.children())
    return depth[body]


def check_depth(name: str, body: Expr) -> None:
    """Refuse what the recursive passes could not walk.

    Raises:
        ExprError: a body nested deeper than `MAX_DEPTH`.
    """
    depth = depth_of(body)
    if depth > MAX_DEPTH:
        raise ExprError(
            f"the body of compute {name!r} is nested {depth} deep",
            facts=[("allowed", str(MAX_DEPTH))],
            hint="write a long sum as te.sum over a te.reduce_axis, or split the body into several "
            "computes",
        )


def _check_free_axes(name: str, axes: tuple[Axis, ...], body: Expr) -> None:
    for axis in sorted(free_axes(body) - set(axes), key=lambda a: a.name):
        if axis.kind is AxisKind.REDUCE:
            raise ExprError(
                f"the body of compute {name!r} uses the reduction axis {axis.name} outside a "
                "reduction over it",
                hint=f"put it inside te.sum(..., axis={axis.name}) or its like",
            )
        raise ExprError(
            f"the body of compute {name!r} uses the axis {axis.name}, which is not one of its own",
            facts=[("axes", ", ".join(a.name for a in axes) or "none")],
            hint="use the arguments of the function; read other tensors by index",
        )
