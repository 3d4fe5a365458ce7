"""Simpler copies of a computation and of the calls that schedule it, the simplest first of each
kind: what `minimise` tries.  Imports `expr`, `tensor` and the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from tedsl.checking.shrink_problem import smaller
from tedsl.expr.nodes import Expr, Reduce, TensorRead
from tedsl.expr.visit import axes_of, rewrite, substitute, walk
from tedsl.scheduling.trace.trace import Step, Value
from tedsl.tensor.printer import operations
from tedsl.tensor.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, ScanOp, Tensor

PERIODS = (1, 2, 3, 4, 7, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Pair:
    """Tensors to compute, and the calls that schedule them."""

    outputs: tuple[Tensor, ...]
    steps: tuple[Step, ...]


Kind = Callable[[Pair], Iterator[Pair]]


def fewer_steps(pair: Pair) -> Iterator[Pair]:
    """Without some calls in a row, the last first; many before few."""
    size = len(pair.steps)
    while size:
        for end in range(len(pair.steps), 0, -size):
            start = max(0, end - size)
            yield replace(pair, steps=(*pair.steps[:start], *pair.steps[end:]))
        size //= 2


def fewer_outputs(pair: Pair) -> Iterator[Pair]:
    """One of the tensors on the way as the only output; without one of several outputs."""
    for op in operations(pair.outputs):
        if isinstance(op, ComputeOp) and op.outputs != pair.outputs:
            yield replace(pair, outputs=op.outputs)
    for left in pair.outputs if len(pair.outputs) > 1 else ():
        yield replace(pair, outputs=tuple(t for t in pair.outputs if t is not left))


def fewer_operations(pair: Pair) -> Iterator[Pair]:
    """An input in place of what is computed, the last first; what is computed, where it is read."""
    for op in reversed(operations(pair.outputs)):
        if isinstance(op, ComputeOp) and op.outputs[0] not in pair.outputs:
            given: dict[Tensor, Tensor] = {}
            for tensor in op.outputs:
                name = op.name if op.num_outputs == 1 else f"{op.name}_{tensor.index}"
                given[tensor] = PlaceholderOp(name, tensor.shape, tensor.dtype).outputs[0]
            yield replace(pair, outputs=rebuilt(pair.outputs, given, {}))
            if not isinstance(op, ScanOp) and not op.reduce_axes:
                yield replace(pair, outputs=rebuilt(pair.outputs, {}, {}, inlined=op))


def smaller_extents(pair: Pair) -> Iterator[Pair]:
    """All constant extents cut down alike."""
    for period in PERIODS:
        outputs = smaller(pair.outputs, period)
        if outputs is not None:
            yield replace(pair, outputs=outputs)


def shorter_bodies(pair: Pair) -> Iterator[Pair]:
    """One element in place of a reduction; an operand in place of an operation."""
    for op in reversed(operations(pair.outputs)):
        if not isinstance(op, ComputeOp) or isinstance(op, ScanOp):
            continue
        first = op.bodies[0]
        if isinstance(first, Reduce) and len(op.bodies) == 1 and len(first.sources) == 1:
            lows: Mapping[Expr, Expr] = {a: a.domain.min for a in first.axes if a.domain}
            one = substitute(first.sources[0], lows)
            plain = ComputeOp(op.name, op.axes, (one,), op.shape, (), op.tag).outputs[0]
            yield replace(pair, outputs=rebuilt(pair.outputs, {op.outputs[0]: plain}, {}))
        for node in walk(*op.bodies):
            if isinstance(node, (Reduce, TensorRead)):
                continue
            for child in node.children():
                if child.dtype == node.dtype:
                    bodies = tuple(_with(body, node, child) for body in op.bodies)
                    if set(op.reduce_axes) <= axes_of(*bodies):
                        yield replace(pair, outputs=rebuilt(pair.outputs, {}, {op: bodies}))


def _with(body: Expr, node: Expr, child: Expr) -> Expr:
    """`body` with an operand in place of an operation."""
    return rewrite(body, lambda each: child if each is node else None)


def smaller_numbers(pair: Pair) -> Iterator[Pair]:
    """A smaller factor, or another number, in one call."""

    def lower(value: Value) -> Iterator[Value]:
        if isinstance(value, int) and not isinstance(value, bool):
            yield from (n for n in (2, 4, value // 2) if n < value)

    for place, step in enumerate(pair.steps):
        changed = [
            replace(step, args=(*step.args[:n], low, *step.args[n + 1 :]))
            for n, value in enumerate(step.args)
            for low in lower(value)
        ]
        for n, (key, value) in enumerate(step.kwargs):
            rest = (step.kwargs[:n], step.kwargs[n + 1 :])
            changed += [
                replace(step, kwargs=(*rest[0], (key, low), *rest[1])) for low in lower(value)
            ]
        for other in changed:
            yield replace(pair, steps=(*pair.steps[:place], other, *pair.steps[place + 1 :]))


KINDS: tuple[Kind, ...] = (
    fewer_steps,
    fewer_outputs,
    fewer_operations,
    smaller_extents,
    shorter_bodies,
    smaller_numbers,
)


def rebuilt(
    outputs: tuple[Tensor, ...],
    given: Mapping[Tensor, Tensor],
    bodies: Mapping[Operation, tuple[Expr, ...]],
    inlined: ComputeOp | None = None,
) -> tuple[Tensor, ...]:
    """The graph with other tensors and other bodies, one operation inlined, and with what follows
    from that."""
    made: dict[Tensor, Tensor] = dict(given)

    def renewed(node: Expr) -> Expr | None:
        if inlined is not None and isinstance(node, TensorRead) and node.tensor.op is inlined:
            at: dict[Expr, Expr] = dict(zip(inlined.axes, node.indices, strict=True))
            return substitute(inlined.bodies[node.tensor.index], at)
        if isinstance(node, TensorRead) and node.tensor in made:
            return TensorRead(made[node.tensor], node.indices)
        return None

    for op in operations(outputs):
        if op.outputs[0] in given:
            continue
        other: Operation = op
        if isinstance(op, ExternOp):
            other = op.reading(made)
        elif isinstance(op, ComputeOp):
            old = bodies.get(op, op.bodies)
            new = tuple(rewrite(body, renewed) for body in old)
            if any(a is not b for a, b in zip(new, op.bodies, strict=True)):
                other = replace(op, bodies=new)
        if other is not op:
            made.update(zip(op.outputs, other.outputs, strict=True))
    return tuple(made.get(tensor, tensor) for tensor in outputs)
