"""A trace as Python text that makes the same schedule again.  Imports the plan and the trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import pairwise

from tedsl.expr.nodes import Axis
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.plan.differing import differing
from tedsl.scheduling.plan.labels import identifier, labels, unique_name
from tedsl.scheduling.trace.trace import (
    AxisRef,
    MapRef,
    SizeRef,
    SizeTree,
    StageRef,
    Step,
    TensorRef,
    Value,
)
from tedsl.tensor.tensor import ComputeOp, Tensor

_RETURNS_TUPLE = frozenset({"transform_layout"})
_INFIX = frozenset(
    {"+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>", "<", "<=", ">", ">=", "==", "!="}
)
_PREFIX = {"neg": "-", "not": "~"}


def call_text(step: Step) -> str:
    """`split(C.i, factor=8)`: a step for an error."""

    def shown(value: Value) -> str:
        match value:
            case AxisRef(stage=stage, axis=axis):
                return f"{stage}.{axis}"
            case StageRef(stage=stage) | TensorRef(stage=stage):
                return stage
            case _:
                return _plain(value, shown, str)

    first = [] if step.args and isinstance(step.args[0], (AxisRef, TensorRef)) else [step.stage]
    parts = [
        *first,
        *(shown(value) for value in step.args),
        *(f"{key}={shown(value)}" for key, value in step.kwargs),
    ]
    return f"{step.primitive}({', '.join(part for part in parts if part)})"


def python_source(
    outputs: Sequence[Tensor],
    steps: Sequence[Step],
    plans: Sequence[Plan],
    names: Sequence[str],
    of_schedule: Collection[str],
) -> str:
    """Straight-line Python: `s = te.create_schedule(...)`, then one call per line.

    Args:
        outputs: the outputs as the user gave them.
        steps: the calls.
        plans: the plan before each call, and the last one.
        names: what the outputs are called in the text; their own names where it is shorter.
        of_schedule: the primitives that are methods of the schedule, not of a stage.
    """
    parts = python_steps(outputs, steps, plans, names, of_schedule)
    return "\n".join(line for part in parts for line in part) + "\n"


def python_steps(
    outputs: Sequence[Tensor],
    steps: Sequence[Step],
    plans: Sequence[Plan],
    names: Sequence[str],
    of_schedule: Collection[str],
) -> list[list[str]]:
    """The lines of `python_source`, of which it takes the same arguments: those of
    `create_schedule`, then of each step the lines that fetch what it needs and its call."""
    given = list(names)
    for tensor in outputs[len(names) :]:
        given.append(unique_name(identifier(tensor.name), {"s", "te", *given}))
    writer = _Writer(given, of_schedule)
    created = given[0] if len(given) == 1 else "[" + ", ".join(given) + "]"
    parts = [[f"s = te.create_schedule({created})"]]
    for step, (plan, after) in zip(steps, pairwise(plans), strict=True):
        before = len(writer.lines)
        writer.write(step, plan, after)
        parts.append(writer.lines[before:])
    return parts


class _Writer:
    """The lines so far, and what each axis is called in them."""

    def __init__(self, outputs: Sequence[str], of_schedule: Collection[str]) -> None:
        self.lines: list[str] = []
        self.of_schedule = of_schedule
        self.taken = {"s", "te", *outputs}
        self.axes: dict[tuple[str, str], str] = {}
        self.sizes: dict[str, str] = {}

    def write(self, step: Step, plan: Plan, after: Plan) -> None:
        """One line for the call, after lines that fetch what it needs.

        Args:
            step: the call.
            plan: the plan before it.
            after: the plan after it.
        """

        def shown(value: Value) -> str:
            match value:
                case AxisRef(stage=stage, axis=axis):
                    return self._axis(plan, stage, axis)
                case StageRef(stage=stage):
                    return f"s[{_quoted(stage)}]"
                case TensorRef(stage=stage, index=index):
                    many = len(plan.stage(stage).op.outputs) > 1
                    return f"s[{_quoted(stage)}]" + (f".op.output({index})" if many else "")
                case _:
                    return _plain(value, shown, self._size)

        args = [shown(value) for value in step.args]
        args += [f"{key}={shown(value)}" for key, value in step.kwargs]
        of_schedule = step.primitive in self.of_schedule
        subject = "s" if of_schedule else f"s[{_quoted(step.stage)}]"
        # Those of stages that are what they were are what they were.
        found = differing(plan, after)
        numbers = (*(number for number, _ in found.pairs), *found.gone)
        moved = {plan.stage_at(number).name for number in numbers}
        old, new = _axes(plan, moved), _axes(after, moved)
        for key in [key for key in self.axes if key[0] in moved and old[key] is not new.get(key)]:
            del self.axes[key]
        made = ""
        if step.results and not of_schedule:
            names = [self._name(step.stage, result) for result in step.results]
            made = ", ".join(names)
            if len(names) == 1 and step.primitive in _RETURNS_TUPLE:
                made = f"({made},)"
            made += " = "
        self.lines.append(f"{made}{subject}.{step.primitive}({', '.join(args)})")

    def _name(self, stage: str, label: str) -> str:
        """A new variable for an axis."""
        plain = identifier(label)
        if plain in self.taken:
            plain = unique_name(identifier(f"{stage}_{label}"), self.taken)
        self.taken.add(plain)
        self.axes[stage, label] = plain
        return plain

    def _axis(self, plan: Plan, stage: str, label: str) -> str:
        """The variable of an axis; root axes are fetched before their first use."""
        if (stage, label) in self.axes:
            return self.axes[stage, label]
        planned = plan.stage(stage)
        known = labels(planned)
        if isinstance(planned.op, ComputeOp):
            for field, axes in (("axis", planned.op.axes), ("reduce_axis", planned.op.reduce_axes)):
                texts = [known[axis] for axis in axes]
                if label in texts:
                    names = [self._name(stage, text) for text in texts]
                    left = ", ".join(names) if len(names) > 1 else f"({names[0]},)"
                    self.lines.append(f"{left} = s[{_quoted(stage)}].op.{field}")
                    return self.axes[stage, label]
        return f"s[{_quoted(stage)}].axis({_quoted(label)})"

    def _size(self, name: str) -> str:
        """The variable of a runtime size."""
        if name not in self.sizes:
            self.sizes[name] = unique_name(identifier(name), self.taken)
            self.taken.add(self.sizes[name])
            self.lines.append(f"{self.sizes[name]} = s.size({_quoted(name)})")
        return self.sizes[name]


def _axes(plan: Plan, names: Collection[str]) -> dict[tuple[str, str], Axis]:
    """Every axis of some stages, of those that there are, by the names of its stage and of
    itself."""
    stages = [plan.stage(name) for name in names if plan.has(name)]
    return {(stage.name, label): axis for stage in stages for axis, label in labels(stage).items()}


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _plain(value: Value, shown: Callable[[Value], str], size: Callable[[str], str]) -> str:
    match value:
        case SizeRef(tree=tree):
            return _size_text(tree, size)
        case MapRef(parameters=parameters, trees=trees):

            def named(name: str) -> str:
                return name if name in parameters else size(name)

            results = [_size_text(tree, named) for tree in trees]
            inside = ", ".join(results) + ("," if len(results) == 1 else "")
            return f"lambda {', '.join(parameters)}: ({inside})"
        case str():
            return _quoted(value)
        case tuple():
            return "[" + ", ".join(shown(item) for item in value) + "]"
        case _:
            return repr(value)


def _size_text(tree: SizeTree, size: Callable[[str], str], nested: bool = False) -> str:
    if isinstance(tree, int):
        return str(tree)
    if isinstance(tree, str):
        return size(tree)
    op, *operands = tree
    a, *rest = (_size_text(operand, size, True) for operand in operands)
    if not rest:
        return f"{_PREFIX[op]}{a}"
    (b,) = rest
    if op in _INFIX:
        return f"({a} {op} {b})" if nested else f"{a} {op} {b}"
    return f"te.{op}({a}, {b})"
