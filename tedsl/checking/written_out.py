"""Definitions as the Python that makes them.  Imports `expr` and `tensor`."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from tedsl.errors import InternalError
from tedsl.expr.nodes import (
    Axis,
    Before,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    Const,
    Expr,
    IfThenElse,
    Reduce,
    Reducer,
    Select,
    TensorRead,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.expr.visit import walk
from tedsl.tensor.printer import operations, unique_names
from tedsl.tensor.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, ScanOp, Tensor

FOLDS = ("sum", "max", "min", "prod", "any", "all")
CALLED = {BinaryOp.MIN: "minimum", BinaryOp.MAX: "maximum"}
PREFIX = {UnaryOp.NEG: "-", UnaryOp.NOT: "~"}


class Writer:
    """Python for the operations of a graph."""

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self.ops = operations(outputs)
        self.names: dict[object, str] = {
            thing: re.sub(r"\W", "_", name) for thing, name in unique_names(self.ops).items()
        }
        self.lines: list[str] = []
        self.reducers: dict[Reducer, str] = {}
        for var in self.scalars():
            make = "size_var" if var.lower == 0 else "var"
            self.lines.append(f'{self.names[var]} = te.{make}("{var.name}", "{var.dtype}")')
        for op in self.ops:
            self.operation(op)

    def scalars(self) -> list[Var]:
        """Runtime sizes that occur."""
        found: dict[Var, None] = {}
        bound = {
            var
            for node in self.nodes()
            if isinstance(node, Reduce)
            for var in (*node.reducer.lhs, *node.reducer.rhs)
        }
        for node in self.nodes():
            if isinstance(node, Var) and node not in bound:
                found[node] = None
        return list(found)

    def nodes(self) -> list[Expr]:
        """All that occurs in extents and bodies."""
        found: list[Expr] = []
        for op in self.ops:
            bodies = op.bodies if isinstance(op, ComputeOp) else ()
            found += walk(*op.extents, *bodies)
        return found

    def tensor(self, tensor: Tensor) -> str:
        """The variable that holds it."""
        name = self.names[tensor.op]
        return name if tensor.op.num_outputs == 1 else f"{name}_{tensor.index}"

    def operation(self, op: Operation) -> None:
        """Its lines."""
        name = self.names[op]
        made = ", ".join(self.tensor(each) for each in op.outputs)
        match op:
            case PlaceholderOp():
                shape = self.shape(op.shape)
                self.lines.append(
                    f'{name} = te.placeholder({shape}, "{op.dtype}", name="{op.name}")'
                )
            case ExternOp():
                shapes = ", ".join(map(self.shape, op.shapes))
                ins = ", ".join(map(self.tensor, op.inputs))
                function = getattr(op.function, "label", "function")
                self.lines.append(
                    f'{made} = te.extern([{shapes}], [{ins}], {function}, name="{op.name}")'
                )
            case ScanOp():
                for state in op.states:
                    if state.op not in self.names:  # a state that nothing reads
                        self.names[state.op] = state.name
                        self.operation(state.op)
                given = [op.inits, op.updates, op.states, *([op.inputs] if op.inputs else [])]
                parts = [[self.tensor(each) for each in tensors] for tensors in given]
                one = len(op.inits) == 1
                shown = [each[0] if one else f"[{', '.join(each)}]" for each in parts[:3]]
                shown += [f"[{', '.join(each)}]" for each in parts[3:]]
                self.lines.append(f'{made} = te.scan({", ".join(shown)}, name="{op.name}")')
            case ComputeOp():
                self.compute(op, made)
            case _:
                raise InternalError(f"no operation to write: {op}")

    def compute(self, op: ComputeOp, made: str) -> None:
        """The lines of a compute, after those of its reduce axes."""
        for axis in op.reduce_axes:
            if axis.domain is None:
                raise InternalError(f"the reduce axis {axis.name} has no domain")
            low, extent = axis.domain.min, axis.domain.extent
            text = f"({self.text(low)}, {self.text(low)} + {self.text(extent)})"
            self.lines.append(f'{self.names[axis]} = te.reduce_axis({text}, name="{axis.name}")')
        axes = ", ".join(self.names[axis] for axis in op.axes)
        first = op.bodies[0]
        together = isinstance(first, Reduce) and len(op.bodies) > 1
        body = self.text(first) if together else ", ".join(map(self.text, op.bodies))
        if not together and len(op.bodies) > 1:
            body = f"({body})"
        head = f"lambda {axes}: " if axes else "lambda: "
        shape = self.shape(op.shape)
        self.lines.append(f'{made} = te.compute({shape}, {head}{body}, name="{op.name}")')

    def shape(self, extents: Sequence[Expr]) -> str:
        """A tuple of extents."""
        texts = [self.text(each) for each in extents]
        return "(" + ", ".join(texts) + ("," if len(texts) == 1 else "") + ")"

    def text(self, expr: Expr) -> str:
        """An expression; parentheses around every operation."""
        match expr:
            case Const(value=value, dtype=dtype):
                if dtype == "int32" and isinstance(value, int):
                    return str(value)
                shown = repr(value) if np.isfinite(value) else f'float("{value}")'
                return f'te.const({shown}, "{dtype}")'
            case Axis() | Var():
                return self.names[expr]
            case Binary(op=op, a=a, b=b):
                if op.value.isalpha() or "atan" in op.value:
                    called = CALLED.get(op, op.value)
                    return f"te.{called}({self.text(a)}, {self.text(b)})"
                return f"({self.text(a)} {op.value} {self.text(b)})"
            case Compare(op=op, a=a, b=b):
                return f"({self.text(a)} {op.value} {self.text(b)})"
            case Unary(op=op, a=a):
                sign = PREFIX.get(op)
                return f"({sign}{self.text(a)})" if sign else f"te.{op.value}({self.text(a)})"
            case Cast(a=a, dtype=dtype):
                return f'te.cast({self.text(a)}, "{dtype}")'
            case Select() | IfThenElse():
                name = "select" if isinstance(expr, Select) else "if_then_else"
                return f"te.{name}({', '.join(map(self.text, expr.children()))})"
            case TensorRead(tensor=tensor, indices=indices):
                places = ", ".join(map(self.text, indices)) or "()"
                return f"{self.tensor(tensor)}[{places}]"
            case Reduce():
                return self.reduce(expr)
            case Before(a=a):
                return self.text(a)
            case _:
                raise InternalError(f"no expression to write: {expr}")

    def reduce(self, expr: Reduce) -> str:
        """A reduction, after the line of its reducer."""
        name = expr.reducer.name
        plain = name in FOLDS and len(expr.sources) == 1
        called = f"te.{name}" if plain else self.reducer(expr.reducer)
        sources = ", ".join(map(self.text, expr.sources))
        if not plain and len(expr.sources) > 1:
            sources = f"({sources})"
        axes = ", ".join(self.names[axis] for axis in expr.axes)
        words = [sources, f"axis=[{axes}]"]
        if expr.where is not None:
            words.append(f"where={self.text(expr.where)}")
        if expr.init is not None:
            starts = ", ".join(map(self.text, expr.init))
            words.append(f"init=({starts})" if len(expr.init) > 1 else f"init={starts}")
        return f"{called}({', '.join(words)})"

    def reducer(self, reducer: Reducer) -> str:
        """The variable of a reducer that has been written."""
        if reducer in self.reducers:
            return self.reducers[reducer]
        name = f"fold{len(self.reducers)}"
        one = len(reducer.combine) == 1
        for side, variables in (("a", reducer.lhs), ("b", reducer.rhs)):
            for n, var in enumerate(variables):
                self.names[var] = side if one else f"{side}[{n}]"
        parts = ", ".join(map(self.text, reducer.combine))
        starts = ", ".join(map(self.text, reducer.identity))
        both = (parts, starts) if one else (f"({parts})", f"({starts})")
        made = (
            f'te.comm_reducer(lambda a, b: {both[0]}, lambda *_: {both[1]}, name="{reducer.name}")'
        )
        self.lines.append(f"{name} = {made}")
        self.reducers[reducer] = name
        return name
