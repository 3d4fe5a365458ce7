"""Stable names of stages and axes: what a trace, an error and a printed loop nest call them.

An axis is an object; its label is unique in its stage (`i`, `i.outer`, `i_1`) and follows from the
stage alone, so two schedules made by the same calls use the same labels.  Imports `expr` and the
plan.
"""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Container, Iterable, Mapping

from tedsl.expr.nodes import Axis
from tedsl.once import once
from tedsl.scheduling.plan import Fuse, Plan, Scatter, Skew, Split, StagePlan, Unit
from tedsl.scheduling.plan.links import axis_owners


def unique_name(name: str, taken: Container[str]) -> str:
    """`name`, or `name_1`, `name_2`, ... when taken."""
    if name not in taken:
        return name
    count = 1
    while f"{name}_{count}" in taken:
        count += 1
    return f"{name}_{count}"


def identifier(name: str) -> str:
    """A name as a variable of Python text: as it is where it can be one, which Python then takes
    for no other name."""
    text = re.sub(r"\W", "_", name)
    if not f"_{text}".isidentifier() or unicodedata.normalize("NFKC", text) != text:
        text = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"_{text}" if not text.isidentifier() or keyword.iskeyword(text) else text


@once
def labels(stage: StagePlan) -> Mapping[Axis, str]:
    """Every axis of the stage, root axes first and then those made by relations, with its unique
    label.
    """
    known: dict[Axis, str] = {}
    taken: set[str] = set()

    def add(axis: Axis) -> None:
        if axis not in known:
            known[axis] = unique_name(axis.name, taken)
            taken.add(known[axis])

    for axis in stage.root_axes:
        add(axis)
    for relation in stage.relations:
        match relation:
            case Split(outer=outer, inner=inner):
                add(outer)
                add(inner)
            case Fuse(fused=fused):
                add(fused)
            case Unit(axis=axis):
                add(axis)
            case Scatter():
                pass
            case Skew(skewed=skewed):
                add(skewed)
    return known


def owner(plan: Plan, axis: Axis, likely: Iterable[str] = ()) -> StagePlan | None:
    """The stage that `axis` belongs to now, as a root axis or through relations; the stages named
    `likely` are asked first, for an axis is made once."""
    name = axis_owners(plan).get(axis)
    if name is not None and plan.has(name):
        stage = plan.stage(name)
        if any(each is axis for each in stage.root_axes):
            return stage
    for name in likely:
        if plan.has(name) and axis in labels(plan.stage(name)):
            return plan.stage(name)
    return next((s for s in plan.stages if s.relations and axis in labels(s)), None)


def axis_text(plan: Plan, axis: Axis) -> str:
    """`C.i.outer`; only the axis' own name when it belongs to no stage any more."""
    stage = owner(plan, axis)
    return axis.name if stage is None else f"{stage.name}.{labels(stage)[axis]}"


def loops_text(stage: StagePlan) -> str:
    """The loops of a stage, outermost first: `[i.outer, j, i.inner]`."""
    known = labels(stage)
    return "[" + ", ".join(known[axis] for axis in stage.leaf_axes) + "]"
