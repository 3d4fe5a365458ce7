"""Strategies for what a network computes of a few matrices: results of their elements, of their
rows, of their columns and of all of them, each of which reads those before, and many of which are
results of the whole.

Sums are multiplied by what is given alone, so that little is lost of them.
"""

from __future__ import annotations

from typing import Any

import choices as st
import numpy as np
from strategies import Case, Draw

import tedsl as te
from tedsl.expr.numerics import numpy_dtype
from tedsl.tensor.printer import operations
from tedsl.tensor.tensor import ComputeOp, Tensor

SIDES = (1, 2, 3, 7, 8, 16, 33)
MANY = (1, 7, 33, 64, 200, 300, 540, 1024)
MOST = 1 << 17
"""Elements of a matrix."""


@st.composite
def matrices(draw: Draw, large: bool = False) -> Case:
    """Two to eight results."""
    return _Matrices(draw, large).build()


class _Matrices:
    """Draws a case.  `made` are tensors by the dimensions that they have: of rows, of columns."""

    def __init__(self, draw: Draw, large: bool) -> None:
        self.draw = draw
        self.case = Case()
        self.random = np.random.default_rng(draw(st.integers(0, 2**16)))
        self.dtype = draw(st.sampled_from(("int32", "int32", "float32")))
        rows = draw(st.sampled_from(MANY if large else SIDES))
        columns = draw(st.sampled_from(MANY if large else SIDES))
        self.sizes = rows, min(columns, MOST // rows)
        self.extents = tuple(self.extent(n, size) for n, size in enumerate(self.sizes))
        self.given: dict[tuple[int, ...], list[Tensor]] = {}
        self.made: dict[tuple[int, ...], list[Tensor]] = {}

    def extent(self, number: int, size: int) -> Any:
        """A constant, or a size that is told when it is called."""
        if self.draw(st.integers(0, 5)) < 5:
            return size
        var = te.size_var(f"n{number}")
        self.case.sizes[var] = size
        return var

    def build(self) -> Case:
        for number in range(self.draw(st.integers(1, 3))):
            self.give((0, 1), f"A{number}")
        for dims, name in (((1,), "w"), ((0,), "b")):
            if self.draw(st.booleans()):
                self.give(dims, name)
        kinds = [((0, 1), ()), ((0,), (1,)), ((0,), (1,)), ((1,), (0,)), ((0,), ()), ((1,), ())]
        kinds += [((), (0, 1)), ((), ())]
        count = self.draw(st.integers(2, 8))
        found = [self.result(f"T{n}", *self.draw(st.sampled_from(kinds))) for n in range(count)]
        read = {t.op for each in found for op in operations([each])[:-1] for t in op.outputs}
        kept = [t for t in found if t.op not in read or self.draw(st.integers(0, 2)) == 2]
        self.case.outputs = self.draw(st.permutations(kept))
        used = {op for op in operations(kept) if not isinstance(op, ComputeOp)}
        self.case.inputs = {t: a for t, a in self.case.inputs.items() if t.op in used}
        self.case.depth, self.case.length = count + 2, self.sizes[0] * self.sizes[1]
        return self.case

    def give(self, dims: tuple[int, ...], name: str) -> None:
        tensor = te.placeholder([self.extents[d] for d in dims], self.dtype, name=name)
        data = self.random.integers(-2, 3, [self.sizes[d] for d in dims])
        self.case.inputs[tensor] = data.astype(numpy_dtype(tensor.dtype))
        self.given.setdefault(dims, []).append(tensor)

    def result(self, name: str, dims: tuple[int, ...], folded: tuple[int, ...]) -> Tensor:
        """One that has some dimensions, after others are folded."""
        axes = {d: te.reduce_axis((0, self.extents[d]), name="kh"[d]) for d in folded}
        fold = self.draw(st.sampled_from((te.sum, te.sum, te.max)))

        def body(*i: Any) -> Any:
            at = {**dict(zip(dims, i, strict=False)), **axes}
            value = self.element(at)
            return fold(value, axis=list(axes.values())) if axes else value

        shape = [self.extents[d] for d in dims] or [1]
        made: Any = te.compute(shape, body, name=name)
        self.made.setdefault(dims, []).append(made)
        return made

    def element(self, at: dict[int, Any]) -> Any:
        """What is computed of some elements at one place."""
        value = self.read(self.made, at)
        for _ in range(self.draw(st.integers(0, 2))):
            match self.draw(st.sampled_from(("add", "take", "times", "size"))):
                case "add":
                    value = value + self.read(self.made, at)
                case "take":
                    value = value - self.read(self.made, at)
                case "times":
                    value = value * self.read({}, at)
                case _:
                    value = te.abs(value)
        return value

    def read(self, made: dict[tuple[int, ...], list[Tensor]], at: dict[int, Any]) -> Any:
        """An element of a tensor that has no other dimensions; the latest are the simplest."""
        found = [
            (tensor, dims)
            for source in (made, self.given)
            for dims, tensors in source.items()
            if set(dims) <= set(at)
            for tensor in reversed(tensors)
        ]
        if not found:
            return te.const(2, self.dtype)
        tensor, dims = self.draw(st.sampled_from(found))
        return tensor[tuple(at[d] for d in dims) or (0,)]
