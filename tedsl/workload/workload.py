"""A compute graph as JSON and back, and its name-free hash: how a problem travels to a worker and
into the records.

The graph part holds no name and no path: operations, axes, sizes and reducers are numbered in the
order they are met, and equal subexpressions get one number, so two programs that define the same
computation have the same hash whatever they call things.  Names (which schedules refer to) travel
beside it.  Imports `expr`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from tedsl.errors import InternalError, TuneError
from tedsl.expr.nodes import (
    Axis,
    Binary,
    Cast,
    Compare,
    Const,
    Expr,
    IfThenElse,
    Reduce,
    Reducer,
    Select,
    TensorRead,
    Unary,
    Var,
)
from tedsl.expr.visit import reads, walk
from tedsl.tensor.computes import listed
from tedsl.tensor.scan_body import within_scans
from tedsl.tensor.tensor import (
    ComputeOp,
    ExternOp,
    Operation,
    Outputs,
    PlaceholderOp,
    ScanOp,
    Tensor,
)
from tedsl.workload.decode import GraphDecoder

FORMAT = 1
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """A computation: its outputs, every operation (producers first), and the symbolic sizes.

    `graph` is the name-free JSON text that is hashed; `names` the JSON text of the names beside it.
    """

    outputs: tuple[Tensor, ...]
    operations: tuple[PlaceholderOp | ComputeOp, ...]
    variables: tuple[Var, ...]
    graph: str
    names: str
    hash: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hash", digest(self.graph))

    @staticmethod
    def of(outputs: Outputs) -> Workload:
        """The workload that computes `outputs` (one tensor or several).

        Raises:
            TuneError: no tensor, or something else.
        """
        wanted = listed(outputs)
        for each in wanted:
            if not isinstance(each, Tensor):
                raise TuneError(
                    f"{type(each).__name__} is nothing to compute",
                    facts=[("allowed", "the tensor to compute, or a list of tensors")],
                    hint="pass what te.compute returned; a schedule of your own is a function of "
                    "a schedule: schedule=f",
                )
        if not wanted:
            raise TuneError(
                "no tensor to compute was given",
                hint="pass the output tensor, or a list of output tensors",
            )
        encoder = _Encoder()
        return encoder.workload(cast("tuple[Tensor, ...]", tuple(wanted)))

    @staticmethod
    def from_json(text: str) -> Workload:
        """The workload that `to_json` wrote: new objects, same names, same hash."""
        try:
            data = json.loads(text)
            decoder = GraphDecoder(data["graph"], data["names"])
            outputs = decoder.outputs()
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise TuneError(
                f"the text is no workload: {type(error).__name__}: {error}",
                hint="write it with Workload.to_json of the same version of tedsl",
            ) from error
        return Workload.of(outputs)

    def to_json(self) -> str:
        """One line of JSON that `from_json` reads."""
        return f'{{"graph":{self.graph},"names":{self.names}}}'

    @property
    def placeholders(self) -> tuple[PlaceholderOp, ...]:
        """The inputs, in the order they are met."""
        states = within_scans(self.operations)
        given = (op for op in self.operations if isinstance(op, PlaceholderOp))
        return tuple(op for op in given if op not in states)

    @property
    def computes(self) -> tuple[ComputeOp, ...]:
        """The computed operations, producers first."""
        return tuple(op for op in self.operations if isinstance(op, ComputeOp))

    @property
    def sizes(self) -> str:
        """Shapes of the inputs, then of the outputs, as JSON; a symbolic extent prints as its
        number `n0`, `n1`."""
        tensors = [*(op.outputs[0] for op in self.placeholders), *self.outputs]
        return compact([[self._size(extent) for extent in t.shape] for t in tensors])

    @property
    def dtypes(self) -> str:
        """Element types of the inputs, then of the outputs, as JSON."""
        tensors = [*(op.outputs[0] for op in self.placeholders), *self.outputs]
        return compact([t.dtype.value for t in tensors])

    @property
    def family(self) -> str:
        """Hash of the graph in which each distinct extent above 1 is replaced by its number.

        Two sizes of one problem share it when their extents are equal in the same places.
        """
        data = json.loads(self.graph)
        extents = _extents(data)
        return digest(compact(_without_sizes(data["nodes"], extents, data)))

    def _size(self, extent: Expr) -> Json:
        if isinstance(extent, Const):
            return int(extent.value)
        for number, variable in enumerate(self.variables):
            if extent is variable:
                return f"n{number}"
        return "expression"


def digest(text: str) -> str:
    """32 hex digits that name `text`."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def compact(data: object) -> str:
    """Canonical JSON: no spaces, keys sorted."""
    return json.dumps(data, separators=(",", ":"), sort_keys=True)


