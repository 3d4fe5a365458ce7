"""Stable, readable text of expressions.

Names print as they were given (`tensor.printer` makes those of a graph unique).  Parentheses
stand only where precedence needs them.  Nodes of other rooms (`ir.Load`) print through the
`other` hook.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tedsl.dtypes import DType
from tedsl.expr.nodes import (
    Axis,
    Before,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    Const,
    Expr,
    Folded,
    IfThenElse,
    Reduce,
    Reducer,
    Select,
    TensorRead,
    Unary,
    UnaryOp,
    Var,
)

if TYPE_CHECKING:
    from tedsl.tensor.tensor import Operation, Tensor

Naming = Callable[["Axis | Var | Operation"], str]
"""From an object to what it prints as."""

Other = Callable[[Expr, Callable[[Expr], str]], str]
"""From a node that this file does not know, and the printer of its children, to text."""

_PRECEDENCE: dict[BinaryOp, int] = {
    BinaryOp.OR: 2,
    BinaryOp.XOR: 3,
    BinaryOp.AND: 4,
    BinaryOp.SHL: 6,
    BinaryOp.SHR: 6,
    BinaryOp.ADD: 7,
    BinaryOp.SUB: 7,
    BinaryOp.MUL: 8,
    BinaryOp.DIV: 8,
    BinaryOp.FLOORDIV: 8,
    BinaryOp.FLOORMOD: 8,
}
_COMPARISON, _PREFIX, _ATOM = 1, 9, 10
_ASSOCIATIVE = frozenset({BinaryOp.ADD, BinaryOp.MUL, BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR})
_PREFIXES = {UnaryOp.NEG: "-", UnaryOp.NOT: "~"}
_PLAIN = (DType.int32, DType.float32, DType.bool)


def plain_name(thing: Axis | Var | Operation) -> str:
    """The given name, whoever else has it."""
    return thing.name


class Printer:
    """Text of one expression.  Operands come with their precedence."""

    def __init__(self, naming: Naming, other: Other | None) -> None:
        self.naming = naming
        self.other = other

    def text(self, expr: Expr, at_least: int = 0) -> str:
        """`expr`, in parentheses when it binds less than `at_least`."""
        words, level = self.parts(expr)
        return f"({words})" if level < at_least else words

    def listed(self, exprs: Sequence[Expr]) -> str:
        """`exprs` with commas between."""
        return ", ".join(map(self.text, exprs))

    def parts(self, expr: Expr) -> tuple[str, int]:
        """Text and precedence of `expr`."""
        match expr:
            case Const():
                return print_const(expr), _PREFIX if expr.value < 0 else _ATOM
            case Axis() | Var():
                return self.naming(expr), _ATOM
            case Binary():
                return self.binary(expr)
            case Compare(op=op, a=a, b=b):
                left, right = self.text(a, _COMPARISON + 1), self.text(b, _COMPARISON + 1)
                return f"{left} {op.value} {right}", _COMPARISON
            case Unary(op=op, a=a) if op in _PREFIXES:
                return f"{_PREFIXES[op]}{self.text(a, _PREFIX)}", _PREFIX
            case Unary(op=op, a=a):
                return f"{op.value}({self.text(a)})", _ATOM
            case Cast(a=a, dtype=dtype):
                return f"{dtype.value}({self.text(a)})", _ATOM
            case Select():
                return f"select({self.listed(expr.children())})", _ATOM
            case IfThenElse():
                return f"if_then_else({self.listed(expr.children())})", _ATOM
            case TensorRead(tensor=tensor, indices=indices):
                return f"{self.tensor(tensor)}[{self.listed(indices)}]", _ATOM
            case Reduce():
                return self.reduce(expr), _ATOM
            case Folded(index=index):
                return f"folded.v{index}" if index else "folded", _ATOM
            case Before(a=a):
                return f"before({self.text(a)})", _ATOM
            case _ if self.other is not None:
                return self.other(expr, self.text), _ATOM
            case _:
                return f"{type(expr).__name__}({self.listed(expr.children())})", _ATOM

    def binary(self, expr: Binary) -> tuple[str, int]:
        """Infix where the operator has a sign, else a call."""
        level = _PRECEDENCE.get(expr.op)
        if level is None:
            return f"{expr.op.value}({self.listed((expr.a, expr.b))})", _ATOM
        loose = expr.op in _ASSOCIATIVE and isinstance(expr.b, Binary) and expr.b.op is expr.op
        exact = loose and not expr.dtype.is_float
        left = self.text(expr.a, level)  # first: names are given in reading order
        right = self.text(expr.b, level if exact else level + 1)
        return f"{left} {expr.op.value} {right}", level

    def tensor(self, tensor: Tensor) -> str:
        """The name of a tensor, with `.v1` for output 1 of several."""
        name = self.naming(tensor.op)
        return name if tensor.op.num_outputs == 1 else f"{name}.v{tensor.index}"

    def reduce(self, expr: Reduce) -> str:
        """`sum(k)(A[i, k], where=i < k)`."""
        axes = ", ".join(self.naming(axis) for axis in expr.axes)
        words = [self.listed(expr.sources)]
        if expr.where is not None:
            words.append(f"where={self.text(expr.where)}")
        if expr.finite:
            words.append("finite=True")
        if expr.tf32:
            words.append("tf32=True")
        if expr.init is not None:
            start = self.listed(expr.init)
            words.append(f"init=({start})" if len(expr.init) > 1 else f"init={start}")
        if expr.repair is not None:
            words.append(f"repair=({self.listed(expr.repair)})")
        if expr.finish is not None:
            words.append(f"finish={self.text(expr.finish)}")
        suffix = f".v{expr.index}" if len(expr.sources) > 1 else ""
        return f"{expr.reducer.name}({axes})({', '.join(words)}){suffix}"


def print_const(expr: Const) -> str:
    """The number; the dtype is added when it is not int32, float32 or bool."""
    value = bool(expr.value) if expr.dtype.is_bool else expr.value
    return repr(value) if expr.dtype in _PLAIN else f"{expr.dtype.value}({value!r})"


def print_expr(expr: Expr, naming: Naming = plain_name, other: Other | None = None) -> str:
    """One expression on one line.

    Args:
        expr: what to print.
        naming: what axes, variables and operations are called.
        other: how to print nodes of other rooms; without it, the class name and the children.
    """
    return Printer(naming, other).text(expr)


def print_reducer(reducer: Reducer) -> str:
    """`sum: (x, y) -> x + y, identity 0`."""
    given = ", ".join(v.name for v in (*reducer.lhs, *reducer.rhs))
    results = ", ".join(map(print_expr, reducer.combine))
    identity = ", ".join(map(print_expr, reducer.identity))
    return f"{reducer.name}: ({given}) -> {results}, identity {identity}"
