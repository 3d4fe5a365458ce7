"""The trace of a schedule: its primitive calls with stable names, as values that print, serialise
and replay.

Axes and stages are named (`C.i.outer`), so a trace fits any computation that has stages and axes of
these names. Imports `expr` and the plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

from tedsl.errors import ScheduleError
from tedsl.expr.index_arith import as_index, same_width
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.scheduling.handles.index_map import IndexMap
from tedsl.scheduling.handles.thread_axis import ThreadAxis
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.plan.labels import labels, owner
from tedsl.scheduling.primitives.call import Call, StageName
from tedsl.slips import suggests
from tedsl.tensor.tensor import Operation, Tensor

VERSION = 1
_COMPARISONS = frozenset(op.value for op in CompareOp)
SizeTree = int | str | tuple[str, "SizeTree"] | tuple[str, "SizeTree", "SizeTree"]


@dataclass(frozen=True, slots=True)
class AxisRef:
    """An axis, by the names of its stage and of itself."""

    stage: str
    axis: str


@dataclass(frozen=True, slots=True)
class StageRef:
    """A stage, by name."""

    stage: str


@dataclass(frozen=True, slots=True)
class TensorRef:
    """Output `index` of a stage."""

    stage: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class SizeRef:
    """An integer expression or a condition over runtime sizes: an int, the name of a size,
    (operator, left, right), or (operator, operand).
    """

    tree: SizeTree


@dataclass(frozen=True, slots=True)
class MapRef:
    """A map of indices: a tree for each result, in which parameters are named like sizes."""

    parameters: tuple[str, ...]
    trees: tuple[SizeTree, ...]


Value = (
    bool
    | int
    | float
    | str
    | None
    | AxisRef
    | StageRef
    | TensorRef
    | SizeRef
    | MapRef
    | tuple["Value", ...]
)


@suggests(ScheduleError)
@dataclass(frozen=True, slots=True)
class Step:
    """One call: the primitive, its stage (empty for primitives of the schedule), arguments, and
    what it returned.

    `results` are the names of new axes (of the stage), or of new stages.  `site` is where the user
    called it.
    """

    primitive: str
    stage: str
    args: tuple[Value, ...] = ()
    kwargs: tuple[tuple[str, Value], ...] = ()
    results: tuple[str, ...] = ()
    site: str = field(default="", compare=False)


@suggests(ScheduleError)
@dataclass(frozen=True, slots=True)
class Trace:
    """The calls that made a schedule, in order."""

    steps: tuple[Step, ...] = ()

    def __len__(self) -> int:
        return len(self.steps)

    def to_json(self) -> str:
        """The trace as JSON text."""
        steps = [
            {
                "primitive": step.primitive,
                "stage": step.stage,
                "args": [_to_json(value) for value in step.args],
                "kwargs": {key: _to_json(value) for key, value in step.kwargs},
                "results": list(step.results),
            }
            for step in self.steps
        ]
        return json.dumps({"version": VERSION, "steps": steps})

    @staticmethod
    def from_json(text: str) -> Trace:
        """The trace that `to_json` wrote.

        Raises:
            ScheduleError: the text is not a trace of this version.
        """
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise ValueError(f"version {data['version']}")
            return Trace(tuple(_step(item) for item in data["steps"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ScheduleError(
                f"the text is no trace: {error}",
                subject="Trace.from_json",
                facts=[("allowed", f"text written by to_json, version {VERSION}")],
                hint="write it again with s.trace.to_json()",
            ) from error


def record(plan: Plan, call: Call, results: tuple[str, ...]) -> Step:
    """The step for a call that was accepted; `plan` is the one before it."""
    given = (*call.args, *call.kwargs.values())
    named = (call.stage, *(value.name for value in given if isinstance(value, StageName)))
    args = tuple(value_of(plan, arg, named) for arg in call.args)
    kwargs = tuple(
        (key, value_of(plan, value, named))
        for key, value in call.kwargs.items()
        if value is not None
    )
    return Step(call.primitive, call.stage, args, kwargs, results, call.site)


def value_of(plan: Plan, value: object, named: Sequence[str] = ()) -> Value:
    """An argument of a call by stable names; `named` are the stages that the call names."""
    match value:
        case Axis():
            stage = owner(plan, value, named)
            return (
                AxisRef("", value.name)
                if stage is None
                else AxisRef(stage.name, labels(stage)[value])
            )
        case StageName(name=name):
            return StageRef(name)
        case Tensor():
            return TensorRef(plan.stage_of(value.op).name, value.index)
        case Operation():
            return StageRef(plan.stage_of(value).name)
        case Const(value=number):
            return bool(number) if value.dtype.is_bool else int(number)
        case Expr():
            return SizeRef(_tree(value))
        case ThreadAxis(tag=tag):
            return tag
        case IndexMap():
            return MapRef(value.parameters(), tuple(map(_tree, value.over_parameters())))
        case StrEnum():
            return value.value
        case bool() | float() | str() | None:
            return value
        case tuple() | list():
            return tuple(value_of(plan, item, named) for item in cast("Sequence[object]", value))
        case _:
            return int(cast("int", value))


def _tree(expr: Expr) -> SizeTree:
    match expr:
        case Const(value=value):
            return int(value)
        case Var(name=name):
            return name
        case Binary(op=op, a=a, b=b) | Compare(op=op, a=a, b=b):
            return (op.value, _tree(a), _tree(b))
        case Unary(op=op, a=a):
            return (op.value, _tree(a))
        case Cast(a=a):
            return _tree(a)
        case _:
            raise ScheduleError(
                "an argument must be made of integers and sizes only",
                hint="give an int, or an expression over te.var sizes",
            )


def size_expr(tree: SizeTree, sizes: Mapping[str, Expr]) -> Expr:
    """The expression of a `SizeRef`; names not in `sizes` raise KeyError."""
    if isinstance(tree, int):
        return as_index(tree)
    if isinstance(tree, str):
        return sizes[tree]
    op, *operands = tree
    a, *rest = (size_expr(operand, sizes) for operand in operands)
    if not rest:
        return Unary(UnaryOp(op), a)
    if op in _COMPARISONS:
        return Compare(CompareOp(op), *same_width(a, rest[0]))
    return Binary(BinaryOp(op), *same_width(a, rest[0]))


def _to_json(value: Value) -> object:
    match value:
        case AxisRef(stage=stage, axis=axis):
            return {"axis": [stage, axis]}
        case StageRef(stage=stage):
            return {"stage": stage}
        case TensorRef(stage=stage, index=index):
            return {"tensor": [stage, index]}
        case SizeRef(tree=tree):
            return {"size": tree}
        case MapRef(parameters=parameters, trees=trees):
            return {"map": [list(parameters), list(trees)]}
        case tuple():
            return [_to_json(item) for item in value]
        case _:
            return value


def _from_json(value: object) -> Value:
    if isinstance(value, list):
        return tuple(_from_json(item) for item in cast("list[object]", value))
    if isinstance(value, dict):
        ((key, inner),) = cast("dict[str, object]", value).items()
        match key, inner:
            case "axis", [str(stage), str(axis)]:
                return AxisRef(stage, axis)
            case "stage", str(stage):
                return StageRef(stage)
            case "tensor", [str(stage), int(index)]:
                return TensorRef(stage, index)
            case "size", _:
                return SizeRef(_size_tree(inner))
            case "map", _:
                names, trees = cast("tuple[list[object], list[object]]", inner)
                return MapRef(tuple(map(str, names)), tuple(map(_size_tree, trees)))
            case _:
                raise ValueError(f"unknown value {key!r}")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"unknown value {value!r}")


def _size_tree(value: object) -> SizeTree:
    if isinstance(value, (int, str)):
        return value
    if isinstance(value, (list, tuple)):
        op, a, *rest = cast("Sequence[object]", value)
        if not rest:
            return (UnaryOp(op).value, _size_tree(a))
        (b,) = rest
        known = CompareOp(op) if op in _COMPARISONS else BinaryOp(op)
        return (known.value, _size_tree(a), _size_tree(b))
    raise ValueError(f"unknown size {value!r}")


def _step(item: Mapping[str, object]) -> Step:
    def texts(value: object) -> tuple[str, ...]:
        return tuple(str(part) for part in cast("list[object]", value))

    kwargs = cast("dict[str, object]", item["kwargs"])
    return Step(
        str(item["primitive"]),
        str(item["stage"]),
        tuple(_from_json(value) for value in cast("list[object]", item["args"])),
        tuple((key, _from_json(value)) for key, value in kwargs.items()),
        texts(item["results"]),
    )
