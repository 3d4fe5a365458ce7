"""What a definition passes back: the seeds of the sweep for plain bodies and for reductions.

- A sum passes the adjoint of its value to each of its terms.
- A maximum or minimum passes it to one term, the first extreme one: a stage `<name>.arg` finds its
  position.  Recomputing the position with the value, rather than comparing terms with the value,
  is exact on every target, where a term may round differently in two kernels.
- Any other reducer, products and tuples included, is differentiated through its combination: as it
  is associative and commutative, the value is `combine(others, term)`, where a stage
  `<name>.others` has for each term the reduction of all others.  It is exact (a product with zeros
  too, and to every order), and costs the square of the number of terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import (
    Axis,
    AxisKind,
    Binary,
    BinaryOp,
    Const,
    Expr,
    Reduce,
    Reducer,
    TensorRead,
)
from tedsl.expr.promote import make_const
from tedsl.expr.visit import substitute
from tedsl.gradient.solve import domain_of
from tedsl.gradient.sweep import Guards, Seed, Sweep
from tedsl.tensor.axis import data_axis
from tedsl.tensor.compute import define
from tedsl.tensor.reduce import comm_reducer
from tedsl.tensor.tensor import ComputeOp, Tensor


@dataclass(frozen=True, slots=True)
class Space:
    """Seeds that hold at every point of `axes`."""

    axes: tuple[Axis, ...]
    seeds: tuple[Seed, ...]


def spaces(op: ComputeOp, adjoints: Mapping[int, Expr], sweep: Sweep) -> list[Space]:
    """Where and with what the sweep starts.

    Args:
        op: the definition.
        adjoints: the adjoint of each of its outputs that has one, over `op.axes`.
        sweep: tells what counts, and makes the guards.
    """
    first = op.bodies[0]
    if not isinstance(first, Reduce):
        seeds = tuple(Seed(op.bodies[n], (), adjoint) for n, adjoint in adjoints.items())
        return [Space(op.axes, seeds)]
    return _Reduction(op, first, sweep).spaces(adjoints)


@dataclass(slots=True)
class _Reduction:
    """One operation that reduces; `node` is its first output's body."""

    op: ComputeOp
    node: Reduce
    sweep: Sweep

    def spaces(self, adjoints: Mapping[int, Expr]) -> list[Space]:
        inner: list[Seed] = []
        start: list[Seed] = []
        together: dict[int, Expr] = {}
        for number, adjoint in adjoints.items():
            match component(self.node.reducer, number):
                case BinaryOp.ADD:
                    inner.append(Seed(self.node.sources[number], self._where(), adjoint))
                    if self.node.init is not None:
                        start.append(Seed(self.node.init[number], (), adjoint))
                case BinaryOp.MAX | BinaryOp.MIN as op:
                    self._extreme(number, op, adjoint, inner, start)
                case _:
                    together[number] = adjoint
        if together and any(map(self._counts, self.node.sources)):
            inner += self._through_combination(together)
        if together and any(map(self._counts, self.node.init or ())):
            start += self._from_init(together)
        space = (*self.op.axes, *self.node.axes)
        found = [Space(space, tuple(inner)), Space(self.op.axes, tuple(start))]
        return [each for each in found if each.seeds]

    def _counts(self, expr: Expr) -> bool:
        return self.sweep.is_active(self.sweep.interner.rep(expr))

    def _where(self) -> Guards:
        where = self.node.where
        return () if where is None else (self.sweep.guard(where, lazy=True),)

    # Extremes

    def _extreme(
        self, number: int, op: BinaryOp, adjoint: Expr, inner: list[Seed], start: list[Seed]
    ) -> None:
        source = self.node.sources[number]
        init = None if self.node.init is None else self.node.init[number]
        if not self._counts(source) and (init is None or not self._counts(init)):
            return
        chosen = TensorRead(self._position(number, op), self.op.axes)
        here = self.sweep.guard(build.eq(self._place(chosen.dtype), chosen))
        inner.append(Seed(source, (*self._where(), here), adjoint))
        if init is not None:
            none = self.sweep.guard(build.eq(chosen, -1))
            start.append(Seed(init, (none,), adjoint))

    def _place(self, dtype: DType) -> Expr:
        """The position of a point of the reduction, in row-major order from 0."""
        place: Expr = Const(0, dtype)
        for axis in self.node.axes:
            domain = domain_of(axis)
            place = build.add(build.mul(place, build.cast(domain.extent, dtype)), axis)
            place = build.sub(place, build.cast(domain.min, dtype))
        return build.cast(place, dtype)

    def _position(self, number: int, op: BinaryOp) -> Tensor:
        """A stage with the position of the first extreme term; -1 where it is `init`."""
        wide = any(axis.dtype is DType.int64 for axis in self.node.axes)
        dtype = DType.int64 if wide else DType.int32

        def earlier(x: Sequence[Expr], y: Sequence[Expr]) -> tuple[Expr, Expr]:
            better = build.gt(x[0], y[0]) if op is BinaryOp.MAX else build.lt(x[0], y[0])
            tie = build.logical_and(build.eq(x[0], y[0]), build.lt(x[1], y[1]))
            first = build.logical_or(better, tie)
            return build.select(first, x[0], y[0]), build.select(first, x[1], y[1])

        def identity(*_: DType) -> tuple[Expr, Expr]:
            return self.node.reducer.identity[number], make_const(dtype.info.highest, dtype)

        reducer = comm_reducer(earlier, identity, name=f"arg{op.value}")
        init = None if self.node.init is None else (self.node.init[number], Const(-1, dtype))
        sources = (self.node.sources[number], self._place(dtype))
        made = reducer(sources, self.node.axes, self.node.where, init)
        return self._stage(made, f"{self.op.name}.arg")[1]

    # Any reducer

    def _through_combination(self, adjoints: Mapping[int, Expr]) -> list[Seed]:
        """value = combine(the others, source), at each point."""
        others = self._others()
        low = [domain_of(axis).min for axis in self.node.axes]
        index = (*self.op.axes, *map(build.sub, self.node.axes, low))
        reads = [TensorRead(each, index) for each in others]
        reducer = self.node.reducer
        return [
            Seed(combined(reducer, number, reads, self.node.sources), self._where(), adjoint)
            for number, adjoint in adjoints.items()
        ]

    def _from_init(self, adjoints: Mapping[int, Expr]) -> list[Seed]:
        """value = combine(init, the rest)."""
        node = self.node
        bare = [
            Reduce(node.reducer, node.sources, node.axes, node.where, None, n)
            for n in range(len(node.sources))
        ]
        made = self._stage(bare, f"{self.op.name}.rest")
        reads = [TensorRead(each, self.op.axes) for each in made]
        return [
            Seed(combined(node.reducer, number, node.init or (), reads), (), adjoint)
            for number, adjoint in adjoints.items()
        ]

    def _others(self) -> tuple[Tensor, ...]:
        """For each point of the reduction, the reduction of all others."""
        node = self.node
        here = [data_axis(axis.name, domain_of(axis).extent) for axis in node.axes]
        moved: list[Expr] = [
            build.add(axis, domain_of(old).min) for axis, old in zip(here, node.axes, strict=True)
        ]
        other: Expr = build.FALSE
        for axis, place in zip(node.axes, moved, strict=True):
            other = build.logical_or(other, build.ne(axis, place))
        where = other if node.where is None else build.if_then_else(other, node.where, False)
        bodies = [
            Reduce(node.reducer, node.sources, node.axes, where, node.init, n)
            for n in range(len(node.sources))
        ]
        return self._stage(bodies, f"{self.op.name}.others", tuple(here))

    def _stage(
        self, bodies: Sequence[Reduce], name: str, more: tuple[Axis, ...] = ()
    ) -> tuple[Tensor, ...]:
        """A definition over the axes of the operation and `more`, with axes of its own."""
        data = tuple(data_axis(axis.name, domain_of(axis).extent) for axis in self.op.axes)
        fresh = {
            axis: Axis(axis.name, AxisKind.REDUCE, axis.domain, axis.dtype)
            for axis in self.node.axes
        }
        mapping: dict[Expr, Expr] = {**dict(zip(self.op.axes, data, strict=True)), **fresh}
        first = bodies[0]

        def placed(expr: Expr) -> Expr:
            return substitute(self.sweep.closed(expr), mapping)

        sources = tuple(map(placed, first.sources))
        where = None if first.where is None else placed(first.where)
        init = first.init and tuple(map(placed, first.init))
        axes = tuple(fresh.values())
        again = tuple(
            Reduce(first.reducer, sources, axes, where, init, n) for n in range(len(sources))
        )
        return define(again, (*data, *more), name).outputs


def component(reducer: Reducer, number: int) -> BinaryOp | None:
    """The operator by which one value is combined on its own, apart from the other values."""
    match reducer.combine[number]:
        case Binary(op=op, a=a, b=b) if (a is reducer.lhs[number] and b is reducer.rhs[number]) or (
            b is reducer.lhs[number] and a is reducer.rhs[number]
        ):
            return op
        case _:
            return None


def combined(reducer: Reducer, number: int, lhs: Sequence[Expr], rhs: Sequence[Expr]) -> Expr:
    """One value of `combine(lhs, rhs)`."""
    mapping: dict[Expr, Expr] = {
        **dict(zip(reducer.lhs, lhs, strict=True)),
        **dict(zip(reducer.rhs, rhs, strict=True)),
    }
    return substitute(reducer.combine[number], mapping)
