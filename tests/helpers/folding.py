"""One pass over tiles with a repair, against direct folds: numpy, any float type."""

from __future__ import annotations

import numpy as np

from tedsl.dtypes import DType
from tedsl.expr import numerics
from tedsl.expr.nodes import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    Const,
    IfThenElse,
    Select,
    Unary,
)

FOLDS = {BinaryOp.ADD: np.add, BinaryOp.MAX: np.maximum, BinaryOp.MIN: np.minimum}


def value(expr, known, dtype=DType.float64):
    """`expr` in `dtype` throughout; `known` gives arrays for nodes, by their text."""

    def of(node):
        text = repr(node)
        if text in known:
            return known[text]
        match node:
            case Const(value=number):
                own = node.dtype
                return np.asarray(number).astype("bool" if own.is_bool else dtype.value)
            case Unary(op=op, a=a):
                return numerics.unary(op, of(a), dtype)
            case Binary(op=op, a=a, b=b):
                return numerics.binary(op, of(a), of(b), dtype)
            case Compare(op=op, a=a, b=b):
                return numerics.COMPARE[op](of(a), of(b))
            case Select(condition=c, a=a, b=b) | IfThenElse(condition=c, a=a, b=b):
                return np.where(of(c), of(a), of(b))
            case Cast(a=a):
                return of(a)
            case _:
                raise KeyError(text)

    return of(expr)


def fold(operator, expr, known, size, dtype=DType.float64):
    """The fold of `expr` over `size` elements."""
    with np.errstate(all="ignore"):
        values = np.broadcast_to(value(expr, known, dtype), (size,))
    return FOLDS[operator].reduce(values.astype(dtype.value))


def one_pass(repair, elements, tags_of, tile, dtype=DType.float64, estimate=False):
    """X by one pass over tiles of `tile` elements.

    `elements` gives arrays by text; `tags_of(slice)` the tags of a range of elements.  With
    `estimate`, sums stand as estimates of the whole.
    """
    size = max(np.size(v) for v in elements.values())
    totals: list = []
    old: list = []
    names = [tag.var.name for tag in repair.tags]
    for start in range(0, size, tile):
        end = min(start + tile, size)
        new = list(tags_of(slice(0, end)))
        if estimate:
            for n, tag in enumerate(repair.tags):
                if tag in repair.extrapolate:
                    new[n] = np.dtype(dtype.value).type(new[n] * (size / end))
        here = {k: v[start:end] if np.size(v) == size else v for k, v in elements.items()}
        known = {**here, **dict(zip(names, new, strict=True))}
        part = [fold(repair.reducer, e, known, end - start, dtype) for e in repair.basis]
        if totals:
            known = {k: v for k, v in elements.items() if np.size(v) != size}
            known |= {v.name: x for v, x in zip(repair.old, old, strict=True)}
            known |= {v.name: x for v, x in zip(repair.new, new, strict=True)}
            known |= {v.name: x for v, x in zip(repair.totals, totals, strict=True)}
            moved = [value(e, known, dtype) for e in repair.update]
            part = [FOLDS[repair.reducer](x, y) for x, y in zip(moved, part, strict=True)]
        totals, old = part, new
    final = list(tags_of(slice(0, size)))
    known = {k: v for k, v in elements.items() if np.size(v) != size}
    known |= {repair.totals[0].name: totals[0], **dict(zip(names, final, strict=True))}
    return value(repair.finish, known, dtype)
