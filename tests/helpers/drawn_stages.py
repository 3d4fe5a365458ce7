"""Stages that read what is before them elsewhere than at their own place: reversed, wrapped,
strided, divided, clamped and computed indices, other shapes, stencils and windows, diamonds; and
other dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import choices as st
from cases import Dim, Drawing, Known, least, most

import tedsl as te
from tedsl.dtypes import DType
from tedsl.expr.nodes import Expr

Place = Callable[[Any], Any]
"""From an index to another of the same dimension."""
NARROW = {
    "float": ("float16", "bfloat16", "float32", "float64"),
    "int": ("int8", "int16", "int32", "int64", "uint8"),
}


class Stages(Drawing):
    """Draws such stages."""

    def enlarge(self, source: Known) -> None:
        """What is drawn next goes with a tensor of this size, and may make it larger."""
        self.elements = max(1, math.prod(max(1, d.value) for d in source.dims) // 8)

    def place(self, dim: Dim) -> Place:
        """An index within the dimension, computed from one: an extent of 0 has none."""
        n, step = dim.extent, self.draw(st.integers(1, 9))
        kinds = ("reversed", "reversed", "rolled", "back", "strided", "clamped", "mirrored")
        kinds += ("divided", "modulo", "turned", "read", "computed")
        kind = self.draw(st.sampled_from(kinds)) if dim.value else "none"
        index = self.placeholder((dim,), DType.int32, below=max(1, dim.value)).tensor
        last: Any = n - 1
        match kind:
            case "reversed":
                return lambda i: last - i
            case "rolled":
                return lambda i: (i + step) % n
            case "back":
                return lambda i: (i - step) % n
            case "strided":
                return lambda i: (i * step + 1) % n
            case "clamped":
                forward = self.chance(1, 2)
                return lambda i: te.minimum(i + step, last) if forward else te.max(i - step, 0)
            case "mirrored":
                return lambda i: te.minimum(te.abs(i - step), last)
            case "divided":
                return lambda i: i // step
            case "modulo":
                return lambda i: (
                    i % te.minimum(n, step) if isinstance(n, Expr) else i % min(n, step)
                )
            case "turned":
                return lambda i: (last - i) // step
            case "read":
                return lambda i: index[i]
            case "computed":
                return lambda i: (index[i] * step - i) % n
            case _:
                self.case.inputs.pop(index)
                return lambda i: i

    def kept(self, dim: Dim, place: Place) -> Place:
        """The same, computed by a stage of its own."""
        made: Any = te.compute([dim.extent], place, name=self.name("X"))
        return lambda i: made[i]

    def remapped(self, source: Known) -> list[Known]:
        """Some dimensions read elsewhere, perhaps beside the element itself, perhaps through an
        index of a stage of its own."""
        count = min(len(source.dims), self.draw(st.integers(1, 2)))
        chosen = self.draw(st.permutations(list(range(len(source.dims)))))[:count]
        places: dict[int, Place] = {}
        for d in chosen:
            place = self.place(source.dims[d])
            if self.chance(1, 5):
                place = self.kept(source.dims[d], place)
            places[d] = place
        beside = self.chance(1, 2)
        formula = self.formula(source.dtype, 1)

        def body(*i: Expr) -> Any:
            there = tuple(places[d](x) if d in places else x for d, x in enumerate(i))
            read = source.tensor[there]
            return formula([source.tensor[i], read], i) if beside else read

        exact = source.exact and not beside
        return [self.define(source.dims, body, exact, source.finite or beside)]

    def resized(self, source: Known) -> list[Known]:
        """More or fewer elements: doubled, halved, cut off, two dimensions as one, one as two."""
        which = self.draw(st.integers(0, len(source.dims) - 1))
        dim, factor = source.dims[which], self.draw(st.integers(2, 3))
        kinds = ["up", "down", "slice"]
        kinds += ["join"] * (which > 0 and dim.value > 0) + ["part"] * (dim.value % factor == 0)
        kind = self.draw(st.sampled_from(kinds))
        before, after = source.dims[:which], source.dims[which + 1 :]
        n: Any = dim.extent

        def made(dims: Sequence[Dim], place: Callable[[tuple[Any, ...]], Any]) -> list[Known]:
            shape = (*before[: len(before) - (kind == "join")], *dims, *after)
            return [
                self.define(shape, lambda *i: source.tensor[place(i)], source.exact, source.finite)
            ]

        match kind:
            case "up":
                longer = Dim(n * factor, dim.value * factor)
                return made([longer], lambda i: (*i[:which], i[which] // factor, *i[which + 1 :]))
            case "down":
                fewer = Dim((n + factor - 1) // factor, -(-dim.value // factor))
                return made([fewer], lambda i: (*i[:which], i[which] * factor, *i[which + 1 :]))
            case "join":
                first = before[-1]
                both = Dim(first.extent * n, first.value * dim.value)
                place = which - 1
                return made(
                    [both],
                    lambda i: (*i[:place], i[place] // n, i[place] % n, *i[place + 1 :]),
                )
            case "part":
                parts = [Dim(n // factor, dim.value // factor), Dim(factor, factor)]
                return made(
                    parts,
                    lambda i: (*i[:which], i[which] * factor + i[which + 1], *i[which + 2 :]),
                )
            case _:
                cut = min(factor - 1, dim.value) if not isinstance(n, Expr) else 0
                rest = Dim(n - cut, dim.value - cut)
                return made([rest], lambda i: (*i[:which], i[which] + cut, *i[which + 1 :]))

    def beside(self, dim: Dim, how: str) -> Callable[[Any, int], tuple[Any, Any]]:
        """Of an index and an offset: where to read, and whether that is inside (None: it is)."""
        n: Any = dim.extent

        def near(i: Any, offset: int) -> tuple[Any, Any]:
            if offset == 0:
                return i, None
            match how:
                case "fill":
                    inside = i >= -offset if offset < 0 else i < n - offset
                    return i + offset, inside
                case "wrap" if dim.value:
                    return (i + offset) % n, None
                case _:
                    moved = i + offset
                    if offset < 0:
                        return te.maximum(moved, 0), None
                    return te.minimum(moved, n - 1), None

        return near

    def stencil(self, source: Known) -> list[Known]:
        """A weighted sum of neighbours in one or two dimensions, with what is outside filled in,
        clamped or wrapped."""
        if source.dtype.is_bool:
            return self.remapped(source)
        count = min(len(source.dims), self.draw(st.integers(1, 2)))
        chosen = self.draw(st.permutations(list(range(len(source.dims)))))[:count]
        how = self.draw(st.sampled_from(("fill", "clamp", "wrap")))
        near = {d: self.beside(source.dims[d], how) for d in chosen}
        taps = [
            {d: self.draw(st.sampled_from((0, 1, -1, 2, -2))) for d in chosen}
            for _ in range(self.draw(st.integers(2, 4)))
        ]

        def tap(i: tuple[Any, ...], offsets: dict[int, int]) -> Any:
            there, inside = list(i), list[Any]()
            for d, offset in offsets.items():
                there[d], test = near[d](i[d], offset)
                inside += [] if test is None else [test]
            read = source.tensor[tuple(there)]
            if not inside:
                return read
            return te.if_then_else(te.all(*inside), read, te.const(0, source.dtype))

        def body(*i: Expr) -> Any:
            total: Any = tap(i, taps[0])
            for offsets in taps[1:]:
                total = total + tap(i, offsets)
            return total

        return [self.define(source.dims, body)]

    def windowed(self, source: Known) -> list[Known]:
        """A window that moves by strides along the last dimensions, folded: weighted or not."""
        which = self.draw(st.integers(0, len(source.dims) - 1))
        dim, wide = source.dims[which], self.draw(st.integers(1, 4))
        stride, pad = self.draw(st.integers(1, 3)), self.draw(st.integers(0, 2))
        n: Any = dim.extent
        rows = Dim((n + stride - 1) // stride, -(-dim.value // stride))
        r = te.reduce_axis((0, wide), name=self.name("r"))
        weighted = self.chance(1, 2)
        weights = self.placeholder((Dim(wide, wide),), source.dtype).tensor
        self.case.length *= wide
        zero = te.const(0, source.dtype)

        def body(*i: Expr) -> Any:
            at: Any = i[which] * stride + r - pad
            inside = te.all(at >= 0, at < n)
            read = te.if_then_else(inside, source.tensor[(*i[:which], at, *i[which + 1 :])], zero)
            if source.dtype.is_bool:
                return te.any(read & weights[r] if weighted else read, axis=r)
            return te.sum(read * weights[r], axis=r) if weighted else te.max(read, axis=r)

        if not weighted:
            self.case.inputs.pop(weights)
        dims = (*source.dims[:which], rows, *source.dims[which + 1 :])
        return [self.define(dims, body)]

    def diamond(self, source: Known) -> list[Known]:
        """Two stages of one, and one of the two."""
        apart = (self.remapped, self.stencil, self.plain)
        left, right = (self.draw(st.sampled_from(apart))(source)[-1] for _ in range(2))
        formula = self.formula(source.dtype, 1)

        def body(*i: Expr) -> Any:
            return formula([left.tensor[i], right.tensor[i]], i)

        return [left, right, self.define(source.dims, body)]

    def plain(self, source: Known) -> list[Known]:
        """Element by element."""
        formula = self.formula(source.dtype, 2)

        def body(*i: Expr) -> Any:
            return formula([source.tensor[i], source.tensor[i]], i)

        return [self.define(source.dims, body)]

    def centred(self, source: Known) -> list[Known]:
        """A fold of each row or column, and every element with the fold of its own."""
        which = self.draw(st.integers(0, len(source.dims) - 1))
        k = te.reduce_axis((0, source.dims[which].extent), name=self.name("k"))
        folds = (te.any, te.all) if source.dtype.is_bool else (te.max, te.min, te.sum)
        fold: Any = self.draw(st.sampled_from(folds))
        self.case.length *= max(1, source.dims[which].value)

        def folded(*i: Expr) -> Any:
            return fold(source.tensor[(*i[:which], k, *i[which:])], axis=k)

        dims = (*source.dims[:which], *source.dims[which + 1 :])
        row = self.define(dims, folded, finite=False)
        formula = self.formula(source.dtype, 1)

        def body(*i: Expr) -> Any:
            own = row.tensor[(*i[:which], *i[which + 1 :])]
            return formula([source.tensor[i], te.cast(own, source.dtype)], i)

        return [row, self.define(source.dims, body, finite=False)]

    def in_groups(self, source: Known) -> list[Known]:
        """A fold of each part of a dimension, every element with the fold of its own part, and
        maybe these with the parts as dimensions."""
        which = self.draw(st.integers(0, len(source.dims) - 1))
        dim = source.dims[which]
        sizes = [n for n in range(2, dim.value + 1) if dim.value % n == 0]
        if not sizes or isinstance(dim.extent, Expr):
            return self.centred(source)
        size = self.draw(st.sampled_from(sizes))
        k = te.reduce_axis((0, size), name=self.name("k"))
        folds = (te.any, te.all) if source.dtype.is_bool else (te.max, te.min, te.sum)
        fold: Any = self.draw(st.sampled_from(folds))
        self.case.length *= size
        count = Dim(dim.value // size, dim.value // size)
        over, rest = source.dims[:which], source.dims[which + 1 :]

        def folded(*i: Expr) -> Any:
            return fold(source.tensor[(*i[:which], i[which] * size + k, *i[which + 1 :])], axis=k)

        row = self.define((*over, count, *rest), folded, finite=False)
        formula, back = self.formula(source.dtype, 1), self.chance(1, 2)

        def body(*i: Expr) -> Any:
            own = row.tensor[(*i[:which], i[which] // size, *i[which + 1 :])]
            return formula([source.tensor[i], te.cast(own, source.dtype)], i)

        made = self.define(source.dims, body, finite=False)
        if not back:
            return [row, made]
        parts = (*over, count, Dim(size, size), *rest)

        def apart(*i: Expr) -> Any:
            at = i[which] * size + i[which + 1]
            return formula([made.tensor[(*i[:which], at, *i[which + 2 :])]] * 2, i)

        return [row, made, self.define(parts, apart, finite=False)]

    def paired(self, source: Known) -> list[Known]:
        """Two folds in one: a sum with a maximum, or a minimum with a maximum."""
        wide = DType.float32 if source.dtype.is_float else DType.int32
        wide = source.dtype if source.dtype.bits == 64 else wide
        k = te.reduce_axis((0, source.dims[-1].extent), name=self.name("k"))
        summed = self.chance(1, 2)
        self.case.length *= max(1, source.dims[-1].value)

        def combine(a: Any, b: Any) -> Any:
            first = a[0] + b[0] if summed else te.minimum(a[0], b[0])
            return first, te.maximum(a[1], b[1])

        def identity(*_: DType) -> Any:
            first = te.const(0, wide) if summed else most(wide)
            return first, least(wide)

        reducer = te.comm_reducer(combine, identity, name="paired")

        def body(*i: Expr) -> Any:
            read = te.cast(source.tensor[(*i, k)], wide)
            return reducer((read, read), axis=k)

        dims = source.dims[:-1]
        made: Any = te.compute([d.extent for d in dims], body, name=self.name("T"))
        return [Known(each, dims, False, False) for each in made]

    def mixed(self, source: Known) -> list[Known]:
        """With a tensor of another dtype: both in the wider, or a sum of products of both."""
        kind = "float" if source.dtype.is_float else "int"
        other = self.placeholder(source.dims, DType(self.draw(st.sampled_from(NARROW[kind]))))
        wide = DType.float32 if kind == "float" else DType.int32
        if 64 in (source.dtype.bits, other.dtype.bits):
            wide = DType.float64 if kind == "float" else DType.int64
        formula = self.formula(wide, 1)
        back = self.chance(1, 3)

        def body(*i: Expr) -> Any:
            reads = [te.cast(source.tensor[i], wide), te.cast(other.tensor[i], wide)]
            found = formula(reads, i)
            return te.cast(found, source.dtype) if back else found

        def product(*i: Expr) -> Any:
            at = (*i, k)
            return te.sum(
                te.cast(source.tensor[at], wide) * te.cast(other.tensor[at], wide), axis=k
            )

        if not source.dims or self.chance(1, 2):
            return [self.define(source.dims, body)]
        k = te.reduce_axis((0, source.dims[-1].extent), name=self.name("k"))
        self.case.length *= max(1, source.dims[-1].value)
        return [self.define(source.dims[:-1], product)]

    def expanded(self, source: Known) -> list[Known]:
        """One more dimension: at its start or end, with the index in it."""
        more, first = self.dim(), self.chance(1, 2)
        dims = (more, *source.dims) if first else (*source.dims, more)
        dtype = source.dtype

        def body(*i: Expr) -> Any:
            new, rest = (i[0], i[1:]) if first else (i[-1], i[:-1])
            own = source.tensor[rest]
            if dtype.is_bool:
                return own ^ (new % 2 == 0)
            return own + te.cast(new % 3, dtype)

        return [self.define(dims, body)]
