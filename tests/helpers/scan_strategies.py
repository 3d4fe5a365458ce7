"""The strategies `recurrences`, small scans of every form, with inputs, and `prefixes`, those whose
steps combine terms in any order.

States stay small (coefficients below 1), so that what rounding differs by stays small too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import choices as st
import numpy as np
from scans import Outputs, listed
from strategies import Case, Draw

import tedsl as te
from tedsl.expr.nodes import Expr
from tedsl.expr.numerics import numpy_dtype
from tedsl.tensor.tensor import Tensor

DTYPES = ("float32", "float32", "int32")
Step = Callable[[Any, Any], Any]
FLOATS: tuple[Step, ...] = (
    lambda s, x: s + x,
    lambda s, x: s - x,
    lambda s, x: s * x,
    te.maximum,
    te.minimum,
    lambda s, x: te.tanh(x) * 0.5 + s,
    lambda s, x: te.maximum(s, x) + te.log1p(te.exp(te.minimum(s, x) - te.maximum(s, x))),
    lambda s, x: te.select(x > s, x, s),
)
INTEGERS: tuple[Step, ...] = (*FLOATS[:5], FLOATS[-1], lambda s, x: s ^ x, lambda s, x: s & x)


@st.composite
def recurrences(draw: Draw, dtypes: tuple[str, ...] = DTYPES) -> Case:
    """One to three states of rank 1 to 3, their rows from one to three rows back."""
    rank = draw(st.integers(1, 3))
    rows, first = draw(st.sampled_from((1, 3, 4, 5, 6))), draw(st.sampled_from((1, 1, 2, 3)))
    spatial = tuple(draw(st.sampled_from((1, 3, 4, 5, 9))) for _ in range(rank - 1))
    symbolic = draw(st.booleans()) and rows >= first
    n = te.size_var("n") if symbolic else max(rows, first)
    shape: tuple[Expr | int, ...] = (n, *spatial)
    dtype = draw(st.sampled_from(dtypes))
    builder = _Steps(draw, shape, first, dtype)
    count = draw(st.sampled_from((1, 1, 2, 3)))
    outputs = builder.scan(count)
    if draw(st.booleans()):
        (after,) = outputs[:1]
        outputs = [te.compute(shape, lambda *i: after[i] + after[i], name="after")]
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    sizes = {n: max(rows, first)} if isinstance(n, te.Var) else {}
    inputs = {
        t: _array(t, tuple(max(rows, first) if e is n else int(str(e)) for e in t.shape), rng)
        for t in builder.inputs
    }
    return Case(outputs, inputs, sizes, rows, rows, draw(st.integers(0, 999)), close=1e-4)


@st.composite
def prefixes(draw: Draw) -> Case:
    """One state whose steps are associative, or two: the extreme of a column and where it is."""
    rank, dtype = draw(st.integers(1, 3)), draw(st.sampled_from(DTYPES))
    rows = draw(st.sampled_from((1, 3, 5, 8, 17)))
    spatial = tuple(draw(st.sampled_from((1, 3, 4, 9))) for _ in range(rank - 1))
    n = te.size_var("n") if draw(st.booleans()) else rows
    x = te.placeholder((n, *spatial), dtype, name="x")
    read: Any = x
    if draw(st.booleans()):
        read = te.compute(x.shape, lambda *i: x[i] + x[i], name="terms")
    start = draw(st.sampled_from((None, None, 0, 1)))
    step = draw(st.sampled_from(FLOATS if x.dtype.is_float else INTEGERS))
    kinds = (dtype, "int32") if draw(st.integers(0, 3)) == 3 else (dtype,)
    states = [te.placeholder(x.shape, kind, name=f"S{kind}") for kind in kinds]

    def begin(*i: te.Axis) -> Any:
        first = read[i] if start is None else te.const(start, dtype)
        return first if len(kinds) == 1 else (first, te.const(0, "int32"))

    def following(*i: te.Axis) -> Any:
        before = [state[(i[0] - 1, *i[1:])] for state in states]
        if len(kinds) == 1:
            return step(before[0], read[i])
        new, (old, where) = read[i], before
        taken = te.any(new > old, te.all(new.equal(old), i[0] > where))
        return te.select(taken, new, old), te.select(taken, i[0], where)

    first = listed(te.compute((1, *spatial), begin, name="first"))
    outputs = listed(te.scan(first, listed(te.compute(x.shape, following, name="U")), states))
    if draw(st.booleans()):
        after = outputs[0]
        outputs = [te.compute(x.shape, lambda *i: after[i] + after[i], name="after")]
    inputs = {x: _array(x, (rows, *spatial), np.random.default_rng(draw(st.integers(0, 99))))}
    sizes = {n: rows} if isinstance(n, te.Var) else {}
    return Case(outputs, inputs, sizes, rows, rows, draw(st.integers(0, 999)), close=1e-4)


def _array(tensor: Tensor, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if tensor.dtype.is_float:
        return rng.uniform(-1, 1, shape).astype(numpy_dtype(tensor.dtype))
    return rng.integers(-3, 4, shape).astype(np.int32)


class _Steps:
    """Draws the computes of one scan."""

    def __init__(self, draw: Draw, shape: tuple[Expr | int, ...], first: int, dtype: str) -> None:
        self.draw = draw
        self.shape = shape
        self.first = first
        self.dtype = dtype
        self.inputs: list[Tensor] = []
        self.body: list[Tensor] = []

    def given(self, shape: tuple[Expr | int, ...], name: str) -> Tensor:
        """An input."""
        tensor = te.placeholder(shape, self.dtype, name=f"{name}{len(self.inputs)}")
        self.inputs.append(tensor)
        return tensor

    def scan(self, count: int) -> Outputs:
        """`count` states, their inits and updates, and what is between."""
        draw = self.draw
        states = [te.placeholder(self.shape, self.dtype, name=f"S{n}") for n in range(count)]
        inits: list[Tensor] = []
        for n in range(count):
            start = self.given((self.first, *self.shape[1:]), "start")
            plain = draw(st.booleans())
            made = start if plain else self.raised(start, n)
            inits.append(made)
        for n in range(draw(st.integers(0, 2))):
            self.body.append(self.stage(states, f"B{n}"))
        updates = [self.stage(states, f"U{n}") for n in range(count)]
        used = self.body if draw(st.booleans()) else []
        updates = [self.joined(u, used, n) for n, u in enumerate(updates)] if used else updates
        if draw(st.integers(0, 2)) == 2:
            self.other_shape(inits, updates, states)
        return listed(te.scan(inits, updates, states, name="scan"))

    def other_shape(self, inits: Outputs, updates: Outputs, states: Outputs) -> None:
        """One more state, of a shape of its own; it and the last before read each other."""
        draw = self.draw
        sides = tuple(draw(st.sampled_from((1, 2, 4, 7))) for _ in range(draw(st.integers(0, 2))))
        state = te.placeholder((self.shape[0], *sides), self.dtype, name="E")
        inits.append(self.given((self.first, *sides), "start"))
        before, last = states[-1], updates[-1]
        rest = (0,) * (len(self.shape) - 1)

        def other(t: te.Axis, *i: te.Axis) -> Expr:
            return self.scaled(state[(t - 1, *i)] - before[(t - 1, *rest)])

        def back(t: te.Axis, *i: te.Axis) -> Expr:
            place = tuple(te.minimum(i[-1], side - 1) if i else 0 for side in sides)
            return self.scaled(te.add(last[(t, *i)], state[(t - 1, *place)]))

        states.append(state)
        updates.append(te.compute(state.shape, other, name="UE"))
        if draw(st.booleans()):
            updates[-2] = te.compute(self.shape, back, name="V_last")

    def raised(self, start: Tensor, n: int) -> Tensor:
        """A compute before the scan."""
        return te.compute(start.shape, lambda *i: start[i] + 1, name=f"init{n}")

    def joined(self, update: Tensor, used: list[Tensor], n: int) -> Tensor:
        """An update that reads stages of the body as well."""
        mixed = [t for t in used if t is not update]
        return te.compute(
            self.shape,
            lambda *i: self.scaled(te.add(update[i], self.total([t[i] for t in mixed]))),
            name=f"V{n}",
        )

    def total(self, values: list[Expr]) -> Expr:
        """The sum of values; 0 when there are none."""
        result: Expr = te.const(0, self.dtype)
        for value in values:
            result = result + value
        return result

    def scaled(self, value: Expr) -> Expr:
        """Smaller, so that many steps stay small; integers wrap alike everywhere."""
        return value if self.dtype == "int32" else value * 0.25

    def stage(self, states: list[Tensor], name: str) -> Tensor:
        """One compute of the body: of states at earlier rows, inputs and earlier stages."""
        draw = self.draw
        if len(self.shape) > 1 and draw(st.integers(0, 2)) == 0:
            return self.contraction(states, name)
        back = draw(st.integers(1, self.first))
        state = draw(st.sampled_from(states))
        x = self.given(self.shape, "X")
        shift = draw(st.booleans()) and len(self.shape) > 1
        earlier = draw(st.sampled_from([None, *self.body]))

        def element(*i: te.Axis) -> Expr:
            place = [i[0] - back, *i[1:]]
            if shift:
                last = self.shape[-1]
                place[-1] = te.if_then_else(i[-1] + 1 < last, i[-1] + 1, 0)
            value = state[tuple(place)] * 0.5 if x.dtype.is_float else state[tuple(place)]
            value = value + x[i]
            return value if earlier is None else value - self.scaled(earlier[i])

        return te.compute(self.shape, lambda *i: element(*i), name=name)

    def contraction(self, states: list[Tensor], name: str) -> Tensor:
        """A reduction over the last dimension of an earlier row."""
        width = self.shape[-1]
        weights = self.given((width, width), "W")
        state = self.draw(st.sampled_from(states))
        k = te.reduce_axis((0, width), name="k")

        def term(*i: te.Axis) -> Expr:
            return self.scaled(state[(i[0] - 1, *i[1:-1], k)] * weights[k, i[-1]])

        return te.compute(self.shape, lambda *i: te.sum(term(*i), axis=k), name=name)
