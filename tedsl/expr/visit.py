"""Traversals over expressions: walk, rewrite, substitute, compare.  Every one visits a shared
subtree once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from operator import is_
from typing import TYPE_CHECKING

from tedsl.expr.nodes import Axis, Const, Expr, Reduce, TensorRead, Var

if TYPE_CHECKING:
    from tedsl.tensor.tensor import Tensor


def walk(*roots: Expr) -> Iterator[Expr]:
    """Every distinct node below `roots`, parents before children."""
    seen: set[Expr] = set()
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        children = node.children()
        if children:
            stack += children[::-1]


def occurs(part: Expr, expr: Expr) -> bool:
    """Whether `part` is one of the nodes of `expr`: that object, not one like it."""
    if part is expr:
        return True
    seen: set[Expr] = set()
    stack = [expr]
    while stack:
        for child in stack.pop().children():
            if child is part:
                return True
            if child not in seen:
                seen.add(child)
                stack.append(child)
    return False


def map_children(expr: Expr, fn: Callable[[Expr], Expr]) -> Expr:
    """`expr` with `fn` applied to each child; the same object when no child changed."""
    old = expr.children()
    new = [fn(child) for child in old]
    if all(map(is_, old, new)):
        return expr
    return expr.rebuild(new)


def rewrite(
    expr: Expr, fn: Callable[[Expr], Expr | None], memo: dict[Expr, Expr] | None = None
) -> Expr:
    """Rebuild `expr` from the leaves up; `fn(node)` sees a node with finished children, None keeps
    it."""
    memo = {} if memo is None else memo

    def visit(node: Expr) -> Expr:
        done = memo.get(node)
        if done is None:
            rebuilt = map_children(node, visit)
            replaced = fn(rebuilt)
            done = memo[node] = rebuilt if replaced is None else replaced
        return done

    return visit(expr)


def substitute(expr: Expr, mapping: Mapping[Expr, Expr]) -> Expr:
    """`expr` with each node that is a key (by identity) replaced by its value.  Values are not
    visited again.

    Reduction axes bound inside `expr` are variables like any other here: map them only on purpose.
    """
    return rewrite_down(expr, mapping.get) if mapping else expr


def rewrite_down(expr: Expr, fn: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild `expr` from the root down: where `fn(node)` is not None, it stands and is not visited
    again."""
    memo: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr:
        done = memo.get(node)
        if done is None:
            replaced = fn(node)
            done = memo[node] = map_children(node, visit) if replaced is None else replaced
        return done

    return visit(expr)


def variables(*roots: Expr) -> tuple[Axis | Var, ...]:
    """Axes and runtime scalars that occur, in order of first occurrence (bound reduction axes
    included)."""
    return tuple(node for node in walk(*roots) if isinstance(node, (Axis, Var)))


def axes_of(*roots: Expr) -> frozenset[Axis]:
    """The axes that occur."""
    return frozenset(node for node in walk(*roots) if isinstance(node, Axis))


def reads(*roots: Expr) -> tuple[TensorRead, ...]:
    """Every distinct tensor read, in order of first occurrence."""
    return tuple(node for node in walk(*roots) if isinstance(node, TensorRead))


def structural_equal(a: Expr, b: Expr, mapping: Mapping[Expr, Expr] | None = None) -> bool:
    """True when both have the same shape, operators, constants, dtypes and tensors.

    Axes and variables are equal when identical, or when `mapping` takes the one in `a` to the one
    in `b`; the axes of a `Reduce` are matched by position.
    """
    known: dict[Expr, Expr] = dict(mapping or {})

    def same(x: Expr, y: Expr) -> bool:
        if x is y or known.get(x) is y:
            return True
        if type(x) is not type(y) or x.dtype is not y.dtype or isinstance(x, (Axis, Var)):
            return False
        if isinstance(x, Const) and isinstance(y, Const):
            return repr(x.value) == repr(y.value)
        if isinstance(x, Reduce) and isinstance(y, Reduce):
            if len(x.axes) != len(y.axes) or (x.finite, x.tf32) != (y.finite, y.tf32):
                return False
            known.update(zip(x.axes, y.axes, strict=True))
        elif not _same_payload(x, y):
            return False
        left, right = x.children(), y.children()
        return len(left) == len(right) and all(map(same, left, right))

    return same(a, b)


def _same_payload(x: Expr, y: Expr) -> bool:
    """Equal non-expression fields (operator, tensor, buffer), compared by identity or value."""
    for spec in fields(x):  # pyright: ignore[reportArgumentType]
        u, v = getattr(x, spec.name), getattr(y, spec.name)
        if isinstance(u, Expr) or (isinstance(u, tuple) and u and isinstance(u[0], Expr)):
            continue
        if u is not v and u != v:
            return False
    return True


def reading(bodies: tuple[Expr, ...], tensors: Mapping[Tensor, Tensor]) -> tuple[Expr, ...]:
    """The bodies with reads of other tensors."""

    def moved(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead):
            return None
        tensor = tensors.get(node.tensor, node.tensor)
        return None if tensor is node.tensor else TensorRead(tensor, node.indices)

    memo: dict[Expr, Expr] = {}
    return tuple(rewrite(body, moved, memo) for body in bodies)
