"""How many programs arrive at a `Finish` (last-block reduction) under conditions: counted one by
one, where a grid is small.

Part of the third room; imports `expr`, `index` and `ir.nodes`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import product

from tedsl.expr.index_arith import constant
from tedsl.expr.nodes import Axis, Expr, Var
from tedsl.index.evaluate import EvaluationError, evaluate_int
from tedsl.ir.nodes import Finish

# Programs up to which each is looked at.
MANY = 2048


def comes_short(
    finish: Finish, grid: Sequence[tuple[Axis, Expr]], conditions: Sequence[Expr]
) -> bool:
    """True when another number of programs than it waits for arrives at a finish with some indices.

    Args:
        finish: what counts the programs.
        grid: the loops of the grid around it, with their extents.
        conditions: what holds where it stands, of iterations of these.

    Returns:
        False also where that is not known: for a grid of many programs or of runtime size.
    """
    sizes = [constant(extent) for _, extent in grid]
    if any(size is None for size in sizes) or math.prod(n or 0 for n in sizes) > MANY:
        return False
    came: Counter[tuple[int, ...]] = Counter()
    none: dict[Axis | Var, int] = {}
    try:
        for point in product(*(range(n or 0) for n in sizes)):
            pairs = zip(grid, point, strict=True)
            values: dict[Axis | Var, int] = {axis: number for (axis, _), number in pairs}
            if all(evaluate_int(condition, values) for condition in conditions):
                came[tuple(evaluate_int(index, values) for index in finish.indices)] += 1
        wanted = evaluate_int(finish.count, none)
    except EvaluationError:
        return False
    return any(count != wanted for count in came.values())
