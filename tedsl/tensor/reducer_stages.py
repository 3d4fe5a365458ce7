"""Reductions inside a body become stages of their own.

`P[i, j] = A[i, j] / sum(A[i, k], k)` becomes `P.red[i] = sum(A[i, k], k)` and
`P[i, j] = A[i, j] / P.red[i]`.  A split-off stage has the axes of the body that it uses, in their
order (an enclosing reduction's axis is one of them, shifted to start at 0), and all outputs of its
reducer.  Equal reductions share a stage.  The first stage over a reduction axis keeps the user's
axis object, further ones get their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import (
    Axis,
    AxisKind,
    Binary,
    BinaryOp,
    Expr,
    IfThenElse,
    Range,
    Reduce,
    TensorRead,
)
from tedsl.expr.visit import map_children, reads, structural_equal, substitute, walk
from tedsl.late import late
from tedsl.tensor.axis import data_axis
from tedsl.tensor.tensor import Tensor
from tedsl.tensor.verify_op import free_axes, make_compute

if TYPE_CHECKING:
    from tedsl.tensor import bounds_check
else:
    bounds_check = late("tedsl.tensor.bounds_check")

Guards = tuple[Expr, ...]


def is_one_reduction(bodies: tuple[Expr, ...]) -> bool:
    """True when the bodies are values 0, 1, ... of one reduction, all of them."""
    first = bodies[0]
    if not isinstance(first, Reduce) or len(bodies) != len(first.sources):
        return False
    return all(
        isinstance(body, Reduce) and body.index == n and _same_reduction(first, body)
        for n, body in enumerate(bodies)
    )


def split_reductions(
    bodies: tuple[Expr, ...], axes: tuple[Axis, ...], name: str
) -> tuple[Expr, ...]:
    """`bodies` with every reduction that is not the operation's own replaced by a read."""
    splitter = _Splitter(name, {axis: position for position, axis in enumerate(axes)})
    if is_one_reduction(bodies):
        return splitter.own(bodies)
    return tuple(splitter.visit(body, ()) for body in bodies)


def _same_reduction(a: Reduce, b: Reduce) -> bool:
    """Equal but for `index`."""
    if a.reducer is not b.reducer or len(a.axes) != len(b.axes):
        return False
    if any(x is not y for x, y in zip(a.axes, b.axes, strict=True)):
        return False
    left, right = a.children(), b.children()
    return (
        (a.where is None) == (b.where is None)
        and (a.init is None) == (b.init is None)
        and a.finite is b.finite
        and all(map(structural_equal, left, right))
    )


