"""Why two stages are not in one kernel: each step that would fuse them is tried on a copy.

What is refused is quoted, so that forcing it raises that very reason.  What is legal is lowered and
judged by the static model: seconds first, with the bytes, operations, registers and programs that
explain them.  Imports `scheduling`, `lower`, `backends` by name, and the rest of `explaining`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import Any

from tedsl.cost.estimate import estimate
from tedsl.devices import Device, GpuDevice
from tedsl.errors import BackendError, LowerError, ScheduleError, TedslError
from tedsl.explaining.data import Attempt, Figures, Pair, Relation, Verdict
from tedsl.explaining.steps import (
    Plot,
    into_producer,
    into_reader,
    shared_inputs,
    together,
    without_steps,
)
from tedsl.explaining.text import scaled
from tedsl.expr.nodes import Axis, AxisKind, Const
from tedsl.lower.pipeline import lower
from tedsl.runtime.timing import format_seconds
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.kernels.tree import depth, kernel_leader, kernel_tree
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.plan.graph import path_between, tensors_read
from tedsl.scheduling.plan.inline import inline_stages
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.trace.replay import apply_step
from tedsl.scheduling.trace.trace import AxisRef, Step
from tedsl.target import Target, TargetKind
from tedsl.tensor.tensor import ComputeOp, ExternOp, PlaceholderOp, ScanOp

CLEAR = 0.1
"""Of the time of a program: what the model can tell apart."""
TILE = 1 << 16
"""Points of the largest tile that loops are made dimensions of."""


def refusal_text(error: TedslError) -> str:
    """The text of an error without the place of the call."""
    return "\n".join(line for line in str(error).splitlines() if not line.startswith("  called  "))


class Judge:
    """Tries fusions of one schedule on copies of it.

    Args:
        schedule: is not changed.
        target: that it runs on.
        facts: of the device.
        sizes: values of runtime sizes, by name.
    """

    def __init__(
        self, schedule: Schedule, target: Target, facts: Device, sizes: Mapping[str, int]
    ) -> None:
        self.schedule = schedule
        self.target = target
        self.facts = facts
        self.sizes = sizes
        self.plan: Plan = inline_stages(schedule.plan)
        self.bases: dict[frozenset[int], Schedule] = {}

    @cached_property
    def now(self) -> Figures:
        """Of the schedule as it is."""
        return self.figures(self.schedule)

    def pairs(self) -> tuple[Pair, ...]:
        """Every two stages of different kernels of which one reads the other, and every two
        kernels that read the same and do not depend on each other."""
        return (*self._readers(), *self._siblings())

    def _readers(self) -> Iterator[Pair]:
        for reader in self.plan.stages:
            if isinstance(reader.op, PlaceholderOp) or reader.placement.head:
                continue
            for producer in dict.fromkeys(tensor.op for tensor in tensors_read(reader.op)):
                stage = self.plan.stage_of(producer)
                if isinstance(producer, PlaceholderOp) or self._is_one(stage.name, reader.name):
                    continue
                names = (stage.name, reader.name)
                plots = [
                    *into_reader(self.schedule, *names),
                    *into_producer(self.schedule, *names),
                ]
                yield self._judged(*names, Relation.READS, (), plots)

    def _siblings(self) -> Iterator[Pair]:
        plan = self.plan
        led = kernel_tree(plan).led
        roots = [
            s
            for s in plan.stages
            if isinstance(s.op, ComputeOp) and not isinstance(s.op, ScanOp) and s.name in led
        ]
        for first, second in combinations(roots, 2):
            shared = shared_inputs(plan, first.name, second.name)
            if not shared or self._depends(first.name, second.name):
                continue
            plots = list(together(self.schedule, first.name, second.name))
            names = tuple(tensor.name for tensor in shared)
            yield self._judged(first.name, second.name, Relation.SIBLINGS, names, plots)

    def _is_one(self, first: str, second: str) -> bool:
        plan = self.plan
        a, b = plan.stage(first), plan.stage(second)
        if isinstance(a.op, ExternOp) or isinstance(b.op, ExternOp):
            return False
        return kernel_leader(plan, a) is kernel_leader(plan, b)

    def _depends(self, first: str, second: str) -> bool:
        plan = self.plan
        a, b = plan.stage(first), plan.stage(second)
        return bool(path_between(plan, a, b) or path_between(plan, b, a))

    # One pair.

    def _judged(
        self,
        first: str,
        second: str,
        relation: Relation,
        shared: tuple[str, ...],
        plots: Sequence[Plot],
    ) -> Pair:
        tried = [self.attempt(plot) for plot in plots]
        legal = [each for each in tried if each.figures is not None]
        if not legal:
            reason = tried[0].refused if tried else f"no step joins {first} and {second}"
            return Pair(first, second, relation, shared, Verdict.ILLEGAL, reason, tuple(tried))
        legal.sort(key=lambda each: math.inf if each.figures is None else each.figures.seconds)
        best = legal[0].figures
        verdict = Verdict.EQUAL
        if best is not None and best.seconds > (1 + CLEAR) * self.now.seconds:
            verdict = Verdict.WORSE
        elif best is not None and best.seconds < (1 - CLEAR) * self.now.seconds:
            verdict = Verdict.BETTER
        reason = "" if best is None else self._numbers(best)
        refused = [each for each in tried if each.figures is None]
        return Pair(first, second, relation, shared, verdict, reason, (*legal, *refused))

    def attempt(self, plot: Plot) -> Attempt:
        """What becomes of one way to fuse."""
        without = tuple(sorted(plot.without))
        taken: list[Step] = []
        try:
            figures = self.figures(self.forced(plot, taken))
        except (ScheduleError, LowerError, BackendError) as error:
            return Attempt(tuple(taken), without, refusal_text(error))
        return Attempt(tuple(taken), without, "", figures)

    def forced(self, plot: Plot, taken: list[Step]) -> Schedule:
        """The schedule after the steps of a plot, which are noted in `taken` one by one.

        Raises:
            ScheduleError: the last step taken was refused.
        """
        made = self.base(plot.without).copy()
        for step in plot.steps:
            taken.append(step)
            apply_step(made, step)
        for name in plot.tiled if self.target.is_triton else ():
            for step in _tiling(made, name):
                taken.append(step)
                apply_step(made, step)
        return made

    def base(self, without: frozenset[int]) -> Schedule:
        """The schedule without some steps of its trace."""
        if without not in self.bases:
            self.bases[without] = without_steps(self.schedule, without)
        return self.bases[without]

    def figures(self, schedule: Schedule) -> Figures:
        """What the static model says of a schedule.

        Raises:
            LowerError: the target cannot carry it out.
            BackendError: the target's compiler, or the device, would refuse it.
        """
        module = lower(schedule.plan, self.target)
        if isinstance(self.facts, GpuDevice):
            emit: Callable[..., object] = importlib.import_module(
                "tedsl.backends.triton.emit.module"
            ).emit
            emit(module, Target(TargetKind.CUDA), self.facts)
        values = {var: self.sizes[var.name] for var in module.sizes if var.name in self.sizes}
        found = estimate(module, self.facts, values)
        if found.cannot_launch is not None:
            raise BackendError(
                f"{found.cannot_launch}", hint="make tiles smaller, or keep two kernels"
            )
        return Figures(
            found.seconds, found.bytes, found.flops, found.registers, found.shared,
            found.programs, found.kernels,
        )  # fmt: skip

    def _numbers(self, forced: Figures) -> str:
        """What speaks for and against a fusion, the time first."""
        now = self.now
        parts = [
            f"predicted {format_seconds(forced.seconds)} fused, {format_seconds(now.seconds)} now"
        ]
        saved = now.nbytes - forced.nbytes
        if abs(saved) > 0.005 * now.nbytes:
            parts.append(f"{'saves' if saved > 0 else 'moves'} {scaled(abs(saved))}B")
            parts[-1] += "" if saved > 0 else " more"
        more = forced.flops - now.flops
        if more > 0.005 * now.flops:
            again = f" ({forced.flops / now.flops:.3g} times)" if now.flops else ""
            parts.append(f"computes {scaled(more)}flop more{again}")
        limit = self.facts.registers_thread if isinstance(self.facts, GpuDevice) else math.inf
        if forced.registers > limit:
            parts.append(f"needs {forced.registers:.0f} registers of {limit}")
        if forced.programs < now.programs and self._is_narrow(forced.programs):
            unit = "program" if isinstance(self.facts, GpuDevice) else "thread"
            unit += "s" * (forced.programs != 1)
            parts.append(f"runs {forced.programs:.3g} {unit} instead of {now.programs:.3g}")
        if forced.kernels < now.kernels:
            parts.append(f"{forced.kernels} kernel{'s' * (forced.kernels != 1)} of {now.kernels}")
        return "; ".join(parts)

    def _is_narrow(self, programs: float) -> bool:
        """True when so few programs leave processors idle."""
        if isinstance(self.facts, GpuDevice):
            return programs < 4 * self.facts.sms
        return programs < self.facts.cores


def _tiling(schedule: Schedule, name: str) -> list[Step]:
    """Calls that make dimensions of a tile of the plain data loops of a stage inside of those that
    other stages share or are attached at.

    Loops with more points in all than a tile may have are left as they are.
    """
    stage = schedule.plan.stage(name)
    known = labels(stage)
    hosts = [each.placement.axis for each in schedule.plan.stages if each.placement.host == name]
    inside = [n + 1 for n, a in enumerate(stage.leaf_axes) if any(a is host for host in hosts)]
    own = stage.leaf_axes[max([depth(schedule.plan, stage), *inside]) :]
    open_axes = [a for a in own if a.kind is AxisKind.DATA and a not in stage.marks]
    sizes = [_extent(axis) for axis in open_axes]
    if not sizes or 0 in sizes or math.prod(sizes) > TILE:
        return []
    return [Step("vectorize", name, (AxisRef(name, known[axis]),)) for axis in open_axes]


def _extent(axis: Axis) -> int:
    """A constant extent; 0 where it is none."""
    extent: Any = None if axis.domain is None else axis.domain.extent
    return int(extent.value) if isinstance(extent, Const) else 0
