"""Definitions as users write them, drawn by a seed: graphs of stages whose indices are shifted,
reversed, strided, divided, clamped and looked up, products and windows of any size and dtype, rows
that depend on one another, scans, operators of `te.nn` and gradients, with sizes that are known or
not.

`draw(seed)` is what any generator has to be for `definition_runs`: a seed to outputs and the sizes
that they are run with.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import scans
from cases import least
from drawn_operators import gradient, operator

import tedsl as te
from tedsl.expr.index_arith import constant
from tedsl.tensor.tensor import Tensor

EXTENTS = (1, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 32, 33, 64, 65, 100, 127, 130)
LARGE = (257, 512, 1000, 1024, 2048, 4096, 8191, 20000, 50257)
FLOATS = (*("float32",) * 6, "float64", "float16", "float16", "bfloat16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
STORED = ("float8_e4m3fn", "float8_e5m2")
# Elements of a result up to which a definition is also run.
RUN = 40_000


@dataclass
class Definition:
    """What was drawn: outputs, values of the runtime sizes for each of some runs, and its kind."""

    outputs: list[Tensor]
    runs: list[dict[str, int]] = field(default_factory=lambda: [{}])
    kind: str = ""


@dataclass
class _Known:
    """A tensor with the extents of its shape, as they are written and as they are at most."""

    tensor: Any
    shape: tuple[Any, ...]
    most: tuple[int, ...]


class Drawer:
    """Draws one definition."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = 0
        self.sizes: dict[str, int] = {}
        self.large = self.rng.random() < 0.12
        kind = self.rng.random()
        floats, integers = kind < 0.8, kind < 0.97
        self.dtype = self.rng.choice(FLOATS if floats else INTEGERS if integers else ("bool",))

    # Pieces ---------------------------------------------------------------------------------------

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def extent(self) -> tuple[Any, int]:
        """An extent, as it is written and as it is."""
        value = self.rng.choice(LARGE if self.large and self.rng.random() < 0.5 else EXTENTS)
        if self.rng.random() < 0.12:
            name = self.name("n")
            self.sizes[name] = min(value, 70)
            return te.size_var(name), min(value, 70)
        return value, value

    def shape(self, rank: int) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        found = [self.extent() for _ in range(rank)]
        while _volume([n for _, n in found]) > 1 << 24 or (
            rank > 3 and _volume([n for _, n in found]) > 1 << 16
        ):
            found[self.rng.randrange(rank)] = (3, 3)
        return tuple(e for e, _ in found), tuple(n for _, n in found)

    def input(self, shape: Sequence[Any], most: Sequence[int], dtype: str = "") -> _Known:
        tensor = te.placeholder(tuple(shape), dtype or self.dtype, name=self.name("A"))
        return _Known(tensor, tuple(shape), tuple(most))

    def define(self, like: _Known, body: Callable[..., Any]) -> _Known:
        made = te.compute(like.shape, body, name=self.name("T"))
        return _Known(made, like.shape, like.most)

    def element(self, x: Any) -> Any:
        """Something of one element that stays small."""
        dtype = x.dtype
        if dtype.is_bool:
            return ~x if self.rng.random() < 0.5 else x
        one = te.const(1, dtype)
        if not dtype.is_float:
            return self.rng.choice((lambda: x + one, lambda: te.maximum(x, one), lambda: x * one))()
        half = te.const(0.5, dtype)
        return self.rng.choice(
            (
                lambda: x * half + one,
                lambda: te.tanh(x),
                lambda: te.exp(te.tanh(x) * half),
                lambda: te.maximum(x, half),
                lambda: te.sigmoid(x) * x,
                lambda: te.sqrt(te.abs(x) + one),
                lambda: te.select(x > half, x, half * x),
            )
        )()

    def mixed(self, a: Any, b: Any) -> Any:
        if a.dtype.is_bool:
            return self.rng.choice((lambda: a & b, lambda: a | b))()
        half = te.const(1, a.dtype) if not a.dtype.is_float else te.const(0.5, a.dtype)
        return self.rng.choice(
            (lambda: a + b, lambda: a - b * half, lambda: te.maximum(a, b), lambda: (a + b) * half)
        )()

    def place(self, axis: Any, extent: Any) -> Any:
        """An index in range for every value of an axis of the same extent."""
        last = extent - 1
        step = self.rng.choice((1, 1, 2, 3))
        return self.rng.choice(
            (
                lambda: last - axis,
                lambda: axis // 2,
                lambda: te.minimum(axis + step, last),
                lambda: te.maximum(axis - step, 0),
                lambda: te.minimum(axis * step, last),
                lambda: axis // step * step,
                lambda: axis - axis % step,
                lambda: te.minimum(te.maximum(axis + 1 - step, 0), last),
            )
        )()

    # Stages ---------------------------------------------------------------------------------------

    def pointwise(self, x: _Known) -> _Known:
        return self.define(x, lambda *i: self.element(x.tensor[i]))

    def both(self, x: _Known) -> _Known:
        """Two elements of one tensor, or of another like it."""
        y = x if self.rng.random() < 0.6 else self.input(x.shape, x.most, x.tensor.dtype.value)
        which = self.rng.randrange(len(x.shape)) if x.shape else None

        def body(*i: Any) -> Any:
            there = list(i)
            if which is not None:
                there[which] = self.place(i[which], x.shape[which])
            return self.mixed(self.element(x.tensor[i]), y.tensor[tuple(there)])

        return self.define(x, body)

    def padded(self, x: _Known) -> _Known:
        """Zeros around what is read at a shift, in a stage of its own."""
        if not x.shape or x.tensor.dtype.is_bool:
            return self.pointwise(x)
        which, by = self.rng.randrange(len(x.shape)), self.rng.choice((1, 1, 2, 3))
        shape, most = list(x.shape), list(x.most)
        shape[which], most[which] = shape[which] + 2 * by, most[which] + 2 * by
        zero = te.const(0, x.tensor.dtype)

        def body(*i: Any) -> Any:
            there = [a - by if n == which else a for n, a in enumerate(i)]
            inside = te.all(i[which] >= by, i[which] < x.shape[which] + by)
            return te.if_then_else(inside, x.tensor[tuple(there)], zero)

        return self.define(_Known(x.tensor, tuple(shape), tuple(most)), body)

    def halo(self, x: _Known) -> _Known:
        """A window of neighbours; the result is smaller: pyramids and diamonds of them."""
        if not x.shape:
            return self.pointwise(x)
        which = self.rng.randrange(len(x.shape))
        taps = min(self.rng.choice((2, 3, 5)), x.most[which])
        if not isinstance(x.shape[which], int):
            return self.both(x)
        down = self.rng.choice((1, 1, 2)) if x.most[which] >= 2 * taps else 1
        shape, most = list(x.shape), list(x.most)
        shape[which] = most[which] = (x.most[which] - taps) // down + 1

        def body(*i: Any) -> Any:
            at = [
                tuple(a * down + t if n == which else a for n, a in enumerate(i))
                for t in range(taps)
            ]
            found = self.element(x.tensor[at[0]])
            for each in at[1:]:
                found = self.mixed(found, x.tensor[each])
            return found

        return self.define(_Known(x.tensor, tuple(shape), tuple(most)), body)

    def moved(self, x: _Known) -> _Known:
        """Transposed, flattened or repeated."""
        if len(x.shape) < 2:
            return self.both(x)
        order = list(range(len(x.shape)))
        self.rng.shuffle(order)
        shape, most = [x.shape[n] for n in order], [x.most[n] for n in order]
        if self.rng.random() < 0.3 and isinstance(x.shape[-1], int):
            inner = x.shape[-1]
            flat = (*x.shape[:-2], x.shape[-2] * inner)
            many = (*x.most[:-2], x.most[-2] * inner)
            like = _Known(x.tensor, flat, many)
            return self.define(like, lambda *i: x.tensor[(*i[:-1], i[-1] // inner, i[-1] % inner)])

        def body(*i: Any) -> Any:
            return x.tensor[tuple(i[order.index(n)] for n in range(len(order)))]

        return self.define(_Known(x.tensor, tuple(shape), tuple(most)), body)

    def gathered(self, x: _Known) -> _Known:
        """Rows that data names."""
        if not x.shape:
            return self.pointwise(x)
        extent, most = self.extent()
        index = self.input((extent,), (most,), "int32")
        like = _Known(x.tensor, (extent, *x.shape[1:]), (most, *x.most[1:]))
        last = te.maximum(x.shape[0] - 1, 0)

        def body(*i: Any) -> Any:
            row = te.minimum(te.maximum(index.tensor[i[0]], 0), last)
            return x.tensor[(row, *i[1:])]

        if not isinstance(x.shape[0], int):
            return self.both(x)
        return self.define(like, body)

    def folded(self, x: _Known) -> _Known:
        """Reduced over some axes, maybe under a condition."""
        if not x.shape:
            return self.pointwise(x)
        count = self.rng.choice((1, 1, 1, 2)) if len(x.shape) > 1 else 1
        which = sorted(self.rng.sample(range(len(x.shape)), count))
        if _volume([x.most[n] for n in which]) > 1 << 21:
            return self.pointwise(x)
        kept = [n for n in range(len(x.shape)) if n not in which]
        ks = {n: te.reduce_axis((0, x.shape[n]), name=self.name("k")) for n in which}
        how = self.fold_of(x.tensor.dtype)
        limit = self.rng.choice(("", "", "", "upper", "stride")) if kept else ""

        def body(*i: Any) -> Any:
            at = dict(zip(kept, i, strict=True)) | ks
            value = self.element(x.tensor[tuple(at[n] for n in range(len(x.shape)))])
            first = ks[which[0]]
            options = {}
            if limit:
                options["where"] = first <= i[0] if limit == "upper" else first % 3 != 1
            return how(value, axis=list(ks.values()), **options)

        like = _Known(x.tensor, tuple(x.shape[n] for n in kept), tuple(x.most[n] for n in kept))
        return self.define(like, body)

    def fold_of(self, dtype: Any) -> Callable[..., Any]:
        if dtype.is_bool:
            return self.rng.choice((te.any, te.all))
        return self.rng.choice((te.sum, te.sum, te.max, te.min))

    def spread(self, x: _Known) -> _Known:
        """Each element against a fold of its row or column."""
        if not x.shape or x.tensor.dtype.is_bool or _volume(x.most) > 1 << 22:
            return self.pointwise(x)
        which = self.rng.randrange(len(x.shape))
        k = te.reduce_axis((0, x.shape[which]), name=self.name("k"))
        how = self.fold_of(x.tensor.dtype)

        kept = [n for n in range(len(x.shape)) if n != which]
        like = _Known(x.tensor, tuple(x.shape[n] for n in kept), tuple(x.most[n] for n in kept))

        def fold(*i: Any) -> Any:
            return how(x.tensor[(*i[:which], k, *i[which:])], axis=k)

        row = self.define(like, fold)

        def body(*i: Any) -> Any:
            mine = row.tensor[tuple(i[n] for n in kept)].astype(x.tensor.dtype)
            return self.mixed(x.tensor[i], mine)

        return self.define(x, body)

    def best(self, x: _Known) -> _Known:
        """The largest of each row and its place."""
        if not x.shape or x.tensor.dtype.is_bool:
            return self.pointwise(x)
        dtype = x.tensor.dtype
        k = te.reduce_axis((0, x.shape[-1]), name=self.name("k"))

        def combine(a: Any, b: Any) -> Any:
            first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
            return te.select(first, a[0], b[0]), te.select(first, a[1], b[1])

        largest = te.comm_reducer(
            combine, lambda *_: (least(dtype), te.const(2**31 - 1, "int32")), name="best"
        )
        made: Any = te.compute(
            x.shape[:-1],
            lambda *i: largest((x.tensor[(*i, k)], te.const(0, "int32") + k), axis=k),
            name=self.name("T"),
        )
        return _Known(made[self.rng.randrange(2)], x.shape[:-1], x.most[:-1])

    def product(self, x: _Known) -> _Known:
        """A contraction of the last axis, either operand as it is or transposed."""
        if not x.shape or x.tensor.dtype.is_bool or _volume(x.most) > 1 << 21:
            return self.pointwise(x)
        extent, most = self.extent()
        turned = self.rng.random() < 0.5
        shapes = ((x.shape[-1], extent), (x.most[-1], most))
        shape, sizes = (each[::-1] if turned else each for each in shapes)
        w = self.input(shape, sizes, x.tensor.dtype.value)
        k = te.reduce_axis((0, x.shape[-1]), name=self.name("k"))
        wide = self.rng.random() < 0.5 and x.tensor.dtype.is_float

        def body(*i: Any) -> Any:
            a, b = x.tensor[(*i[:-1], k)], w.tensor[(i[-1], k) if turned else (k, i[-1])]
            if wide:
                a, b = a.astype("float32"), b.astype("float32")
            return te.sum(a * b, axis=k)

        like = _Known(x.tensor, (*x.shape[:-1], extent), (*x.most[:-1], most))
        return self.define(like, body)

    def stored(self, x: _Known) -> _Known:
        """Kept in another dtype on the way."""
        dtype = x.tensor.dtype
        kinds = FLOATS if dtype.is_float else INTEGERS
        other = self.rng.choice((*kinds, *(STORED if dtype.is_float else ())))
        if dtype.is_bool:
            return self.pointwise(x)
        narrow = self.define(x, lambda *i: x.tensor[i].astype(other))
        return self.define(x, lambda *i: narrow.tensor[i].astype(dtype))

    def graph(self) -> Definition:
        """Some stages on top of each other, maybe with several outputs."""
        rank = self.rng.choice((0, 1, 1, 2, 2, 2, 2, 3, 3, 4, 5, 6))
        known = [self.input(*self.shape(rank))]
        for _ in range(self.rng.choice((1, 1, 2, 2, 3, 3, 4, 5, 6))):
            source = known[-1] if self.rng.random() < 0.8 else self.rng.choice(known)
            stages = (self.pointwise, self.both, self.both, self.padded, self.halo, self.moved)
            stages += (self.gathered, self.folded, self.folded, self.spread, self.best)
            stages += (self.product, self.product, self.stored)
            known.append(self.rng.choice(stages)(source))
        outputs = [known[-1].tensor]
        if len(known) > 3 and self.rng.random() < 0.25:
            extra = self.rng.choice(known[1:-1]).tensor
            outputs += [extra] if extra is not outputs[0] else []
        return Definition(outputs, self.runs(), "graph")

    def runs(self) -> list[dict[str, int]]:
        """The sizes as drawn, and all of them 1."""
        if not self.sizes:
            return [{}]
        found = [dict(self.sizes), dict.fromkeys(self.sizes, 1)]
        return [*found, dict.fromkeys(self.sizes, 0)] if self.rng.random() < 0.3 else found

    # Others ---------------------------------------------------------------------------------------

    def windows(self) -> Definition:
        """A convolution with its padding in a stage of its own, and what follows."""
        rng = self.rng
        n, c, f = rng.choice((1, 1, 2, 3)), rng.choice((1, 3, 16, 32, 33)), rng.choice((1, 16, 31))
        h, w = rng.choice((1, 5, 7, 14, 15)), rng.choice((1, 7, 14, 28))
        taps, step = rng.choice((1, 3, 3, 5)), rng.choice((1, 1, 2))
        by = taps // 2 if rng.random() < 0.7 or min(h, w) < taps else 0
        dtype = rng.choice(("float32", "float32", "bfloat16", "float16", "float64"))
        x = te.placeholder((n, h, w, c), dtype, name="x")
        k = te.placeholder((taps, taps, c, f), dtype, name="w")

        def pad(b: Any, i: Any, j: Any, q: Any) -> Any:
            inside = te.all(i >= by, i < by + h, j >= by, j < by + w)
            return te.if_then_else(inside, x[b, i - by, j - by, q], te.const(0, dtype))

        around = te.compute((n, h + 2 * by, w + 2 * by, c), pad, name="pad")
        sides = [(each + 2 * by - taps) // step + 1 for each in (h, w)]
        r, s, q = (
            te.reduce_axis((0, size), name=a) for a, size in (("r", taps), ("s", taps), ("q", c))
        )

        def fold(b: Any, i: Any, j: Any, o: Any) -> Any:
            return te.sum(around[b, i * step + r, j * step + s, q] * k[r, s, q, o], axis=[r, s, q])

        made: Any = te.compute((n, *sides, f), fold, name="conv")
        if rng.random() < 0.6:
            conv, bias = made, te.placeholder((f,), made.dtype, name="bias")
            made = te.compute(
                conv.shape, lambda b, i, j, o: te.maximum(conv[b, i, j, o] + bias[o], 0), name="out"
            )
        return Definition([made], kind="windows")

    def scanned(self) -> Definition:
        """A scan, and maybe something of its result."""
        rng = self.rng
        steps, wide = rng.choice((2, 5, 9, 17)), rng.choice((1, 3, 7, 33, 130))
        columns = min(wide, 33)
        makers: tuple[Callable[[], list[Tensor]], ...] = (
            lambda: scans.running_sum(steps, wide),
            lambda: scans.line_sum(steps),
            lambda: scans.oscillator(steps, wide),
            lambda: scans.recurrent(steps, rng.choice((1, 3)), columns, 0.5 / columns**0.5),
            lambda: scans.gated(steps, columns),
        )
        made = rng.choice(makers)()
        last = _Known(made[0], tuple(made[0].shape), tuple(constant(e) or 1 for e in made[0].shape))
        if rng.random() < 0.5:
            made = [rng.choice((self.pointwise, self.folded, self.spread))(last).tensor]
        return Definition(made, kind="scan")


def draw(seed: int) -> Definition:
    """The definition of a seed."""
    drawer = Drawer(seed)
    kind = drawer.rng.random()
    if kind < 0.66:
        return drawer.graph()
    if kind < 0.72:
        return drawer.windows()
    if kind < 0.77:
        return drawer.scanned()
    if kind < 0.89:
        return Definition(operator(drawer.rng), kind="operator")
    return Definition(gradient(drawer.rng), kind="gradient")


def _volume(extents: Sequence[int]) -> int:
    total = 1
    for extent in extents:
        total *= extent
    return total
