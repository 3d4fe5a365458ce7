"""Reverse mode over a graph that has scans; what `api` loads when it is first called.

The adjoint of a scan is a scan over its steps, the last one first.  With `t` the step that is `r`
before the last, step `r` of the adjoint computes

    g[r] = G[t] + sum over distances d of E_d[r - d]        the derivative by the row t
    E_d[r] = what the step t passes on of g[r] to the row t - d that it reads

where `G` is the derivative by the result from what reads it, and the `E_d` are the states.  What a
step passes on is found as for any definition, on the copies of the steps that `scan_steps`
makes: they read the forward result, which is kept, and nothing of another step.  When all `E_d` are
there, so is the derivative by every row, `total`, and the tensors that the steps read get theirs
from all steps at once, outside of the adjoint scan: the weights of a recurrent cell by one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tedsl.expr import build
from tedsl.expr.nodes import Axis, Binary, Const, Expr, TensorRead, Unary
from tedsl.expr.visit import reads, rewrite_down, substitute
from tedsl.gradient.backward import Arrival, Backward, Term
from tedsl.gradient.rules import wide_dtype
from tedsl.gradient.scan_steps import Earlier, Steps, reversed_steps
from tedsl.gradient.solve import domain_of
from tedsl.gradient.sweep import Reached, total
from tedsl.index.facts import Facts
from tedsl.index.simplify import simplify
from tedsl.tensor import compute
from tedsl.tensor.axis import data_axis
from tedsl.tensor.printer import operations
from tedsl.tensor.scan import scan as make_scan
from tedsl.tensor.scan_body import body_of, within_scans
from tedsl.tensor.tensor import ComputeOp, Operation, ScanOp, Tensor


def differentiate(
    output: Tensor, wanted: tuple[Tensor, ...], head: Tensor | None, prefix: tuple[Expr, ...]
) -> list[Tensor]:
    """The derivatives of `output` by the `wanted` tensors; see `gradient`, which checks them.

    Args:
        output: what is differentiated.
        wanted: by what.
        head: the derivative of something by `output`, or None for the identity.
        prefix: the dimensions of the results before those of `wanted`.
    """
    backward = _Graph(output, wanted, prefix)
    backward.run(head)
    return [backward.result(each) for each in wanted]


@dataclass(slots=True)
class _Graph(Backward):
    """The differentiation of a graph whose scans are passed whole."""

    def between(self) -> Sequence[Operation]:
        """The operations that have adjoints, without the bodies of scans."""
        ops = operations([self.output])
        steps = within_scans(ops)
        return [op for op in ops if op not in steps]

    def mark(self, op: Operation) -> None:
        """Note those outputs that the inputs influence; states do as long as that adds some."""
        if not isinstance(op, ScanOp):
            Backward.mark(self, op)
            return
        states: set[Tensor] = set()
        while True:
            inside = _influenced(body_of(op), self.counted | states)
            moved = {
                state
                for state, init, update in zip(op.states, op.inits, op.updates, strict=True)
                if init in self.counted or update in inside
            }
            if moved == states:
                break
            states = moved
        for state, out in zip(op.states, op.outputs, strict=True):
            if state in states or out in self.wanted:
                self.counted.add(out)

    def pass_on(self, op: ComputeOp) -> None:
        """Carry adjoints on, through all steps of a scan at once."""
        if isinstance(op, ScanOp):
            _Scan(self, op).pass_on()
        else:
            Backward.pass_on(self, op)

    def parts(self, steps: Steps, counted: set[Tensor]) -> _Parts:
        """A differentiation of the steps of a scan, side by side, by what is `counted`."""
        parts = _Parts(self.output, (), self.prefix_shape, steps=steps)
        parts.prefix, parts.algebra = self.prefix, self.algebra
        parts.counted = counted | _influenced(steps.opened, counted)
        return parts


def _influenced(body: Sequence[ComputeOp], sources: set[Tensor]) -> set[Tensor]:
    """The outputs of `body`, producers first, that depend on one of `sources`."""
    found: set[Tensor] = set()
    for op in body:
        for tensor in op.outputs:
            below = reads(op.bodies[tensor.index])
            if any(read.tensor in sources or read.tensor in found for read in below):
                found.add(tensor)
    return found


@dataclass(slots=True)
class _Parts(Backward):
    """The differentiation of the open copies of a scan's body; what is computed reads the known
    ones, and the value of an update is a row of the result."""

    steps: Steps = field(kw_only=True)
    rows: dict[Expr, Expr] = field(default_factory=dict[Expr, Expr])

    def closed(self, expr: Expr) -> Expr:
        """`expr` over what is computed."""
        return self.steps.closed(expr)

    def arrive(self, tensor: Tensor, axes: tuple[Axis, ...], value: Expr) -> None:
        """Note that `value` is part of the adjoint at each element `axes`."""
        reached = Reached(TensorRead(tensor, axes), (), value)
        self.arrived.setdefault(tensor, []).append(Arrival(axes, reached, ()))

    def through(self) -> None:
        """Pass all that has arrived at updates on."""
        scan = self.steps.scan
        for number, update in enumerate(scan.updates):
            copy = self.steps.copies[update]
            if not isinstance(copy.op, ComputeOp):
                continue
            body = copy.op.bodies[copy.index]
            if isinstance(body, (Unary, Binary)):
                index = (self.steps.step(copy.op.axes[0]), *copy.op.axes[1:])
                row = TensorRead(scan.outputs[number], index)
                self.rows[self.sweep.interner.rep(body)] = row
        self.back(self.steps.opened)

    def shortened(self, value: Expr) -> Expr:
        """`value` with rows of the result where it computes them again."""
        return rewrite_down(value, self.rows.get)

    def leaving(self, arrival: Arrival) -> Arrival:
        """The same over what is computed, for a tensor that the steps read."""
        read, guards, value = arrival.reached
        index = tuple(map(self.closed, read.indices))
        tests = tuple(replace(each, condition=self.closed(each.condition)) for each in guards)
        reached = Reached(TensorRead(read.tensor, index), tests, self.closed(value))
        return Arrival(arrival.axes, reached, arrival.equations)


@dataclass(slots=True)
class _State:
    """One state of the adjoint scan: what steps pass on to the rows `distance` before them."""

    earlier: Earlier
    distance: int
    placeholder: Tensor
    result: Tensor | None = None


@dataclass(slots=True)
class _Scan:
    """The adjoint of one scan."""

    graph: _Graph
    scan: ScanOp
    steps: Steps = field(init=False)
    states: list[_State] = field(default_factory=list[_State])

    def __post_init__(self) -> None:
        self.steps = reversed_steps(self.scan)

    def pass_on(self) -> None:
        """Send what the results have to the tensors that inits and steps read."""
        if not any(self.graph.forms.get(out) for out in self.scan.outputs):
            return
        smooth = [
            each
            for each in self.steps.earlier.values()
            if self.scan.outputs[each.state] in self.graph.counted and each.tensor.dtype.is_float
        ]
        if isinstance(self.steps.rows, Const) and not self.steps.rows.value:
            smooth = []
        while smooth:
            silent = self._run(smooth)
            if not silent:
                break
            smooth = [each for each in smooth if each not in silent]
        totals = {n: self._total(n) for n in range(len(self.scan.outputs)) if self._has(n)}
        self._to_inits(totals)
        self._to_inputs(totals)

    # The adjoint scan

    def _run(self, smooth: list[Earlier]) -> list[Earlier]:
        """Make the states for these rows; those that nothing is passed on to, in which case none
        is made."""
        parts = self.graph.parts(self.steps, {each.tensor for each in smooth})
        self.states = [
            _State(each, distance, self._placeholder(each))
            for each in smooth
            for distance in each.distances
        ]
        for number in range(len(self.scan.outputs)):
            if self._has(number):
                axes = self._axes(number, self.steps.rows)
                self._arrive(parts, number, self._stage(number, axes, "step"))
        parts.through()
        for each in smooth:
            parts.finish(each.tensor)
        silent = [each for each in smooth if each.tensor not in parts.forms]
        if silent:
            self.states = []
            return silent
        inits = [self._nothing(state) for state in self.states]
        updates = [self._update(state, parts) for state in self.states]
        name = f"d_{self.graph.output.name}_d_{self.scan.name}.steps"
        made = make_scan(inits, updates, [state.placeholder for state in self.states], name=name)
        for state, result in zip(self.states, made, strict=True):
            state.result = result
        return []

    def _has(self, number: int) -> bool:
        """Whether anything is passed on to a result."""
        from_outside = self.graph.forms.get(self.scan.outputs[number]) is not None
        return from_outside or any(state.earlier.state == number for state in self.states)

    def _placeholder(self, earlier: Earlier) -> Tensor:
        out = self.scan.outputs[earlier.state]
        shape = (self.steps.rows, *self.graph.prefix_shape, *out.shape[1:])
        return compute.placeholder(shape, wide_dtype(out.dtype), f"E_{out.name}")

    def _nothing(self, state: _State) -> Tensor:
        """No rows before the first step back."""
        tensor = state.placeholder
        shape = (0, *tensor.shape[1:])
        zero = build.const(0.0, tensor.dtype)
        return compute.compute(shape, lambda *_: zero, name=f"{tensor.name}.none")

    def _update(self, state: _State, parts: _Parts) -> Tensor:
        """E_d, from what arrived at the rows that the steps read."""
        tensor, earlier = state.placeholder, state.earlier
        made = parts.made.get(earlier.tensor)
        whole = earlier.count == 1 and not self.graph.prefix
        if made is not None and whole and made.dtype is tensor.dtype:
            return made
        axes = self._axes(earlier.state, self.steps.rows)
        place = (build.const(state.distance - earlier.nearest),) if earlier.count > 1 else ()
        value, equations = parts.forms[earlier.tensor].at((axes[0], *place, *axes[1:]))
        value = build.cast(Term(value, (), [], list(equations)).expr(), tensor.dtype)
        return self._define(value, axes[:1], axes[1:], f"{tensor.name}.{state.distance}")

    def _axes(self, number: int, rows: Expr) -> tuple[Axis, ...]:
        """The steps back, or the rows, and the axes within a row of a result."""
        first, *rest = self.graph.element_axes(self.scan.outputs[number])
        return (data_axis(first.name, rows), *rest)

    # The derivatives by whole rows

    def _stage(self, number: int, axes: tuple[Axis, ...], what: str) -> Tensor:
        """The derivative by a row: G and the states, over steps back, or the rows from 0 on."""
        first, *rest = axes
        out = self.scan.outputs[number]
        inside = what == "step"
        row = self.steps.step(first) if inside else first
        terms: list[Expr] = []
        form = self.graph.forms.get(out)
        if form is not None:
            value, equations = form.at((row, *rest))
            terms.append(Term(value, (), [], list(equations)).expr())
        back = first if inside else self.steps.step(first)
        for state in self.states:
            if state.earlier.state == number:
                there = simplify(build.sub(back, state.distance), self.steps.facts)
                source = state.placeholder if state.result is None else state.result
                read = TensorRead(source, (there, *self.graph.prefix, *rest))
                limits = build.logical_and(build.ge(there, 0), build.lt(there, self.steps.rows))
                known = Facts() if inside else self.steps.facts
                chosen = simplify(limits, known)
                zero = build.const(0.0, read.dtype)
                terms.append(build.if_then_else(chosen, read, zero))
        value = total(terms)
        name = f"d_{self.graph.output.name}_d_{out.name}.{what}"
        return self._define(value, (), axes, name)

    def _total(self, number: int) -> Tensor:
        return self._stage(number, self._axes(number, self.scan.shape[0]), "total")

    def _arrive(self, parts: _Parts, number: int, stage: Tensor, reverse: bool = False) -> None:
        """Tell an update what its rows have; `stage` goes over rows, not steps back, in reverse."""
        update = self.steps.copies[self.scan.updates[number]]
        if update not in parts.counted:
            return
        first, *rest = axes = parts.element_axes(update)
        row = self.steps.step(first) if reverse else first
        parts.arrive(update, axes, TensorRead(stage, (*self.graph.prefix, row, *rest)))

    def _to_inits(self, totals: dict[int, Tensor]) -> None:
        for number, stage in totals.items():
            init = self.scan.inits[number]
            if init not in self.graph.counted:
                continue
            first, *rest = axes = self._axes(number, self.scan.first)
            there = self.graph.sweep.guard(build.lt(first, self.scan.shape[0]), lazy=True)
            value = TensorRead(stage, (*self.graph.prefix, first, *rest))
            reached = Reached(TensorRead(init, axes), (there,), value)
            self.graph.arrived.setdefault(init, []).append(Arrival(axes, reached, ()))

    def _to_inputs(self, totals: dict[int, Tensor]) -> None:
        """From all steps at once to the tensors that they read."""
        outside = self.graph.counted - set(self.scan.outputs)
        parts = self.graph.parts(self.steps, outside)
        for number, stage in totals.items():
            self._arrive(parts, number, stage, reverse=True)
        parts.through()
        for tensor, arrivals in parts.arrived.items():
            if tensor not in self.steps.known:
                known = self.graph.arrived.setdefault(tensor, [])
                known.extend(map(parts.leaving, arrivals))

    def _define(
        self, value: Expr, before: tuple[Axis, ...], after: tuple[Axis, ...], name: str
    ) -> Tensor:
        """A stage over `before`, the prefix and `after`."""
        prefix = self.graph.prefix
        fresh = tuple(data_axis(axis.name, domain_of(axis).extent) for axis in prefix)
        mapping: dict[Expr, Expr] = dict(zip(prefix, fresh, strict=True))
        body = substitute(value, mapping)
        return compute.define((body,), (*before, *fresh, *after), name).outputs[0]
