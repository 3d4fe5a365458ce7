"""The steps of a scan as plain definitions, last step first: what the gradient of a scan is made
of.

Once the result `H` of a scan is known, a step needs no other: where it reads the state `S[t - 1]`
it reads a row of `H`.  So all steps can be written side by side, and here they are, over `r`, which
is 0 for the last step: `t = rows - 1 - r`.  Each operation of the body has two copies: `known` has
its values, and reads `H`; `open` is what derivatives are taken of, and reads a placeholder for each
distance at which a state is read, the rows `H[t - distance]`.  Imports `index`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Expr, TensorRead, Var
from tedsl.expr.visit import map_children, reads, rewrite, substitute, variables
from tedsl.index.facts import Facts
from tedsl.index.interval import interval
from tedsl.index.prove import prove
from tedsl.index.simplify import simplify
from tedsl.tensor.axis import data_axis
from tedsl.tensor.bounds_check import facts_of_sizes, sizes_of, unfinished
from tedsl.tensor.compute import define
from tedsl.tensor.scan_body import body_of, step_axes
from tedsl.tensor.tensor import ComputeOp, PlaceholderOp, ScanOp, Tensor

MAX_DISTANCE = 16
"""How many rows back a differentiable step may read."""


@dataclass(frozen=True, slots=True, eq=False)
class Earlier:
    """Rows of one state that the steps read: `tensor[r, (n,) ...] = H[t - nearest - n, ...]`.

    The dimension `n` is there when `count` is above 1: for a distance that a reduction goes over.
    """

    tensor: Tensor
    state: int
    nearest: int
    count: int

    @property
    def distances(self) -> range:
        """All distances."""
        return range(self.nearest, self.nearest + self.count)


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """All steps of one scan; `opened` are the copies to differentiate, producers first."""

    scan: ScanOp
    rows: Expr
    facts: Facts
    opened: list[ComputeOp] = field(default_factory=list[ComputeOp])
    known: dict[Tensor, Tensor] = field(default_factory=dict[Tensor, Tensor])
    copies: dict[Tensor, Tensor] = field(default_factory=dict[Tensor, Tensor])
    earlier: dict[tuple[int, int, int], Earlier] = field(
        default_factory=dict[tuple[int, int, int], Earlier]
    )

    def step(self, back: Expr) -> Expr:
        """`t` of the step that is `back` steps before the last; also the other way round."""
        last = build.sub(self.scan.shape[0], 1)
        return simplify(build.sub(last, back), self.facts)

    def closed(self, expr: Expr) -> Expr:
        """`expr` with the values of its reads: rows of the result, and the known copies."""
        by_tensor = {each.tensor: each for each in self.earlier.values()}

        def value(node: Expr) -> Expr | None:
            if not isinstance(node, TensorRead):
                return None
            each = by_tensor.get(node.tensor)
            if each is None:
                copy = self.known.get(node.tensor)
                return None if copy is None else TensorRead(copy, node.indices)
            back, *rest = node.indices
            distance: Expr = build.const(each.nearest)
            if each.count > 1:
                distance = build.add(rest.pop(0), distance)
            row = simplify(build.sub(self.step(back), distance), self.facts)
            return TensorRead(self.scan.outputs[each.state], (row, *rest))

        return rewrite(expr, value)

    def rows_of(self, state: int, low: int, high: int) -> Earlier:
        """The placeholder of a state's rows at these distances; one for each."""
        key = (state, low, high)
        if key not in self.earlier:
            out, count = self.scan.outputs[state], high - low + 1
            more = (build.const(count),) if count > 1 else ()
            shape = (self.rows, *more, *out.shape[1:])
            made = PlaceholderOp(f"{out.name}.earlier", shape, out.dtype)
            self.earlier[key] = Earlier(made.outputs[0], state, low, count)
        return self.earlier[key]


def reversed_steps(scan: ScanOp) -> Steps:
    """The steps of `scan` side by side.

    Raises:
        ExprError: a step reads states at no fixed distance, or too far back.
    """
    end, first = scan.shape[0], scan.first
    sizes = {v for v in variables(*scan.shape, first) if isinstance(v, Var)}
    facts = facts_of_sizes(sizes | sizes_of(*(b for op in body_of(scan) for b in op.bodies)))
    rows = build.sub(end, first)
    if not prove(build.ge(rows, 0), Facts()):
        rows = build.maximum(rows, 0)
    steps = Steps(scan, simplify(rows, Facts()), facts)
    axes = step_axes(scan)
    for op in body_of(scan):
        _copy(steps, op, axes[op])
    return steps


