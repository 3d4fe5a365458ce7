"""Stable, readable text of definitions and graphs.

Names print as they were given; where several objects of a graph share a name, later ones get
`_1`, `_2`, ....  Expressions are printed by `expr.printer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tedsl.errors import InternalError
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Const, Expr, Var
from tedsl.expr.printer import Naming, Printer, plain_name, print_expr
from tedsl.expr.visit import axes_of, reads, walk
from tedsl.tensor.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, ScanOp, Tensor


def print_shape(tensor: Tensor | Operation, naming: Naming = plain_name) -> str:
    """`[8, n]`."""
    return f"[{', '.join(print_expr(extent, naming) for extent in tensor.shape)}]"


def print_tensor(tensor: Tensor) -> str:
    """`A: float32[8, n]`."""
    return f"{tensor.name}: {tensor.dtype.value}{print_shape(tensor)}"


def print_operation(op: Operation, naming: Naming = plain_name) -> str:
    """A definition: one line per output, `C[i, j] = sum(k)(A[i, k] * B[k, j])` with its dtype,
    shape and the ranges of its reduction axes as a comment."""
    if isinstance(op, PlaceholderOp):
        return f"{naming(op)} = placeholder({op.dtype.value}{print_shape(op, naming)})"
    if isinstance(op, ExternOp):
        return _extern(op, naming)
    if not isinstance(op, ComputeOp):
        raise InternalError(f"{type(op).__name__} has no printed form")
    printer = Printer(naming, None)
    lines = [
        f"{printer.tensor(tensor)}[{', '.join(map(naming, _axes(op, body)))}] = "
        f"{printer.text(body)}  # {tensor.dtype.value}{print_shape(tensor, naming)}"
        for tensor, body in zip(op.outputs, op.bodies, strict=True)
    ]
    for axis in op.reduce_axes:
        if axis.domain is not None:
            low = printer.text(axis.domain.min)
            high = _upper(axis.domain.min, axis.domain.extent, printer)
            lines[0] += f", {naming(axis)} in {low} .. {high}"
    return "\n".join(lines)


def _axes(op: ComputeOp, body: Expr) -> Sequence[Axis]:
    """What indexes an output: not all axes, where the states of a scan differ in shape."""
    if not isinstance(op, ScanOp):
        return op.axes
    used = axes_of(body)
    return [axis for axis in op.axes if axis in used]


def _extern(op: ExternOp, naming: Naming) -> str:
    """`E = extern(A, B; sort_rows)  # float32[n]`."""
    printer = Printer(naming, None)
    left = ", ".join(map(printer.tensor, op.outputs))
    given = ", ".join(map(printer.tensor, op.inputs))
    kinds = ", ".join(f"{t.dtype.value}{print_shape(t, naming)}" for t in op.outputs)
    return f"{left} = extern({given}; {op.function.label})  # {kinds}"


def _upper(low: Expr, extent: Expr, printer: Printer) -> str:
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
