"""`scan`: tensors of which each row follows from the rows before it.

Imports `compute`'s checks and `scan_check`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, AxisKind, Const, Expr, IfThenElse, TensorRead, Var
from tedsl.expr.printer import print_expr
from tedsl.expr.visit import walk
from tedsl.index.prove import equal
from tedsl.once import tell
from tedsl.tensor.axis import data_axis
from tedsl.tensor.bounds_check import check_complete
from tedsl.tensor.printer import operations
from tedsl.tensor.scan_body import body_of, dependents, within_scans
from tedsl.tensor.scan_check import check_steps
from tedsl.tensor.tags import current_tag
from tedsl.tensor.tensor import ComputeOp, ExternOp, PlaceholderOp, ScanOp, Tensor, noted
from tedsl.tensor.verify_op import make_compute

Tensors = Tensor | Sequence[Tensor]


def scan(
    init: Tensors,
    update: Tensors,
    state_placeholder: Tensors,
    inputs: Tensors | None = None,
    name: str = "scan",
    tag: str = "",
    attrs: Mapping[str, Any] | None = None,
) -> Tensor | list[Tensor]:
    """A recurrence along the first dimension.

    Args:
        init: the first rows: row `t` of the result is `init[t]` while `t < init.shape[0]`.
        update: the other rows, in order; a compute of the whole shape that reads the state.
        state_placeholder: stands for the result in the computes that lead to `update`; they may
            read any earlier row, `state[t - 1]`, `state[t - 2]`, ..., that is there.
        inputs: tensors that the steps read; they are found without this, and it is checked only.
        name: what it prints as.
        tag: free text for whoever looks at operations.
        attrs: free notes by name, kept as `op.attrs`; nothing follows them.

    Returns:
        The result, of the shape of the state; a list when lists of states were given, which then
        advance together: as many rows, whose shapes may differ.

    Raises:
        ExprError: lists of different lengths, shapes or dtypes that do not match, a read of the
            state at a row before the first or not computed yet.

    The computes between the states and the updates are the body: they belong to the steps, and
    what they compute for one step is not kept.  A running sum of the rows of `X`:

        first = te.compute((1, m), lambda t, i: X[0, i])
        U = te.compute((n, m), lambda t, i: S[t - 1, i] + X[t, i])
        total = te.scan(first, U, S)
    """
    states = _listed(name, "state_placeholder", state_placeholder)
    inits, updates = _listed(name, "init", init), _listed(name, "update", update)
    _check_states(name, inits, updates, states)
    for each in zip(inits, updates, states, strict=True):
        _check_shapes(name, each, inits[0], states[0])
    first = inits[0].shape[0]
    _check_rows(name, first, states[0].shape[0])
    own = _axes(updates)
    axes = tuple(dict.fromkeys(axis for each in own for axis in each))
    shape = tuple(axis.domain.extent for axis in axes if axis.domain is not None)
    sources = _own(name, "init", inits, frozenset())
    steps = _own(name, "update", updates, _dependent(updates, states))
    test = build.lt(axes[0], first)
    reads = [
        (TensorRead(a, at), TensorRead(b, at)) for a, b, at in zip(sources, steps, own, strict=True)
    ]
    bodies = tuple(IfThenElse(test, a, b) for a, b in reads)
    read = () if inputs is None or inputs == [] else tuple(_listed(name, "inputs", inputs))
    op = ScanOp(name, axes, bodies, shape, (), tag or current_tag(), tuple(states), read)
    tell(noted, op, dict(attrs or {}))
    _check_graph(op)
    check_steps(op)
    return op.outputs[0] if isinstance(state_placeholder, Tensor) else list(op.outputs)


def _listed(name: str, what: str, given: object) -> list[Tensor]:
    many = isinstance(given, (list, tuple))
    items = list(cast("Sequence[object]", given)) if many else [given]
    found = [item for item in items if isinstance(item, Tensor)]
    if len(found) != len(items) or not found:
        raise ExprError(
            f"scan {name!r} was given {given!r} as {what}",
            hint="give a tensor, or a list of one tensor for each state",
        )
    return found


def _check_states(
    name: str, inits: list[Tensor], updates: list[Tensor], states: list[Tensor]
) -> None:
    if not len(inits) == len(updates) == len(states):
        raise ExprError(
            f"scan {name!r} has {len(inits)} inits, {len(updates)} updates and {len(states)} "
            "states",
            hint="give one init and one update for each state",
        )
    for place, state in enumerate(states):
        if not isinstance(state.op, PlaceholderOp):
            raise ExprError(
                f"the state {state.name} of scan {name!r} is computed",
                hint="make it with te.placeholder: it only stands for the result",
            )
        if any(state is other for other in states[:place]):
            raise ExprError(
                f"the state {state.name} of scan {name!r} is given twice",
                hint="make one te.placeholder for each state",
            )


def _check_shapes(
    name: str, parts: tuple[Tensor, Tensor, Tensor], init: Tensor, leader: Tensor
) -> None:
    """All of one state's parts have its dtype and, but for the rows of init, its shape; all states
    have as many rows as `leader`, and inits as `init`."""
    state = parts[2]
    if not state.ndim:
        raise ExprError(
            f"the state {state.name} of scan {name!r} has no dimensions",
            hint="its first dimension is that of the steps: te.placeholder((n,))",
        )
    first, end = init.shape[:1], leader.shape[:1]
    named = (("state", state, end), ("init", parts[0], first), ("update", parts[1], end))
    for what, part, rows in named:
        wanted = (*rows, *state.shape[1:])
        fits = part.ndim == len(wanted) and all(map(_same, part.shape, wanted))
        if part.dtype is not state.dtype or not fits:
            steps = f"{print_expr(end[0])}, first rows {', '.join(map(print_expr, first))}"
            raise ExprError(
                f"the {what} {part.name} of scan {name!r} is {_type(part.dtype, part.shape)}, not "
                f"{_type(state.dtype, wanted)}",
                facts=[("rows", steps)],
                hint="init has the first rows, update and state have all, as many as the other "
                "states of the scan have; the other dimensions of a state are its own",
            )


def _same(a: Expr, b: Expr) -> bool:
    return a is b or equal(a, b)


def _type(dtype: DType, shape: Sequence[Expr]) -> str:
    return f"{dtype.value}[{', '.join(map(print_expr, shape))}]"


def _check_rows(name: str, first: Expr, last: Expr) -> None:
    if isinstance(first, Const) and isinstance(last, Const) and first.value > last.value:
        raise ExprError(
            f"init of scan {name!r} has {first.value} rows, the result {last.value}",
            hint="give init no more rows than the state has",
        )


def _axes(updates: Sequence[Tensor]) -> list[tuple[Axis, ...]]:
    """The steps, then an axis for each other dimension, with the names of the update's; updates of
    one shape share them."""
    steps: Axis | None = None
    found: list[tuple[Axis, ...]] = []
    for update in updates:
        known = (
            axes
            for axes, other in zip(found, updates, strict=False)
            if other.ndim == update.ndim and all(map(_same, other.shape, update.shape))
        )
        axes = next(known, None)
        if axes is None:
            names = [axis.name for axis in update.op.axis] or [f"i{n}" for n in range(update.ndim)]
            if steps is None:
                first = data_axis(names[0], update.shape[0])
                steps = Axis(first.name, AxisKind.ORDERED, first.domain, first.dtype)
            rest = zip(names[1:], update.shape[1:], strict=True)
            axes = (steps, *(data_axis(name, size) for name, size in rest))
        found.append(axes)
    return found


def _dependent(updates: Sequence[Tensor], states: Sequence[Tensor]) -> frozenset[ComputeOp]:
    return frozenset(dependents(updates, states))


def _own(
    name: str, what: str, tensors: list[Tensor], body: frozenset[ComputeOp]
) -> tuple[Tensor, ...]:
    """The tensors, with a copy for each whose operation computes something else as well.

    An init or update is stored in the rows of the result: its operation has no other output, is
    given once, and, for an update, depends on a state.
    """
    given = {tensor: None for tensor in tensors}
    found: list[Tensor] = []
    for tensor in tensors:
        op = tensor.op
        whole = type(op) is ComputeOp and all(output in given for output in op.outputs)
        whole = whole and (what == "init" or op in body)
        if whole and all(tensor is not other for other in found):
            found.append(tensor)
            continue
        axes = tuple(data_axis(f"i{n}", size) for n, size in enumerate(tensor.shape))
        copy = make_compute(f"{name}.{what}", axes, (TensorRead(tensor, axes),), ())
        found.append(copy.outputs[0])
    return tuple(found)


def _check_graph(op: ScanOp) -> None:
    """States are read by the body only, and what is computed before the steps is complete."""
    states = frozenset(state.op for state in op.states)
    body = frozenset(body_of(op))
    before = operations((*op.inits, *op.inputs))
    for other in before:
        if other in states or (other in body):
            raise ExprError(
                f"init or inputs of scan {op.name!r} depend on its state, through {other.name}",
                hint="init and inputs are computed before the first step",
            )
    for inner in body:
        if isinstance(inner, ScanOp):
            raise ExprError(
                f"the scan {inner.name} reads the state of scan {op.name!r}: a scan within the "
                "steps of another",
                hint="let one scan run over both, or reduce with te.sum and its like",
            )
    for other in operations(op.updates):
        if isinstance(other, ExternOp):
            under = [each for each in operations(other.inputs) if each in states]
            if under:
                raise ExprError(
                    f"the extern {other.name} reads the state of scan {op.name!r}, through "
                    f"{under[0].name}: a function from outside is called between kernels, not in "
                    "the steps of a scan",
                    hint="write the step with te.compute, or let one te.extern run all steps",
                )
    outside = [each for each in operations(op.updates) if each not in body]
    others = within_scans((*before, *outside))
    check_complete(e for e in (*before, *outside) if e not in states and e not in others)
    _check_sizes(op)


def _check_sizes(op: ScanOp) -> None:
    """The number of steps is known before them: it depends on sizes only."""
    for node in walk(op.first, op.shape[0]):
        if isinstance(node, Var) and not node.dtype.is_integer:
            raise ExprError(f"scan {op.name!r} has a size of {node.dtype}", hint="use integers")