@dataclass(slots=True)
class _Splitter:
    """One body's reductions: `order` ranks axes in scope, `stages` remembers the split ones."""

    name: str
    order: dict[Axis, int]
    stages: list[tuple[Reduce, Guards, tuple[Tensor, ...], tuple[Expr, ...]]] = field(
        default_factory=list[tuple[Reduce, Guards, tuple[Tensor, ...], tuple[Expr, ...]]]
    )
    bound: set[Axis] = field(default_factory=set[Axis])
    memo: dict[tuple[Expr, Guards], Expr] = field(default_factory=dict[tuple[Expr, Guards], Expr])
    plain: dict[Expr, bool] = field(default_factory=dict[Expr, bool])

    def own(self, bodies: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The operation's own reduction, with reductions inside it split off."""
        first = bodies[0]
        if not isinstance(first, Reduce) or self._is_plain_below(first):
            return bodies
        self.bound |= set(first.axes)
        inside = self._inside(first, ())
        return tuple(replace(inside, index=n) for n in range(len(bodies)))

    def visit(self, node: Expr, guards: Guards) -> Expr:
        """`node` without reductions; `guards` hold wherever it is evaluated."""
        if self._is_plain(node):
            return node
        key = (node, guards)
        done = self.memo.get(key)
        if done is None:
            if isinstance(node, Reduce):
                done = self._split(self._inside(node, guards), guards)
            elif isinstance(node, IfThenElse):
                test = self.visit(node.condition, guards)
                done = IfThenElse(
                    test,
                    self.visit(node.a, (*guards, *_conjuncts(test))),
                    self.visit(node.b, (*guards, build.logical_not(test))),
                )
            else:
                done = map_children(node, lambda child: self.visit(child, guards))
            self.memo[key] = done
        return done

    def _is_plain(self, node: Expr) -> bool:
        """True when no reduction occurs at or below `node`."""
        known = self.plain.get(node)
        if known is None:
            known = not any(isinstance(each, Reduce) for each in walk(node))
            self.plain[node] = known
        return known

    def _is_plain_below(self, node: Expr) -> bool:
        return all(self._is_plain(child) for child in node.children())

    def _inside(self, node: Reduce, guards: Guards) -> Reduce:
        """`node` with reductions in its sources, condition and init split off."""
        if self._is_plain_below(node):
            return node
        for axis in node.axes:
            self.order.setdefault(axis, len(self.order))
        where = None if node.where is None else self.visit(node.where, guards)
        inner = guards if where is None else (*guards, *_conjuncts(where))
        sources = tuple(self.visit(source, inner) for source in node.sources)
        init = node.init and tuple(self.visit(each, guards) for each in node.init)
        return replace(node, sources=sources, where=where, init=init)

    def _split(self, node: Reduce, guards: Guards) -> Expr:
        """A stage for `node`, and the read of its value."""
        for known, under, tensors, indices in self.stages:
            same_guards = len(under) == len(guards) and all(map(structural_equal, under, guards))
            if same_guards and _same_reduction(known, node):
                return TensorRead(tensors[node.index], indices)
        node_guarded = self._guarded(node, guards)
        used = sorted(free_axes(node_guarded), key=lambda a: self._rank(a))
        axes, mapping, indices = self._stage_axes(used)
        mapping.update(self._own_axes(node))
        moved = _rename(node_guarded, mapping)
        number = len(self.stages)
        name = f"{self.name}.red{number or ''}"
        op = make_compute(
            name,
            axes,
            tuple(replace(moved, index=n) for n in range(len(moved.sources))),
            moved.axes,
        )
        self.stages.append((node, guards, op.outputs, indices))
        return TensorRead(op.outputs[node.index], indices)

    def _rank(self, axis: Axis) -> int:
        rank = self.order.get(axis)
        if rank is None:
            raise ExprError(
                f"a reduction in compute {self.name!r} uses the axis {axis.name}, which is not one "
                "of its own",
                hint="use the arguments of the function, and each reduction axis only inside its "
                "reduction",
            )
        return rank

    def _guarded(self, node: Reduce, guards: Guards) -> Reduce:
        """`node` restricted to where it is wanted.

        A guard over axes that the reduction uses anyway costs nothing and is always added.  One
        that would add an axis, and so repeat the reduction along it, is added only when a read
        cannot be proved to be inside without it.
        """
        used = free_axes(node) | set(node.axes)
        cheap = [guard for guard in guards if free_axes(guard) <= used]
        result = _with_where(node, cheap)
        if len(cheap) == len(guards) or bounds_check.reads_inside(result):
            return result
        return _with_where(node, guards)

    def _stage_axes(
        self, used: list[Axis]
    ) -> tuple[tuple[Axis, ...], dict[Expr, Expr], tuple[Expr, ...]]:
        """New data axes for `used`, what to substitute for them, and the indices of the read."""
        axes: list[Axis] = []
        mapping: dict[Expr, Expr] = {}
        indices: list[Expr] = []
        for axis in used:
            domain = _domain(axis)
            new = data_axis(axis.name, domain.extent)
            axes.append(new)
            mapping[axis] = build.add(new, domain.min)
            indices.append(build.sub(axis, domain.min))
        return tuple(axes), mapping, tuple(indices)

    def _own_axes(self, node: Reduce) -> dict[Expr, Expr]:
        """Fresh objects for reduction axes that another stage of this body already has."""
        taken = [axis for axis in node.axes if axis in self.bound]
        self.bound |= set(node.axes)
        return {a: Axis(a.name, AxisKind.REDUCE, a.domain, a.dtype) for a in taken}


def _domain(axis: Axis) -> Range:
    if axis.domain is None:
        raise ExprError(
            f"the axis {axis.name} was made by a schedule and has no domain",
            hint="use axes of the definition: te.reduce_axis and the arguments of te.compute",
        )
    return axis.domain


def _with_where(node: Reduce, guards: list[Expr] | Guards) -> Reduce:
    """`node` over the points where `guards` hold too."""
    if not guards:
        return node
    init = node.init
    if init is not None:
        outer = in_order([g for g in guards if not free_axes(g) & set(node.axes)])
        start = zip(init, node.reducer.identity, strict=True)
        init = tuple(build.if_then_else(outer, value, identity) for value, identity in start)
    where = in_order([*guards, *(() if node.where is None else (node.where,))])
    return replace(node, where=where, init=init)


def _conjuncts(condition: Expr) -> Guards:
    """`a & b & c` as (a, b, c), so that each can be needed or not."""
    match condition:
        case Binary(op=BinaryOp.AND, a=a, b=b, dtype=DType.bool):
            return (*_conjuncts(a), *_conjuncts(b))
        case _:
            return (condition,)


def in_order(conditions: list[Expr]) -> Expr:
    """All of `conditions`, where the reads of a later one are made only if the earlier hold."""
    result: Expr = build.TRUE
    for each in conditions:
        lazy = result is not build.TRUE and reads(each)
        result = (
            build.if_then_else(result, each, build.FALSE)
            if lazy
            else build.logical_and(result, each)
        )
    return result


def _rename(node: Reduce, mapping: dict[Expr, Expr]) -> Reduce:
    """`node` with axes replaced, bound ones too."""
    rebuilt = map_children(node, lambda child: substitute(child, mapping))
    if not isinstance(rebuilt, Reduce):
        raise TypeError("rebuilding a Reduce gives a Reduce")
    axes: list[Axis] = []
    for axis in node.axes:
        new = mapping.get(axis, axis)
        axes.append(new if isinstance(new, Axis) else axis)
    return replace(rebuilt, axes=tuple(axes))