def _extents(data: dict[str, Json]) -> dict[int, str]:
    """Distinct constant extents above 1 of operations and axes, each with its number."""
    nodes = cast("list[list[Json]]", data["nodes"])
    found: dict[int, str] = {}
    ids: list[Json] = []
    for op in cast("list[dict[str, Json]]", data["operations"]):
        ids.extend(cast("list[Json]", op["shape"]))
    ids.extend(axis[3] for axis in cast("list[list[Json]]", data["axes"]))
    for number in ids:
        node = nodes[number] if isinstance(number, int) else []
        if node and node[0] == "const" and isinstance(node[2], int) and node[2] > 1:
            found.setdefault(node[2], f"N{len(found)}")
    return found


def _without_sizes(
    nodes: list[list[Json]], extents: dict[int, str], data: dict[str, Json]
) -> dict[str, Json]:
    """The graph with integer constants that equal an extent replaced by the extent's number."""
    changed: list[Json] = []
    for node in nodes:
        value = node[2] if node[0] == "const" else None
        named = extents.get(value) if isinstance(value, int) else None
        changed.append(["const", node[1], named] if named else cast("Json", node))
    return {**data, "nodes": changed}


class _Encoder:
    """Numbers everything in the order it is met."""

    def __init__(self) -> None:
        self.table = _Nodes(self)
        self.axes: dict[Axis, int] = {}
        self.axis_rows: list[Json] = []
        self.variables: dict[Var, int] = {}
        self.variable_rows: list[Json] = []
        self.reducers: dict[Reducer, int] = {}
        self.reducer_rows: list[Json] = []
        self.reducer_names: list[str] = []
        self.operations: dict[Operation, int] = {}
        self.operation_rows: list[Json] = []

    def workload(self, outputs: tuple[Tensor, ...]) -> Workload:
        for op in _in_order(outputs):
            self.operation_rows.append(self._operation(op))
            self.operations[op] = len(self.operations)
        rows: list[Json] = [[self.operations[t.op], t.index] for t in outputs]
        graph = {
            "format": FORMAT,
            "nodes": self.table.rows,
            "axes": self.axis_rows,
            "variables": self.variable_rows,
            "reducers": self.reducer_rows,
            "operations": self.operation_rows,
            "outputs": rows,
        }
        names = {
            "axes": [a.name for a in self.axes],
            "variables": [v.name for v in self.variables],
            "reducers": self.reducer_names,
            "operations": [op.name for op in self.operations],
            "tags": [op.tag if isinstance(op, ComputeOp) else "" for op in self.operations],
        }
        ops = tuple(op for op in self.operations if isinstance(op, (PlaceholderOp, ComputeOp)))
        return Workload(outputs, ops, tuple(self.variables), compact(graph), compact(names))

    def axis(self, axis: Axis) -> int:
        number = self.axes.get(axis)
        if number is None:
            number = self.axes[axis] = len(self.axes)
            self.axis_rows.append(None)
            low = high = None
            if axis.domain is not None:
                low, high = self.table.add(axis.domain.min), self.table.add(axis.domain.extent)
            self.axis_rows[number] = [axis.kind.value, axis.dtype.value, low, high]
        return number

    def variable(self, variable: Var) -> int:
        number = self.variables.get(variable)
        if number is None:
            number = self.variables[variable] = len(self.variables)
            self.variable_rows.append([variable.dtype.value, variable.lower])
        return number

    def reducer(self, reducer: Reducer) -> int:
        number = self.reducers.get(reducer)
        if number is not None:
            return number
        local = _Nodes(self, reducer)
        row: dict[str, Json] = {
            "combine": [local.add(e) for e in reducer.combine],
            "identity": [local.add(e) for e in reducer.identity],
            "dtypes": [v.dtype.value for v in reducer.lhs],
            "nodes": cast("Json", local.rows),
        }
        if row in self.reducer_rows:
            number = self.reducer_rows.index(row)
        else:
            number = len(self.reducer_rows)
            self.reducer_rows.append(row)
            self.reducer_names.append(reducer.name)
        self.reducers[reducer] = number
        return number

    def _operation(self, op: Operation) -> Json:
        match op:
            case PlaceholderOp():
                return {
                    "kind": "placeholder",
                    "shape": [self.table.add(e) for e in op.shape],
                    "dtype": op.dtype.value,
                }
            case ComputeOp():
                row: dict[str, Json] = {
                    "kind": "compute",
                    "axes": [self.axis(a) for a in op.axes],
                    "reduce_axes": [self.axis(a) for a in op.reduce_axes],
                    "shape": [self.table.add(e) for e in op.shape],
                    "bodies": [self.table.add(e) for e in op.bodies],
                }
                if isinstance(op, ScanOp):
                    row["kind"] = "scan"
                    row["states"] = [self.operations[state.op] for state in op.states]
                return row
            case ExternOp():
                raise TuneError(
                    f"{op.name} is an extern: the function that it calls ({op.function.label}) has "
                    "no name that lasts, by which records and other processes could know it",
                    hint="tune the parts before and after it by themselves, and schedule the whole "
                    "with what was found (te.create_schedule, or te.build for the default rules)",
                )
            case _:
                raise InternalError(f"operation {op.name!r} ({type(op).__name__}) has no JSON form")


