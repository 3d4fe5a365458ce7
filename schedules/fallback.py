"""What is taken where a target cannot carry out a rule: the next simpler one, down to a kernel for
each stage, which always can.

The primitives refuse what is illegal, the lowering what a target cannot do, the target's compiler
what its device has no room for (shared memory, registers).  Such an error names a kernel; the
stages of that kernel, and no others, are scheduled again one level lower.  All rules run again
then, so that what depends on the kernel follows; a computation for which nothing is refused pays
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TypeVar

from tedsl.backends.triton.compile import compile_time
from tedsl.errors import BackendError, LowerError, ScheduleError, TedslError, within
from tedsl.ir.nodes import Module
from tedsl.schedules.analysis.groups import Group, find_groups
from tedsl.schedules.analysis.views import View, definitions, volume
from tedsl.schedules.cpu import select as cpu
from tedsl.schedules.cpu.tasks import SMALL
from tedsl.schedules.fusion.horizontal import Beside
from tedsl.schedules.gpu import select as gpu
from tedsl.schedules.gpu.compile_time import in_time
from tedsl.schedules.gpu.weighed_knobs import weigh
from tedsl.schedules.loops import fused
from tedsl.scheduling.handles.fallback import Fallback
from tedsl.scheduling.handles.schedule import Knob, Schedule, create_schedule
from tedsl.scheduling.kernels.tree import kernels_with
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.plan.scan_structure import scan_stages
from tedsl.target import Target
from tedsl.tensor.scan_body import body_of
from tedsl.tensor.tensor import ComputeOp, Outputs

Result = TypeVar("Result")
# Elements of a program of a plain pointwise kernel.
LANES = 128


class Level(IntEnum):
    """How simple the rules for a stage are, the usual ones first."""

    CHOSEN = 0
    MODEST = 1
    ALONE = 2
    PLAIN = 3
    BARE = 4


TAKEN = {
    Level.MODEST: "the same rules without what they may do, in pieces of half the size",
    Level.ALONE: "a kernel for each stage",
    Level.PLAIN: "a kernel for each stage, of plain loops",
    Level.BARE: "a kernel for each stage, as it is defined",
}
Caution = Mapping[str, Level]
Rules = Callable[[Schedule, Target, Caution], None]
Judge = Callable[[Module], None]


class _TooLongError(LowerError):
    """The compilers would take too long over a kernel of the rules."""


class _InMemoryError(LowerError):
    """A kernel of the rules keeps in memory a tile that was to stay in registers."""


class Attempts:
    """The schedules of a computation by the default rules, the usual one first.

    Args:
        rules: schedule all stages, those that are named by the rules of a level.
        outputs: tensors or operations to compute.
        target: where it is to run.
    """

    def __init__(
        self,
        rules: Rules,
        outputs: Outputs,
        target: Target,
    ) -> None:
        self.target = target
        self._rules = rules
        self._device = target.resolve()
        self._plan = create_schedule(outputs).plan
        self._names = [s.name for s in self._plan.stages if isinstance(s.op, ComputeOp)]
        self._caution: dict[str, Level] = {}
        self._modest: dict[str, dict[str, object]] = {}
        self._smaller: dict[str, object] = {}
        self._patient = False
        self._found: tuple[Fallback, ...] = ()
        self._last = Schedule(self._plan, {}, self.target, self._device)

    def carried_out(self, use: Callable[[Schedule, Judge], Result]) -> Result:
        """What `use` makes of the first schedule of which nothing is refused.

        Args:
            use: lowers the schedule, shows the judge what it has lowered, and compiles it; called
                again with a simpler one where it raises what names a kernel, or any `LowerError`.
                The judge refuses what would compile for too long, and kernels whose tiles do not
                stay in registers, as long as there is something simpler.

        Raises:
            TedslError: what `use` raises for the simplest schedule, and all that is no refusal.
        """
        while True:
            try:
                return use(self._schedule(), self._judge)
            except _TooLongError as error:
                if not self._chosen_smaller(error) and not self._simpler(error):
                    self._patient = True
            except _InMemoryError as error:
                if not self._simpler(error):
                    self._patient = True
            except (ScheduleError, LowerError, BackendError) as error:
                if isinstance(error, BackendError) and not error.kernel:
                    raise  # a missing package, a device, an argument: no schedule changes that
                if not self._simpler(error):
                    raise

    def _judge(self, module: Module) -> None:
        if not self.target.is_triton or self._patient:
            return
        for func in module.funcs:
            held = [buffer.name for buffer in func.params if buffer.private]
            if held:
                name = held[0].removesuffix("_memory")
                refusal = _InMemoryError(f"{name} is no tile that registers can keep")
                refusal.kernel = func.name
                raise refusal
        kernel, seconds = compile_time.slowest(module)
        if seconds > compile_time.LIMIT:
            error = _TooLongError(
                f"compilers would take some {seconds:.0f} s over the kernel {kernel}, of"
                f" {compile_time.LIMIT:.0f} s that the default rules allow"
            )
            error.kernel = kernel
            raise error

    def _chosen_smaller(self, error: _TooLongError) -> bool:
        """Find knobs with which the kernel compiles in time, or sooner; False without any."""
        stages = self._blamed(error) or self._names
        if any(self._level(name) for name in stages) or not self._smaller.keys().isdisjoint(
            knob.name for knob in self._last.knobs if _knob_of(knob, stages)
        ):
            return False  # once for the same kernel

        def rules(decisions: Mapping[str, object]) -> Schedule:
            made = Schedule(
                self._plan, {**self._decisions(), **decisions}, self.target, self._device
            )
            self._rules(made, self.target, self._caution)
            return made

        found = in_time(self._last, self.target, stages, rules)
        self._smaller |= found
        if found:
            shown = ", ".join(f"{name}={choice!r}" for name, choice in found.items())
            reason = str(error).splitlines()[0]
            self._found += (Fallback(tuple(stages), error.kernel, reason, f"with {shown}"),)
        return bool(found)

    def _schedule(self) -> Schedule:
        """The rules' schedule at the current levels."""
        self._last = Schedule(self._plan, self._decisions(), self.target, self._device)
        self._last.fallbacks = self._found
        self._rules(self._last, self.target, self._caution)
        return self._last

    def _decisions(self) -> dict[str, object]:
        modest = {
            knob: value
            for name, chosen in self._modest.items()
            if self._caution.get(name) is Level.MODEST
            for knob, value in chosen.items()
        }
        return {**self._smaller, **modest}

    def _level(self, name: str) -> Level:
        return self._caution.get(name, Level.CHOSEN)

    def _simpler(self, error: TedslError) -> bool:
        """Lower the level of the stages that an error is about, else of all; False where none can
        be lowered."""
        for names in (self._blamed(error), self._names):
            names = [name for name in names if self._level(name) < Level.BARE]
            if names:
                break
        else:
            return False
        level = Level(min(map(self._level, names)) + 1)
        if level is Level.MODEST:
            known = {knob.name: knob for knob in self._last.knobs}
            chosen = {name: _modest(name, known.values()) for name in names}
            self._modest |= chosen
            level = level if any(chosen.values()) else Level.ALONE
        names = [name for name in names if self._level(name) < level]
        self._caution |= dict.fromkeys(names, level)
        reason = str(error).splitlines()[0]
        self._found += (Fallback(tuple(names), error.kernel, reason, TAKEN[level]),)
        return True

    def _blamed(self, error: TedslError) -> list[str]:
        """The stages of the definition in the kernel where an error arose; none where that is not
        known."""
        if isinstance(error, ScheduleError) and error.primitive == "knob":
            return [name for name in self._names if self._level(name) is Level.MODEST]
        place = error.kernel or getattr(error, "stage", "")
        plan = self._last.plan
        present = {stage.name for stage in plan.stages}
        if place not in present:
            place = re.sub(r"\.v\d+$", "", place)  # a version of a kernel
        if place not in present:
            return []
        kernels = set(kernels_with(plan, plan.stage(place)))
        inside = {
            _origin(stage.name, self._names)
            for stage in plan.stages
            if isinstance(stage.op, ComputeOp) and not kernels.isdisjoint(kernels_with(plan, stage))
        }
        found = [name for name in self._names if name in inside]
        return [*found, *_scans_with(self._plan, found)]


