"""The numpy oracle: evaluates a graph of definitions as they are written, without any schedule.

Every other way of running a definition must agree with it.  It favours being obviously right over
speed, but is vectorised, and works in blocks so that memory stays bounded; a float sum of products
of two plain reads goes through `numpy.matmul`, whatever it computes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build, numerics
from tedsl.expr.nodes import Axis, BinaryOp, Expr, Folded, Reduce, Var
from tedsl.expr.numerics import Array, Value, numpy_dtype, xp
from tedsl.expr.visit import substitute, walk
from tedsl.index.facts import Facts
from tedsl.index.interval import interval
from tedsl.index.prove import prove
from tedsl.reference.evaluate import Block, Span, evaluate_scalar
from tedsl.reference.matmul_fast_path import sum_of_products
from tedsl.tensor.bounds_check import Access, accesses, check_complete
from tedsl.tensor.foreign import run_on_host
from tedsl.tensor.printer import operations
from tedsl.tensor.scan_body import body_of, within_scans
from tedsl.tensor.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, ScanOp, Tensor

Box = tuple[tuple[int, int], ...]
"""For each dimension, the elements `low .. high`."""

BLOCK_POINTS = 1 << 20
"""How many points of an iteration space are evaluated at once."""


def evaluate(
    outputs: Sequence[Tensor] | Tensor,
    inputs: Mapping[Tensor, Array],
    sizes: Mapping[Var, int] | None = None,
    precise: bool = False,
) -> list[Array]:
    """The values of `outputs`.

    Args:
        outputs: tensors to compute.
        inputs: an array for every placeholder they need, of its dtype (`ml_dtypes.bfloat16` for
            bfloat16) and shape.
        sizes: values of runtime scalars; those that are an extent of an input follow from it.
        precise: accumulate float sums and products in float64 and round once.  Otherwise they
            accumulate in the reducer's dtype (16-bit floats in float32).

    Returns:
        One array for each output, in their order.

    Raises:
        ExprError: an input that is missing or does not fit, an unknown size, or an index outside
            its tensor at a point that counts.
    """
    roots = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
    ops = operations(roots)
    inputs = {tensor: np.asarray(array) for tensor, array in inputs.items()}
    scalars = _scalars(ops, inputs, sizes or {})
    values: dict[Tensor, Array] = {}
    steps = within_scans(ops)
    check_complete(op for op in ops if op not in steps)
    for op in ops:
        if op in steps:
            continue
        if isinstance(op, ExternOp):
            _call(op, values, scalars)
            continue
        extents = tuple(evaluate_scalar(extent, scalars) for extent in op.shape)
        if isinstance(op, PlaceholderOp):
            values[op.outputs[0]] = _input(op, inputs, extents)
            continue
        with np.errstate(all="ignore"), _naming(op):
            if isinstance(op, ScanOp):
                shapes = tuple(
                    tuple(evaluate_scalar(extent, scalars) for extent in shape)
                    for shape in op.output_shapes
                )
                _Steps(op, shapes, values, scalars, precise).run()
            elif isinstance(op, ComputeOp):
                _Run(op, _whole(extents), values, scalars, precise).compute()
    return [values[tensor] for tensor in roots]


@contextmanager
def _naming(op: Operation) -> Generator[None]:
    """Errors of the body name the operation that is evaluated."""
    try:
        yield
    except ExprError as error:
        error.subject = f"evaluate {op.name}" if error.subject == "evaluate" else error.subject
        raise


def _whole(extents: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple((0, extent) for extent in extents)


def _scalars(
    ops: Sequence[Operation], inputs: Mapping[Tensor, Array], sizes: Mapping[Var, int]
) -> dict[Var, Value]:
    """Values of runtime scalars: those given, and those that are an extent of an input."""
    known = {var: numpy_dtype(var.dtype).type(value) for var, value in sizes.items()}
    for op in ops:
        for tensor in op.outputs if isinstance(op, PlaceholderOp) else ():
            array = inputs.get(tensor)
            if array is None or array.ndim != tensor.ndim:
                continue
            for extent, size in zip(tensor.shape, array.shape, strict=True):
                if isinstance(extent, Var):
                    known.setdefault(extent, numpy_dtype(extent.dtype).type(size))
    return known


def _input(op: PlaceholderOp, inputs: Mapping[Tensor, Array], extents: tuple[int, ...]) -> Array:
    tensor = op.outputs[0]
    array = inputs.get(tensor)
    if array is None:
        raise ExprError(
            f"no array was given for the placeholder {op.name}",
            subject="evaluate",
            hint="inputs maps every placeholder tensor to an array",
        )
    wanted = numpy_dtype(op.dtype)
    if array.shape != extents or array.dtype != wanted:
        raise ExprError(
            f"{op.name} is {op.dtype}{list(extents)} and was given {array.dtype}"
            f"{list(array.shape)}",
            subject="evaluate",
            hint="convert the array: dtypes and shapes must match exactly",
        )
    return array if array.flags.c_contiguous else array.copy()


def _call(op: ExternOp, values: dict[Tensor, Array], scalars: Mapping[Var, Value]) -> None:
    """The outputs of an extern, from the function that it calls."""
    for output in op.outputs:
        extents = tuple(evaluate_scalar(extent, scalars) for extent in output.shape)
        unset = np.nan if output.dtype.is_float else 0
        values[output] = np.full(extents, unset, numpy_dtype(output.dtype))
    ins = [values[tensor] for tensor in op.inputs]
    run_on_host(op.function, op.name, ins, [values[output] for output in op.outputs])


@dataclass(slots=True)
class _Run:
    """The evaluation of one operation over a box of its elements."""

    op: ComputeOp
    box: tuple[tuple[int, int], ...]
    values: dict[Tensor, Array]
    scalars: Mapping[Var, Value]
    precise: bool

    def compute(self) -> None:
        """Put the elements of the box into the values of the outputs."""
        first = self.op.bodies[0]
        results = [self._result(output) for output in self.op.outputs]
        if not isinstance(first, Reduce):
            for spans, place in self._blocks(BLOCK_POINTS):
                block = self._block(spans, len(self.box))
                for result, body in zip(results, self.op.bodies, strict=True):
                    result[place] = block(body)
            return
        ranges = self._reduce_ranges(first)
        product = sum_of_products(first, self.op.axes, self.box, ranges, self.values, self.precise)
        if product is not None and first.finish is None:
            results[0][tuple(slice(low, high) for low, high in self.box)] = product
            return
        inner = max(1, min(BLOCK_POINTS, math.prod(high - low for low, high in ranges)))
        for spans, place in self._blocks(max(1, BLOCK_POINTS // inner)):
            values = self._fold(first, spans, ranges)
            for result, body in zip(results, self.op.bodies, strict=True):
                result[place] = values[body.index if isinstance(body, Reduce) else 0]

    def _result(self, output: Tensor) -> Array:
        """The array of an output, made when its first box is computed."""
        known = self.values.get(output)
        if known is None:
            extents = tuple(evaluate_scalar(extent, self.scalars) for extent in output.shape)
            known = self.values[output] = xp.empty(extents, numpy_dtype(output.dtype))
        return known

    def _block(self, spans: Mapping[Axis, Span], rank: int) -> Block:
        return Block(spans, rank, self.values, self.scalars)

    def _blocks(self, points: int) -> Iterator[tuple[dict[Axis, Span], tuple[slice, ...]]]:
        """The data axes in pieces of about `points`, and where each piece lies in the output."""
        for piece in pieces(self.box, points):
            spans = {
                axis: Span(low, high, dim)
                for dim, (axis, (low, high)) in enumerate(zip(self.op.axes, piece, strict=True))
            }
            yield spans, tuple(slice(low, high) for low, high in piece)

    def _reduce_ranges(self, node: Reduce) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        for axis in node.axes:
            if axis.domain is None:
                raise ExprError(f"the reduction axis {axis.name} has no domain", hint="define it")
            low = evaluate_scalar(axis.domain.min, self.scalars)
            extent = evaluate_scalar(axis.domain.extent, self.scalars)
            ranges.append((low, low + max(extent, 0)))
        return ranges

    def _fold(
        self, node: Reduce, spans: Mapping[Axis, Span], ranges: list[tuple[int, int]]
    ) -> list[Array]:
        """The reduction at one block of the data axes."""
        data = tuple(span.high - span.low for span in spans.values())
        outer = self._block(spans, len(data))
        start = node.reducer.identity if node.init is None else node.init
        state = [xp.broadcast_to(outer(each), data) for each in start]
        points = max(1, BLOCK_POINTS // max(1, math.prod(data)))
        operator = node.reducer.operator
        wide = self._accumulator(operator, node.dtype)
        if wide is not None:
            state = [state[0].astype(wide)]
        for piece in pieces(ranges, points):
            inner = {
                axis: Span(low, high, len(data) + n)
                for n, (axis, (low, high)) in enumerate(zip(node.axes, piece, strict=True))
            }
            shape = data + tuple(high - low for low, high in piece)
            sources = self._sources(node, self._block({**spans, **inner}, len(shape)), shape)
            ufunc = None if operator is None else numerics.REDUCE.get(operator)
            if ufunc is not None:
                dims = tuple(range(len(data), len(shape)))
                reduced = ufunc.reduce(sources[0], axis=dims, dtype=wide or sources[0].dtype)
                state = [ufunc(state[0], reduced)]
            else:
                state = self._combine(node, state, self._tree(node, sources, len(data)))
        return state if node.finish is None else [self._finished(node.finish, state, outer)]

    def _finished(self, finish: Expr, state: list[Array], outer: Block) -> Array:
        """What a reduction makes of the values it has folded."""
        bound = {
            node: Var(f"folded{node.index}", node.dtype)
            for node in walk(finish)
            if isinstance(node, Folded)
        }
        scalars = {**self.scalars, **{v: state[node.index] for node, v in bound.items()}}
        block = Block(outer.spans, outer.rank, self.values, scalars)
        shape = state[0].shape
        return xp.broadcast_to(block(substitute(finish, {**bound})), shape)

    def _accumulator(self, operator: BinaryOp | None, dtype: DType) -> np.dtype[np.generic] | None:
        """The wider dtype in which a float sum or product is accumulated, if any."""
        if not dtype.is_float or operator not in (BinaryOp.ADD, BinaryOp.MUL):
            return None
        if self.precise:
            return np.dtype(np.float64)
        return np.dtype(np.float32) if dtype.bits == 16 else None

    def _sources(self, node: Reduce, block: Block, shape: tuple[int, ...]) -> list[Array]:
        """What is folded, over all points of the block; the identity where `where` is false."""
        if node.where is None:
            return [xp.broadcast_to(block(source), shape) for source in node.sources]
        condition = block(node.where)
        inside = block.where(condition)
        return [
            xp.broadcast_to(xp.where(condition, inside(source), block(identity)), shape)
            for source, identity in zip(node.sources, node.reducer.identity, strict=True)
        ]

    def _tree(self, node: Reduce, sources: list[Array], rank: int) -> list[Array]:
        """The points after dimension `rank` folded pairwise, neighbours first, order kept."""
        count = math.prod(sources[0].shape[rank:])
        items = [xp.moveaxis(s.reshape((*s.shape[:rank], count)), -1, 0) for s in sources]
        while count > 1:
            even = [s[0 : count - 1 : 2] for s in items]
            odd = [s[1:count:2] for s in items]
            folded = self._combine(node, even, odd)
            if count % 2:
                folded = [xp.concatenate([f, s[-1:]]) for f, s in zip(folded, items, strict=True)]
            items, count = folded, folded[0].shape[0]
        return [s[0] for s in items]

    def _combine(self, node: Reduce, lhs: list[Array], rhs: list[Array]) -> list[Array]:
        """The reducer on two tuples of arrays; an identity, of which `where` gives many, changes
        nothing, also where what is written makes no number of two: 0 / 0, exp(-inf - -inf)."""
        bound: dict[Var, Value] = dict(self.scalars)
        bound.update(zip(node.reducer.lhs, lhs, strict=True))
        bound.update(zip(node.reducer.rhs, rhs, strict=True))
        block = Block({}, lhs[0].ndim, {}, bound)
        nothing = xp.ones(lhs[0].shape, np.bool_)
        for value, identity in zip(rhs, node.reducer.identity, strict=True):
            nothing = nothing & (value == block(identity))
        pairs = zip(lhs, node.reducer.combine, strict=True)
        return [xp.where(nothing, a, block(each)) for a, each in pairs]


@dataclass(slots=True)
class _Steps:
    """The evaluation of a scan: its body, step by step, over the rows that the updates read."""

    op: ScanOp
    extents: tuple[tuple[int, ...], ...]
    values: dict[Tensor, Array]
    scalars: Mapping[Var, Value]
    precise: bool

    def run(self) -> None:
        """Put the results into the values of the outputs."""
        op, values = self.op, self.values
        end = self.extents[0][0]
        rows = min(evaluate_scalar(op.first, self.scalars), end)
        for output, init, extents in zip(op.outputs, op.inits, self.extents, strict=True):
            values[output] = xp.empty(extents, numpy_dtype(output.dtype))
            values[output][:rows] = values[init][:rows]
        same = (*zip(op.states, op.outputs, strict=True), *zip(op.updates, op.outputs, strict=True))
        for inner, output in same:
            values[inner] = values[output]
        body = body_of(op)
        for step in range(rows, end):
            boxes = self._boxes(body, step)
            for inner in body:
                if inner in boxes:
                    _Run(inner, boxes[inner], values, self.scalars, self.precise).compute()

    def _boxes(self, body: Sequence[ComputeOp], step: int) -> dict[Operation, Box]:
        """What each operation of the body computes at `step`: updates first, then what is read."""
        steps = zip(self.op.updates, self.extents, strict=True)
        updates = {update.op: extents[1:] for update, extents in steps}
        boxes: dict[Operation, Box] = {}
        for op in reversed(body):
            if op in updates:
                row = ((step, step + 1), *_whole(updates[op]))
                boxes[op] = _around(boxes.get(op, row), row)
            if op not in boxes:
                continue
            facts = Facts()
            for var, value in self.scalars.items():
                if var.dtype.is_integer:
                    facts = facts.assume(build.eq(var, int(value)))
            for axis, (low, high) in zip(op.axes, boxes[op], strict=True):
                facts = facts.with_axis(axis, low, high - low)
            for access in accesses(op.bodies, facts):
                source = access.read.tensor.op
                if source in body and access.dimension == 0 and _possible(access):
                    box = self._read(access)
                    boxes[source] = _around(boxes.get(source, box), box)
        return boxes

    def _read(self, access: Access) -> Box:
        """The elements that a read may touch; the whole of a dimension where that is not known."""
        sides: list[tuple[int, int]] = []
        for index, extent in zip(access.read.indices, access.read.tensor.shape, strict=True):
            size = evaluate_scalar(extent, self.scalars)
            found = interval(index, access.facts)
            low = 0 if found.lo is None else max(found.lo, 0)
            high = size if found.hi is None else min(found.hi + 1, size)
            sides.append((low, max(low, high)))
        return tuple(sides)


def _possible(access: Access) -> bool:
    """False when a guard around the read is known to fail at this step."""
    return not any(prove(build.logical_not(guard), access.facts) for guard in access.guards)


def _around(a: Box, b: Box) -> Box:
    return tuple((min(x[0], y[0]), max(x[1], y[1])) for x, y in zip(a, b, strict=True))


def pieces(ranges: Sequence[tuple[int, int]], points: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Boxes of at most `points` points that cover `ranges`, in row-major order; none for an empty
    space.  Inner ranges are kept whole while they fit."""
    steps: list[int] = []
    left = points
    for low, high in reversed(ranges):
        step = max(1, min(high - low, left))
        steps.append(step)
        left = max(1, left // step)
    choices = [
        [(at, min(at + step, high)) for at in range(low, high, step)]
        for (low, high), step in zip(ranges, reversed(steps), strict=True)
    ]
    yield from itertools.product(*choices)
