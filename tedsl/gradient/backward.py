"""Reverse mode over a graph of definitions; `scan` adds scans.

The definitions between the output and the inputs are visited from the output backwards.  Each has
an adjoint, the derivative of the output by it: `d_<output>_d_<tensor>`.  `reduce` says
where the adjoint of a definition enters its body, `sweep` carries it to the reads,
`solve` inverts their indices, so that an adjoint gathers what it needs and nothing is
scattered, and `zero` finds adjoints that need not be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    TensorRead,
    Unary,
    UnaryOp,
)
from tedsl.expr.visit import axes_of, reads, rewrite_down, substitute
from tedsl.gradient.reduce import Space, spaces
from tedsl.gradient.rules import kept_dtype, wide_dtype
from tedsl.gradient.solve import domain_of, nonempty, solve
from tedsl.gradient.sweep import Reached, Sweep, guarded, total
from tedsl.gradient.zero import Algebra
from tedsl.index.facts import Facts
from tedsl.index.simplify import simplify
from tedsl.tensor import compute
from tedsl.tensor.axis import data_axis
from tedsl.tensor.printer import operations
from tedsl.tensor.reduce import sum as sum_over
from tedsl.tensor.reducer_stages import in_order
from tedsl.tensor.tensor import ComputeOp, Operation, Tensor
from tedsl.tensor.verify_op import check_depth, depth_of

Equation = tuple[Expr, Expr]

MAX_SIMPLIFIED = 60
"""Derivatives nested deeper than this are taken as they come."""


@dataclass(frozen=True, slots=True)
class Form:
    """An adjoint: `value` over the prefix axes and `axes`, where both sides of each equation are
    equal, else 0."""

    axes: tuple[Axis, ...]
    value: Expr
    equations: tuple[Equation, ...] = ()

    def at(self, index: Sequence[Expr]) -> tuple[Expr, tuple[Equation, ...]]:
        """The value at one element, and its equations."""
        mapping: dict[Expr, Expr] = dict(zip(self.axes, index, strict=True))
        equations = [(a, substitute(b, mapping)) for a, b in self.equations]
        return substitute(self.value, mapping), tuple(equations)


@dataclass(frozen=True, slots=True)
class Arrival:
    """What one read passes back to its tensor: the sum over all points of `axes` whose index is the
    element."""

    axes: tuple[Axis, ...]
    reached: Reached
    equations: tuple[Equation, ...]


@dataclass(slots=True)
class Term:
    """An arrival at one element: the sum of `value` over `axes` where the conditions hold."""

    value: Expr
    axes: tuple[Axis, ...]
    conditions: list[Expr]
    equations: list[Equation]

    def summary(self) -> tuple[Expr, Sequence[Axis], Sequence[Expr]]:
        """The value, the axes that it is summed over, and all conditions."""
        equations = [build.eq(a, b) for a, b in self.equations]
        return self.value, self.axes, [*equations, *self.conditions]

    def expr(self) -> Expr:
        """The term as an expression."""
        conditions = self.summary()[2]
        if not self.axes:
            zero = build.const(0.0, self.value.dtype)
            return build.if_then_else(in_order(list(conditions)), self.value, zero)
        if conditions:
            return sum_over(self.value, axis=self.axes, where=in_order(list(conditions)))
        return _sum(self.value, self.axes)


def _sum(value: Expr, axes: Sequence[Axis]) -> Expr:
    """The sum of `value` over `axes`, with the factors that do not depend on them outside."""
    used = axes_of(value)
    count = 1
    left: list[Axis] = []
    for axis in axes:
        extent = domain_of(axis).extent
        if axis in used or not isinstance(extent, Const):
            left.append(axis)
        else:
            count *= int(extent.value)
    product = _Product()
    product.add(value)
    inside, outside = product.apart(left)
    if left and len(inside.above) < 2 and outside.is_constant():
        whole = value if count == 1 else build.mul(value, float(count))
        return sum_over(whole, axis=left)
    if count != 1:
        outside.above.append(build.const(float(count), value.dtype))
    if not left:
        return outside.expr(value.dtype)
    return outside.times(sum_over(inside.expr(value.dtype), axis=left))


@dataclass(slots=True)
class _Product:
    """A product taken apart: factors above and below the line, and a sign."""

    above: list[Expr] = field(default_factory=list[Expr])
    below: list[Expr] = field(default_factory=list[Expr])
    negative: bool = False

    def add(self, value: Expr, below: bool = False) -> None:
        """Multiply (or divide) by the factors of `value`."""
        match value:
            case Binary(op=BinaryOp.MUL, a=a, b=b):
                self.add(a, below)
                self.add(b, below)
            case Binary(op=BinaryOp.DIV, a=a, b=b):
                self.add(a, below)
                self.add(b, not below)
            case Unary(op=UnaryOp.NEG, a=a):
                self.negative = not self.negative
                self.add(a, below)
            case _:
                (self.below if below else self.above).append(value)

    def apart(self, axes: Sequence[Axis]) -> tuple[_Product, _Product]:
        """The factors that depend on `axes`, and the others with the sign."""
        inside, outside = _Product(), _Product(negative=self.negative)
        for factors, here, there in (
            (self.above, inside.above, outside.above),
            (self.below, inside.below, outside.below),
        ):
            for each in factors:
                (there if axes_of(each).isdisjoint(axes) else here).append(each)
        return inside, outside

    def is_constant(self) -> bool:
        """Whether all factors are numbers."""
        return all(isinstance(each, Const) for each in (*self.above, *self.below))

    def expr(self, dtype: DType) -> Expr:
        """The product as an expression."""
        if not self.above:
            return self.times(build.const(1.0, dtype))
        first, *others = self.above
        return _Product(others, self.below, self.negative).times(first)

    def times(self, value: Expr) -> Expr:
        """`value` times the product."""
        for each in self.above:
            value = build.mul(value, each)
        for each in self.below:
            value = build.div(value, each)
        return build.neg(value) if self.negative else value


@dataclass(slots=True)
class Backward:
    """One differentiation: adjoints of finished tensors and what has arrived at the others."""

    output: Tensor
    wanted: tuple[Tensor, ...]
    prefix_shape: tuple[Expr, ...]
    sweep: Sweep = field(init=False)
    algebra: Algebra = field(default_factory=Algebra)
    prefix: tuple[Axis, ...] = field(init=False)
    counted: set[Tensor] = field(default_factory=set[Tensor])
    arrived: dict[Tensor, list[Arrival]] = field(default_factory=dict[Tensor, list[Arrival]])
    forms: dict[Tensor, Form] = field(default_factory=dict[Tensor, Form])
    made: dict[Tensor, Tensor] = field(default_factory=dict[Tensor, Tensor])

    def __post_init__(self) -> None:
        self.sweep = Sweep(self._counts, self.closed)
        self.prefix = tuple(data_axis(f"p{n}", e) for n, e in enumerate(self.prefix_shape))

    def _counts(self, tensor: Tensor) -> bool:
        return tensor in self.counted

    def closed(self, expr: Expr) -> Expr:
        """What is computed of an expression over the definitions."""
        return expr

    def shortened(self, value: Expr) -> Expr:
        """An adjoint, with what is computed already."""
        return value

    def run(self, head: Tensor | None) -> None:
        """Make the adjoints of all tensors between the output and the inputs."""
        ops = self.between()
        for op in ops:
            self.mark(op)
        if self.output not in self.counted:
            return
        self.forms[self.output] = self._seed(head)
        self.back(ops)

    def between(self) -> Sequence[Operation]:
        """The operations that have adjoints, producers first."""
        return operations([self.output])

    def back(self, ops: Sequence[Operation]) -> None:
        """Finish the adjoints of all operations, the last first."""
        for op in reversed(ops):
            for tensor in op.outputs:
                self.finish(tensor)
            if isinstance(op, ComputeOp):
                self.pass_on(op)

    def mark(self, op: Operation) -> None:
        """Note those outputs that the inputs influence."""
        for tensor in op.outputs:
            body = op.bodies[tensor.index] if isinstance(op, ComputeOp) else None
            below = () if body is None else reads(body)
            if tensor in self.wanted or any(read.tensor in self.counted for read in below):
                self.counted.add(tensor)

    def _seed(self, head: Tensor | None) -> Form:
        """The adjoint of the output: `head`, or the identity."""
        axes = self.element_axes(self.output)
        dtype = wide_dtype(self.output.dtype)
        if head is None:
            equations = tuple(zip(self.prefix, axes, strict=True))
            return Form(axes, build.const(1.0, dtype), equations)
        return Form(axes, build.cast(TensorRead(head, (*self.prefix, *axes)), dtype))

    def element_axes(self, tensor: Tensor) -> tuple[Axis, ...]:
        """New axes for the elements of a tensor, named as it, or a reader, names them."""
        names = [axis.name for axis in tensor.op.axis]
        if not names:
            names = [f"i{n}" for n in range(tensor.ndim)]
            for arrival in reversed(self.arrived.get(tensor, [])):
                for n, index in enumerate(arrival.reached.read.indices):
                    if isinstance(index, Axis) and index.name not in names:
                        names[n] = index.name
        return tuple(map(data_axis, names, tensor.shape))

    def pass_on(self, op: ComputeOp) -> None:
        """Carry the adjoints of a finished definition to the tensors it reads."""
        plain: dict[int, Expr] = {}
        for tensor in op.outputs:
            form = self.forms.get(tensor)
            if form is None:
                continue
            value, equations = form.at(op.axes)
            if equations:
                self._send(spaces(op, {tensor.index: value}, self.sweep), equations)
            else:
                plain[tensor.index] = value
        if plain:
            self._send(spaces(op, plain, self.sweep), ())

    def _send(self, found: Sequence[Space], equations: tuple[Equation, ...]) -> None:
        for space in found:
            for reached in self.sweep.run(space.seeds):
                told = reached._replace(adjoint=self.shortened(reached.adjoint))
                arrival = Arrival(space.axes, told, equations)
                self.arrived.setdefault(told.read.tensor, []).append(arrival)

    def finish(self, tensor: Tensor) -> None:
        """The adjoint of a tensor, once all that reads it has passed on."""
        arrivals = self.arrived.get(tensor)
        if not arrivals:
            return
        axes = self.element_axes(tensor)
        terms = [self._term(each, axes) for each in arrivals]
        terms = [term for term in terms if term is not None]
        terms = [term for term in terms if not self._vanish([term])]
        if not terms or self._vanish(terms):
            return
        if len(terms) == 1 and _is_light(terms[0]):
            term = terms[0]
            self.forms[tensor] = Form(axes, term.value, tuple(term.equations))
            return
        value = total([term.expr() for term in terms])
        self.define(tensor, axes, value)

    def _vanish(self, terms: Sequence[Term]) -> bool:
        """Whether `terms` are known to add up to 0."""
        if any(depth_of(term.value) > MAX_SIMPLIFIED for term in terms):
            return False
        return self.algebra.vanishes([term.summary() for term in terms])

    def define(self, tensor: Tensor, axes: tuple[Axis, ...], value: Expr) -> Tensor:
        """The stage of an adjoint, from its element over the prefix axes and `axes`."""
        fresh = tuple(data_axis(axis.name, domain_of(axis).extent) for axis in self.prefix)
        mapping: dict[Expr, Expr] = dict(zip(self.prefix, fresh, strict=True))
        body = build.cast(substitute(self.closed(value), mapping), kept_dtype(tensor.dtype))
        name = f"d_{self.output.name}_d_{tensor.name}"
        made = compute.define((body,), (*fresh, *axes), name).outputs[0]
        element = self.element_axes(tensor)
        read = TensorRead(made, (*self.prefix, *element))
        self.forms[tensor] = Form(element, build.cast(read, wide_dtype(read.dtype)))
        self.made[tensor] = made
        return made

    def result(self, tensor: Tensor) -> Tensor:
        """The derivative by one of the inputs."""
        if tensor in self.made:
            return self.made[tensor]
        axes = self.element_axes(tensor)
        value: Expr = build.const(0.0, kept_dtype(tensor.dtype))
        form = self.forms.get(tensor)
        if form is not None:
            value, equations = form.at(axes)
            value = Term(value, (), [], list(equations)).expr()
        return self.define(tensor, axes, value)

    def _term(self, arrival: Arrival, axes: tuple[Axis, ...]) -> Term | None:
        """An arrival at the element `axes`; None when nothing arrives anywhere."""
        read, guards, adjoint = arrival.reached
        check_depth(f"d_{self.output.name}_d_{read.tensor.name}", adjoint)
        needed = [guard.expr for guard in guards if guard.lazy]
        chosen = [guard for guard in guards if not guard.lazy]
        facts = nonempty(Facts().own(), [domain_of(a).extent for a in (*self.prefix, *axes)])
        equations = [*zip(read.indices, axes, strict=True)]
        own = [(b, a) for a, b in arrival.equations]
        solution = solve(arrival.axes, [*equations, *own], facts, by_lookup=not needed)
        place = _Place(self.sweep.interner.rep, read, axes, solution.values)
        here = place.of(guarded(chosen, adjoint))
        needed = [place.of(each) for each in needed]
        conditions: list[Expr] = []
        known = facts
        for each in (*solution.conditions, *needed, *solution.lookups):
            condition = simplify(each, known)
            if isinstance(condition, Const) and not condition.value:
                return None
            if not isinstance(condition, Const):
                conditions.append(condition)
                known = known.assume(condition)
        value = simplify(here, known) if depth_of(here) <= MAX_SIMPLIFIED else here
        used = axes_of(value, *conditions)
        rest = tuple(axis for axis in solution.rest if axis in used or not _is_one(axis))
        return _with_equations(Term(value, rest, conditions, []), set(self.prefix))


@dataclass(frozen=True, slots=True)
class _Place:
    """Expressions of a reader at the points where `read` is the element `axes`; `values` are those
    of the reader's axes there."""

    rep: Callable[[Expr], Expr]
    read: TensorRead
    axes: tuple[Axis, ...]
    values: Mapping[Expr, Expr]

    def of(self, expr: Expr) -> Expr:
        """`expr` there.  The read and its indices are what they are equal to."""
        known: dict[Expr, Expr] = {}
        for index, axis in zip(self.read.indices, self.axes, strict=True):
            if not isinstance(index, (Axis, Const)):
                known[self.rep(index)] = build.cast(axis, index.dtype)
        known[self.read] = TensorRead(self.read.tensor, self.axes)

        def replaced(node: Expr) -> Expr | None:
            found = self.values.get(node)
            return known.get(self.rep(node)) if found is None else found

        return rewrite_down(expr, replaced)


def _is_one(axis: Axis) -> bool:
    extent = domain_of(axis).extent
    return isinstance(extent, Const) and extent.value == 1


def _with_equations(term: Term, prefix: set[Axis]) -> Term:
    """The term with conditions `p == f(element)` on prefix axes as equations, when there are no
    others: those a reader can solve."""
    equations: list[Equation] = []
    for condition in term.conditions:
        if not isinstance(condition, Compare) or condition.op is not CompareOp.EQ:
            return term
        for one, other in ((condition.a, condition.b), (condition.b, condition.a)):
            if one in prefix and axes_of(other).isdisjoint(prefix):
                equations.append((one, other))
                break
        else:
            return term
    return term if term.axes else Term(term.value, (), [], equations)


def _is_light(term: Term) -> bool:
    """Whether an adjoint is so simple that its readers take its value in place of a stage."""
    if term.axes or term.conditions:
        return False
    value = term.value
    while isinstance(value, Cast) or (isinstance(value, Unary) and value.op is UnaryOp.NEG):
        value = value.a
    return isinstance(value, (Const, TensorRead))
