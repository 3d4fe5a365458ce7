"""Stable, readable text of expressions, definitions and graphs.

Names print as they were given; where several objects of a graph share a name, later ones get
`_1`, `_2`, ....  Parentheses stand only where precedence needs them.  Nodes of other rooms
(`ir.Load`) print through the `other` hook.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tedsl.dtypes import DType
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
from tedsl.expr.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, Tensor
from tedsl.expr.visit import reads, walk

Naming = Callable[[Axis | Var | Operation], str]
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


class _Printer:
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
    return _Printer(naming, other).text(expr)


def print_shape(tensor: Tensor | Operation, naming: Naming = plain_name) -> str:
    """`[8, n]`."""
    return f"[{', '.join(print_expr(extent, naming) for extent in tensor.shape)}]"


def print_tensor(tensor: Tensor) -> str:
    """`A: float32[8, n]`."""
    return f"{tensor.name}: {tensor.dtype.value}{print_shape(tensor)}"


def print_operation(op: Operation, naming: Naming = plain_name) -> str:
    """A definition: one line per output, `C[i, j] = sum(k)(A[i, k] * B[k, j])` with its dtype,
    shape and the ranges of its reduction axes as a comment."""
    shape = print_shape(op, naming)
    if isinstance(op, PlaceholderOp):
        return f"{naming(op)} = placeholder({op.dtype.value}{shape})"
    if isinstance(op, ExternOp):
        return _extern(op, naming)
    if not isinstance(op, ComputeOp):
        raise InternalError(f"{type(op).__name__} has no printed form")
    printer = _Printer(naming, None)
    where = ", ".join(naming(axis) for axis in op.axes)
    lines = [
        f"{printer.tensor(tensor)}[{where}] = {printer.text(body)}  # {tensor.dtype.value}{shape}"
        for tensor, body in zip(op.outputs, op.bodies, strict=True)
    ]
    for axis in op.reduce_axes:
        if axis.domain is not None:
            low = printer.text(axis.domain.min)
            high = _upper(axis.domain.min, axis.domain.extent, printer)
            lines[0] += f", {naming(axis)} in {low} .. {high}"
    return "\n".join(lines)


def _extern(op: ExternOp, naming: Naming) -> str:
    """`E = extern(A, B; sort_rows)  # float32[n]`."""
    printer = _Printer(naming, None)
    left = ", ".join(map(printer.tensor, op.outputs))
    given = ", ".join(map(printer.tensor, op.inputs))
    kinds = ", ".join(f"{t.dtype.value}{print_shape(t, naming)}" for t in op.outputs)
    return f"{left} = extern({given}; {op.function.label})  # {kinds}"


def _upper(low: Expr, extent: Expr, printer: _Printer) -> str:
    """`low + extent` as text, summed when both are numbers."""
    if isinstance(low, Const) and isinstance(extent, Const):
        return str(int(low.value) + int(extent.value))
    if isinstance(low, Const) and low.value == 0:
        return printer.text(extent)
    if isinstance(extent, Binary) and extent.op is BinaryOp.SUB and extent.b is low:
        return printer.text(extent.a)
    return f"{printer.text(low)} + {printer.text(extent)}"


def print_graph(outputs: Sequence[Tensor] | Tensor) -> str:
    """Every operation that `outputs` need, producers first, with names made unique."""
    roots = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
    ops = operations(roots)
    names = unique_names(ops)
    return "\n".join(print_operation(op, lambda thing: names.get(thing, thing.name)) for op in ops)


def print_reducer(reducer: Reducer) -> str:
    """`sum: (x, y) -> x + y, identity 0`."""
    given = ", ".join(v.name for v in (*reducer.lhs, *reducer.rhs))
    results = ", ".join(map(print_expr, reducer.combine))
    identity = ", ".join(map(print_expr, reducer.identity))
    return f"{reducer.name}: ({given}) -> {results}, identity {identity}"


def operations(outputs: Sequence[Tensor]) -> tuple[Operation, ...]:
    """The operations of a graph, each after those it reads, in an order that depends only on the
    graph."""
    done: dict[Operation, None] = {}
    stack: list[tuple[Operation, bool]] = [(tensor.op, False) for tensor in reversed(outputs)]
    while stack:
        op, ready = stack.pop()
        if op in done:
            continue
        if ready or not isinstance(op, (ComputeOp, ExternOp)):
            done[op] = None
            continue
        stack.append((op, True))
        if isinstance(op, ExternOp):
            stack.extend((tensor.op, False) for tensor in reversed(op.inputs))
        else:
            stack.extend((read.tensor.op, False) for read in reversed(reads(*op.bodies)))
    return tuple(done)


def unique_names(
    ops: Sequence[Operation],
) -> Mapping[Axis | Var | Operation, str]:
    """A name for everything that occurs in `ops`: operations and runtime scalars unique in the
    graph, axes unique in their operation."""
    names: dict[Axis | Var | Operation, str] = {}
    shared: set[str] = set()
    scalars: dict[Var, None] = {}
    for op in ops:
        names[op] = _fresh(op.name, shared)
        for node in walk(*op.extents, *(op.bodies if isinstance(op, ComputeOp) else ())):
            if isinstance(node, Var):
                scalars[node] = None
    for each in scalars:
        names[each] = _fresh(each.name, shared)
    sizes = {names[each] for each in scalars}
    for op in ops:
        if isinstance(op, ComputeOp):
            taken = set(sizes)
            for axis in (*op.axes, *op.reduce_axes):
                names[axis] = _fresh(axis.name, taken)
    return names


def _fresh(name: str, taken: set[str]) -> str:
    """`name`, or the first of `name_1`, `name_2`, ... that is not in `taken`; added to it."""
    result, number = name, 0
    while result in taken:
        number += 1
        result = f"{name}_{number}"
    taken.add(result)
    return result
