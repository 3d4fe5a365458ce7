"""The reading half of `workload`: JSON tables back to operations, axes and expressions.  Imports
`expr`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tedsl.dtypes import DType
from tedsl.errors import TuneError
from tedsl.expr.nodes import (
    Axis,
    AxisKind,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    IfThenElse,
    Range,
    Reduce,
    Reducer,
    Select,
    TensorRead,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.tensor.tensor import ComputeOp, PlaceholderOp, ScanOp, Tensor

Row = Sequence[Any]


class GraphDecoder:
    """Builds each numbered thing once, when it is first asked for."""

    def __init__(self, graph: dict[str, Any], names: dict[str, Any]) -> None:
        if graph.get("format") != 1:
            raise TuneError(
                f"workload format {graph.get('format')!r} is not 1",
                hint="the record comes from another version of tedsl; tune again",
            )
        self.graph = graph
        self.names = names
        self.nodes: dict[int, Expr] = {}
        self.axes: dict[int, Axis] = {}
        self.variables: dict[int, Var] = {}
        self.reducers: dict[int, Reducer] = {}
        self.operations: dict[int, PlaceholderOp | ComputeOp] = {}

    def outputs(self) -> tuple[Tensor, ...]:
        """The output tensors."""
        return tuple(
            self.operation(number).outputs[int(index)] for number, index in self.graph["outputs"]
        )

    def operation(self, number: int) -> PlaceholderOp | ComputeOp:
        """Operation `number`."""
        done = self.operations.get(number)
        if done is None:
            row = self.graph["operations"][number]
            name = str(self.names["operations"][number])
            shape = tuple(self.node(n) for n in row["shape"])
            if row["kind"] == "placeholder":
                done = PlaceholderOp(name, shape, DType(row["dtype"]))
            else:
                parts = (
                    name,
                    tuple(self.axis(n) for n in row["axes"]),
                    tuple(self.node(n) for n in row["bodies"]),
                    shape,
                    tuple(self.axis(n) for n in row["reduce_axes"]),
                    str(self.names["tags"][number]),
                )
                states = tuple(self.operation(n).outputs[0] for n in row.get("states", ()))
                done = ScanOp(*parts, states) if row["kind"] == "scan" else ComputeOp(*parts)
            self.operations[number] = done
        return done

    def axis(self, number: int) -> Axis:
        """Axis `number`."""
        done = self.axes.get(number)
        if done is None:
            kind, dtype, low, extent = self.graph["axes"][number]
            domain = None if low is None else Range(self.node(low), self.node(extent))
            name = str(self.names["axes"][number])
            done = self.axes[number] = Axis(name, AxisKind(kind), domain, DType(dtype))
        return done

    def variable(self, number: int) -> Var:
        """Symbolic size `number`."""
        done = self.variables.get(number)
        if done is None:
            dtype, lower = self.graph["variables"][number]
            name = str(self.names["variables"][number])
            done = self.variables[number] = Var(name, DType(dtype), lower)
        return done

    def reducer(self, number: int) -> Reducer:
        """Reducer `number`, with its own operand variables."""
        done = self.reducers.get(number)
        if done is None:
            row = self.graph["reducers"][number]
            dtypes = [DType(text) for text in row["dtypes"]]
            lhs = tuple(Var(f"lhs{i}", dtype) for i, dtype in enumerate(dtypes))
            rhs = tuple(Var(f"rhs{i}", dtype) for i, dtype in enumerate(dtypes))
            built: list[Expr] = []
            for node in row["nodes"]:
                built.append(self._operand(node, lhs, rhs, built))
            done = self.reducers[number] = Reducer(
                str(self.names["reducers"][number]),
                lhs,
                rhs,
                tuple(built[int(n)] for n in row["combine"]),
                tuple(built[int(n)] for n in row["identity"]),
            )
        return done

    def node(self, number: int) -> Expr:
        """Expression node `number`."""
        done = self.nodes.get(number)
        if done is None:
            done = self.nodes[number] = self._expr(self.graph["nodes"][number])
        return done

    def _operand(
        self, row: Row, lhs: tuple[Var, ...], rhs: tuple[Var, ...], built: list[Expr]
    ) -> Expr:
        if row[0] in ("lhs", "rhs"):
            return (lhs if row[0] == "lhs" else rhs)[int(row[1])]
        return _simple(row, built.__getitem__)

    def _expr(self, row: Row) -> Expr:
        match row[0]:
            case "axis":
                return self.axis(row[1])
            case "var":
                return self.variable(row[1])
            case "read":
                tensor: Tensor = self.operation(row[1]).outputs[int(row[2])]
                return TensorRead(tensor, tuple(self.node(n) for n in row[3]))
            case "reduce":
                return self._reduce(row)
            case _:
                return _simple(row, self.node)

    def _reduce(self, row: Row) -> Reduce:
        _, reducer, sources, axes, where, init, index, *last = row
        return Reduce(
            self.reducer(reducer),
            tuple(self.node(n) for n in sources),
            tuple(self.axis(n) for n in axes),
            None if where is None else self.node(where),
            None if init is None else tuple(self.node(n) for n in init),
            index,
            finite=bool(last and last[0]),
            tf32=len(last) > 1,
        )


def _simple(row: Row, of: Callable[[int], Expr]) -> Expr:
    """A node made of its operator and of earlier nodes only."""
    match row[0]:
        case "const":
            value = row[2]
            return Const(float.fromhex(value) if isinstance(value, str) else value, DType(row[1]))
        case "unary":
            return Unary(UnaryOp(row[1]), of(row[2]))
        case "binary":
            return Binary(BinaryOp(row[1]), of(row[2]), of(row[3]))
        case "compare":
            return Compare(CompareOp(row[1]), of(row[2]), of(row[3]))
        case "select":
            return Select(of(row[1]), of(row[2]), of(row[3]))
        case "if":
            return IfThenElse(of(row[1]), of(row[2]), of(row[3]))
        case "cast":
            return Cast(of(row[2]), DType(row[1]))
        case _:
            raise TuneError(
                f"unknown expression {row[0]!r} in a workload",
                hint="the record comes from another version of tedsl; tune again",
            )