def _copy(steps: Steps, op: ComputeOp, fixed: frozenset[Axis]) -> None:
    """Both copies of an operation; `fixed` are its axes that have one value in a step."""
    if not fixed and unfinished(op) is not None:
        raise _refused(steps.scan, f"{op.name}, which reads the state, is read at other steps")
    axes = tuple(
        data_axis(axis.name, steps.rows if axis in fixed else extent)
        for axis, extent in zip(op.axes, op.shape, strict=True)
    )
    opening = _Opening(steps, op, fixed, dict(zip(op.axes, axes, strict=True)))
    bodies = tuple(map(opening.visit, op.bodies))
    shape = tuple(
        steps.rows if old in fixed else n for old, n in zip(op.axes, op.shape, strict=True)
    )
    copy = ComputeOp(op.name, axes, bodies, shape, op.reduce_axes)
    fresh = tuple(map(data_axis, (axis.name for axis in axes), shape))
    mapping: dict[Expr, Expr] = dict(zip(axes, fresh, strict=True))
    values = tuple(substitute(steps.closed(body), mapping) for body in bodies)
    steps.opened.append(copy)
    steps.copies.update(zip(op.outputs, copy.outputs, strict=True))
    steps.known.update(zip(copy.outputs, define(values, fresh, op.name).outputs, strict=True))


@dataclass(frozen=True, slots=True)
class _Opening:
    """Takes the bodies of `op` to the reversed steps, with placeholders for the states."""

    steps: Steps
    op: ComputeOp
    fixed: frozenset[Axis]
    axes: dict[Axis, Axis]
    memo: dict[Expr, Expr] = field(default_factory=dict[Expr, Expr])

    def visit(self, node: Expr) -> Expr:
        """The node there."""
        done = self.memo.get(node)
        if done is None:
            done = self.memo[node] = self._visit(node)
        return done

    def _visit(self, node: Expr) -> Expr:
        if isinstance(node, Axis) and node in self.axes:
            made = self.axes[node]
            return self.steps.step(made) if node in self.fixed else made
        if isinstance(node, TensorRead):
            for number, state in enumerate(self.steps.scan.states):
                if node.tensor is state:
                    return self._state(node, number)
            copy = self.steps.copies.get(node.tensor)
            if copy is not None:
                return TensorRead(copy, tuple(self._place(n, node) for n in range(copy.ndim)))
        return map_children(node, self.visit)

    def _place(self, place: int, read: TensorRead) -> Expr:
        """An index of a read of the body; at its own step where the source has steps."""
        source, index = read.tensor.op, read.indices[place]
        steps = step_axes(self.steps.scan)[source]
        if source.axis[place] in steps and isinstance(index, Axis):
            return self.axes[index]
        return self.visit(index)

    def _state(self, read: TensorRead, state: int) -> Expr:
        """A row of a state, by its distance from the step."""
        row, *rest = read.indices
        steps = self.steps
        for axis in self.op.axes:
            if axis not in self.fixed:
                continue
            distance = simplify(build.sub(axis, row), steps.facts)
            found = interval(distance, steps.facts)
            low, high = max(found.lo or 1, 1), found.hi
            if high is None or reads(distance):
                break
            if high > MAX_DISTANCE:
                raise _refused(steps.scan, f"{read} is up to {high} steps back")
            earlier = steps.rows_of(state, low, max(high, low))
            index: list[Expr] = [self.axes[axis]]
            if earlier.count > 1:
                index.append(self.visit(build.sub(distance, low)))
            return TensorRead(earlier.tensor, (*index, *map(self.visit, rest)))
        raise _refused(steps.scan, f"{read} in {self.op.name} is at no fixed number of steps back")


def _refused(scan: ScanOp, reason: str) -> ExprError:
    return ExprError(
        f"{reason} of scan {scan.name!r}, so the steps cannot be run backwards",
        subject="gradient",
        facts=[("allowed", f"reads of the state at 1 to {MAX_DISTANCE} steps before the step")],
        hint="read the state at t - 1, t - 2, ...; or pass your own derivative as head= to the "
        "gradient of what stands before the scan",
    )
