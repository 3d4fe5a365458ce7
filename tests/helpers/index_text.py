"""Expressions from and to one-line Python text, for readable tables of integer cases.

`Scope` holds the variables of a test: axes for names with a range, sizes (lower bound 0) for `n`,
`m`, `c`, `s`. Its own small printer keeps these tests apart from the package's.
"""

from __future__ import annotations

import ast

from tedsl.dtypes import DType
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    IfThenElse,
    Select,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.index.facts import Facts

BINARY: dict[type[ast.operator], BinaryOp] = {
    ast.Add: BinaryOp.ADD,
    ast.Sub: BinaryOp.SUB,
    ast.Mult: BinaryOp.MUL,
    ast.FloorDiv: BinaryOp.FLOORDIV,
    ast.Mod: BinaryOp.FLOORMOD,
    ast.BitAnd: BinaryOp.AND,
    ast.BitOr: BinaryOp.OR,
    ast.LShift: BinaryOp.SHL,
    ast.RShift: BinaryOp.SHR,
}
COMPARE: dict[type[ast.cmpop], CompareOp] = {
    ast.Lt: CompareOp.LT,
    ast.LtE: CompareOp.LE,
    ast.Gt: CompareOp.GT,
    ast.GtE: CompareOp.GE,
    ast.Eq: CompareOp.EQ,
    ast.NotEq: CompareOp.NE,
}
CALLS = {
    "min": BinaryOp.MIN,
    "max": BinaryOp.MAX,
    "truncdiv": BinaryOp.TRUNCDIV,
    "truncmod": BinaryOp.TRUNCMOD,
}
PRECEDENCE = {"&": 1, "|": 1, "+": 4, "-": 4, "*": 5, "//": 5, "%": 5, "<<": 3, ">>": 3}


class Scope:
    """Named variables and facts about them: `Scope(i="0:n", j="0:32")` gives (min : extent)."""

    def __init__(self, *conditions: str, **ranges: str) -> None:
        self.names: dict[str, Axis | Var] = {
            name: Var(name, lower=0) for name in ("n", "m", "c", "s")
        }
        self.names["v"] = Var("v")
        self.facts = Facts()
        for name, text in ranges.items():
            low, extent = text.split(":")
            axis = self.names.setdefault(name, Axis(name))
            self.facts = self.facts.with_axis(axis, self(low), self(extent))
        for condition in conditions:
            self.facts = self.facts.assume(self(condition))

    def __call__(self, text: str) -> Expr:
        """The expression of a text."""
        return self._node(ast.parse(text.strip(), mode="eval").body)

    def _node(self, node: ast.AST) -> Expr:
        match node:
            case ast.Constant(value=bool(value)):
                return Const(value, DType.bool)
            case ast.Constant(value=int(value)):
                return Const(value, DType.int32)
            case ast.Constant(value=float(value)):
                return Const(value, DType.float32)
            case ast.Name(id=name):
                return self.names.setdefault(name, Axis(name))
            case ast.BinOp(left=left, op=op, right=right):
                return Binary(BINARY[type(op)], self._node(left), self._node(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return Compare(COMPARE[type(op)], self._node(left), self._node(right))
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
                return Const(-value, DType.int32)
            case ast.UnaryOp(op=op, operand=operand):
                kind = UnaryOp.NEG if isinstance(op, ast.USub) else UnaryOp.NOT
                return Unary(kind, self._node(operand))
            case ast.IfExp(test=test, body=a, orelse=b):
                return IfThenElse(self._node(test), self._node(a), self._node(b))
            case ast.Call(func=ast.Name(id=name), args=args):
                return self._call(name, [self._node(arg) for arg in args])
            case _:
                raise ValueError(f"no expression for {ast.dump(node)}")

    def _call(self, name: str, args: list[Expr]) -> Expr:
        if name in CALLS:
            return Binary(CALLS[name], args[0], args[1])
        if name == "select":
            return Select(*args)
        if name == "abs":
            return Unary(UnaryOp.ABS, args[0])
        return Cast(args[0], DType[name])


def show(expr: Expr, outer: int = 0) -> str:
    """The text of an expression, with as few parentheses as Python needs."""
    match expr:
        case Const(value=value):
            return str(value)
        case Axis(name=name) | Var(name=name):
            return name
        case Binary(op=op, a=a, b=b) if op.value in PRECEDENCE:
            level = PRECEDENCE[op.value]
            text = f"{show(a, level)} {op.value} {show(b, level + 1)}"
        case Compare(op=op, a=a, b=b):
            level = 2
            text = f"{show(a, level)} {op.value} {show(b, level + 1)}"
        case IfThenElse(condition=c, a=a, b=b):
            level, text = 0, f"{show(a, 1)} if {show(c, 1)} else {show(b, 1)}"
        case Cast(a=a, dtype=dtype):
            return f"{dtype.value}({show(a)})"
        case _:
            label = getattr(expr, "op", None)
            name = label.value if label is not None else type(expr).__name__.lower()
            return f"{name}({', '.join(map(show, expr.children()))})"
    return f"({text})" if level < outer else text
