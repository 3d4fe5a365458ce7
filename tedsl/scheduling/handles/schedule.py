"""`create_schedule` and `Schedule`: the stages of a computation, the trace of what was decided, and
its knobs.

The state is one immutable `Plan`; a primitive that is refused leaves it, and the trace, as they
were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakValueDictionary

import numpy as np

from tedsl import saving
from tedsl.counterparts import SCHEDULE
from tedsl.deep import deep
from tedsl.devices import Device
from tedsl.errors import ScheduleError, TedslError
from tedsl.expr.index_arith import whole_number
from tedsl.expr.nodes import Var
from tedsl.late import late
from tedsl.scheduling.handles.fallback import Fallback
from tedsl.scheduling.handles.observers import tell
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.plan.differing import carry
from tedsl.scheduling.plan.graph import (
    initial_plan,
    producers_first,
    retiring,
    runtime_sizes,
)
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.links import Places, pass_on, places
from tedsl.scheduling.primitives.call import Call, caller, kind_of
from tedsl.scheduling.primitives.graph_rewrites.api import RewriteMethods
from tedsl.scheduling.primitives.layouts.api import PrecisionMethods
from tedsl.scheduling.primitives.placement.groups import GroupMethods
from tedsl.scheduling.primitives.sizes.api import AssumeMethods
from tedsl.scheduling.primitives.stage_handle import Made, primitives_of
from tedsl.scheduling.trace.trace import Step, Trace, record
from tedsl.shown import Viewable
from tedsl.slips import NoFunction, Numbered, suggests
from tedsl.target import Target
from tedsl.tensor.computes import listed
from tedsl.tensor.signatures import explained, explained_methods
from tedsl.tensor.tensor import Operation, Outputs, PlaceholderOp, Tensor

if TYPE_CHECKING:
    from tedsl.scheduling.invariants import attached_sizes as sizes
    from tedsl.scheduling.invariants import table as invariants
    from tedsl.scheduling.kernels import printer
    from tedsl.scheduling.plan import diff as differences
    from tedsl.scheduling.primitives.graph_rewrites import recompute as copies
    from tedsl.scheduling.primitives.scans import legality as scans
    from tedsl.scheduling.regions import recompute_report as recompute
    from tedsl.scheduling.trace import as_python as source
else:
    copies = late("tedsl.scheduling.primitives.graph_rewrites.recompute")
    differences = late("tedsl.scheduling.plan.diff")
    printer = late("tedsl.scheduling.kernels.printer")
    recompute = late("tedsl.scheduling.regions.recompute_report")
    source = late("tedsl.scheduling.trace.as_python")
    invariants = late("tedsl.scheduling.invariants.table")
    sizes = late("tedsl.scheduling.invariants.attached_sizes")
    scans = late("tedsl.scheduling.primitives.scans.legality")

Choice = TypeVar("Choice")


@dataclass(frozen=True, slots=True)
class Knob:
    """A choice that a search may make: its name, what may be chosen, and what was."""

    name: str
    choices: tuple[object, ...]
    chosen: object


@dataclass(frozen=True, slots=True)
class State:
    """All that a step of the trace changes: what is decided, and the knobs asked for; `eras` says
    where the operations were, from the first rewrite of them to the last."""

    plan: Plan
    knobs: Mapping[str, Knob]
    lineage: Lineage
    eras: tuple[Places, ...]


class Lineage:
    """Stands for the outputs of a schedule and the steps so far: the same object for equal ones."""

    __slots__ = ("__weakref__",)


_LINEAGES: WeakValueDictionary[tuple[object, object], Lineage] = WeakValueDictionary()


def _lineage(before: object, step: object) -> Lineage:
    """What follows from `before` by one step."""
    found = _LINEAGES.get((before, step))
    if found is None:
        found = _LINEAGES[before, step] = Lineage()
    return found


def diff(left: Schedule, right: Schedule) -> differences.Difference:
    """`left.diff(right)`."""
    return left.diff(right)


@explained
@deep
def create_schedule(
    ops: Outputs,
    decisions: Mapping[str, object] | None = None,
    target: str | None = None,
) -> Schedule:
    """A schedule that computes `ops` and all they read, each stage by itself in the loops of its
    definition.

    Args:
        ops: the outputs: tensors, or operations and programs of PyTorch for all of theirs.
        decisions: values for knobs, by name (see `Schedule.knob`).
        target: where it is to run, `"cpu"`, `"cuda"` or another that `te.build` takes: what
            `te.auto` offers follows it, and `print(s)` shows what it completes.

    Returns:
        The schedule.

    Raises:
        ScheduleError: an output that is none, or is given twice.
        BackendError: there is no such target.
    """
    outputs = _outputs(ops)
    scans.check_outputs(producers_first(outputs), outputs)
    return Schedule(initial_plan(outputs), decisions, target)


def _outputs(ops: object) -> tuple[Tensor, ...]:
    subject = "create_schedule"
    found: dict[Tensor, None] = {}
    for tensor in listed(ops):
        if not isinstance(tensor, Tensor):
            raise ScheduleError(
                f"expected a tensor or an operation, got {kind_of(tensor)}",
                subject=subject,
                primitive=subject,
                hint="pass the tensors that te.compute returned",
            )
        if isinstance(tensor.op, PlaceholderOp):
            raise ScheduleError(
                f"{tensor.name} is an input: there is nothing to compute",
                subject=subject,
                primitive=subject,
                stage=tensor.name,
                hint="pass a tensor that te.compute returned",
            )
        found[tensor] = None
    if not found:
        raise ScheduleError(
            "no output is given",
            subject=subject,
            primitive=subject,
            hint="pass at least one tensor that te.compute returned",
        )
    return tuple(found)


_OF_STAGES = {
    name: f"s[T].{name}(...): it is a method of a stage"
    for name in dir(Stage)
    if not name.startswith("_")
}


@suggests(ScheduleError, {**_OF_STAGES, **SCHEDULE}, "a schedule")
@explained_methods(ScheduleError)
class Schedule(RewriteMethods, PrecisionMethods, GroupMethods, AssumeMethods, Viewable, NoFunction):
    """How a computation is to run.  `s[T]` is the stage of a tensor; `print(s)` shows the loop
    nest.

    With a `target` it is shown as it runs there: parallel loops on a GPU as dimensions of the grid,
    loops of tiles as `(block)`, each tile with the extents that are then computed at a time.
    Without one it shows what was said and nothing more.  `kernel.schedule` has the target of the
    kernel, and `te.lower(s, target, dump=...)` shows the nests after each pass for any.

    Attributes:
        fallbacks: what of the default rules was refused for this computation, and what was taken
            in its place; empty for a schedule that is written by hand.
        settled: names of the stages that are kernels of their own for that reason: no other rule
            looks at them.
    """

    def __init__(
        self,
        plan: Plan,
        decisions: Mapping[str, object] | None = None,
        target: str | Target | None = None,
        device: Device | None = None,
    ) -> None:
        self.target = None if target is None else str(Target.parse(target))
        self._device = device
        self._state = State(plan, {}, _lineage(plan.outputs, None), (places(plan),))
        self._steps: list[Step] = []
        self._before: list[State] = []
        self._decisions = dict(decisions or {})
        self.usual: dict[str, object] = {}  # defaults of knobs in place of those they are given
        self.settled: frozenset[str] = frozenset()
        self.fallbacks: tuple[Fallback, ...] = ()
        self.in_registers = False  # whether what is attached must have a constant size

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the schedule to a file.

        Args:
            path: `.py` for its steps as Python, `.json` for its trace (`te.Trace.from_json` and
                `te.replay` read it), `.txt` for its loop nest, `.html` for its page (`view`).

        Returns:
            The path.

        Raises:
            ScheduleError: another ending, or a file that cannot be written.
        """
        return saving.save(
            path,
            "a schedule",
            {
                ".py": saving.text(self.as_python),
                ".json": saving.text(self.trace.to_json),
                ".txt": saving.text(lambda: f"{self}\n"),
                ".html": lambda chosen: self.view(chosen),
            },
            ScheduleError,
        )

    @property
    def plan(self) -> Plan:
        """What has been decided so far, as immutable data."""
        return self._state.plan

    @property
    def plans(self) -> tuple[Plan, ...]:
        """What was decided before each step, and what is now."""
        return (*(state.plan for state in self._before), self.plan)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All stages, producers before readers, inputs included."""
        return Numbered(Stage(self, name) for name in places(self.plan).names)

    @property
    def stage_map(self) -> dict[Operation, Stage]:
        """The stage of each operation, as they are now."""
        return {stage.op: stage for stage in self.stages}

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The tensors the schedule computes, as they are after rewrites."""
        return self.plan.outputs

    @property
    def definition(self) -> tuple[Tensor, ...]:
        """The tensors the schedule computes, as they were given."""
        return (self._before[0].plan if self._before else self.plan).outputs

    @property
    def trace(self) -> Trace:
        """The primitive calls so far."""
        return Trace(tuple(self._steps))

    @property
    def last_made(self) -> tuple[str, ...]:
        """Labels of the axes, or names of the stages, that the last step made."""
        return self._steps[-1].results

    @property
    def device(self) -> Device | None:
        """What it is made for: the device that was given, else that of the target; None where
        neither is."""
        if self._device is None and self.target is not None:
            self._device = Target.parse(self.target).resolve()
        return self._device

    @property
    def _where(self) -> Target | None:
        return None if self.target is None else Target.parse(self.target)

    @property
    def lineage(self) -> Lineage:
        """An object that schedules of the same outputs share after equal steps."""
        return self._state.lineage

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The knobs asked for so far, in order."""
        return tuple(self._state.knobs.values())

    def copy(self, *, decided: bool = True, target: Target | None = None) -> Schedule:
        """An independent schedule in the same state.

        Args:
            decided: False leaves the decisions behind, so that knobs to come take their defaults.
            target: where the copy is to run, in place of where this one is.

        Returns:
            The copy.
        """
        other = object.__new__(type(self))
        other.target, other._device = self.target, self._device
        if target is not None and str(target) != self.target:
            other.target, other._device = str(target), None
        other._decisions = dict(self._decisions if decided else {})
        other.usual = dict(self.usual)
        other._state = self._state
        other._steps, other._before = self._steps.copy(), self._before.copy()
        other.settled, other.fallbacks = self.settled, self.fallbacks
        other.group_names = self.group_names
        other.in_registers = self.in_registers
        return other

    def __getitem__(self, key: Tensor | Operation | Stage | str) -> Stage:
        """The stage of a tensor or operation (of now, or of before a rewrite), or the stage of a
        name.
        """
        return Stage(self, self.resolve(key, "s[...]", caller(1)))

    def resolve(self, key: object, subject: str, site: tuple[str, int]) -> str:
        """The name of the stage that `key` stands for."""
        name: str | None = None
        match key:
            case Stage(schedule=schedule):
                name = self._present(key.name) if schedule is self else None
            case Tensor(op=op) | (Operation() as op):
                name = self._name_of(op)
            case str():
                name = self._present(key)
            case _:
                pass
        if name is not None:
            return name
        shown = repr(key) if isinstance(key, str) else kind_of(key)
        if isinstance(key, Stage):
            where = "that is gone" if key.schedule is self else "of another schedule"
            shown = f"stage {key.name} {where}"
        elif isinstance(key, (Tensor, Operation)):
            same = "" if self._present(key.name) is None else " of another computation"
            shown = f"{key.name}{same}"
        raise ScheduleError(
            f"{shown} is not part of the schedule",
            stage=shown,
            subject=subject,
            facts=[("stages", ", ".join(places(self.plan).names))],
            hint="pass a tensor that the outputs of this schedule read, or the name of a stage",
            called=Call("", "", file=site[0], line=site[1]).site,
        )

    def _name_of(self, op: Operation) -> str | None:
        """Which stage an operation, of now or of before a rewrite, is."""
        eras = self._state.eras
        for era in (eras[-1], eras[0], *reversed(eras[:-1])):
            if op in era.by_op:
                return era.names[era.by_op[op]]
        return None

    def _present(self, name: str) -> str | None:
        """`name` when it is a stage now."""
        return name if self.plan.has(name) else None

    def knows(self, tensor: Tensor) -> bool:
        """Whether a tensor is one of the computation, as it is or as it was before a rewrite."""
        return self._name_of(tensor.op) is not None

    def with_plan(self, plan: Plan) -> Schedule:
        """A schedule of the same steps that is decided as `plan` says.  Not for users."""
        other = self.copy()
        other._state = replace(other._state, plan=plan)
        return other

    def commit(self, call: Call, plan: Plan, made: Made = (), stages: tuple[str, ...] = ()) -> Made:
        """Take over the plan that a primitive made.  Not for users: primitives call it."""
        carry(self.plan, plan)
        invariants.require_invariants(self.plan, call, plan)
        if self.in_registers:
            sizes.require_constant_sizes(self.plan, call, plan)
        results = stages
        if made:
            known = labels(plan.stage(call.stage))
            results = tuple(known[axis] for axis in made)
        before = self._state
        plan = retiring(before.plan, plan, call.primitive)
        step = record(before.plan, call, results)
        pass_on(before.plan, plan)
        self._before.append(before)
        self._steps.append(step)
        known = places(plan)
        eras = before.eras if known is before.eras[-1] else (*before.eras, known)
        self._state = State(plan, before.knobs, _lineage(before.lineage, step), eras)
        try:
            tell(self)
        except TedslError:
            self.undo()
            raise
        return made

    def commit_all(self, steps: Sequence[tuple[Call, Plan]]) -> None:
        """Take over plans one after the other: all of them, or, when one is refused, none."""
        before = len(self._steps)
        try:
            for call, plan in steps:
                self.commit(call, plan)
        except TedslError:
            made = len(self._steps) - before
            if made:
                self.undo(made)
            raise

    def undo(self, n: int = 1) -> None:
        """Take back the last steps: the schedule, its trace and its knobs are as they were before
        them.

        Axes and stages that those steps made are refused from then on; axes that they consumed are
        loops again.

        Args:
            n: how many steps.

        Raises:
            ScheduleError: the schedule has not as many steps.
        """
        count = whole_number(n)
        if count is None or not 1 <= count <= len(self._steps):
            have = len(self._steps)
            done = "; ".join(source.call_text(step) for step in self._steps)
            raise ScheduleError(
                f"the schedule has {have} step{'' if have == 1 else 's'} to take back",
                subject=f"undo({n!r})",
                primitive="undo",
                facts=[("steps", done or "none")],
                hint=f"give a number from 1 to {have}" if have else "call a primitive first",
                called=Call("", "", file=(site := caller(1))[0], line=site[1]).site,
            )
        self._state = self._before[-count]
        del self._before[-count:], self._steps[-count:]

    def size(self, name: str) -> Var:
        """The runtime size called `name`."""
        known = runtime_sizes(self.plan)
        if name in known:
            return known[name]
        raise ScheduleError(
            f"the computation has no size {name!r}",
            subject="size",
            facts=[("sizes", ", ".join(known) or "none")],
            hint="use one of the sizes listed",
        )

    def knob(self, name: str, choices: Sequence[Choice], default: Choice | None = None) -> Choice:
        """A choice that a search may make.

        Args:
            name: unique in the schedule.
            choices: what may be chosen.
            default: what is chosen when nothing was decided; the first choice if not given.

        Returns:
            The decision given to `create_schedule` under this name, else the default.
        """
        options = tuple(choices)
        if not options:
            raise _knob_error(name, "has no choices", options, "give at least one choice")
        chosen: object = options[0] if default is None else default
        if name in self.usual and any(_same(option, self.usual[name]) for option in options):
            chosen = self.usual[name]
        if name in self._decisions:
            chosen = self._decisions[name]
        match = [option for option in options if _same(option, chosen)]
        if not match:
            what = "decision" if name in self._decisions else "default"
            raise _knob_error(name, f"has the {what} {chosen!r}", options, "use one of the choices")
        knobs = self._state.knobs
        earlier = knobs.get(name)
        if earlier is not None and not _same(earlier.choices, options):
            hint = "use another name for the second knob"
            raise _knob_error(name, "was asked for before with other choices", options, hint)
        asked = {**knobs, name: Knob(name, options, match[0])}
        self._state = replace(self._state, knobs=asked)
        return match[0]

    def diff(self, other: Schedule) -> differences.Difference:
        """How this schedule and another differ: in what is decided, whatever the calls that led
        there.

        Args:
            other: a schedule of the same computation, or of one with the same names.

        Returns:
            The difference as data, this schedule on the left; false, and empty as text, when the
            schedules are equal.
        """
        return differences.difference(self.plan, other.plan)

    @deep
    def explain(self, **sizes: int) -> recompute.ScheduleReport:
        """How often each attached or inlined stage computes the same element, and which loop makes
        it; more than twice is marked.  A copy computes nothing: what it reads, `te.explain` says in
        bytes.  Also what pipelined loops do on each target.

        Args:
            sizes: values of runtime sizes to count with, by name; 1024 where not given.

        Returns:
            One row for each such stage: `print` it, or read `.redundant` and `report[name]`.
        """
        return recompute.explain_plan(self.plan, sizes, self._where)

    @deep
    def as_python(self, *names: str) -> str:
        """The schedule as Python: run with `te` and the outputs, it makes `s`, a schedule of the
        same trace.

        Args:
            names: what the outputs are called in the text; by default their own names.
        """
        of_schedule = primitives_of(type(self))
        return source.python_source(self.definition, self._steps, self.plans, names, of_schedule)

    @deep
    def python_steps(self) -> list[list[str]]:
        """The lines of `as_python`: those of `create_schedule`, then those of each step."""
        of_schedule = primitives_of(type(self))
        return source.python_steps(self.definition, self._steps, self.plans, (), of_schedule)

    @deep
    def __str__(self) -> str:
        return printer.print_plan(self.plan, self._where)

    def __repr__(self) -> str:
        return f"Schedule({', '.join(places(self.plan).names)})"


def storing(schedule: Schedule, tensors: Iterable[Tensor]) -> tuple[Schedule, dict[Tensor, Tensor]]:
    """A schedule of the same stages that also has tensors in between as outputs.

    Args:
        schedule: it stays as it is.
        tensors: any; inputs, outputs, and what is inlined or of another computation are left out.

    Returns:
        The schedule, and which output each of the others is: what a kernel of its own stores, or of
        what is computed inside a loop another stage, which computes it once more.
    """
    plan, made = schedule.plan, dict[Tensor, Tensor]()
    for tensor in tensors:
        known = tensor in schedule.outputs or tensor in schedule.definition
        if known or not schedule.knows(tensor):
            continue
        name = schedule.resolve(tensor, "build", ("", 0))
        found = copies.stored(plan, plan.stage(name), tensor.index)
        if found is not None:
            plan, made[tensor] = found
    return (schedule.with_plan(plan), made) if made else (schedule, made)


def _same(a: object, b: object) -> bool:
    """Equal choices; a list read back from JSON equals the tuple it was."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        x, y = cast("Sequence[object]", a), cast("Sequence[object]", b)
        return len(x) == len(y) and all(_same(u, v) for u, v in zip(x, y, strict=True))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(cast("Any", a), cast("Any", b))
    return bool(cast("Any", a) == b) and isinstance(a, bool) == isinstance(b, bool)


def _knob_error(name: str, reason: str, choices: tuple[object, ...], hint: str) -> ScheduleError:
    return ScheduleError(
        f"the knob {name!r} {reason}",
        primitive="knob",
        subject=f"knob({name!r})",
        facts=[("choices", ", ".join(repr(choice) for choice in choices) or "none")],
        hint=hint,
    )
