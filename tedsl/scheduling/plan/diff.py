"""How two schedules differ: what is decided in each, not the calls that led there.

Stages are compared by name and axes by how they came about (`i.outer` is the outer part of `i`), so
equal schedules made by other calls, or over equal definitions made twice, have no difference.
Imports `expr` and the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, assert_never, cast

from tedsl.expr.nodes import Axis, Expr, Var
from tedsl.expr.printer import print_expr
from tedsl.scheduling.plan import (
    AT_ROOT,
    At,
    Cooperative,
    Inlined,
    LastBlock,
    Mark,
    Online,
    OnlineMode,
    Own,
    Partitioned,
    Placement,
    Plan,
    Relation,
    SameGrid,
    SharedLoops,
    StagePlan,
)
from tedsl.scheduling.plan.labels import labels
from tedsl.tensor.printer import print_operation
from tedsl.tensor.tensor import Operation, Tensor

_NONE = "-"
# What is told in words of its own, and axes that are gone, which decide nothing.
_TOLD = ("name", "op", "leaf_axes", "relations", "marks", "placement")
_APART = ("stages", "retired")


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is decided in two ways; `-` where a side has nothing."""

    what: str
    left: str
    right: str

    def __str__(self) -> str:
        sides = [f"    {sign} {line}" for sign, text in (("-", self.left), ("+", self.right))
                 for line in text.splitlines()]  # fmt: skip
        return "\n".join([f"  {self.what}", *sides])


@dataclass(frozen=True, slots=True)
class StageChange:
    """A stage that both schedules have, and what differs in it."""

    stage: str
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        return "\n".join([self.stage, *map(str, self.changes)])


@dataclass(frozen=True, slots=True)
class Difference:
    """How two schedules differ: stages of one alone, stages that differ, and what is of the whole
    schedule (its outputs, assumptions on sizes).  False, and empty text, when they are equal.
    """

    only_left: tuple[str, ...] = ()
    only_right: tuple[str, ...] = ()
    stages: tuple[StageChange, ...] = ()
    whole: tuple[Change, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.only_left or self.only_right or self.stages or self.whole)

    def __str__(self) -> str:
        lines = [f"only in the first: {name}" for name in self.only_left]
        lines += [f"only in the second: {name}" for name in self.only_right]
        if self.whole:
            lines += ["schedule", *map(str, self.whole)]
        return "\n".join([*lines, *map(str, self.stages)])


def difference(left: Plan, right: Plan) -> Difference:
    """How two plans differ."""
    a, b = _Told(left), _Told(right)
    first = {stage.name: stage for stage in left.stages}
    second = {stage.name: stage for stage in right.stages}
    found: list[StageChange] = []
    for name, stage in first.items():
        other = second.get(name)
        changes = () if other is None else _changes(dict(a.stage(stage)), dict(b.stage(other)))
        if changes:
            found.append(StageChange(name, changes))
    return Difference(
        tuple(name for name in first if name not in second),
        tuple(name for name in second if name not in first),
        tuple(found),
        _changes(dict(a.whole()), dict(b.whole())),
    )


def _changes(left: Mapping[str, str], right: Mapping[str, str]) -> tuple[Change, ...]:
    known = dict.fromkeys((*left, *right))
    pairs = [(what, left.get(what, _NONE), right.get(what, _NONE)) for what in known]
    return tuple(Change(what, a, b) for what, a, b in pairs if a != b)