def _knob_of(knob: Knob, stages: Iterable[str]) -> bool:
    """Whether the knob is one of the stages'."""
    return any(knob.name.startswith(f"{name}.") for name in stages)


def _origin(name: str, known: Sequence[str]) -> str:
    """The stage of the definition that a stage was made of: `C` for `C.local.rf`."""
    fitting = [each for each in known if name == each or name.startswith(f"{each}.")]
    return max(fitting, key=len, default="")


def _scans_with(plan: Plan, names: Sequence[str]) -> list[str]:
    """The scans of which some stages compute the steps, and their other steps."""
    found: dict[str, None] = {}
    for stage, scan in scan_stages(plan):
        own = [stage.name, *(plan.stage_of(op).name for op in body_of(scan))]
        if not set(own).isdisjoint(names):
            found |= dict.fromkeys(each for each in own if each not in names)
    return list(found)


def _modest(name: str, knobs: Iterable[Knob]) -> dict[str, object]:
    """The choices of the kernels of a stage that ask for less: options off, tiles of half the size,
    and `root` for what has a choice of placement."""
    found: dict[str, object] = {}
    for knob in knobs:
        if not _knob_of(knob, [name]):
            continue
        chosen = knob.chosen
        if isinstance(chosen, bool):
            less: object = False
        elif isinstance(chosen, int):
            below = [n for n in knob.choices if isinstance(n, int) and 2 * n <= chosen]
            less = max(below, default=chosen)
        else:
            less = "root"
        if less != chosen and less in knob.choices:
            found[knob.name] = less
    return found


