"""Products of matrices and vectors, in all spellings.  Imports `importer`.

Sums are taken in float32 for 16-bit floats and in the type itself otherwise, and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Expr
from tedsl.tensor import reduce
from tedsl.torch.elements.dtypes import constant, is_number
from tedsl.torch.elements.unseen import weighed
from tedsl.torch.elements.value import Index, Indices, Value, broadcast, cast_to
from tedsl.torch.importer.context import Context
from tedsl.torch.importer.registry import Family, takes
from tedsl.torch.lib import aten
from tedsl.torch.refusals import NotTaken


def _product(context: Context, a: Value, b: Value, batch: int) -> Value:
    """The sum over the last dimension of `a` and the first of `b` behind those of the batch, in
    the type that it is taken in."""
    if a.dtype is not b.dtype or a.dtype.is_bool:
        raise NotTaken("factors of different types")
    work = DType.float32 if a.dtype.is_short_float else a.dtype
    left, right = context.held(a, "a"), context.held(b, "b")
    rows = left.rank - 1
    k = context.axis(left.shape[-1])
    shape = (*left.shape[:-1], *right.shape[batch + 1 :])

    def element(i: Indices) -> Expr:
        first: Sequence[Index] = (*i[:rows], k)
        second: Sequence[Index] = (*i[:batch], k, *i[rows:])
        where = weighed(left[first])
        x, y = (build.cast(each, work) for each in (left[first], right[second]))
        finite = where is not None
        return reduce.sum(x * y, k, where, dtype=work, finite=finite, tf32=context.tf32())

    return context.stage(shape, element, "product" if work is not a.dtype else "")


@takes(Family.PRODUCT, aten.mm.default, aten.mv.default, aten.dot.default, aten.vdot.default)
def mm(context: Context, a: Value, b: Value) -> Value:
    """A matrix or a vector by a matrix or a vector."""
    return cast_to(_product(context, a, b, 0), context.dtype())


@takes(Family.PRODUCT, aten.bmm.default)
def bmm(context: Context, a: Value, b: Value) -> Value:
    """Matrices by matrices."""
    return cast_to(_product(context, a, b, 1), context.dtype())


def _plus(context: Context, bias: Value, product: Value, beta: Any, alpha: Any) -> Value:
    """`beta * bias + alpha * product`, rounded once; with beta 0 the bias is not read."""
    if not (is_number(beta) and is_number(alpha)):
        raise NotTaken("factors that are known at the call only")
    spread = broadcast(bias, product.shape)
    work, result = product.dtype, context.dtype()
    if work.is_integer:
        beta, alpha = int(beta), int(alpha)

    def element(i: Indices) -> Expr:
        found = product[i] if alpha == 1 else product[i] * constant(alpha, work)
        if beta != 0:
            start = build.cast(spread[i], work)
            found = (start if beta == 1 else start * constant(beta, work)) + found
        return build.rounded(found, result)

    return Value(product.shape, result, element, None, 2)


@takes(Family.PRODUCT, aten.addmm.default, aten.addmv.default)
def addmm(context: Context, bias: Value, a: Value, b: Value, beta: Any, alpha: Any) -> Value:
    """A product and what is added to it."""
    return _plus(context, bias, _product(context, a, b, 0), beta, alpha)


@takes(Family.PRODUCT, aten.baddbmm.default)
def baddbmm(context: Context, bias: Value, a: Value, b: Value, beta: Any, alpha: Any) -> Value:
    """Products and what is added to them."""
    return _plus(context, bias, _product(context, a, b, 1), beta, alpha)


@takes(Family.PRODUCT, aten.addbmm.default)
def addbmm(context: Context, bias: Value, a: Value, b: Value, beta: Any, alpha: Any) -> Value:
    """The sum of several products, and what is added to it."""
    work = DType.float32 if a.dtype.is_short_float else a.dtype
    if a.dtype.is_bool:
        raise NotTaken("products of bools")
    left, right = context.held(a, "a"), context.held(b, "b")
    n, k = context.axis(left.shape[0], "n"), context.axis(left.shape[2])

    def element(i: Indices) -> Expr:
        x, y = (build.cast(each, work) for each in (left[(n, i[0], k)], right[(n, k, i[1])]))
        return reduce.sum(x * y, [n, k], dtype=work)

    product = context.stage(context.shape(), element, "product")
    return _plus(context, bias, product, beta, alpha)


@takes(Family.PRODUCT, aten._trilinear.default)
def trilinear(
    context: Context,
    a: Value,
    b: Value,
    c: Value,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    summed: Sequence[int],
    unroll: int,
) -> Value:
    """The sum over some dimensions of three factors, each without some dimensions."""
    del unroll
    rank = a.rank + len(expand1)
    factors = [context.held(each, "factor") for each in (a, b, c)]
    placed = [[d for d in range(rank) if d not in absent] for absent in (expand1, expand2, expand3)]
    extents = {
        d: factor.shape[n]
        for factor, dims in zip(factors, placed, strict=True)
        for n, d in enumerate(dims)
    }
    work = DType.float32 if a.dtype.is_short_float else a.dtype
    axes = {d: context.axis(extents[d], f"k{d}") for d in summed}

    def element(i: Indices) -> Expr:
        rest = iter(i)
        at: list[Index] = [axes[d] if d in axes else next(rest) for d in range(rank)]
        x, y, z = (
            build.cast(factor[[at[d] for d in dims]], work)
            for factor, dims in zip(factors, placed, strict=True)
        )
        return reduce.sum(x * y * z, list(axes.values()), dtype=work)

    return cast_to(context.stage(context.shape(), element, "product"), context.dtype())