class _Told:
    """What a plan says, as text that does not depend on the objects it is made of."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.names: dict[Operation, str] = {stage.op: stage.name for stage in plan.stages}
        self.axes: dict[Axis, str] = {}
        for stage in plan.stages:
            self.axes.update(identities(stage))

    def whole(self) -> Iterator[tuple[str, str]]:
        """What is of no single stage."""
        for each in fields(Plan):
            if each.name not in _APART:
                yield each.name, self.text(getattr(self.plan, each.name))

    def stage(self, stage: StagePlan) -> Iterator[tuple[str, str]]:
        """Every decision about a stage: what, and how it is decided."""
        yield "computes", print_operation(stage.op, self.naming)
        yield "place", self.place(stage.placement)
        yield "loops", ", ".join(self.axes[axis] for axis in stage.leaf_axes) or _NONE
        yield "relations", "\n".join(sorted(map(self.relation, stage.relations))) or _NONE
        for axis in stage.leaf_axes:
            if stage.mark(axis) != Mark():
                yield f"mark of {self.axes[axis]}", self.options(stage.mark(axis))
        yield "launch", self.text(stage.placement.kernel.launch)
        yield "specializations", self.text(stage.placement.kernel.versions)
        for each in fields(stage):
            if each.name not in _TOLD:
                yield each.name, self.text(getattr(stage, each.name))

    def place(self, placement: Placement) -> str:
        """`at D.i`, `root`, `inline`."""
        match placement:
            case Inlined():
                return "inline"
            case Own():
                return "root"
            case SameGrid():
                return f"root, in the grid of {placement.leader}"
            case SharedLoops():
                at = self.place(placement.at or AT_ROOT)
                return f"{at}, with {placement.leader}.{self.axes[placement.down_to]}"
            case LastBlock():
                return f"by the last programs of {placement.of}"
            case Partitioned():
                return f"stored by {placement.head} and {placement.tail}"
            case At():
                at = f"at {placement.host}.{self.axes[placement.axis]}"
                return (
                    at if placement.kept is None else f"{at}, stored: {self.text(placement.kept)}"
                )
            case Cooperative():
                over = f"{self.axes[placement.part]} by {self.axes[placement.program]}"
                return f"at {placement.host}.{self.axes[placement.axis]} (across, {over})"
            case Online():
                more = "" if placement.mode is OnlineMode.EXACT else f", {placement.mode.value}"
                return f"at {placement.host}.{self.axes[placement.axis]} (online{more})"
            case _:
                assert_never(placement)

    def relation(self, relation: Relation) -> str:
        """`split(parent=i, outer=i.outer, inner=i.inner, factor=8)`."""
        given = [(each.name, getattr(relation, each.name)) for each in fields(relation)]
        parts = [f"{name}={self.text(value)}" for name, value in given if value is not None]
        return f"{type(relation).__name__.lower()}({', '.join(parts)})"

    def naming(self, thing: Axis | Var | Operation) -> str:
        """A name for the printer of expressions."""
        if isinstance(thing, Operation):
            return self.names.get(thing, thing.name)
        return self.axes.get(thing, thing.name) if isinstance(thing, Axis) else thing.name

    def options(self, value: object) -> str:
        """The fields of a dataclass that are not as by default."""
        given: list[str] = []
        for each in fields(cast("Any", value)):
            option = getattr(value, each.name)
            if isinstance(option, Expr) or each.default is MISSING or option != each.default:
                given.append(f"{each.name}={self.text(option)}")
        return ", ".join(given) or _NONE

    def text(self, value: object) -> str:
        """Any value that a plan holds."""
        match value:
            case Tensor():
                return f"{self.naming(value.op)}.v{value.index}"
            case Operation() | Axis():
                return self.naming(value)
            case Expr():
                return print_expr(value, self.naming)
            case Enum():
                return str(value.value)
            case tuple() | list():
                items = cast("tuple[object, ...]", value)
                return ", ".join(map(self.text, items)) or _NONE
            case Mapping():
                pairs = cast("Mapping[object, object]", value).items()
                return ", ".join(sorted(f"{self.text(k)}: {self.text(v)}" for k, v in pairs))
            case _ if is_dataclass(value):
                return self.options(value)
            case _:
                return str(value)


def identities(stage: StagePlan) -> dict[Axis, str]:
    """Every axis of the stage by how it came about: the label of a root axis, and `i.outer` for
    what a relation made of `i`, whatever the order of independent relations.
    """
    named = labels(stage)
    known = {axis: named[axis] for axis in stage.root_axes}
    for relation in stage.relations:
        parts = [(each.name, getattr(relation, each.name)) for each in fields(relation)]
        axes = [(name, part) for name, part in parts if isinstance(part, Axis)]
        source = ".".join(known[axis] for _, axis in axes if axis in known)
        made = {axis: f"{source}.{name}" for name, axis in axes if axis not in known}
        known.update(made)
    return known
