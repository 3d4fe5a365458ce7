"""Parts of a result (`divide`) that are stored in place, at an offset in the whole.

Part of `build_nests`; imports `context` and `ir`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tedsl.expr.index_arith import add
from tedsl.expr.nodes import Expr
from tedsl.expr.visit import rewrite
from tedsl.index.simplify import simplify
from tedsl.ir.nodes import Accumulate, Buffer, Load, Stmt, Store
from tedsl.ir.visit import map_exprs, rewrite_stmts
from tedsl.lower.nests.context import Context
from tedsl.scheduling.plan import Partitioned, Plan
from tedsl.scheduling.plan.links import special
from tedsl.tensor.tensor import Tensor

Home = tuple[Buffer, int, Expr | None]
"""The buffer that another lies in, the dimension that it is a piece of, and where that starts."""


def in_whole(context: Context, body: Stmt) -> Stmt:
    """A kernel that stores and loads parts in the whole, at their offsets.

    Before:  for i: C.tail[i] = f(i)
    After:   for i: C[i + at] = f(i)
    """
    homes = _homes(context.plan, context.buffers)
    if not homes:
        return body

    def moved(buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        while buffer in homes:
            buffer, dim, start = homes[buffer]
            if start is not None:
                index = simplify(add(indices[dim], start))
                indices = (*indices[:dim], index, *indices[dim + 1 :])
        return buffer, indices

    def load(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or node.buffer not in homes:
            return None
        buffer, indices = moved(node.buffer, node.indices)
        return replace(node, buffer=buffer, indices=indices)

    def store(node: Stmt) -> Stmt | None:
        match node:
            case Store(buffer=piece) if piece in homes:
                buffer, indices = moved(piece, node.indices)
                return replace(node, buffer=buffer, indices=indices)
            case Accumulate(buffers=pieces) if any(piece in homes for piece in pieces):
                _, indices = moved(pieces[0], node.indices)
                buffers = tuple(moved(piece, node.indices)[0] for piece in pieces)
                return replace(node, buffers=buffers, indices=indices)
            case _:
                return None

    return rewrite_stmts(map_exprs(body, lambda expr: rewrite(expr, load)), store)


def _homes(plan: Plan, buffers: Mapping[Tensor, Buffer]) -> dict[Buffer, Home]:
    """The whole and the offset of each part."""
    found: dict[Buffer, Home] = {}
    for whole in special(plan):
        pieces = whole.placement
        if not isinstance(pieces, Partitioned):
            continue
        for name, start in ((pieces.head, None), (pieces.tail, pieces.position)):
            outputs = zip(plan.stage(name).op.outputs, whole.op.outputs, strict=True)
            found.update((buffers[a], (buffers[b], pieces.dim, start)) for a, b in outputs)
    return found