def left_scans(s: Schedule, caution: Caution) -> list[str]:
    """The scans that are left as they are defined."""
    return [
        stage.name
        for stage, _ in scan_stages(s.plan)
        if caution.get(stage.name, Level.CHOSEN) >= Level.ALONE
    ]


def settle(s: Schedule, target: Target, caution: Caution) -> None:
    """Make the stages that are to be alone kernels of their own; no other rule looks at them."""
    for name, level in caution.items():
        view = definitions(s)
        if level < Level.ALONE or name not in view:
            continue
        known = {stage.name for stage in s.plan.stages}
        if level is Level.ALONE:
            (group,) = find_groups(View({name: view[name]}), [name], not target.is_triton)
            schedule_kernel(s, group, target, Beside(launches=target.is_triton))
        elif level is Level.PLAIN:
            with within(name):
                _plain(s, name, target)
        made = {stage.name for stage in s.plan.stages} - known
        s.settled |= {name, *made}


def schedule_kernel(s: Schedule, group: Group, target: Target, beside: Beside) -> None:
    """Choose the rule for one kernel."""
    with within(group.root):
        if target.is_triton:
            weigh(s, group, target)
            gpu.schedule_group(s, group, target, beside)
        else:
            cpu.schedule_group(s, group, beside)


def _plain(s: Schedule, name: str, target: Target) -> None:
    """A stage as a pointwise kernel, its reductions as serial loops: over the threads, or as lanes
    of programs."""
    stage, op = s[name], definitions(s)[name]
    if not op.axes:
        return
    flat = fused(stage, op.axes)
    if target.is_triton:
        outer, inner = stage.split(flat, factor=LANES)
        stage.bind(outer, "blockIdx.x")
        stage.vectorize(inner)
        return
    total = volume((*op.axes, *op.reduce_axes))
    if total is None or total > SMALL:
        stage.parallel(flat)
