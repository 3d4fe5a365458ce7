"""The roofline of a computation: what any schedule of it has to read, write and calculate, and how
long the device needs for that at least.

    seconds = max(bytes / bandwidth, sum over units of flops / peak)

Counted is the definition, not a program: each input is read once as far as it can be used at all,
each output written once, and an operation is done once for every point that it depends on.  Where
a condition leaves points out, the share that it leaves is sampled.  Imports
`workload.extents`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tedsl.cost.sampled_indices import Points, Values
from tedsl.devices import CpuDevice, Device, GpuDevice
from tedsl.dtypes import DType
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Cast,
    Expr,
    Reduce,
    TensorRead,
    Unary,
)
from tedsl.expr.visit import walk
from tedsl.slips import suggests
from tedsl.tensor.tensor import ComputeOp, PlaceholderOp, Tensor
from tedsl.workload.extents import Extents

SAMPLED = 4096
"""Points at which a condition is looked at."""


@suggests()
@dataclass(frozen=True, slots=True)
class Roofline:
    """What a computation needs at least, and of which device.

    Attributes:
        nbytes: bytes of inputs and outputs.
        flops: arithmetic operations; a multiplication that is added counts two.
        bandwidth: bytes a second of the memory that the arrays are in.
        peak: operations a second of the units that the computation can use.
        memory_seconds, compute_seconds: what either takes alone.
    """

    nbytes: float
    flops: float
    bandwidth: float
    peak: float
    memory_seconds: float
    compute_seconds: float

    @property
    def seconds(self) -> float:
        """No schedule is faster."""
        return max(self.memory_seconds, self.compute_seconds)

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.flops / self.nbytes if self.nbytes else math.inf

    @property
    def is_memory_bound(self) -> bool:
        """True when memory sets the limit."""
        return self.memory_seconds >= self.compute_seconds


def roofline(size: Extents, facts: Device) -> Roofline:
    """The roofline of a workload at some sizes on some device."""
    nbytes = _traffic(size)
    flops: dict[tuple[bool, DType], float] = {}
    for op in size.workload.computes:
        for unit, count in _operations(op, size):
            flops[unit] = flops.get(unit, 0.0) + count
    total = sum(flops.values())
    compute = sum(count / _peak(facts, *unit) for unit, count in flops.items())
    bandwidth = _bandwidth(facts, nbytes)
    return Roofline(
        nbytes=nbytes,
        flops=total,
        bandwidth=bandwidth,
        peak=total / compute if compute else _peak(facts, False, DType.float32),
        memory_seconds=nbytes / bandwidth,
        compute_seconds=compute,
    )


def _traffic(size: Extents) -> float:
    """Bytes of the outputs, and of each input as many as can be read."""
    wanted: dict[Tensor, float] = {}
    for op in size.workload.computes:
        for body in op.bodies:
            for node in walk(body):
                if isinstance(node, TensorRead) and isinstance(node.tensor.op, PlaceholderOp):
                    axes = {a for index in node.indices for a in walk(index) if _is_axis(a)}
                    points = math.prod(_extent(axis, size) for axis in axes)
                    wanted[node.tensor] = wanted.get(node.tensor, 0.0) + points
    inputs = [op.outputs[0] for op in size.workload.placeholders]
    read = sum(
        t.dtype.nbytes * min(wanted[t], math.prod(size.shape(t))) for t in inputs if t in wanted
    )
    return read + sum(t.dtype.nbytes * math.prod(size.shape(t)) for t in size.workload.outputs)


def _operations(op: ComputeOp, size: Extents) -> Iterator[tuple[tuple[bool, DType], float]]:
    """How often the nodes of an operation are calculated, by unit: whether it is the matrix one,
    and the type."""
    seen: set[Expr] = set()
    reductions: set[tuple[int, ...]] = set()
    for body in op.bodies:
        if isinstance(body, Reduce):
            same = tuple(map(id, body.sources))
            if same not in reductions:
                reductions.add(same)
                yield from _reduction(body, op, size)
        for node in _values(body):
            if node not in seen and isinstance(node, (Binary, Unary)) and node.dtype.is_float:
                seen.add(node)
                inside = _axes(node)
                share = _share(body, inside, size) if isinstance(body, Reduce) else 1.0
                points = math.prod(_extent(axis, size) for axis in inside)
                yield (_multiplies(node, body), _operand(node)), share * points


def _reduction(
    body: Reduce, op: ComputeOp, size: Extents
) -> Iterator[tuple[tuple[bool, DType], float]]:
    """The combining of a reduction: an operation for each source and point."""
    axes = {*op.axes, *body.axes}
    points = math.prod(_extent(axis, size) for axis in axes) * _share(body, axes, size)
    for source in body.sources:
        if source.dtype.is_float:
            product = _product(source)
            unit = (product is not None, source.dtype if product is None else _operand(product))
            yield unit, points


def _share(body: Reduce, axes: set[Axis], size: Extents) -> float:
    """The share of the points that the condition of a reduction lets through."""
    where = body.where
    if where is None:
        return 1.0
    conditional = {a for a in walk(where) if _is_axis(a)}
    if any(isinstance(node, TensorRead) for node in walk(where)) or not conditional <= axes:
        return 0.0  # whatever the data say
    rng = np.random.default_rng(0)
    values: dict[Expr, Values] = {var: value for var, value in size.values.items()}
    for axis in conditional:
        values[axis] = rng.integers(0, max(1, _extent(axis, size)), SAMPLED)
    return float(np.mean(np.broadcast_to(np.asarray(Points(values).value(where)) != 0, SAMPLED)))


def _values(body: Expr) -> Iterator[Expr]:
    """The nodes of a body whose values are calculated: not what indexes a tensor."""
    stack = list(body.sources) if isinstance(body, Reduce) else [body]
    seen: set[Expr] = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        if not isinstance(node, TensorRead):
            stack.extend(node.children())


def _axes(node: Expr) -> set[Axis]:
    return {axis for axis in walk(node) if isinstance(axis, Axis)}


def _is_axis(node: Expr) -> bool:
    return isinstance(node, Axis)


def _extent(axis: Expr, size: Extents) -> int:
    domain = axis.domain if isinstance(axis, Axis) else None
    return 1 if domain is None else max(0, size.extent(domain.extent))


def _product(source: Expr) -> Binary | None:
    """The product that a reduction sums, if it does: what matrix units are for."""
    while isinstance(source, Cast):
        source = source.a
    if isinstance(source, Binary) and source.op is BinaryOp.MUL:
        return source if _axes(source.a) != _axes(source.b) else None
    return None


def _multiplies(node: Expr, body: Expr) -> bool:
    """True when a node is the product that a reduction sums."""
    return isinstance(body, Reduce) and any(node is _product(source) for source in body.sources)


def _operand(node: Expr) -> DType:
    """The narrowest type that the operands of a node had before they were widened."""
    found: list[DType] = []
    for child in node.children():
        while isinstance(child, Cast):
            child = child.a
        found.append(child.dtype)
    floats = [dtype for dtype in found if dtype.is_float]
    return max(floats, key=lambda dtype: dtype.nbytes, default=node.dtype)


def _peak(facts: Device, matrix: bool, dtype: DType) -> float:
    """Operations a second of all units that do this."""
    match facts:
        case GpuDevice():
            if matrix and dtype in facts.tensor:
                return facts.tensor[dtype]
            single = facts.fma[DType.float32]
            return facts.fma.get(dtype, single * max(1, 4 // dtype.nbytes))
        case CpuDevice():
            return facts.flops * facts.cores * (0.5 if dtype.nbytes == 8 else 1.0)


def _bandwidth(facts: Device, nbytes: float) -> float:
    """Bytes a second of the memory that arrays of this size are in when a kernel is timed."""
    match facts:
        case GpuDevice():
            return facts.bandwidth
        case CpuDevice():
            each = facts.clock * facts.cores
            if nbytes <= facts.l1 * facts.cores:
                return each * 2 * facts.vector_bits / 8
            if nbytes <= facts.l2 * facts.cores:
                return each * 64
            return each * 32 if nbytes < facts.l3 / 4 else _at_most(facts.bandwidth)


def _at_most(rounded: float) -> float:
    """The most that a figure may be that was rounded to one digit."""
    power = 10.0 ** math.floor(math.log10(rounded))
    return rounded + power / 2
