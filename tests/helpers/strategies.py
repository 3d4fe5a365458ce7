"""Hypothesis strategies: computations of every kind the language has, with inputs for them.

A `Case` is drawn stage by stage: each stage reads tensors made so far and maybe new inputs.
Comparisons and argmax look at inputs or integers only, so that a result never hangs on the last bit
of a float.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import choices as st
import numpy as np
from cases import LARGE, SMALL, STORED, Case, Dim, Draw, Known, Sizes, extents, least
from drawn_stages import Stages

import tedsl as te
from tedsl.dtypes import DType
from tedsl.expr.nodes import Axis, Expr
from tedsl.expr.numerics import Array
from tedsl.tensor.tensor import Tensor

__all__ = ["LARGE", "SMALL", "Case", "Dim", "Draw", "Known", "computes", "extents", "products"]


@st.composite
def shapes(draw: Draw, min_rank: int = 0, max_rank: int = 3) -> tuple[int, ...]:
    """A shape of small and odd extents."""
    return tuple(draw(st.lists(extents(), min_size=min_rank, max_size=max_rank)))


@st.composite
def computes(draw: Draw, externs: bool = False, sizes: Sizes = SMALL) -> Case:
    """A computation of one to four stages over one dtype (and int32 indices, float32 sums); with
    `externs`, some are functions of whole arrays."""
    return _Builder(draw, externs, sizes).build()


@st.composite
def by_group(draw: Draw) -> Case:
    """Rows of what some stages compute folded into groups that data say."""
    return _Builder(draw, False, SMALL).grouping()


@st.composite
def products(draw: Draw) -> Case:
    """A matrix product of tiles that micro kernels have, between pointwise stages, or batched."""
    case = Case(number=draw(st.integers(0, 2**16)), depth=3)
    random = np.random.default_rng(case.number)
    m, n, k = (draw(st.sampled_from((2, 3, 4, 6, 8, 12))) for _ in range(3))
    batch = draw(st.sampled_from(((), (), (2,))))
    a, b = (
        te.placeholder((*batch, *shape), "float32", name=name)
        for name, shape in (("A", (m, k)), ("B", (k, n)))
    )
    for tensor, shape in ((a, (*batch, m, k)), (b, (*batch, k, n))):
        case.inputs[tensor] = (random.integers(-4, 5, shape) / 4).astype(np.float32)
    left = a
    if draw(st.booleans()):
        left = te.compute(a.shape, lambda *i: a[i] * 2.0, name="L")
    r = te.reduce_axis((0, k), name="k")
    made = te.compute(
        (*batch, m, n), lambda *i: te.sum(left[(*i[:-1], r)] * b[(*i[:-2], r, i[-1])], r), name="C"
    )
    case.outputs, case.length = [made], k
    if draw(st.booleans()):
        case.outputs = [te.compute(made.shape, lambda *i: made[i] + 1.0, name="D")]
    return case


def reverse(ins: Sequence[Array], outs: Sequence[Array]) -> None:
    """The elements from the last to the first."""
    outs[0][...] = ins[0].reshape(-1)[::-1].reshape(ins[0].shape)


def chosen(ins: Sequence[Array], outs: Sequence[Array]) -> Array:
    """Every other element of the second input, the rest of the first."""
    even = np.arange(ins[0].size).reshape(ins[0].shape) % 2 == 0
    return np.where(even, ins[0], ins[1])


def twice(ins: Sequence[Array], outs: Sequence[Array]) -> tuple[Array, Array]:
    """The input, and it reversed with one more dimension."""
    return ins[0].copy(), ins[0][None, ...][..., ::-1].copy() if ins[0].ndim else ins[0][None]


class _Builder(Stages):
    """Draws a case."""

    def build(self) -> Case:
        rank = self.draw(st.sampled_from((1, 2, 2, 2, 3, 3, 0, 4, 5, 6)))
        known = [self.placeholder(tuple(self.dim() for _ in range(rank)))]
        for _ in range(self.draw(st.sampled_from((1, 1, 2, 2, 3, 4)))):
            source = known[-1] if self.chance(4, 5) else self.draw(st.sampled_from(known))
            known += self.stage(source)
        made = [each.tensor for each in known if each.tensor not in self.case.inputs]
        self.case.outputs = [made[-1]]
        if len(made) > 1 and self.chance(1, 4):
            self.case.outputs.append(self.draw(st.sampled_from(made[:-1])))
        self.case.depth = len(made)
        return self.case

    def grouping(self) -> Case:
        """One or two stages, then rows of them folded into groups."""
        rank = self.draw(st.integers(1, 3))
        known = [self.placeholder(tuple(self.dim() for _ in range(rank)))]
        for kind in (self.pointwise, self.transposed if rank > 1 else self.backwards):
            known += kind(known[-1]) if self.chance(1, 2) else []
        made = self.grouped(known[-1])
        known += made if self.chance(1, 2) else [*made, *self.pointwise(made[0])]
        self.case.outputs = [known[-1].tensor]
        self.case.depth = len(known)
        return self.case

    def stage(self, source: Known) -> list[Known]:
        """One more operation that reads `source`."""
        self.enlarge(source)
        kinds: list[Callable[[Known], list[Known]]] = [self.pointwise, self.pointwise, self.several]
        if source.dims:
            kinds += [self.reduction, self.reduction, self.shifted, self.broadcast, self.nested]
            kinds += [self.remapped] * 4 + [self.resized, self.stencil, self.windowed]
            kinds += [self.diamond, self.centred, self.paired, self.in_groups, self.in_groups]
            kinds += [self.backwards, self.strided]
        if source.exact and source.finite and source.dtype.is_float:
            kinds.append(self.stored)
        if not source.dtype.is_bool:
            kinds.append(self.mixed)
        if len(source.dims) < 4:
            kinds.append(self.expanded)
        if source.dims and (source.exact or not source.dtype.is_float):
            kinds.append(self.argmax)
        if len(source.dims) >= 2:
            kinds += [self.transposed, self.contraction, self.contraction]
        if source.dims and source.dims[0].value > 0:
            kinds += [self.gather, self.grouped]
        if self.externs:
            kinds.append(self.extern)
        return self.draw(st.sampled_from(kinds))(source)

    # Stages ---------------------------------------------------------------------------------------

    def pointwise(self, source: Known) -> list[Known]:
        other = self.placeholder(source.dims, source.dtype) if self.chance(1, 3) else source
        formula = self.formula(source.dtype, self.draw(st.integers(1, 3)))

        def body(*i: Expr) -> Any:
            return formula([source.tensor[i], other.tensor[i]], i)

        return [self.define(source.dims, body)]

    def stored(self, source: Known) -> list[Known]:
        """Kept in 8 bits on the way."""
        kept = self.draw(st.sampled_from(STORED))
        narrow = self.define(source.dims, lambda *i: source.tensor[i].astype(kept))

        def body(*i: Expr) -> Any:
            return narrow.tensor[i].astype(source.dtype)

        return [self.define(source.dims, body, exact=True)]

    def several(self, source: Known) -> list[Known]:
        first, second = (self.formula(source.dtype, 1) for _ in range(2))

        def body(*i: Expr) -> Any:
            read = source.tensor[i]
            return first([read, read], i), second([read, read], i)

        made: Any = te.compute([d.extent for d in source.dims], body, name=self.name("T"))
        return [Known(tensor, source.dims, False) for tensor in made]

    def broadcast(self, source: Known) -> list[Known]:
        row = self.placeholder(source.dims[-1:], source.dtype)
        formula = self.formula(source.dtype, 2)

        def body(*i: Expr) -> Any:
            return formula([source.tensor[i], row.tensor[i[-1]]], i)

        return [self.define(source.dims, body)]

    def extern(self, source: Known) -> list[Known]:
        """A function from outside: whole arrays, filled or returned, one or two."""
        shape = [d.extent for d in source.dims]
        kind = self.draw(st.sampled_from(("fill", "return", "two")))
        name = self.name("E")
        if kind == "fill":
            (made,) = self.called(shape, [source], reverse, name)
            return [replace(source, tensor=made)]
        if kind == "return":
            other = self.placeholder(source.dims, source.dtype)
            (made,) = self.called(shape, [source, other], chosen, name)
            return [replace(source, tensor=made)]
        plain, longer = self.called([shape, [1, *shape]], [source], twice, name)
        dims = (Dim(1, 1), *source.dims)
        return [replace(source, tensor=longer, dims=dims), replace(source, tensor=plain)]

    def called(self, shape: Any, sources: list[Known], function: Any, name: str) -> list[Tensor]:
        inputs = [each.tensor for each in sources]
        made = te.extern(shape, inputs, function, name=name)
        return [made] if isinstance(made, Tensor) else made

    def shifted(self, source: Known) -> list[Known]:
        step, which = self.draw(st.integers(1, 2)), self.draw(st.integers(0, len(source.dims) - 1))

        def body(*i: Expr) -> Any:
            there = tuple(x - step if d == which else x for d, x in enumerate(i))
            fill = te.const(1, source.dtype)
            return te.if_then_else(i[which] >= step, source.tensor[there], fill)

        return [self.define(source.dims, body, source.exact, source.finite)]

    def backwards(self, source: Known) -> list[Known]:
        """One dimension from its end, maybe beside the same one from its beginning."""
        which = self.draw(st.integers(0, len(source.dims) - 1))
        last = source.dims[which].extent - 1
        both = self.chance(1, 3)
        formula = self.formula(source.dtype, 1)

        def body(*i: Expr) -> Any:
            there = tuple(last - x if d == which else x for d, x in enumerate(i))
            return formula([source.tensor[there], source.tensor[i if both else there]], i)

        return [self.define(source.dims, body)]

    def strided(self, source: Known) -> list[Known]:
        """Every second or third element of one dimension, from either end."""
        which = self.draw(st.integers(0, len(source.dims) - 1))
        step, turned = self.draw(st.integers(2, 3)), self.draw(st.booleans())
        value = source.dims[which].value
        if not isinstance(source.dims[which].extent, int) or value < step:
            return self.backwards(source)
        count = value // step
        dims = tuple(Dim(count, count) if d == which else x for d, x in enumerate(source.dims))

        def body(*i: Expr) -> Any:
            at = (count - 1 - i[which]) * step if turned else i[which] * step
            there = tuple(at if d == which else x for d, x in enumerate(i))
            return source.tensor[there]

        return [self.define(dims, body, source.exact, source.finite)]

    def transposed(self, source: Known) -> list[Known]:
        dims = (*source.dims[:-2], source.dims[-1], source.dims[-2])

        def body(*i: Expr) -> Any:
            return source.tensor[(*i[:-2], i[-1], i[-2])]

        return [self.define(dims, body, source.exact, source.finite)]

    def gather(self, source: Known) -> list[Known]:
        count = self.dim()
        index = self.placeholder((count,), DType.int32, below=source.dims[0].value)
        dims = (count, *source.dims[1:])

        def body(*i: Expr) -> Any:
            return source.tensor[(index.tensor[i[0]], *i[1:])]

        return [self.define(dims, body, source.exact, source.finite)]

    def grouped(self, source: Known) -> list[Known]:
        """Rows folded into groups, some of which have none; some rows belong to no group."""
        groups, rows = self.dim(), source.dims[0]
        index = self.placeholder((rows,), DType.int32, below=groups.value + 2)
        fold = self.draw(st.sampled_from(self.folds(source)))
        i = te.reduce_axis((0, rows.extent), name=self.name("i"))
        self.case.length *= max(1, rows.value)

        def body(*g: Expr) -> Any:
            where = index.tensor[i] - 1 == g[0]
            return fold(source.tensor[(i, *g[1:])], axis=i, where=where)

        exact = source.exact and fold in (te.max, te.min)
        return [self.define((groups, *source.dims[1:]), body, exact, False)]

    def reduction(self, source: Known) -> list[Known]:
        which = self.draw(st.integers(0, len(source.dims) - 1))
        fold = self.draw(st.sampled_from(self.folds(source)))
        dims = tuple(d for n, d in enumerate(source.dims) if n != which)
        k = te.reduce_axis((0, source.dims[which].extent), name=self.name("k"))
        where = self.mask() if self.chance(1, 4) else None
        init = self.chance(1, 6) and fold in (te.sum, te.max)
        self.case.length *= max(1, source.dims[which].value)

        def body(*i: Expr) -> Any:
            read = source.tensor[(*i[:which], k, *i[which:])]
            options: dict[str, Any] = {"where": where(k, i)} if where else {}
            if init:
                options["init"] = te.const(1, te.sum(read, axis=k).dtype)
                if fold is te.max:
                    options["init"] = te.const(1, read.dtype)
            return fold(read, axis=k, **options)

        exact = source.exact and fold in (te.max, te.min)
        never_empty = source.dims[which].value > 0 and (where is None or init)
        return [self.define(dims, body, exact, source.finite and never_empty)]

    def mask(self) -> Callable[[Axis, Sequence[Expr]], Any]:
        """A condition on the reduced axis: a stride, or a limit that moves with the first data
        axis."""
        kind = self.draw(st.sampled_from(("stride", "upper", "lower", "band", "turned")))
        shift, step = self.draw(st.integers(-2, 9)), self.draw(st.sampled_from((1, 1, 2, -1)))

        def condition(k: Axis, i: Sequence[Expr]) -> Any:
            here = (i[0] if i else 0) * step + shift
            match kind:
                case "upper":
                    return k <= here
                case "lower":
                    return here - 4 < k
                case "band":
                    return te.all(k <= here, k > here - 5)
                case "turned":
                    return (here - k) % 3 != (here - k - 4) // 5
                case _:
                    return (k % 3) != 1

        return condition

    def folds(self, source: Known) -> list[Callable[..., Any]]:
        if source.dtype.is_bool:
            return [te.any, te.all, te.sum]
        folds: list[Callable[..., Any]] = [te.sum, te.sum, te.max, te.min]
        return folds if source.dtype.is_float else [*folds, te.prod]

    def contraction(self, source: Known) -> list[Known]:
        columns, shared = self.dim(), source.dims[-1]
        other = self.placeholder((shared, columns), source.dtype)
        k = te.reduce_axis((0, shared.extent), name=self.name("k"))
        self.case.length *= max(1, shared.value)
        where = self.mask() if self.chance(1, 5) else None

        def body(*i: Expr) -> Any:
            left, right = source.tensor[(*i[:-1], k)], other.tensor[k, i[-1]]
            options: dict[str, Any] = {"where": where(k, i)} if where else {}
            return te.sum(left & right if source.dtype.is_bool else left * right, axis=k, **options)

        return [self.define((*source.dims[:-1], columns), body)]

    def nested(self, source: Known) -> list[Known]:
        """An element against a reduction of its row, in one body."""
        k = te.reduce_axis((0, source.dims[-1].extent), name=self.name("k"))

        def body(*i: Expr) -> Any:
            read = source.tensor[i]
            row = source.tensor[(*i[:-1], k)]
            if source.dtype.is_bool:
                return te.any(row, axis=k) ^ read
            return read - te.max(row, axis=k)

        return [self.define(source.dims, body, source.exact and source.finite)]

    def argmax(self, source: Known) -> list[Known]:
        if source.dtype.is_bool:
            return self.reduction(source)
        k = te.reduce_axis((0, source.dims[-1].extent), name=self.name("k"))
        lowest = least(source.dtype)

        def combine(a: Any, b: Any) -> Any:
            first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
            return te.select(first, a[0], b[0]), te.select(first, a[1], b[1])

        def identity(*_: DType) -> Any:
            return lowest, te.const(2**31 - 1, "int32")

        reducer = te.comm_reducer(combine, identity, name="argmax")

        def body(*i: Expr) -> Any:
            at = te.const(0, "int32") + k
            return reducer((source.tensor[(*i, k)], at), axis=k)

        dims = source.dims[:-1]
        made: Any = te.compute([d.extent for d in dims], body, name=self.name("T"))
        index = Known(made[1], dims, True)
        return [index, Known(made[0], dims, source.exact, source.finite)]
