"""Whether index arithmetic stays within its integer type for the sizes of one call.

With constant shapes the lowering chooses 64-bit axes where they are needed.  Symbolic sizes are as
wide as the user declared them, 32 bits by default, and a loop over n * m may leave that range
although n and m are in it: such a call is refused before it reads or writes anything.  Imports
`index` and `ir`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tedsl.errors import BackendError
from tedsl.expr.nodes import Expr, Var
from tedsl.expr.visit import walk
from tedsl.index.facts import Facts
from tedsl.index.interval import interval
from tedsl.ir.nodes import For, Guard, Load, Module, Stmt
from tedsl.ir.printer import print_expr
from tedsl.ir.visit import own_exprs, sub_stmts, tile_axes
from tedsl.runtime.arguments.sizes import Number, launched

Ranges = dict[Expr, tuple[Expr | int, Expr | int]]
SAFE_SIZE = 1 << 28  # elements; index arithmetic over smaller arrays stays far from 32 bits


def check_ranges(module: Module, values: Mapping[Var, Number]) -> None:
    """Refuse sizes for which an index expression of `module` leaves its type.

    Raises:
        BackendError: names the expression, its largest value and the sizes to declare wider.
    """
    ranges: Ranges = {var: (int(value), 1) for var, value in values.items() if var.dtype.is_integer}
    for repeat in module.repeats:
        ranges[repeat.step] = (0, repeat.extent)
    for func in module.funcs:
        if not launched(func, values):
            continue
        for node, highest in _indices(func.body, dict(ranges)):
            names = [var.name for var in values if var.dtype.is_integer]
            sizes = ", ".join(f"{var.name} = {value}" for var, value in values.items())
            raise BackendError(
                f"the index {print_expr(node)} reaches {highest}, beyond {node.dtype}",
                subject=f"{module.name}: kernel {func.name}",
                facts=[("where", sizes)],
                hint=f'declare the sizes as te.size_var({names[0]!r}, "int64")'
                if names
                else "use smaller arrays",
            )


def _indices(stmt: Stmt, ranges: Ranges) -> Iterator[tuple[Expr, int]]:
    """Index expressions below `stmt` that leave their type, with their largest value."""
    for tile in tile_axes(stmt):
        ranges[tile.axis] = (0, tile.extent)
    facts = Facts.of(ranges)
    roots: list[Expr] = []
    match stmt:
        case For(start=start, end=end):
            roots += (start, end)
        case Guard(condition=condition):
            roots.append(condition)
        case _:
            for expr in walk(*own_exprs(stmt)):
                if isinstance(expr, Load):
                    roots += expr.indices
            roots += getattr(stmt, "indices", ())
    for node in walk(*roots):
        if node.dtype.is_integer and not isinstance(node, Load):
            found = interval(node, facts)
            highest = found.hi
            if highest is not None and highest > node.dtype.info.highest:
                yield node, highest
    if isinstance(stmt, For):
        end = interval(stmt.end, facts).hi
        if end is not None:
            ranges[stmt.axis] = (0, max(end, 0))
    for inner in sub_stmts(stmt):
        yield from _indices(inner, ranges)