class _Nodes:
    """A table of expression nodes, children before parents, equal nodes once."""

    def __init__(self, encoder: _Encoder, reducer: Reducer | None = None) -> None:
        self.encoder = encoder
        self.reducer = reducer
        self.rows: list[list[Json]] = []
        self.numbers: dict[Expr, int] = {}
        self.known: dict[str, int] = {}

    def add(self, expr: Expr) -> int:
        number = self.numbers.get(expr)
        if number is None:
            row = self._row(expr)
            text = compact(row)
            number = self.known.get(text, -1)
            if number < 0:
                number = self.known[text] = len(self.rows)
                self.rows.append(row)
            self.numbers[expr] = number
        return number

    def _row(self, expr: Expr) -> list[Json]:
        match expr:
            case Const():
                value = expr.value.hex() if isinstance(expr.value, float) else expr.value
                return ["const", expr.dtype.value, value]
            case Axis():
                return ["axis", self.encoder.axis(expr)]
            case Var():
                return self._variable(expr)
            case Unary():
                return ["unary", expr.op.value, self.add(expr.a)]
            case Binary():
                return ["binary", expr.op.value, self.add(expr.a), self.add(expr.b)]
            case Compare():
                return ["compare", expr.op.value, self.add(expr.a), self.add(expr.b)]
            case Select():
                return ["select", *(self.add(e) for e in expr.children())]
            case IfThenElse():
                return ["if", *(self.add(e) for e in expr.children())]
            case Cast():
                return ["cast", expr.dtype.value, self.add(expr.a)]
            case TensorRead():
                indices: list[Json] = [self.add(e) for e in expr.indices]
                op = self.encoder.operations[expr.tensor.op]
                return ["read", op, expr.tensor.index, indices]
            case Reduce():
                return self._reduce(expr)
            case _:
                raise InternalError(f"expression {type(expr).__name__} has no JSON form")

    def _variable(self, expr: Var) -> list[Json]:
        if self.reducer is not None:
            for side, operands in (("lhs", self.reducer.lhs), ("rhs", self.reducer.rhs)):
                for position, operand in enumerate(operands):
                    if operand is expr:
                        return [side, position]
        return ["var", self.encoder.variable(expr)]

    def _reduce(self, expr: Reduce) -> list[Json]:
        axes: list[Json] = [self.encoder.axis(a) for a in expr.axes]
        sources: list[Json] = [self.add(e) for e in expr.sources]
        init: list[Json] | None = None
        if expr.init is not None:
            init = [self.add(e) for e in expr.init]
        where = None if expr.where is None else self.add(expr.where)
        last: list[Json] = [expr.finite, expr.tf32] if expr.finite or expr.tf32 else []
        last = last[: 1 + expr.tf32]
        return [
            "reduce",
            self.encoder.reducer(expr.reducer),
            sources,
            axes,
            where,
            init,
            expr.index,
            *last,
        ]


def _in_order(outputs: Sequence[Tensor]) -> Iterator[Operation]:
    """Every operation below `outputs`, producers before readers, in the order they are met."""
    done: set[Operation] = set()
    stack: list[tuple[Operation, bool]] = [(t.op, False) for t in reversed(outputs)]
    while stack:
        op, finished = stack.pop()
        if op in done:
            continue
        if finished:
            done.add(op)
            yield op
            continue
        stack.append((op, True))
        stack.extend((r, False) for r in reversed(_producers(op)) if r not in done)


def _producers(op: Operation) -> list[Operation]:
    """Operations that `op` reads, in the order of its bodies."""
    if not isinstance(op, ComputeOp):
        return []
    states = [state.op for state in op.states] if isinstance(op, ScanOp) else []
    return list(dict.fromkeys([*states, *(read.tensor.op for read in reads(*op.bodies))]))


def longest_reduction(workload: Workload, extent_of: dict[Axis, int]) -> int:
    """The most elements that reductions and scans go through along a path from an input to an
    output, one after the other (at least 1)."""
    length: dict[Operation, int] = {}
    for op in workload.computes:
        below = max((length.get(p, 0) for p in _producers(op)), default=0)
        own = 1
        steps = op.axes[:1] if isinstance(op, ScanOp) else ()
        for axis in (*op.reduce_axes, *steps):
            own *= max(1, extent_of[axis])
        length[op] = below + (own if own > 1 else 0)
    return max((max(1, length[t.op]) for t in workload.outputs if t.op in length), default=1)


def nodes_of(workload: Workload) -> Iterator[Expr]:
    """Every distinct expression node of the computed operations."""
    for op in workload.computes:
        yield from walk(*op.bodies)
